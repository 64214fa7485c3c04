"Validation decodes words, and the word error rate selects the checkpoint."
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.core.files import load_json
from b2t_kit.data.write import SessionWriter
from b2t_kit.data.dataset import NUM_FEATURES, Trial
from b2t_kit.speech.decoder import load_decoder
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.phonemes import to_ids
from b2t_kit.training.checkpoint import checkpoint_steps, read_best
from b2t_kit.training.log import read_metrics

pytestmark = [pytest.mark.usefixtures("dots"), pytest.mark.second_tier]
SAID = ("i would like to see my family.", "bring it closer.", "can you hear me now?", "not too bad.")
BINS = 12  # of each phoneme
DAY = "t15.2023.08.11"


def legible_trial(generator: np.random.Generator, sentence: str, session: str, number: int) -> Trial:
    "A trial in which every phoneme has its own channel, with some noise."
    labels = np.array(to_ids(sentence_to_phonemes(sentence)))
    features = 0.3 * generator.standard_normal((BINS * len(labels), NUM_FEATURES), dtype=np.float32)
    features[np.arange(len(features)), np.repeat(labels, BINS)] += 4.0
    return Trial(features, labels, session, 1, number, sentence)


def legible_day(root: Path, **trials: int) -> Path:
    for index, (split, count) in enumerate(trials.items()):
        generator = np.random.default_rng(index)
        with SessionWriter(root / DAY, split) as writer:
            for number in range(count):
                writer.write(legible_trial(generator, SAID[number % len(SAID)], DAY, 100 * index + number))
    return root


def train_legible(data: Path, out: Path, words: str = "") -> None:
    """A decoder that has learned some of the words of a legible day."""
    settings = "--config linear --steps 40 --warmup-steps 2 --lr 0.02 --device cpu"
    command = f"train {settings} --data {data} --out {out} {words}"
    assert main(command.split()) == 0, command


def test_the_best_checkpoint_has_the_fewest_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    "Each validation reports `wer`; the best checkpoint is marked, kept and used. Without a language model nothing begins."
    data, run = legible_day(tmp_path / "hdf5_data_final", train=16, val=4, test=1), tmp_path / "run"
    command = (f"train --data {data} --out {run} --config linear --steps 12 --warmup-steps 5 --lr 0.01 --eval-every 2 "
               "--checkpoint-every 12 --log-every 6 --select wer --beam 20")
    for words, told in {"": "select: wer needs word decoding", "--tuned decoding.json": "tuned: needs the language model",
                        "--lm gone.b2tlm": "gone.b2tlm: cannot be read"}.items():
        assert main(f"{command} {words}".split()) == 2 and told in capsys.readouterr().err and not run.exists()
    assert main(f"{command} --lm default".split()) == 0
    rates = {row["step"]: row["wer"] for row in read_metrics(run) if row["kind"] == "eval"}
    assert list(rates) == [2, 4, 6, 8, 10, 12] and min(rates.values()) <= 0.5 < max(rates.values())
    best = read_best(run)
    assert best.metric == "wer" and best.value == pytest.approx(min(rates.values()), abs=1e-5)
    assert best.step == min(rates, key=rates.get) and best.step in checkpoint_steps(run)
    assert load_decoder(run).origin == f"run, step {best.step}"
    assert load_json(run / "config.json")["task"]["config"]["words"]["lm"] == "default"


def test_recordings_with_columns_in_another_order_are_told_of(
    legible: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    "A decoder that is sure of other phonemes than the labels on most trials says so; on its own day it says nothing."
    run = shutil.copytree(legible / "run", tmp_path / "run")
    generator = np.random.default_rng(5)
    with SessionWriter(tmp_path / "later" / DAY, "val") as writer:
        for number in range(6):
            trial = legible_trial(generator, SAID[number % len(SAID)], DAY, 100 + number)
            writer.write(replace(trial, features=trial.features[:, ::-1].copy()))
    told = "are these recordings of the same participant, their columns and bins in the order of training"
    for data, is_told in {legible / "data": False, tmp_path / "later": True}.items():
        assert main(["eval", "--run", str(run), "--data", str(data), "--device", "cpu"]) == 0
        assert (told in capsys.readouterr().err) == is_told, data


def test_adaptation_is_taken_only_where_its_words_fit_better(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    "Half of the phonemes have weak channels: careful steps mend some, and reckless ones spoil the decoder."
    data, run = legible_day(tmp_path / "hdf5_data_final", train=16, val=1), tmp_path / "run"
    assert main(f"train --data {data} --out {run} --config linear --steps 40 --warmup-steps 5 --lr 0.02 --eval-every 0 "
                "--device cpu".split()) == 0
    generator = np.random.default_rng(5)
    with SessionWriter(tmp_path / "later" / DAY, "val") as writer:
        for number in range(12):
            trial = legible_trial(generator, SAID[number % len(SAID)], DAY, 100 + number)
            trial.features[:, :41:2] *= 0.05
            writer.write(trial)
    for rate, kept in {"0.005": "adapted", "0.1": "as trained"}.items():
        assert main(f"decode --run {run} --data {tmp_path / 'later'} --adapt --adapt-copies 4 --adapt-lr {rate} --device cpu "
                    f"--out {tmp_path / 'out'}".split()) == 0
        found = load_json(tmp_path / "out/result.json")
        told = found["adaptation"]
        before, after = told["misfit"]
        assert told["kept"] == kept and (after < before - 0.1) == (kept == "adapted"), told
        side = "with" if kept == "adapted" else "before"
        assert found["wer"] == told["words"]["all days"][side] and told["phonemes"]["all days"][side] <= 0.45, told
        assert (told["phonemes"]["all days"]["with"] > 0.5) == (kept == "as trained"), told
    known = f"decode --run {run} --data {tmp_path / 'later'} --adapt --adapt-labelled 3 --device cpu --out {tmp_path / 'known'}"
    assert main(known.replace("--adapt-labelled 3 ", "").split()) == 0  # its lists have all sentences, in the same folder
    capsys.readouterr()
    assert main(known.split()) == 0
    assert "3 trials whose sentences were known to adaptation are not scored" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "known/nbest.jsonl").read_text().splitlines()]
    assert [row.get("sentence_label") is None for row in rows] == [True] * 3 + [False] * 9
