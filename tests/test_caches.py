"""Changed contents under old names: each cache is computed again or refused, never believed.

The table of caches in CONTRIBUTING.md names the test of each. A test changes one part of a key at a time, leaves all
names as they are, puts the modification times back, and looks whether the network, the search or the large model runs.
"""
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from b2t_kit.cli import main
from b2t_kit.core.cache import stored_key
from b2t_kit.core.files import load_json, save_json
from b2t_kit.data.writer import SessionWriter
from b2t_kit.decode import pipeline
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig, read_nbest
from b2t_kit.decode.llm import CausalScorer, folder_name, load_scorer
from b2t_kit.decode.ngram import map_model
from b2t_kit.output import submission
from b2t_kit.speech import evaluate
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.training.checkpoint import best_checkpoint
from campaign import write_causal
from test_words import SAID, legible_trial

DAY = "t15.2023.08.11"
WORDS = "--device cpu --beam 10 --n-best 4".split()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    "A day of recordings, two runs of one name and step, two language models, and a large one."
    folder = tmp_path_factory.mktemp("caches")
    for index, (split, count) in enumerate({"train": 8, "val": 4, "test": 4}.items()):
        generator = np.random.default_rng(index)
        with SessionWriter(folder / "data" / DAY, split) as writer:
            for number in range(count):
                writer.write(legible_trial(generator, SAID[number % len(SAID)], DAY, number))
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
    told(pipeline, "decode_trials", "search")
    told(evaluate.AdaptingDecoder, "trial", "adapting")
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
    from b2t_kit.core.cache import file_mark
    record["files"][path.name] = file_mark(path)
    save_json(marker, record)


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


PARTS: dict[str, Callable[[], object]] = {  # of the key of logits
    "a feature": lambda: rewrite(Path(VAL), one_feature),
    "a label": lambda: rewrite(Path(VAL), one_label),
    "a sentence": lambda: rewrite(Path(VAL), one_sentence),
    "a weight": lambda: rewrite(weights(), one_weight),
}


def test_noise_instead_of_features(here: Path, ran: list[str]) -> None:
    "`decode`, an ensemble, the report and rescoring of its lists: the old score is gone."
    both = ["--runs", "1/run,2/run"]
    nbest = "1/run/decode/val/nbest.jsonl"

    def everything() -> tuple:
        assert decode() == 0
        assert main(["decode", *both, "--data", "data", "--lm", "model.b2tlm", *WORDS]) == 0
        assert main(["eval", *both, "--data", "data", "--device", "cpu"]) == 0
        assert main(["eval", "--run", "1/run", "--data", "data", "--device", "cpu"]) == 0
        assert main(["rescore", nbest, "--llm", "causal", "--tune", "--out", "better.jsonl", "--device", "cpu"]) == 0
        assert main(["report", "--run", "1/run", "--data", "data", "--device", "cpu", "--pictures", "0"]) == 0
        phonemes = [load_json(Path(name) / "result.json")["per"] for name in ("1/run/eval/val", "1/ensemble/eval/val")]
        return (score(), score("1/ensemble/average/val"), load_json(Path("better.weights.json"))["wer"]["after"],
                load_json(Path("1/run/report/val.json"))["groups"]["all trials"]["wer"]["rate"], *phonemes)

    before = everything()
    assert before[0][0] <= 2 and before[4] < 0.1, before
    ran.clear()
    assert decode() == 0 and score() == before[0] and "network" not in ran
    rewrite(Path(VAL), noise)
    after = everything()
    assert after[0][0] > 10 and after[1][0] > 10 and min(after[2:]) > 0.5, (before, after)


def test_noise_in_a_report_alone(here: Path, ran: list[str]) -> None:
    "The report decodes again, asked as `decode` was, and is quick while nothing changed."
    Path("names.txt").write_text("wojciechowski\n")
    assert decode("--hotwords", "names.txt") == 0
    report = ["report", "--run", "1/run", "--data", "data", "--device", "cpu", "--pictures", "0"]
    ran.clear()
    assert main(report) == 0 and ran == []
    page = load_json(Path("1/run/report/val.json"))
    rewrite(Path(VAL), noise)
    assert main(report) == 0 and ran == ["network", "search"]
    assert load_json(Path("1/run/report/val.json"))["groups"] != page["groups"]
    assert "wojciechowski" in json.dumps(stored_key("1/run/decode/val/nbest.jsonl"))


def test_logits(here: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    "Each part alone, and the version of the computation."
    changes = {"nothing yet": lambda: None, **PARTS,
               "the version": lambda: monkeypatch.setattr(evaluate, "LOGITS", evaluate.LOGITS + 1)}
    for part, change in changes.items():
        change()
        ran.clear()
        assert decode() == 0 and ran == ["network", "search"], part
    assert decode() == 0 and ran[2:] == ["search"]


def test_two_runs_of_one_name_and_step(here: Path, ran: list[str]) -> None:
    "With one `--out`, the second is decoded too; so is another split."
    assert load_decoder("1/run").origin == load_decoder("2/run").origin
    for words in (["--split", "val"], ["--split", "test"]):
        for run in ("1/run", "2/run"):
            ran.clear()
            assert decode("--out", "both", *words, run=run) == 0 and ran == ["network", "search"], (run, words)


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
        "search": {"word_bonus": 3.0}, "language_model": map_model("model.b2tlm").hash, "lm": str(Path("model.b2tlm").resolve()),
        "decoder": load_decoder("1/run").digest}),
}


def test_decoded_lists_of_a_report(here: Path, ran: list[str]) -> None:
    "Each part alone."
    Path("words.txt").write_text("family F AE M L IY\n")
    Path("names.txt").write_text("wojciechowski\n")
    assert decode("--lexicon", "words.txt", "--hotwords", "names.txt") == 0
    report = ["report", "--run", "1/run", "--data", "data", "--device", "cpu", "--pictures", "0"]
    for part, change in SEARCHES.items():
        ran.clear()
        assert main(report) == 0 and ran == [], part
        change()
        assert main(report) == 0 and ran == ["search"], part


TUNED = {
    "weights": (lambda: rewrite(weights(), one_weight), "was tuned for other weights"),
    "another run": (lambda: shutil.copytree("2/run/checkpoints", "1/run/checkpoints", dirs_exist_ok=True),
                    "was tuned for other weights"),
    "language model": (lambda: rewrite(Path("model.b2tlm"), lambda path: shutil.copy("other.b2tlm", path)),
                       "was tuned with another language model"),
}


def test_tuned_weights(here: Path, capsys: pytest.CaptureFixture) -> None:
    "`decode`, `submit`, `report`, an ensemble and adaptation refuse weights of something else."
    calls = [["decode", "--run", "1/run"], ["submit", "--run", "1/run", "--out", "s.csv"], ["report", "--run", "1/run"],
             ["decode", "--runs", "1/run,2/run"], ["eval", "--run", "1/run", "--adapt", "--adapt-copies", "2"]]
    assert decode("--tune") == 0
    shutil.copytree(".", "../tuned")
    for part, (change, message) in TUNED.items():
        shutil.copytree("../tuned", ".", dirs_exist_ok=True)
        change()
        for words in calls if part == "weights" else calls[:1]:
            capsys.readouterr()
            assert main([*words, "--data", "data", "--device", "cpu"]) == 2, words
            said = capsys.readouterr().err.splitlines()
            assert len(said) == 1 and message in said[0] and "decoding.json" in said[0], said
    assert not Path("s.csv").exists()


SUBMITTED = {  # in an order in which each changes one more part: hotwords and a model's words also change the lexicon
    "a feature": (lambda: rewrite(Path(TEST), one_feature), "data"),
    "a weight": (lambda: rewrite(weights(), one_weight), "decoder"),
    "a lexicon": (lambda: rewrite(Path("words.txt"), lambda path: path.write_text("family F EH M L IY\n")), "lexicon"),
    "hotwords": (lambda: rewrite(Path("names.txt"), lambda path: path.write_text("szczepanski\n")), "hotwords"),
    "a language model": (lambda: rewrite(Path("model.b2tlm"), lambda path: shutil.copy("other.b2tlm", path)), "lm"),
    "a large model": (lambda: rewrite(Path("causal/model.safetensors"), lambda path: path.write_bytes(
        path.read_bytes()[:-4] + b"\0\0\0\1")), "fusion"),
}


def test_a_submission_that_was_begun(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    "It goes on where nothing changed, and is refused where one part did; the part is named."
    Path("words.txt").write_text("family F AE M L IY\n")
    Path("names.txt").write_text("wojciechowski\n")
    command = ["submit", "--run", "1/run", "--data", "data", "--lm", "model.b2tlm", "--lexicon", "words.txt", "--hotwords",
               "names.txt", "--device", "cpu", "--llm", "causal", "--out", "new.csv"]
    rows, asked = submission.decoded_rows, []

    def dying(search, source, wanted):
        asked.append(len(wanted))
        for number, row in enumerate(rows(search, source, wanted)):
            if number == 2:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(submission, "decoded_rows", dying)
    for left in (4, 2):
        assert main(command) in (0, 130) and asked[-1] == left
        if left == 4:
            shutil.copy(".new.csv.journal", "journal")
    names = []
    for change, name in SUBMITTED.values():
        shutil.copy("journal", ".new.csv.journal")
        change()
        names.append(name)
        capsys.readouterr()
        assert main(command) == 2 and len(asked) == 2
        said = capsys.readouterr().err
        found = set(said.partition("other settings (")[2].partition(")")[0].split(", "))
        assert found == set(names) and said.count("\n") == 1, said  # one more each time


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


def test_noise_in_a_submission(here: Path) -> None:
    submit = ["submit", "--run", "1/run", "--data", "data", "--lm", "model.b2tlm", "--device", "cpu", "--out"]
    assert main([*submit, "one.csv"]) == 0 and main([*submit, "two.csv"]) == 0
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()
    rewrite(Path(TEST), noise)
    assert main([*submit, "three.csv"]) == 0
    pairs = zip(*(Path(name).read_text().splitlines()[1:] for name in ("one.csv", "three.csv")))
    assert all(one != other for one, other in pairs)


ADAPTED = {
    **PARTS,
    "a language model": SEARCHES["a language model"],
    "logits": lambda: rewrite(Path("1/run/adapt/val/logits.hdf5"), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")),
    "what was done": lambda: Path("1/run/adapt/val/adapt.json").write_text('{"trials": []}'),
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


def test_quantised_scores_have_a_name_of_their_own(here: Path) -> None:
    plain = load_scorer("causal")
    assert plain.key != CausalScorer(plain.model, plain.tokenizer, f"{folder_name(Path('causal'))} 8 bits").key
    assert plain.key != CausalScorer(plain.model.bfloat16(), plain.tokenizer, folder_name(Path("causal"))).key


def card_rows(out: str) -> dict:
    assert main(["export", "--run", "1/run", "--out", out]) == 0
    return load_json(Path(out) / "config.json")["scores"]


def test_scores_on_a_card(here: Path) -> None:
    "Only of these weights; of other trials than those of the training's record by another name."
    evaluated = ["eval", "--run", "1/run", "--data", "data", "--device", "cpu"]
    assert main(evaluated) == 0 and list(card_rows("a")) == ["val"]
    rewrite(Path(VAL), noise)
    assert main(evaluated) == 0 and list(card_rows("b")) == ["val, other trials than in training's record"]
    rewrite(weights(), one_weight)
    assert card_rows("c") == {}
    assert main(evaluated) == 0 and len(card_rows("d")) == 1
    result = Path("1/run/eval/val/result.json")
    rewrite(result, lambda path: path.write_text(path.read_text().replace('"trials": 4', '"trials": 9')))
    assert card_rows("e") == {}


def test_a_graph(here: Path) -> None:
    "The graph of the search `wfst`: its words, its language model, its weights, its bytes."
    pytest.importorskip("kaldifst")
    from b2t_kit.decode.wfst import graph_key
    words, model = pipeline.choose_words("model.b2tlm")
    other = map_model("other.b2tlm")
    more, _ = pipeline.choose_words("model.b2tlm", lexicon=_words_file())
    keys = [graph_key(words, model, SearchConfig()), graph_key(words, other, SearchConfig()),
            graph_key(more, model, SearchConfig()), graph_key(words, model, SearchConfig(word_bonus=0.1)),
            graph_key(words, model, SearchConfig(missing_silence=-9.0))]
    assert len({json.dumps(key) for key in keys}) == 5


def _words_file() -> Path:
    path = Path("more.txt")
    path.write_text("family F AE M L IY\n")
    return path


def test_kenlm_files_are_named_by_all_their_bytes(tmp_path: Path) -> None:
    "One bit in 20 MB, wherever it is."
    from b2t_kit.core.cache import file_hash
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(20_000_000))
    before = file_hash(path)
    rewrite(path, lambda one: _flip(one, 12_345_678))
    assert file_hash(path) != before


def _flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\1")


def test_the_key_of_a_search_names_everything() -> None:
    "Whoever adds an argument to the search must add it to the key."
    import inspect
    arguments = set(inspect.signature(BeamSearch.__init__).parameters) - {"self", "folder"}
    assert arguments == {"lexicon", "model", "config", "route", "hotwords"}, "add it to `search_key`, and change this"


def test_read_lists_are_those_that_were_written(here: Path) -> None:
    assert decode() == 0
    asked = stored_key("1/run/decode/val/nbest.jsonl")["asked"]
    again = pipeline.decode_sentences("1/run", "data", device="cpu", kept_lists=True, **asked)
    assert again.trials == list(read_nbest("1/run/decode/val/nbest.jsonl"))
