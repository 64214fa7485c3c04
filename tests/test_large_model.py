"""A large model after the search, from the command line."""
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit import core, lm
from b2t_kit.decode.files import read_nbest
from b2t_kit.llm import KeptScores, load_scorer
from b2t_kit.simulate import draw_sentence, noisy_sentence, phrases
from tiny_models import write_causal

pytestmark = pytest.mark.usefixtures("dots")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    generator = np.random.default_rng(3)
    with h5py.File(folder / "theirs.h5", "w") as file:
        for number in range(5):
            sentence = draw_sentence(generator, held_out=True)
            file[f"{number}/logits"] = noisy_sentence(sentence, generator)
            file[str(number)].attrs.update(session="day 1", block_num=1, trial_num=number, sentence_label=sentence)
    text = [draw_sentence(generator, held_out=False) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(text))
    assert main(["lm", "build", str(folder / "text.txt"), "--out", str(folder / "model.b2tlm")]) == 0
    write_causal(folder / "causal")
    return folder


def decoded(good: Path, out: Path, *more: str) -> list[str]:
    words = ["--logits", str(good / "theirs.h5"), "--lm", str(good / "model.b2tlm"), "--beam", "30", "--n-best", "8"]
    assert main(["decode", *words, "--out", str(out), *more]) == 0
    return [trial.sentence for trial in read_nbest(out / "nbest.jsonl")]


def rescore(folder: Path, model: Path | str, *more: str) -> int:
    return main(["rescore", str(folder / "plain/nbest.jsonl"), "--llm", str(model), "--device", "cpu", "--out",
                 str(folder / "new/out.jsonl"), *more])


def test_rescore(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Weights that were tuned on lists are used for others."""
    decoded(good, tmp_path / "plain")
    words = ["rescore", str(tmp_path / "plain/nbest.jsonl"), "--llm", str(good / "causal"), "--device", "cpu"]
    assert main([*words, "--tune", "--out", str(tmp_path / "new/val.jsonl")]) == 0
    weights = tmp_path / "new/val.weights.json"
    assert main([*words, "--weights", str(weights), "--out", str(tmp_path / "again.jsonl")]) == 0
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "new/val.jsonl").read_bytes()
    assert "5 lists rescored" in capsys.readouterr().out


def test_writing(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """How sentences are written for a model is measured on a text."""
    assert main(["lm", "perplexity", str(good / "causal"), str(good / "text.txt")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("perplexity per word of 40 sentences") and len(said) > 3


def test_without_transformers(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The package that is missing is named, with the command that installs it."""
    decoded(good, tmp_path / "plain")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert rescore(tmp_path, good / "causal", "--tune") == 2 and "pip install 'b2t_kit[rescore]'" in capsys.readouterr().err


def test_time_left_is_told(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture) -> None:
    """Whatever may take longer than two seconds says how much is done: here, after each piece and without waiting."""
    monkeypatch.setattr(core, "LOG_EVERY", 0.0)
    monkeypatch.setattr(lm, "BLOCK", 50)
    monkeypatch.setattr(lm, "BATCH", 50)
    monkeypatch.setattr(lm, "BLOCK_BYTES", 1000)
    lines = phrases()["fixed"][:80]
    models = [lm.train_language_model([part]) for part in (lines[::2], lines[1::2])]
    lm.mixed(models, [0.5, 0.5])
    lm.read_arpa(lm.write_arpa(models[0], tmp_path / "model.arpa"))
    whole = ["counting n-grams of 2 words", "linking n-grams", "listing n-grams of 2 words", "mixing n-grams of 3 words",
             "weighing contexts", "writing n-grams of 2 words", "reading model.arpa"]
    said = capsys.readouterr().err
    assert [one for one in whole if f"{one}: " not in said] == []

    decoded(good, tmp_path / "plain", "--tune")
    said = capsys.readouterr().err
    assert "search 1: " in said and re.search(r"searching: [0-9]+%", said)
    assert rescore(tmp_path, good / "causal", "--tune") == 0
    said = capsys.readouterr().err
    assert "choosing how sentences are written: " in said and "tuning: " in said
    with KeptScores(load_scorer(good / "causal"), tmp_path / "scores.json") as kept:
        kept.score_lists([["we can"], ["we see"]], at_once=1)
    assert "scoring sentences: 50%" in capsys.readouterr().err
