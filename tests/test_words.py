"Validation decodes words, and the word error rate selects the checkpoint."
import json
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.data.dataset import NUM_FEATURES, Trial
from b2t_kit.data.convert import SessionWriter
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.text.phonemes import to_ids
from b2t_kit.text.g2p import sentence_to_phonemes
from b2t_kit.training.checkpoint import checkpoint_steps, read_best
from b2t_kit.training.log import read_metrics

SAID = ("i would like to see my family.", "bring it closer.", "can you hear me now?", "not too bad.")
BINS = 12  # of each phoneme


def legible_trial(generator: np.random.Generator, sentence: str, session: str, number: int) -> Trial:
    "A trial in which every phoneme has its own channel, with some noise."
    labels = np.array(to_ids(sentence_to_phonemes(sentence)))
    features = 0.3 * generator.standard_normal((BINS * len(labels), NUM_FEATURES), dtype=np.float32)
    features[np.arange(len(features)), np.repeat(labels, BINS)] += 4.0
    return Trial(features, labels, session, 1, number, sentence)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    "One day with a few sentences that are repeated."
    root, session = tmp_path_factory.mktemp("data") / "hdf5_data_final", "t15.2023.08.11"
    for index, (split, count) in enumerate({"train": 16, "val": 4, "test": 1}.items()):
        generator = np.random.default_rng(index)
        with SessionWriter(root / session, split) as writer:
            for number in range(count):
                writer.write(legible_trial(generator, SAID[number % len(SAID)], session, number))
    return root


def command(data: Path, out: Path, *more: str) -> list[str]:
    "A short training of the linear readout."
    words = ("--config linear --steps 12 --warmup-steps 5 --lr 0.01 --eval-every 2 --checkpoint-every 12 "
             "--log-every 6 --select wer --beam 20").split()
    return ["train", "--data", str(data), "--out", str(out), *words, *more]


def test_the_best_checkpoint_has_the_fewest_wrong_words(data, tmp_path):
    "Each validation reports `wer`; the checkpoint of the best one is marked, kept and used."
    run = tmp_path / "run"
    assert main(command(data, run, "--lm", "default")) == 0
    rates = {row["step"]: row["wer"] for row in read_metrics(run) if row["kind"] == "eval"}
    assert list(rates) == [2, 4, 6, 8, 10, 12] and len(set(rates.values())) > 2
    best = read_best(run)
    assert best.metric == "wer" and best.value == pytest.approx(min(rates.values()), abs=1e-5)
    assert min(rates.values()) <= 0.5 < max(rates.values())
    assert best.step == min(rates, key=rates.get) and best.step in checkpoint_steps(run)
    assert load_decoder(run).origin == f"run, step {best.step}"
    record = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert record["task"]["words"] and record["task"]["config"]["words"]["lm"] == "default"


def test_without_a_language_model_nothing_is_begun(data, tmp_path, capsys):
    "`--select wer` and tuned weights need a language model that can be read."
    assert main(command(data, tmp_path / "run")) == 2
    assert "select: wer needs word decoding in validation" in capsys.readouterr().err
    assert main(command(data, tmp_path / "run", "--tuned", "decoding.json")) == 2
    assert "tuned: needs the language model" in capsys.readouterr().err
    assert main(command(data, tmp_path / "run", "--lm", str(tmp_path / "gone.b2tlm"))) == 2
    assert "gone.b2tlm: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
