"""Changed contents under old names: each cache is computed again or refused, never believed.

The table of caches in CONTRIBUTING.md names the test of each. A test changes one part of a key at a time, leaves all
names as they are, puts the modification times back, and looks whether the network, the search or the large model runs.
"""
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from b2t_kit.cli import main
from b2t_kit.core import MEMO, Kept, KitError, differing, file_mark, load_json, plain, save_json, stored_key, to_dict
from b2t_kit.data.convert import HeldOut, Importer, SourceDay, content_key
from b2t_kit.data.dataset import Recordings
from b2t_kit.decode import decode as decoding
from b2t_kit.decode.combine import COMBINATIONS
from b2t_kit.decode import search as searching
from b2t_kit.decode import tune
from b2t_kit import lm
from b2t_kit.decode.search import BeamSearch, SearchConfig, read_hotwords, search_key
from b2t_kit.llm import CausalScorer, folder_name
from b2t_kit.text.lexicon import own_words
from b2t_kit.lm import map_model
from b2t_kit.output import submission
from b2t_kit.precision import Precision
from b2t_kit.speech import adapt, evaluate
from b2t_kit.speech.adapt import AdaptConfig
from b2t_kit.speech.evaluate import load_decoder, logits_key, results_folder
from b2t_kit.training.checkpoint import best_checkpoint
from tiny_models import write_causal
from test_words import DAY, SAID, legible_day

WORDS = "--device cpu --beam 10 --n-best 4".split()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    "A day of recordings, two runs of one name and step, two language models, and a large one."
    folder = tmp_path_factory.mktemp("caches")
    legible_day(folder / "data", train=8, val=4, test=4)
    train = "train --config linear --steps 40 --warmup-steps 2 --lr 0.02 --eval-every 0 --device cpu --data".split()
    for seed in ("1", "2"):
        assert main([*train, str(folder / "data"), "--out", str(folder / seed / "run"), "--seed", seed]) == 0
    for name, more in {"model": 1, "other": 40}.items():
        text = "\n".join([*SAID, "we can hear you now"] * 3 + ["bring me the family now"] * more)
        (folder / "text.txt").write_text(text)
        assert main(["lm", "build", str(folder / "text.txt"), "--out", str(folder / f"{name}.b2tlm")]) == 0
    write_causal(folder / "causal")
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    "What took long, in order: the network, a search of all trials, the large model."
    found: list[str] = []

    def told(owner: object, name: str, what: str) -> None:
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **more: (found.append(what), plain(*args, **more))[1])

    told(evaluate, "decode", "network")
    told(decoding, "decode_trials", "search")
    told(adapt.AdaptingDecoder, "trial", "adapting")
    told(CausalScorer, "_scores", "large model")
    return found


def rewrite(path: Path, change: Callable[[Path], object]) -> None:
    "Change a file and put its modification time back."
    times = path.stat()
    change(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def noise(path: Path) -> None:
    "Gaussian noise instead of the features."
    generator = np.random.default_rng(5)
    with h5py.File(path, "r+") as file:
        for group in file.values():
            group["input_features"][...] = generator.standard_normal(group["input_features"].shape, dtype=np.float32)


def one_feature(path: Path) -> None:
    "One number of one trial."
    with h5py.File(path, "r+") as file:
        file["trial_0000/input_features"][3, 5] += 1


def one_label(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["trial_0000/seq_class_ids"][2] = 39 - file["trial_0000/seq_class_ids"][2]


def one_sentence(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["trial_0000"].attrs["sentence_label"] = "We can hear you now."


def one_weight(path: Path) -> None:
    "One bit of the weights, with the marker of the checkpoint in step: a sound checkpoint of another training."
    tensors = load_file(path)
    name = max(tensors, key=lambda one: tensors[one].size)
    tensors[name].reshape(-1).view(np.int32)[7] ^= 1
    save_file(tensors, path)
    marker = path.parent / ".complete"
    record = load_json(marker)
    record["files"][path.name] = file_mark(path)
    save_json(marker, record)


def other_signs(path: Path) -> None:
    "The same of a decoder that says something else."
    save_file({name: -one for name, one in load_file(path).items()}, path)
    one_weight(path)


VAL = f"data/{DAY}/data_val.hdf5"
TEST = f"data/{DAY}/data_test.hdf5"


def weights(run: str = "1/run") -> Path:
    "The file that a decoder is loaded from."
    folder = best_checkpoint(run)
    return folder / ("ema.safetensors" if (folder / "ema.safetensors").exists() else "model.safetensors")


def decode(*more: str, run: str = "1/run") -> int:
    return main(["decode", "--run", run, "--data", "data", "--lm", "model.b2tlm", *WORDS, *more])


def score(folder: str = "1/run/decode/val") -> tuple[int, int]:
    found = load_json(Path(folder) / "result.json")
    return found["edits"], found["words"]


def beside(data: str) -> str:
    "Where results on recordings go that are not those of the run's record."
    with Recordings(data, "val") as recordings:
        return results_folder("1/run", "eval", recordings).name


def test_noise_instead_of_features(here: Path, ran: list[str]) -> None:
    "`decode`, an ensemble, the report and rescoring of its lists: the old score is gone."
    both = ["--runs", "1/run", "2/run"]

    def everything(name: str) -> tuple:
        assert decode() == 0
        assert main(["decode", *both, "--data", "data", "--lm", "model.b2tlm", *WORDS]) == 0
        assert main(["eval", *both, "--data", "data", "--device", "cpu"]) == 0
        assert main(["eval", "--run", "1/run", "--data", "data", "--device", "cpu"]) == 0
        nbest = f"1/run/decode/{name}/nbest.jsonl"
        assert main(["rescore", nbest, "--llm", "causal", "--tune", "--out", "better.jsonl", "--device", "cpu"]) == 0
        assert main(["report", "--run", "1/run", "--data", "data", "--device", "cpu", "--pictures", "0"]) == 0
        phonemes = [load_json(Path(folder) / f"eval/{name}/result.json")["per"] for folder in ("1/run", "1/ensemble")]
        return (score(f"1/run/decode/{name}"), score(f"1/ensemble/average/{name}"),
                load_json(Path("better.weights.json"))["wer"]["after"],
                load_json(Path(f"1/run/report/{name}.json"))["groups"]["all trials"]["wer"]["rate"], *phonemes)

    before = everything("val")
    assert before[0][0] <= 2 and before[4] < 0.1, before
    ran.clear()
    assert decode() == 0 and score() == before[0] and "network" not in ran
    rewrite(Path(VAL), noise)
    after = everything(beside("data"))  # no longer the recordings of the run's record
    assert after[0][0] > 10 and after[1][0] > 10 and min(after[2:]) > 0.5, (before, after)


def test_other_recordings(here: Path, ran: list[str]) -> None:
    "They are decoded beside the run's own, whose files stay as they are, and no temperature is fitted to them."
    both, device = ["--runs", "1/run", "2/run"], ["--device", "cpu"]

    def everything(data: str) -> None:
        for words in (["decode", "--run", "1/run", "--lm", "model.b2tlm", *WORDS], ["eval", "--run", "1/run", *device],
                      ["report", "--run", "1/run", *device, "--pictures", "0"], ["eval", *both, *device],
                      *(["decode", *both, "--lm", "model.b2tlm", *WORDS, "--combine", way] for way in COMBINATIONS)):
            assert main([*words, "--data", data]) == 0, words

    def results() -> dict[Path, bytes]:
        return {path: path.read_bytes() for top in ("1", "2") for path in Path(top).rglob("*")
                if path.is_file() and path.name != MEMO and path.suffix != ".html"}

    everything("data")
    before = results()
    for folder in ("other", "second/other"):  # two of the same name
        shutil.copytree("data", folder)
        rewrite(Path(VAL.replace("data", folder, 1)), noise)
        everything(folder)
        after, name = results(), beside(folder)
        assert {path: after[path] for path in before} == before
        added = {str(path.parent) for path in after.keys() - before.keys()}
        assert {f"1/run/decode/{name}", f"1/run/eval/{name}", "1/run/report", f"1/ensemble/average/{name}",
                f"1/ensemble/pool/{name}", f"1/ensemble/eval/{name}"} <= added
        assert score(f"1/run/decode/{name}")[0] > 10 and Path(f"1/run/report/{name}.html").exists()
        before = after

    temperature = Path("1/run/temperature.json")
    fitted = temperature.read_bytes()
    temperature.unlink()
    for words in (["decode", "--lm", "model.b2tlm", *WORDS], ["eval", *device], ["decode", "--split", "train", *WORDS]):
        assert main([*words, "--run", "1/run", "--data", "other"]) == 0 and not temperature.exists(), words
    other = load_json(Path(f"1/run/decode/{beside('other')}/result.json"))["temperature"]
    assert other["source"] == "estimated" and other["lacking"] == "the decoder's own validation trials"
    assert decode() == 0 and temperature.read_bytes() == fitted


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


def test_damaged_logits(here: Path, ran: list[str]) -> None:
    "One changed number of the cached logits, other logits under their name, or no note."
    assert decode() == 0
    right, cached = score(), Path("1/run/decode/val/logits.hdf5")
    shutil.copy(cached, "theirs.hdf5")

    def flat(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file[f"{DAY}/trial_0000/logits"][2, 3] += 1

    for change in (flat, lambda path: shutil.copy("theirs.hdf5", path) and flat(path), lambda path: path.write_bytes(b"x"),
                   lambda path: path.with_name("logits.hdf5.key").unlink(),
                   lambda path: path.with_name("logits.hdf5.key").write_text("[]")):
        rewrite(cached, change)
        ran.clear()
        assert decode() == 0 and ran == ["network", "search"] and score() == right


SEARCHES: dict[str, Callable[[], object]] = {  # of the key of decoded lists
    "a language model": lambda: rewrite(Path("model.b2tlm"), lambda path: shutil.copy("other.b2tlm", path)),
    "a lexicon": lambda: rewrite(Path("words.txt"), lambda path: path.write_text("family F EH M L IY\n")),
    "hotwords": lambda: rewrite(Path("names.txt"), lambda path: path.write_text("szczepanski\n")),
    "a list": lambda: rewrite(Path("1/run/decode/val/nbest.jsonl"), lambda path: path.write_text(
        path.read_text().replace("hear", "fear"))),
    "a result": lambda: rewrite(Path("1/run/decode/val/result.json"), lambda path: path.write_text("{}")),
    "tuned weights": lambda: save_json("1/run/decoding.json", {
        "search": {"word_bonus": 3.0}, "chose": [], "temperature": None, "lm": str(Path("model.b2tlm").resolve()), "tuned_for": tune.tuned_for(
            *decoding.choose_words("model.b2tlm", "words.txt"), read_hotwords("names.txt", own_words("words.txt")),
            load_decoder("1/run").digest)}),
}


def test_decoded_lists_of_a_report(here: Path, ran: list[str], capsys: pytest.CaptureFixture) -> None:
    "Each part alone."
    Path("words.txt").write_text("family F AE M L IY\n")
    Path("names.txt").write_text("wojciechowski\n")
    assert decode("--lexicon", "words.txt", "--hotwords", "names.txt") == 0
    report = ["report", "--run", "1/run", "--data", "data", "--device", "cpu", "--pictures", "0"]
    assert main(report) == 0  # which searches the raw logits too
    for part, change in SEARCHES.items():
        ran.clear()
        assert main(report) == 0 and ran == [], part
        change()
        assert main(report) == 0 and set(ran) == {"search"}, (part, ran, capsys.readouterr().err)


def test_tuned_weights(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Search's version, language model, lexicon, hotwords, network: each part alone; and every verb refuses."
    Path("words.txt").write_text("family F AE M L IY\n")
    Path("names.txt").write_text("wojciechowski\n")
    same = ["--lexicon", "words.txt", "--hotwords", "names.txt"]
    assert decode("--tune", *same) == 0 and decode(*same) == 0
    words, model = decoding.choose_words("model.b2tlm", "words.txt")
    other, (more, _) = map_model("other.b2tlm"), decoding.choose_words("model.b2tlm")
    hot, run = read_hotwords("names.txt", own_words("words.txt")), load_decoder("1/run").digest
    record, choice = load_json(Path("1/run/decoding.json")), Path("1/run/decoding.json")
    right = tune.tuned_for(words, model, hot, run)
    assert record["tuned_for"] == plain(right) and tune.read_tuning(choice).settings(right).beam == 10
    for wanted, message in ((tune.tuned_for(words, other, hot, run), "another language model"),
                            (tune.tuned_for(more, model, hot, run), "other words"),
                            (tune.tuned_for(words, model, [replace(hot[0], boost=9)], run), "other hotwords"),
                            (tune.tuned_for(words, model, hot, load_decoder("2/run").digest), "other weights of the network"),
                            ({**right, "search": searching.SEARCH + 1}, "another version of the search")):
        assert len(differing(right, wanted)) == 1
        with pytest.raises(KitError, match=rf"decoding.json: was tuned (with|for) {message}"):
            tune.read_tuning(choice).settings(wanted)
    assert tune.read_tuning(choice).settings(tune.tuned_for(words, model, None)).beam == 10  # for live sessions

    rewrite(weights(), one_weight)
    for words in (["decode", "--run", "1/run", *same], ["submit", "--run", "1/run", "--out", "s.csv", *same],
                  ["report", "--run", "1/run"], ["decode", "--runs", "1/run", "2/run", *same],
                  ["eval", "--run", "1/run", "--adapt", "--adapt-copies", "2", "--lexicon", "words.txt"]):
        capsys.readouterr()
        assert main([*words, "--data", "data", "--device", "cpu"]) == 2, words
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and "decoding.json: was tuned for other weights of the network" in said[0], said
    assert not Path("s.csv").exists()


MOMENTS = [  # signal, and the call before which it comes
    (signal.SIGINT, evaluate, "decode", 0), (signal.SIGTERM, searching.BeamSearch, "decode", 1),
    (signal.SIGINT, submission.SubmissionWriter, "write", 0), (signal.SIGTERM, submission.SubmissionWriter, "write", 3),
    (signal.SIGTERM, submission.SubmissionWriter, "finish", 0)]
SOURCES = {
    "a run": ("--run 1/run", MOMENTS),
    "a run that adapts": ("--run 1/run --adapt --adapt-copies 2", [
        (signal.SIGTERM, adapt.AdaptingDecoder, "trial", 2), *MOMENTS[2:]]),
    "two runs": ("--runs 1/run 2/run", MOMENTS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_submission_that_signals_stop(
        source: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Stopped by each signal in turn and begun again, it ends with the bytes of one that nothing stopped; stopped once
    more, it is not finished with another decoder or other recordings, and theirs are theirs alone.
    """
    words, moments = SOURCES[source]
    command = [*f"submit --data data --lm model.b2tlm --device cpu {words}".split(), "--out"]
    shutil.copytree(here, "fresh")
    with monkeypatch.context() as patch:
        patch.chdir("fresh")
        assert main([*command, "whole.csv"]) == 0
    whole = Path("fresh/whole.csv").read_bytes()

    def stopped(number: int, owner: object, name: str, call: int) -> None:
        plain, calls = getattr(owner, name), itertools.count()

        def signalled(*args, **more):
            if next(calls) == call:
                os.kill(os.getpid(), number)
            return plain(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, signalled)
            assert main([*command, "new.csv"]) == 128 + number, (owner, name, call)
        assert not Path("new.csv").exists(), "half a submission looks like a whole one"

    for moment in moments:
        stopped(*moment)
    assert main([*command, "new.csv"]) == 0 and Path("new.csv").read_bytes() == whole
    Path("new.csv").unlink()

    for change in (lambda: rewrite(weights(), other_signs), lambda: rewrite(Path(TEST), noise)):
        stopped(signal.SIGTERM, submission.SubmissionWriter, "write", 2)
        change()
        capsys.readouterr()
        assert main([*command, "new.csv"]) == 2 and not Path("new.csv").exists()
        assert ".new.csv.journal: was begun with other settings" in capsys.readouterr().err
        Path(".new.csv.journal").unlink()
        assert main([*command, "new.csv"]) == 0 == main([*command, "again.csv"])
        assert Path("new.csv").read_bytes() == Path("again.csv").read_bytes()
        Path("new.csv").unlink()
    assert Path("again.csv").read_bytes() != whole, "noise is decoded to something else"


def test_a_row_of_a_journal(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    "A row that was exchanged, also for a valid one, is not believed."
    with monkeypatch.context() as patch:
        patch.setattr(submission.SubmissionWriter, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["submit", "--run", "1/run", "--data", "data", "--lm", "model.b2tlm", "--device", "cpu", "--out", "new.csv"]) == 130
    journal = Path(".new.csv.journal")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([lines[0], lines[1].replace('"text": "', '"text": "not '), *lines[2:]]))
    capsys.readouterr()
    assert main(["submit", "--run", "1/run", "--data", "data", "--lm", "model.b2tlm", "--device", "cpu", "--out", "new.csv"]) == 2
    assert "line 2 is damaged" in capsys.readouterr().err


ADAPTED = {  # each part of the key is in `test_each_part_of_the_key_of_adapted_logits`
    "logits": lambda: rewrite(Path("1/run/adapt/val/logits.hdf5"), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")),
    "what was done": lambda: Path("1/run/adapt/val/adapt.json").write_text('{"trials": []}'),
    "a feature": lambda: rewrite(Path(VAL), one_feature),  # the last: no longer the recordings of the run's record, so beside
}


def test_adaptation(here: Path, ran: list[str]) -> None:
    "Its logits, and the comparison with the decoder as trained: each part alone."
    gru = "train --config baseline --hidden 8 --num-layers 1 --steps 2 --warmup-steps 1 --eval-every 0 --device cpu --data data --out"
    assert main([*gru.split(), "gru"]) == 0
    shutil.rmtree("1/run")
    shutil.move("gru", "1/run")
    words = ["--adapt", "--adapt-copies", "2"]
    for part, change in {"nothing yet": lambda: None, **ADAPTED, "settings": lambda: words.extend(["--adapt-seed", "1"])}.items():
        change()
        ran.clear()
        assert decode(*words) == 0 and ran.count("adapting") == 4, part
    ran.clear()
    assert decode(*words) == 0 and "adapting" not in ran


def test_scores_of_a_large_model(here: Path, ran: list[str], capsys: pytest.CaptureFixture) -> None:
    "One byte at the end of its weights, its vocabulary, the file of scores."
    assert decode() == 0
    command = ["rescore", "1/run/decode/val/nbest.jsonl", "--llm", "causal", "--tune", "--out", "better.jsonl", "--device", "cpu"]
    assert main(command) == 0
    ran.clear()
    assert main(command) == 0 and ran == []
    file = Path("causal/model.safetensors")
    first = folder_name(Path("causal"))
    rewrite(file, lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])))
    assert folder_name(Path("causal")) != first
    assert main(command) == 0 and set(ran) == {"large model"}
    ran.clear()
    rewrite(Path("causal/tokenizer.json"), lambda path: path.write_text(path.read_text() + "\n"))
    assert main(command) == 0 and set(ran) == {"large model"}
    scores = load_json(Path("better.scores.json"))
    name = next(iter(scores["scores"]))
    sentence = next(iter(scores["scores"][name]))
    scores["scores"][name][sentence] -= 0.5
    save_json("better.scores.json", scores)
    capsys.readouterr()
    assert main(command) == 2 and "better.scores.json: is not a file of scores, or is damaged" in capsys.readouterr().err


def test_weights_of_rescoring(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Refused for another model, and for lists of another network, language model or search; pruning may differ."
    def again(**settings: float) -> object:
        return decoding.decode_run("1/run", "data", lm="model.b2tlm", device="cpu", settings={"beam": 10, **settings})

    assert again()
    command = ["rescore", "1/run/decode/val/nbest.jsonl", "--llm", "causal", "--device", "cpu", "--out"]
    assert main([*command, "new.jsonl", "--tune"]) == 0
    weights = [*command, "again.jsonl", "--weights", "new.weights.json"]
    assert main(weights) == 0 and again(n_best=3) and main(weights) == 0
    shutil.copytree(".", "../scored")
    model = Path("causal/model.safetensors")
    changes = {
        "another large model": lambda: rewrite(model, lambda path: path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")),
        "another search (network, temperature)": lambda: shutil.copytree("2/run/checkpoints", "1/run/checkpoints", dirs_exist_ok=True) and again(),
        "another search (lexicon, lm)": lambda: shutil.copy("other.b2tlm", "model.b2tlm") and again(),
        "another search (settings)": lambda: again(blank_penalty=3.0),
    }
    for message, change in changes.items():
        shutil.copytree("../scored", ".", dirs_exist_ok=True)
        change()
        capsys.readouterr()
        assert main(weights) == 2
        assert f"new.weights.json: was tuned for {'' if 'large' in message else 'lists of '}{message}" in (
            said := capsys.readouterr().err), said
    shutil.copytree("../scored", ".", dirs_exist_ok=True)
    Path("1/run/decode/val/nbest.jsonl.key").unlink()
    assert main(weights) == 0 and "no record of the search that made them" in capsys.readouterr().out


def card_rows(out: str) -> dict:
    assert main(["export", "--run", "1/run", "--out", out]) == 0
    return load_json(Path(out) / "config.json")["scores"]


def test_scores_on_a_card(here: Path) -> None:
    "Only of these weights; of other trials than those of the training's record by another name."
    evaluated = ["eval", "--run", "1/run", "--data", "data", "--device", "cpu"]
    assert main(evaluated) == 0 and list(card_rows("a")) == ["val"]
    rewrite(Path(VAL), noise)
    assert main(evaluated) == 0 and list(card_rows("b")) == ["val", "val, other trials than in training's record"]
    rewrite(weights(), one_weight)
    assert card_rows("c") == {}
    assert main(evaluated) == 0 and len(card_rows("d")) == 1
    result = Path(f"1/run/eval/{beside('data')}/result.json")
    rewrite(result, lambda path: path.write_text(path.read_text().replace('"trials": 4', '"trials": 9')))
    assert card_rows("e") == {}


def test_records_that_lack_a_part(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Export and report name the record; nothing is written."
    assert decode() == 0 and main(["eval", "--run", "1/run", "--data", "data", "--device", "cpu"]) == 0
    path, result = Path("1/run/config.json"), Path("1/run/eval/val/result.json")
    record, rates, key = load_json(path), load_json(result), stored_key(result)
    changes = [(path, {**record, "data": wrong}) for wrong in ([], {"val": {}}, {"val": 3})]
    for changed, wrong in [*changes, *((result, wrong) for wrong in ([], {**rates, "marks": 3}, {"trials": 4}))]:
        save_json(path, record)
        save_json(changed, wrong)
        Kept([result], key).seal()
        capsys.readouterr()
        assert main(["export", "--run", "1/run", "--out", "card"]) == 2 and not Path("card").exists(), wrong
        assert f"{changed}: " in (said := capsys.readouterr().err) and said.count("\n") == 1, said
    note = Path("1/run/decode/val/nbest.jsonl.key")
    found = load_json(note)
    save_json(note, {**found, "key": {**found["key"], "asked": []}})
    assert main(["report", "--run", "1/run", "--data", "data", "--device", "cpu"]) == 2
    assert "nbest.jsonl.key: does not say what was asked" in capsys.readouterr().err


def test_each_part_of_the_key_of_logits(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Weights, sessions, features, labels, split, day layer of unseen days, device, precision, version: each changes it alone."
    decoder, cpu = load_decoder("1/run"), SimpleNamespace(kind="cpu", precision=Precision("float32", False, False, ""))
    with Recordings("data", "val") as val, Recordings("data", "test") as test:
        def key(decoder=decoder, recordings=val, device=cpu, unseen=None):
            return logits_key(decoder, recordings, device, unseen)

        first = key()
        assert key() == first and differing(first, key(load_decoder("2/run"))) == ["decoder"]
        assert differing(first, key(replace(decoder, sessions=("t15.2023.08.12",)))) == ["decoder"]
        assert differing(first, key(replace(decoder, config=replace(decoder.config, per_label=True)))) == ["decoder"]
        for unseen in {"nearest", "previous", "mean", "identity"} - {decoder.config.unseen}:
            assert differing(first, key(unseen=unseen)) == ["unseen"]
        for device in (SimpleNamespace(kind="cuda", precision=Precision("float32", False, False, "")),
                       SimpleNamespace(kind="cpu", precision=Precision("bfloat16", False, False, "")),
                       SimpleNamespace(kind="cpu", precision=Precision("float32", True, False, ""))):
            assert differing(first, key(device=device)) == ["device"]
        assert differing(first, key(recordings=test)) == ["data", "split"]
        monkeypatch.setattr(evaluate, "LOGITS", evaluate.LOGITS + 1)
        assert differing(first, key()) == ["logits"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    for change in (one_feature, one_label, one_sentence):
        rewrite(Path(VAL), change)
        with Recordings("data", "val") as val:
            assert differing(first, logits_key(decoder, val, cpu)) == ["data"]
            first = logits_key(decoder, val, cpu)


def test_each_part_of_the_key_of_a_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Language model, lexicon, hotwords, temperature, every setting, version."
    words, model = decoding.choose_words("model.b2tlm")
    first = search_key(BeamSearch(words, model))
    assert first == search_key(BeamSearch(words, model))
    assert differing(first, search_key(BeamSearch(words, map_model("other.b2tlm")))) == ["lm"]
    Path("more.txt").write_text("family F AE M L IY\n")
    Path("hot.txt").write_text("wojciechowski\n")
    more, _ = decoding.choose_words("model.b2tlm", lexicon="more.txt")
    assert differing(first, search_key(BeamSearch(more, model))) == ["lexicon"]
    known = read_hotwords("hot.txt", {})
    assert differing(first, search_key(BeamSearch(words, model, hotwords=known))) == ["hotwords", "lexicon"]
    stronger = [replace(one, boost=one.boost + 1) for one in known]
    assert differing(search_key(BeamSearch(words, model, hotwords=known)),
                     search_key(BeamSearch(words, model, hotwords=stronger))) == ["hotwords"]
    for name, value in to_dict(SearchConfig()).items():
        other = not value if isinstance(value, bool) else value - 1 if name == "missing_silence" else value / 2 or 1.0
        config = replace(SearchConfig(), **{name: type(value)(other)})
        assert differing(first, search_key(BeamSearch(words, model, config))) == ["settings"], name
    assert differing(first, search_key(BeamSearch(words, model, temperature=2.0))) == ["temperature"]
    monkeypatch.setattr(searching, "SEARCH", searching.SEARCH + 1)
    assert differing(first, search_key(BeamSearch(words, model))) == ["search"]


def test_each_part_of_the_key_of_adapted_logits(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "The key of logits, every setting of adaptation, the search of the pseudo-labels, the version."
    search = BeamSearch(*decoding.choose_words("model.b2tlm"))

    def key(config: AdaptConfig = AdaptConfig(), search: BeamSearch = search, data: str = "a") -> dict:
        logits = decoding.SplitLogits(Path(), [], {"logits": 1, "data": data})
        return decoding.AdaptedRun(decoding.RunLogits("1/run"), config).key(logits, search)

    first = key()
    assert differing(first, key(data="b")) == ["data"]
    for name, value in to_dict(AdaptConfig()).items():
        config = replace(AdaptConfig(), **{name: 1 if value is None else value / 2 if isinstance(value, float) else value + 1})
        assert differing(first, key(config)) == ["adapt"], name
    assert differing(first, key(search=BeamSearch(search.lexicon, search.model, SearchConfig(word_bonus=2.0)))) == ["words"]
    monkeypatch.setattr(decoding, "ADAPTED", decoding.ADAPTED + 1)
    assert differing(first, key()) == ["adapted"]


def test_each_part_of_a_begun_submission(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Whatever differs in what a journal was begun with is named."
    with monkeypatch.context() as patch:
        patch.setattr(submission.SubmissionWriter, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(["submit", "--run", "1/run", "--data", "data", "--lm", "model.b2tlm", "--device", "cpu", "--out", "s.csv"]) == 130
    journal = Path(".s.csv.journal")
    head, *rows = journal.read_text().splitlines()
    begun = json.loads(head)["settings"]
    assert {"logits", "decoder", "unseen", "device", "split", "data", "search", "lm", "lexicon", "settings", "hotwords",
            "temperature", "adapt"} == set(begun)
    with Recordings("data", "test") as recordings:
        infos = recordings.infos
    with submission.SubmissionWriter("s.csv", infos, begun) as writer:
        assert not writer.missing
    for name in begun:
        with pytest.raises(KitError, match=rf"other settings \({name}\)"):
            submission.SubmissionWriter("s.csv", infos, {**begun, name: "another"})
    with pytest.raises(KitError, match="other test trials"):
        submission.SubmissionWriter("s.csv", infos[1:], begun)


def test_a_large_model_file(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    "A .b2tlm that is too large to be read when it is opened is named by its content, not by what its header says."
    monkeypatch.setattr(lm, "READ_WHOLE", -1)
    whole, path = Path("model.b2tlm").read_bytes(), Path("model.b2tlm")
    right = lm.fingerprint_of((opened := map_model(path)).words, opened.arrays)
    assert opened.stated == right == opened.hash
    place = whole.rindex(np.float32(opened.arrays.ln_p[-1]).tobytes())
    rewrite(path, lambda path: path.write_bytes(whole[:place] + np.float32(-0.7).tobytes() + whole[place + 4:]))
    assert map_model(path).stated == right
    assert decode() == 2 and "model.b2tlm: its content does not fit its fingerprint" in capsys.readouterr().err
    with pytest.raises(KitError, match="does not fit its fingerprint"):
        map_model(path).verify()


@dataclass(frozen=True)
class Ours(Importer):
    "An importer with options of its own."
    labels: str = "phonemes"
    bin_ms: float = 20.0


class Theirs(Ours):
    "Another one."


def test_each_part_of_the_key_of_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "Importer, version, every option of its own, day, sources, quarantine."
    (tmp_path / "a.npy").write_bytes(b"one")
    importer, day, held_out = Ours("mine", "out"), SourceDay("t15.2024.01.01", (tmp_path / "a.npy",)), HeldOut()
    other = HeldOut()
    other.key = "another"
    keys = [content_key(importer, day, held_out), content_key(Theirs("mine", "out"), day, held_out),
            content_key(importer, replace(day, session="t15.2024.01.02"), held_out), content_key(importer, day, other)]
    for name, value in importer.options.items():
        keys.append(content_key(replace(importer, **{name: f"{value}2" if isinstance(value, str) else value / 2}), day, held_out))
    assert content_key(replace(importer, folder="yours", out="there", skip_faulty=True), day, held_out) == keys[0]
    monkeypatch.setattr(Ours, "version", 99)
    keys.append(content_key(importer, day, held_out))
    rewrite(tmp_path / "a.npy", lambda path: path.write_bytes(b"two"))
    keys.append(content_key(importer, day, held_out))
    assert len(set(keys)) == len(keys) == 6 + len(importer.options)
