"""Changed contents under old names and times: each cache is computed again or refused, never believed."""
import hashlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numba
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from b2t_kit.lm import model as lm_model
from b2t_kit.lm.model import fingerprint_of, map_model
from b2t_kit.adapt.source import AdaptedRun
from b2t_kit.cli import main
from b2t_kit.core.compiled import compiled
from b2t_kit.core.cache import MEMO, CachedFiles, content_hash, file_mark, stored_key
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import load_json, save_json
from b2t_kit.core.settings import to_dict
from b2t_kit.data.dataset import Recordings
from b2t_kit.decode import align
from b2t_kit.decode import decode as decoding
from b2t_kit.decode import search as searching
from b2t_kit.decode import tune
from b2t_kit.decode.combine import COMBINATIONS
from b2t_kit.decode.search import BeamSearch, SearchConfig, read_hotwords, search_key
from b2t_kit.rescore.llm import CausalScorer
from b2t_kit.decode import submission
from b2t_kit.precision import Precision
from b2t_kit.adapt import adapt, judge
from b2t_kit.adapt import source as adapted_source
from b2t_kit.speech import evaluate, logits as speech_logits
from b2t_kit.adapt.adapt import AdaptConfig
from b2t_kit.speech.calibrate import Calibration
from b2t_kit.speech.decoder import load_decoder
from b2t_kit.speech.logits import logits_key
from b2t_kit.speech.evaluate import results_folder
from b2t_kit.lexicon.lexicon import own_words
from b2t_kit.models.linear import LinearConfig
from b2t_kit.training.checkpoint import best_checkpoint
from test_words import DAY, train_legible

pytestmark = pytest.mark.second_tier

DATA, RUN, CPU = "--data data", "--run 1/run", "--device cpu"
BOTH = "--runs 1/run 2/run"
WORDS = f"{CPU} --lm model.b2tlm --beam 10 --n-best 4"
DECODE = f"decode {RUN} {DATA} {WORDS}"
REPORT = f"report {RUN} {DATA} {CPU} --pictures 0"
RESCORE = f"rescore 1/run/decode/val/nbest.jsonl --llm causal {CPU} --out better.jsonl"
SUBMIT = f"submit {DATA} {CPU} --lm model.b2tlm"
VAL, TEST = (Path(f"data/{DAY}/data_{split}.hdf5") for split in ("val", "test"))
VAL_LOGITS = Path("1/run/decode/val/logits.hdf5")


def run(command: str) -> int:
    return main(command.split())


@pytest.fixture(scope="module")
def good(legible: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    "A legible day, two runs of one name and step, and words of one's own."
    folder = shutil.copytree(legible, tmp_path_factory.mktemp("caches") / "good")
    (folder / "1").mkdir()
    (folder / "run").rename(folder / "1/run")
    train_legible(folder / "data", folder / "2/run", "--eval-every 0 --seed 2")
    (folder / "words.txt").write_text("family F AE M L IY\n")
    (folder / "names.txt").write_text("wojciechowski\n")
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    "What took long, in order: the network, a search of all trials, adapting, the large model."
    found: list[str] = []
    for owner, name, what in ((speech_logits, "decode_greedily", "network"), (decoding, "decode_trials", "search"),
                              (adapt.AdaptingDecoder, "trial", "adapting"), (CausalScorer, "_scores", "large model")):
        def noted(*given, plain=getattr(owner, name), what=what, **named):
            found.append(what)
            return plain(*given, **named)
        monkeypatch.setattr(owner, name, noted)
    return found


def rewrite(path: str | Path, change: Callable[[Path], object]) -> None:
    "Change a file and put its modification time back."
    times = Path(path).stat()
    change(Path(path))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def in_hdf5(change: Callable[[h5py.Group], object]) -> Callable[[Path], None]:
    "Change the first trial of a file."
    def changed(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file["trial_0000"] if "trial_0000" in file else file[f"{DAY}/trial_0000"])
    return changed


def noise(path: Path) -> None:
    generator = np.random.default_rng(5)
    with h5py.File(path, "r+") as file:
        for group in file.values():
            group["input_features"][...] = generator.standard_normal(group["input_features"].shape, dtype=np.float32)


def one_weight(path: Path) -> None:
    "One bit of the weights, with the marker of the checkpoint in step: a sound checkpoint of another training."
    tensors = load_file(path)
    name = max(tensors, key=lambda one: tensors[one].size)
    tensors[name].reshape(-1).view(np.int32)[7] ^= 1
    save_file(tensors, path)
    record = load_json(path.parent / ".complete")
    record["files"][path.name] = file_mark(path)
    save_json(path.parent / ".complete", record)


def last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def weights() -> Path:
    return best_checkpoint("1/run") / "ema.safetensors"


def tuned_for(model: str = "model.b2tlm", lexicon: str | None = "words.txt", boost: float = 0, decoder: str = "1/run") -> dict:
    "What weights are tuned for."
    hot = [replace(one, boost=one.boost + boost) for one in read_hotwords("names.txt", own_words(lexicon) if lexicon else {})]
    return tune.tuned_for(*decoding.choose_words(model, lexicon), hot, load_decoder(decoder).digest)


def beside(data: str = "data", part: str = "eval") -> str:
    "Where results on recordings go that are not those of the run's record."
    with Recordings(data, "val") as recordings:
        return results_folder("1/run", part, recordings).name


ATTRIBUTE = {"sentence_label": "We can hear you now."}
CHANGED: dict[str, tuple[str, set[str], dict[str, Callable[[], object]]]] = {  # command, what runs again, the changes
    "logits": (DECODE, {"network"}, {
        "a number": lambda: rewrite(VAL_LOGITS, in_hdf5(lambda trial: trial["logits"].__setitem__((2, 3), 9.0))),
        "another file": lambda: rewrite(VAL_LOGITS, lambda path: path.write_bytes(b"x")),
        "no note": lambda: Path(f"{VAL_LOGITS}.key").unlink(),
        "another note": lambda: Path(f"{VAL_LOGITS}.key").write_text("[]")}),
    "decoded lists": (REPORT, {"search"}, {
        "a language model": lambda: rewrite("model.b2tlm", lambda path: shutil.copy("other.b2tlm", path)),
        "a lexicon": lambda: rewrite("words.txt", lambda path: path.write_text("family F EH M L IY\n")),
        "hotwords": lambda: rewrite("names.txt", lambda path: path.write_text("szczepanski\n")),
        "a list": lambda: rewrite("1/run/decode/val/nbest.jsonl", lambda path: path.write_text(
            path.read_text().replace("hear", "fear"))),
        "a result": lambda: rewrite("1/run/decode/val/result.json", lambda path: path.write_text("{}")),
        "tuned weights": lambda: save_json("1/run/decoding.json", {
            "search": {"word_bonus": 3.0}, "chose": [], "temperature": None, "lm": str(Path("model.b2tlm").resolve()),
            "tuned_for": tuned_for()})}),
    "scores": (f"{RESCORE} --tune", {"large model"}, {
        "weights": lambda: rewrite("causal/model.safetensors", last_byte),
        "a vocabulary": lambda: rewrite("causal/tokenizer.json", lambda path: path.write_text(path.read_text() + "\n"))}),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_a_change_makes_run_again(what: str, here: Path, ran: list[str], capsys: pytest.CaptureFixture) -> None:
    "Each part alone; without a change nothing runs."
    command, again, changes = CHANGED[what]
    assert run(f"{DECODE} --lexicon words.txt --hotwords names.txt" if what == "decoded lists" else DECODE) == 0
    assert run(command) == 0
    for part, change in changes.items():
        ran.clear()
        assert run(command) == 0 and not set(ran) & again, part
        change()
        ran.clear()
        assert run(command) == 0 and set(ran) == again, (part, ran, capsys.readouterr().err)


def test_adapted_logits(here: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    "Computed again for a damaged file, another record, another judge, a setting or a feature."
    gru = "--config baseline --hidden 8 --num-layers 1 --steps 2 --warmup-steps 1 --eval-every 0"
    shutil.rmtree("1/run")
    assert run(f"train {gru} {CPU} {DATA} --out 1/run") == 0
    command, folder = f"{DECODE} --adapt --adapt-copies 2", Path("1/run/decode/val_adapted/adapt")
    assert run(command) == 0 and ran.count("adapting") == 4
    ran.clear()
    assert run(command) == 0 and "adapting" not in ran
    for part, change, more in (("logits", lambda: rewrite(folder / "logits.hdf5", last_byte), ""),
                               ("a record", lambda: (folder / "adapt.json").write_text('{"trials": []}'), ""),
                               ("the judge", lambda: monkeypatch.setattr(judge, "LEAST_GAIN", 0.3), ""),
                               ("a setting", lambda: None, " --adapt-lr 2e-3"),
                               ("a feature", lambda: rewrite(VAL, noise), "")):
        change()
        ran.clear()
        assert run(command + more) == 0 and ran.count("adapting") == 4, part


def test_other_recordings(here: Path, ran: list[str]) -> None:
    """Noise under the old names and times: every score is another, in folders beside those of the run's own recordings,
    which stay as they are; and no temperature is fitted to it."""
    def everything(name: str) -> list[float]:
        for command in (DECODE, f"eval {RUN} {DATA} {CPU}", REPORT, f"eval {BOTH} {DATA} {CPU}",
                        *(f"decode {BOTH} {DATA} {WORDS} --combine {way}" for way in COMBINATIONS),
                        f"{RESCORE} --tune".replace("/val/", f"/{name}/")):
            assert run(command) == 0, command
        results = [load_json(f"{place}/{name}/result.json") for place in (
            "1/run/decode", *(f"1/ensemble/{way}" for way in COMBINATIONS), "1/run/eval", "1/ensemble/eval")]
        report = load_json(f"1/run/report/{name}.json")["groups"]["all trials"]["wer"]["rate"]
        return [*(one["edits"] / one["words"] if "words" in one else one["per"] for one in results), report,
                load_json("better.weights.json")["wer"]["after"]]

    def results() -> dict[Path, bytes]:
        return {path: path.read_bytes() for top in ("1", "2") for path in Path(top).rglob("*")
                if path.is_file() and path.name != MEMO and path.suffix != ".html"}

    assert max(everything("val")) <= 0.2
    before, fitted, own = results(), Path("1/run/temperature.json").read_bytes(), VAL.read_bytes()
    rewrite(VAL, noise)
    assert min(everything(beside())) > 0.5
    after = results()
    assert {path: after[path] for path in before} == before
    shutil.copytree("data", "second/data")
    assert beside("second/data") == beside()
    rewrite(Path("second") / VAL, in_hdf5(lambda trial: trial["input_features"].__setitem__((3, 5), 1.0)))
    assert beside("second/data") != beside(), "two folders of one name"

    Path("1/run/temperature.json").unlink()
    for command in (DECODE, f"eval {RUN} {DATA} {CPU}", f"{DECODE} --split train"):
        assert run(command) == 0 and not Path("1/run/temperature.json").exists(), command
    other = load_json(f"1/run/decode/{beside()}/result.json")["temperature"]
    assert other["source"] == "estimated" and other["lacking"] == "the decoder's own validation trials"
    rewrite(VAL, lambda path: path.write_bytes(own))
    assert run(DECODE) == 0 and Path("1/run/temperature.json").read_bytes() == fitted


@pytest.mark.first_tier
def test_a_run_finds_the_recordings_of_its_training(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "In Python as on the command line; without them, the platform's folders are searched."
    monkeypatch.chdir("1")
    how = {"lm": "../model.b2tlm", "device": "cpu"}
    found = decoding.decode_run("run", settings={"beam": 10}, **how)
    assert found.folder == Path("run/decode/val") and len(found.trials) == 4
    assert len(evaluate.evaluate_run("run", device="cpu").trials) == 4
    assert submission.submit("run", "s.csv", **how)
    save_json("run/resume.json", {**load_json("run/resume.json"), "data": "gone"})
    with pytest.raises(KitError, match="looked in and below"):
        decoding.decode_run("run", **how)


@pytest.mark.first_tier
def test_tuned_weights(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Search's version, language model, lexicon, hotwords, network: each part alone; and every verb refuses."
    same, choice = "--lexicon words.txt --hotwords names.txt", Path("1/run/decoding.json")
    assert run(f"{DECODE} --tune {same}") == 0 == run(f"{DECODE} {same}")
    right = tuned_for()
    assert tune.read_tuning(choice).settings(right).beam == 10
    for wanted, message in ((tuned_for("other.b2tlm"), "another language model"), (tuned_for(lexicon=None), "other words"),
                            (tuned_for(boost=9), "other hotwords"), (tuned_for(decoder="2/run"), "other weights of the network"),
                            ({**right, "search": searching.SEARCH + 1}, "another version of the search")):
        with pytest.raises(KitError, match=rf"decoding.json: was tuned (with|for) {message}"):
            tune.read_tuning(choice).settings(wanted)

    rewrite(weights(), one_weight)
    for command in (f"decode {RUN} {same}", f"submit {RUN} --out s.csv {same}", f"report {RUN}", f"decode {BOTH} {same}",
                    f"decode {RUN} --adapt --adapt-copies 2 {same}"):
        capsys.readouterr()
        assert run(f"{command} {DATA} {CPU}") == 2, command
        lines = capsys.readouterr().err.splitlines()
        assert "decoding.json: was tuned for other weights of the network" in lines[-1], lines
        assert all(line.startswith("warning: t15.2023.08.11: columns have a mean") for line in lines[:-1]), lines
        assert len(lines) <= 2, lines
    assert not Path("s.csv").exists()


def stopped(command: str, number: int, owner: object, name: str, call: int) -> None:
    "A signal arrives just before a call: the command says so by its status, and leaves no submission."
    plain, calls = getattr(owner, name), itertools.count()

    def signalled(*given, **named):
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return plain(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, signalled)
        assert run(f"{command} new.csv") == 128 + number, (owner, name, call)
    assert not Path("new.csv").exists(), "half a submission looks like a whole one"


WRITING = [(signal.SIGTERM, submission, "write_submission", 0), (signal.SIGINT, submission, "write_atomically", 0)]
STOPS = {
    RUN: [(signal.SIGINT, speech_logits, "decode_greedily", 0), (signal.SIGTERM, searching.BeamSearch, "decode", 1),
          (signal.SIGINT, decoding.Sentences, "save", 0), *WRITING],
    f"{RUN} --adapt --adapt-copies 2": [(signal.SIGTERM, adapt.AdaptingDecoder, "trial", 2), *WRITING],
    BOTH: [(signal.SIGINT, speech_logits, "decode_greedily", 0), *WRITING],
}


@pytest.mark.parametrize("source", STOPS)
def test_a_stopped_submission_goes_on(source: str, here: Path, ran: list[str]) -> None:
    """Stopped by each signal in turn and begun again, it ends with the bytes of one that nothing stopped, from the logits that
    were there; with other weights or recordings, nothing of what was there is believed."""
    command = f"{SUBMIT} {source} --out"

    def undisturbed() -> bytes:
        shutil.copytree(here, "fresh", ignore=shutil.ignore_patterns("decode", "adapt", "ensemble", "fresh"))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir("fresh")
            assert run(f"{command} whole.csv") == 0
        whole = Path("fresh/whole.csv").read_bytes()
        shutil.rmtree("fresh")
        return whole

    whole = undisturbed()
    for moment in STOPS[source]:
        stopped(command, *moment)
    ran.clear()
    assert run(f"{command} new.csv") == 0 and Path("new.csv").read_bytes() == whole and not {"network", "adapting"} & set(ran)
    for change in (lambda: rewrite(weights(), one_weight), lambda: rewrite(TEST, noise)) if source == RUN else ():
        Path("new.csv").unlink()
        stopped(command, *WRITING[1])
        change()
        ran.clear()
        assert run(f"{command} new.csv") == 0 and "network" in ran and Path("new.csv").read_bytes() == undisturbed()


def test_weights_and_scores_of_rescoring(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Refused for another model, and for lists of another network, language model or search; pruning may differ."
    def again(**settings: float) -> object:
        return decoding.decode_run("1/run", "data", lm="model.b2tlm", device="cpu", settings={"beam": 10, **settings})

    assert again() and run(f"{RESCORE} --tune") == 0
    use = f"{RESCORE.replace('better', 'again')} --weights better.weights.json"
    assert run(use) == 0 and again(n_best=3) and run(use) == 0
    shutil.copytree(".", "../scored")
    for message, change in {
            "another large model": lambda: rewrite("causal/model.safetensors", last_byte),
            "lists of another search (network, temperature)": lambda: shutil.copytree(
                "2/run/checkpoints", "1/run/checkpoints", dirs_exist_ok=True) and again(),
            "lists of another search (lexicon, lm)": lambda: shutil.copy("other.b2tlm", "model.b2tlm") and again(),
            "lists of another search (settings)": lambda: again(blank_penalty=3.0)}.items():
        shutil.copytree("../scored", ".", dirs_exist_ok=True)
        change()
        capsys.readouterr()
        assert run(use) == 2 and f"better.weights.json: was tuned for {message}" in (said := capsys.readouterr().err), said
    shutil.copytree("../scored", ".", dirs_exist_ok=True)
    Path("1/run/decode/val/nbest.jsonl.key").unlink()
    assert run(use) == 0 and "no record of the search that made them" in capsys.readouterr().out
    scores = load_json("better.scores.json")
    scores["scores"][next(iter(scores["scores"]))] -= 0.5
    save_json("better.scores.json", scores)
    assert run(f"{RESCORE} --tune") == 2
    assert "better.scores.json: is not a file of scores, or is damaged" in capsys.readouterr().err


def test_scores_on_a_card(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Only of these weights; of other trials than those of the training's record by another name. A record that lacks a
    part is named by `export` and `report`, which write nothing."""
    def card(out: str) -> dict:
        assert run(f"export {RUN} --out {out}") == 0
        return load_json(f"{out}/config.json")["scores"]

    score = f"eval {RUN} {DATA} {CPU}"
    assert run(DECODE) == 0 == run(score) and list(card("a")) == ["val"]
    path, result = Path("1/run/config.json"), Path("1/run/eval/val/result.json")
    record, rates, key = load_json(path), load_json(result), stored_key(result)
    for changed, wrong in [*((path, {**record, "data": wrong}) for wrong in ([], {"val": {}}, {"val": 3})),
                           *((result, wrong) for wrong in ([], {**rates, "marks": 3}, {"trials": 4}))]:
        save_json(path, record)
        save_json(changed, wrong)
        CachedFiles([result], key).commit()
        capsys.readouterr()
        assert run(f"export {RUN} --out card") == 2 and not Path("card").exists(), wrong
        assert f"{changed}: " in (said := capsys.readouterr().err) and said.count("\n") == 1, said
    note = Path("1/run/decode/val/nbest.jsonl.key")
    found = load_json(note)
    save_json(note, {**found, "key": {**found["key"], "asked": []}})
    assert run(REPORT) == 2 and "nbest.jsonl.key: does not record the options of b2t decode" in capsys.readouterr().err
    note.unlink()

    assert run(score) == 0
    rewrite(VAL, noise)
    assert run(score) == 0 and list(card("b")) == ["val", "val, other trials than in training's record"]
    rewrite(weights(), one_weight)
    assert card("c") == {}
    assert run(score) == 0 and len(card("d")) == 1
    result = Path(f"1/run/eval/{beside()}/result.json")
    rewrite(result, lambda path: path.write_text(path.read_text().replace('"trials": 4', '"trials": 9')))
    assert card("e") == {}


def test_each_part_of_a_key(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Of logits, of a search and of adapted logits: with another part, or version, it is another key."
    decoder, other = load_decoder("1/run"), load_decoder("2/run")
    plain = SimpleNamespace(kind="cpu", precision=Precision("float32", False, ""))
    devices = [SimpleNamespace(kind="cuda", precision=plain.precision),
               SimpleNamespace(kind="cpu", precision=Precision("bfloat16", False, ""))]
    decoders = [other, replace(decoder, sessions=("t15.2023.08.12",)), replace(decoder, config=replace(decoder.config, per_label=True))]
    with Recordings("data", "val") as val, Recordings("data", "test") as test:
        keys = [logits_key(*given) for given in (
            (decoder, val, plain), *((one, val, plain) for one in decoders), *((decoder, val, one) for one in devices),
            (decoder, test, plain))]
        monkeypatch.setattr(speech_logits, "LOGITS", speech_logits.LOGITS + 1)
        keys.append(logits_key(decoder, val, plain))
    for change in (lambda trial: trial["input_features"].__setitem__((3, 5), 9), lambda trial: trial.attrs.update(ATTRIBUTE),
                   lambda trial: trial["seq_class_ids"].__setitem__(2, 39 - trial["seq_class_ids"][2])):
        rewrite(VAL, in_hdf5(change))
        with Recordings("data", "val") as val:
            keys.append(logits_key(decoder, val, plain))

    words, model = decoding.choose_words("model.b2tlm")
    hot = read_hotwords("names.txt", {})
    settings = {name: not value if isinstance(value, bool) else value - 1 if name == "missing_silence" else value / 2 or 1.0
                for name, value in to_dict(SearchConfig()).items()}
    configs = [replace(SearchConfig(), **{name: type(getattr(SearchConfig(), name))(value)}) for name, value in settings.items()]
    searches = [BeamSearch(words, model), BeamSearch(words, map_model("other.b2tlm")),
                BeamSearch(decoding.choose_words("model.b2tlm", lexicon="words.txt")[0], model), BeamSearch(words, model, hotwords=hot),
                BeamSearch(words, model, hotwords=[replace(one, boost=one.boost + 1) for one in hot]),
                *(BeamSearch(words, model, config) for config in configs)]
    keys += [*map(search_key, searches), search_key(searches[0], 2.0)]

    def adapted(config: AdaptConfig = AdaptConfig(), data: str = "a", search: BeamSearch = searches[0],
                temperature: float = 1.0) -> dict:
        raw = decoding.SplitLogits(Path(), [], {"logits": 1, "data": data})
        found = raw.calibrated(Calibration(temperature))
        return AdaptedRun("1/run", adapt=config).key(found, search)

    changed = [replace(AdaptConfig(), **{name: 1 if value is None else value / 2 if isinstance(value, float) else value + 1})
               for name, value in to_dict(AdaptConfig()).items()]
    keys += [adapted(), adapted(data="b"), adapted(search=searches[-1]), adapted(temperature=2.0), *map(adapted, changed)]
    for key, module, version in ((lambda: search_key(searches[0]), searching, "SEARCH"), (adapted, adapted_source, "ADAPTED")):
        monkeypatch.setattr(module, version, getattr(module, version) + 1)
        keys.append(key())
    for constant in ("LEAST_GAIN", "_EXPECTED_WEIGHT", "_FEWEST_WORDS"):
        monkeypatch.setattr(judge, constant, getattr(judge, constant) + 1)
        keys.append(adapted())
    monkeypatch.setattr(LinearConfig, "adapted", replace(LinearConfig.adapted, lr=1e-4))
    keys.append(adapted())
    assert len(set(map(content_hash, keys))) == len(keys) and content_hash(adapted()) == content_hash(keys[-1])


def test_a_large_model_file(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    "A .b2tlm that is too large to be read when it is opened is named by its content, not by what its header says."
    monkeypatch.setattr(lm_model, "READ_WHOLE", -1)
    whole, path = Path("model.b2tlm").read_bytes(), Path("model.b2tlm")
    right = fingerprint_of((opened := map_model(path)).words, opened.arrays)
    assert opened.header_hash == right == opened.hash
    place = whole.rindex(np.float32(opened.arrays.ln_p[-1]).tobytes())
    rewrite(path, lambda path: path.write_bytes(whole[:place] + np.float32(-0.7).tobytes() + whole[place + 4:]))
    assert map_model(path).header_hash == right
    assert run(DECODE) == 2 and "model.b2tlm: its content does not fit its fingerprint" in capsys.readouterr().err


def test_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is found again only by what would compile to the same, as it was written, in a folder that nobody else writes."""
    logits = np.random.default_rng(0).standard_normal((9, 41))

    def found() -> bool:
        function = compiled(align.add_quiet.py_func)
        function._cache.cache_path = tmp_path / "code"
        function(logits)
        return bool(sum(function.stats.cache_hits.values()))

    def changed(change: Callable[[pytest.MonkeyPatch], object]) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            return found()

    assert not found() and found()
    (file,) = (tmp_path / "code").iterdir()
    whole = file.read_bytes()
    for what, change in {
            "a constant": lambda patch: patch.setattr(align, "SILENCE", 3),
            "a constant of another type": lambda patch: patch.setattr(align, "SILENCE", np.int32(align.SILENCE)),
            "a function": lambda patch: patch.setattr(align, "log_add", compiled(lambda a, b: a)),
            "options of the compiler": lambda patch: patch.setattr("numba.config.BOUNDSCHECK", 1),
            "a version": lambda patch: patch.setattr("numba.__version__", "0"),
            "a called function of earlier constants": lambda patch: patch.setattr(
                align.log_add._cache, "compiled_from", {"other"}),
            "a value without a name": lambda patch: patch.setattr(align, "SILENCE", [40])}.items():
        try:
            assert not changed(change), what
        except numba.core.errors.NumbaError:  # which cannot be compiled at all
            assert "without" in what
        assert file.read_bytes() == whole, what
    assert found()
    for place in (0, 40, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
        assert not found() and file.read_bytes()[:32] == hashlib.sha256(file.read_bytes()[32:]).digest()
    for path, mode in ((tmp_path / "code", 0o777), (tmp_path / "code", 0o775), (file, 0o666)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert not found(), (path, mode)
        path.chmod(before)
    whole = file.read_bytes()
    shutil.move(tmp_path / "code", tmp_path / "elsewhere")
    (tmp_path / "code").symlink_to(tmp_path / "elsewhere")
    assert not found() and (tmp_path / "elsewhere" / file.name).read_bytes() == whole
