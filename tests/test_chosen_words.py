"Without a named language model: which words each way in takes, what is left out of the model, and when it is made again."
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import load_json
from b2t_kit.data.write import SessionWriter
from b2t_kit.data.dataset import NUM_FEATURES, Trial
from b2t_kit.decode import words
from b2t_kit.decode.combine import decode_runs
from b2t_kit.decode.counter import WordCounter
from b2t_kit.decode.decode import decode_run, decode_sentences, undecodable
from b2t_kit.decode.sources import LogitsFile
from b2t_kit.lm.leaks import leak_warning
from b2t_kit.lm.build import train_language_model
from b2t_kit.publish.votes import combine_files
from b2t_kit.publish.report import report_run
from b2t_kit.decode.submission import submit
from b2t_kit.text.english import draw_sentence, kit_words
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.speech.task import WordsConfig
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.phonemes import normalise, to_ids

DAY = "t15.2023.08.11"
REAL = ("My family is closer than yours.", "They used to live in Arlington, near Boston.", "What kind of weather do you like?",
        "We have a big old house.", "It was my second degree.", "Nobody ever told me about taxes.")
SCORED = ("We have a big old mortgage.", "They used to live in Arlington, near Boston.")  # the second was said in training too
GRAMMAR = tuple(draw_sentence(np.random.default_rng(number), held_out=False) for number in range(8))


WHOLE = words.own_words


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    "A folder for models that are made. No general English is found; the dictionary and the made-up text are short."
    monkeypatch.setattr(words, "installed_english", lambda: None)
    monkeypatch.setattr(words, "own_words", lambda lexicon: [*kit_words(), *(WHOLE(lexicon) if lexicon else ())])
    monkeypatch.setattr(words, "made_up_sentences", lambda: list(GRAMMAR))
    return tmp_path / "models"


def record(root: Path, **said: Sequence[str]) -> Path:
    "Recordings of a day: noise of a few bins a phoneme, with the sentences of each split."
    generator = np.random.default_rng(0)
    for split, sentences in said.items():
        with SessionWriter(root / DAY, split) as writer:
            for number, sentence in enumerate(sentences):
                labels = np.array(to_ids(sentence_to_phonemes(sentence)))
                features = generator.standard_normal((12 * len(labels), NUM_FEATURES), dtype=np.float32)
                writer.write(Trial(features, labels, DAY, 1, 100 * len(split) + number, sentence))
    return root


def trained(folder: Path, data: Path) -> Path:
    assert main(f"train --data {data} --out {folder} --config linear --steps 2 --warmup-steps 1 --eval-every 0 --device cpu "
                "--checkpoint-every 2".split()) == 0
    return folder


def logits_of(path: Path, sentences: Sequence[str]) -> Path:
    generator = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number, sentence in enumerate(sentences):
            group = file.create_group(f"trial_{number}")
            group["logits"] = noisy_sentence(sentence, generator)
            group.attrs.update(session="day 1", block_num=1, trial_num=number, sentence_label=sentence)
    return path


OF_TRAINING = "a language model of 5 training sentences"
OF_GRAMMAR = "words: 636 of the simulator's grammar"
OF_NOTHING = "of the dictionary, with the simulator's sentences alone, because no training sentences are at hand"


def test_every_way_in_takes_the_same_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    "Recordings of real sentences: the dictionary, their own sentences without the scored ones, and a line that says so."
    data = record(tmp_path / "data", train=REAL, val=SCORED, test=SCORED[:1])
    first, second = (trained(tmp_path / name, data) for name in ("first", "second"))
    quick = {"settings": {"beam": 8}}
    capsys.readouterr()
    told = {
        "decode": lambda: decode_run(first, data, device="cpu", **quick),
        "decode without --data": lambda: decode_run(first, device="cpu", **quick),
        "the test split": lambda: decode_run(first, data, "test", device="cpu", **quick),
        "pooled": lambda: decode_runs([first, second], data, device="cpu", **quick),
        "averaged": lambda: decode_runs([first, second], data, together="average", device="cpu", **quick),
        "logits that a run keeps": lambda: decode_sentences(LogitsFile(first / "decode/val/logits.hdf5"), **quick),
    }
    for way, decode in told.items():
        found = decode()
        assert OF_TRAINING in found.words and "1 more left out because they are scored" in found.words, (way, found.words)
        assert found.words in repr(found) and load_json(found.folder / "result.json")["language_model"] == found.words, way
        assert found.warning is None, (way, found.warning)
    kept = [path for path in tmp_path.rglob("words/*.b2tlm")]
    assert len(kept) == 3 and len({path.name for path in kept}) == 1  # once for each run, and once for their average

    lists = [run / "decode/val/logits.hdf5" for run in (first, second)]
    capsys.readouterr()
    combine_files(lists, tmp_path / "both.csv")
    assert OF_NOTHING not in capsys.readouterr().err
    assert all(load_json(path.with_name("result.json"))["language_model"] == found.words for path in lists)

    submit(first, tmp_path / "submission.csv", data, "cpu", **quick)
    assert OF_TRAINING in capsys.readouterr().err
    report_run(first, data, device="cpu", pictures=0)
    assert OF_TRAINING in (first / "report/val.html").read_text(encoding="utf-8")
    assert "boston" not in undecodable(first, SCORED) and "mortgage 1" in undecodable(first, SCORED)
    counter = WordCounter(WordsConfig("default", beam=8), SCORED, REAL)
    assert counter.search.model.hash == words.choose_words(None, exclude=SCORED, training=REAL)[1].hash


@pytest.mark.parametrize("training, scored, line", [
    (GRAMMAR, GRAMMAR[:1], OF_GRAMMAR),
    (GRAMMAR, REAL[:1], OF_GRAMMAR),  # what is said later may be anything
    ((), GRAMMAR[:2], OF_GRAMMAR),  # logits with references
    ((*GRAMMAR, REAL[0]), (), "a language model of 9 training sentences"),
    (REAL, (), "a language model of 6 training sentences"),
    (REAL, SCORED, "1 more left out because they are scored"),
    (REAL, REAL, "because all training sentences are scored"),
    ((), REAL[:2], OF_NOTHING),
    ((), (), OF_NOTHING),
], ids=["made up", "made up, then real", "made-up references", "mixed", "real", "real, some scored", "real, all scored",
        "real references", "nothing known"])
def test_situations(training: Sequence[str], scored: Sequence[str], line: str) -> None:
    lexicon, model = words.choose_words(None, exclude=scored, training=training)
    told = words.about_words(lexicon, model)
    assert line in told and leak_warning(model, scored) is None, told
    if line != OF_GRAMMAR:
        assert "pip install pocketsphinx" in told, told
        assert all(word in lexicon for sentence in training for word in normalise(sentence).split())


def test_the_whole_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "own_words", WHOLE)
    lexicon, model = words.choose_words(None, training=[*REAL, "Krzysztof was here."])
    assert len(lexicon) > 125_000 and {"mortgage", "krzysztof"} <= set(lexicon.words) == set(model.words[3:])


def test_logits_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    "Their references are scored, so they are in no model; made-up ones have their grammar."
    for name, sentences, line in (("real", REAL[:3], OF_NOTHING), ("grammar", GRAMMAR[:3], OF_GRAMMAR)):
        path = logits_of(tmp_path / f"{name}.h5", sentences)
        assert main(f"decode --logits {path} --beam 20".split()) == 0
        assert line in capsys.readouterr().out, name
        found = decode_sentences(LogitsFile(path), lm="default", settings={"beam": 20})  # the same, by its name
        assert line in found.words and found.warning is None
    (tmp_path / "again.h5").write_bytes((tmp_path / "real.h5").read_bytes())
    combine_files([tmp_path / "real.h5", tmp_path / "again.h5"], tmp_path / "both.csv")
    assert OF_NOTHING in capsys.readouterr().err


def test_a_scored_sentence_is_in_no_model() -> None:
    "Neither as a line, nor inside a longer one; so it is as unlikely as if it had never been said."
    long = "and then they used to live in arlington near boston for years"
    _, model = words.choose_words(None, exclude=SCORED[1:], training=[*REAL, long])
    _, never = words.choose_words(None, exclude=SCORED[1:], training=[REAL[0], *REAL[2:]])
    said = normalise(SCORED[1]).split()
    assert model.origin["left out"] == 2 and model.sentence(said) == pytest.approx(never.sentence(said), abs=0.1)
    _, leaky = words.choose_words(None, training=REAL)
    assert leaky.sentence(said) > model.sentence(said) + 5


def test_kept_by_content(own_folder: Path) -> None:
    "A second call reads the file; whatever the model is made of makes another one; a damaged file is made again."
    def made(training: Sequence[str] = REAL, scored: Sequence[str] = SCORED, lexicon: Path | None = None) -> tuple[str, int]:
        model = words.choose_words(None, lexicon, scored, training=training, folder=own_folder)[1]
        return model.hash, len(list(own_folder.glob("*.b2tlm")))

    first, count = made()
    assert count == 1 and made() == (first, 1) and made(scored=SCORED[::-1]) == (first, 1)
    changed, count = made([*REAL[:-1], "Nobody ever told me about lexicons."])
    assert changed != first and count == 2
    unguarded, count = made(scored=())
    assert unguarded != first and count == 3
    extra = own_folder.parent / "extra.txt"
    extra.write_text("krzysztof K SH IH SH T AO F\n")
    longer, count = made(lexicon=extra)
    assert longer not in (first, changed) and count == 4
    for path in own_folder.glob("*.b2tlm"):
        path.write_bytes(path.read_bytes()[:-8])
    assert made() == (first, 4)
    for number in range(4):
        made([*REAL, f"Number {'one ' * (number + 1)}"])
    assert len(list(own_folder.glob("*.b2tlm"))) == len(list(own_folder.glob("*.b2tlm.key"))) == 4


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file/models"
    assert "6 training sentences" in words.about_words(*words.choose_words(None, training=REAL, folder=folder))
    assert "cannot be kept" in capsys.readouterr().err


def test_general_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "An installed model is mixed in, an attached one comes before it, a named one comes first; one that is too large stays whole."
    text = ["we have a big new car", "we have a big old mortgage", "they have a mortgage", "do you like it here"] * 3
    monkeypatch.setattr(words, "own_words", lambda lexicon: [*kit_words(), "mortgage"])
    for name in ("installed", "attached"):
        train_language_model([text], 3).save(tmp_path / f"{name}.b2tlm")
    monkeypatch.setattr(words, "installed_english", lambda: tmp_path / "installed.b2tlm")
    alone = words.make_model(REAL, SCORED, words.all_words(REAL), words.English("the simulator's sentences"))
    lexicon, model = words.choose_words(None, exclude=SCORED, training=REAL)
    said = normalise(SCORED[0]).split()
    assert model.sentence(said) > alone.sentence(said) + 5
    told = words.about_words(lexicon, model)
    assert "general English of pocketsphinx" in told and "nobody has checked" in told and "pip install" not in told

    monkeypatch.setattr(words, "find_english", lambda: words.English("the attached lm", tmp_path / "attached.b2tlm"))
    assert "the attached lm (" in words.about_words(*words.choose_words(None, training=REAL))
    monkeypatch.setattr(words, "MIXABLE", 5)
    lexicon, model = words.choose_words(None, training=REAL)
    assert "it cannot be mixed" in words.about_words(lexicon, model) and set(lexicon.words) == set(words.words_of(text))
    named = words.choose_words(tmp_path / "installed.b2tlm", training=REAL)
    assert words.about_words(*named).endswith("of the language model installed.b2tlm")


def test_two_attached_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "platform", lambda: type("Kaggle", (), {"name": "kaggle", "input_folders": (tmp_path,)}))
    for name in ("one.b2tlm", "two.b2tlm"):
        (tmp_path / name).touch()
    with pytest.raises(KitError, match="several language models are attached"):
        words.choose_words(None, training=REAL)


def test_weights_tuned_with_a_model_that_is_made_otherwise_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture) -> None:
    "General English was installed since: the weights are left out and a line says so, instead of an error."
    path = logits_of(tmp_path / "real.h5", REAL[:3])
    decode_sentences(LogitsFile(path), tune=True, settings={"beam": 8, "n_best": 5})
    train_language_model([["we have a big new car"]], 3).save(tmp_path / "new.b2tlm")
    monkeypatch.setattr(words, "installed_english", lambda: tmp_path / "new.b2tlm")
    capsys.readouterr()
    found = decode_sentences(LogitsFile(path), settings={"beam": 8})
    assert "general English" in found.words and "weights were tuned with another language model" in capsys.readouterr().err
