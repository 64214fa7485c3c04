"""The speech task gives the same decoder for any number of processes and micro-batches."""
import os
import shutil
from contextlib import closing
from pathlib import Path

import h5py
import pytest
import torch

from b2t_kit.data.batches import BatchConfig
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.decode.decode import RunLogits
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.transformer import TransformerConfig
from b2t_kit.core import KitError
from b2t_kit.training.task import TrainConfig
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import Result, train
from commands import bits, tensors
from several_processes import torchrun

STEPS = 4


def train_twice(data: str, out: str) -> None:
    for accumulation in (1, 2):
        train_small(data, f"{out}/{accumulation}", accumulation)


def train_small(data: str, out: str, accumulation: int = 1, resume: bool = False) -> Result:
    """Train a small decoder without dropout; the steps hold 5 to 7 trials of three days."""
    model = GRUConfig(hidden=12, num_layers=2, dropout=0.0, day_dropout=0.0)
    task = SpeechTask(data, SpeechConfig(model, batches=BatchConfig(batch_size=7, buckets=2)))
    settings = TrainConfig(
        steps=STEPS, lr=0.01, warmup_steps=1, eps=0.01, device="cpu", log_every=2, eval_every=0,
        checkpoint_every=0, ema_decay=0.9, accumulation=accumulation,
    )
    with closing(task):
        return train(task, settings, out, resume, quiet=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_recordings(tmp_path_factory.mktemp("data"), sessions=3, trials=7))


@pytest.fixture(scope="module")
def whole(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One process, one batch per step."""
    return train_small(data, str(tmp_path_factory.mktemp("whole") / "run"))


def assert_same_run(out: Path, whole: Result, values: dict | None = None) -> None:
    """Equal weights, averages and validation, to float32 tolerance."""
    found, expected = (tensors(run, "model", "ema") for run in (out, whole.folder))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=3e-6)
    if values is not None:
        assert values["per"] == whole.values["per"]
        assert values["loss"] == pytest.approx(whole.values["loss"], rel=1e-5)


def test_accumulation_equals_the_large_batch(data: str, whole: Result, tmp_path: Path) -> None:
    """Three micro-batches of different sizes per step."""
    result = train_small(data, str(tmp_path / "run"), 3)
    assert_same_run(result.folder, whole, result.values)


def test_two_processes_equal_one(data: str, whole: Result, tmp_path: Path) -> None:
    """The same global batches in two processes, with and without accumulation."""
    torchrun("test_speech:train_twice", data, str(tmp_path))
    for accumulation in (1, 2):
        assert_same_run(tmp_path / str(accumulation), whole)


def train_transformer(
    data: str, out: Path, dropout: float, accumulation: int = 1, resume: bool = False, steps: int = STEPS, **more: object
) -> Result:
    """Train a small Transformer; each step has its own window, and each trial its own masks."""
    model = TransformerConfig(
        blocks=2, width=16, heads=2, head_width=8, inner=32, reach=6, patch_dropout=dropout, block_dropout=dropout,
        window_least=0.3, window_most=2.0, mask_share=0.2)
    task = SpeechTask(data, SpeechConfig(
        model, batches=BatchConfig(batch_size=7, buckets=2, cut=0), per_label=True, **more))
    settings = TrainConfig(
        steps=steps, decay_start=3, decay_steps=3, lr_floor=0.1, lr_every=2, lr=0.01, warmup_steps=1, eps=1e-8,
        device="cpu", log_every=2, eval_every=0, checkpoint_every=0, ema_decay=0.9, accumulation=accumulation)
    result = train(task, settings, out, resume, quiet=True)
    task.close()
    return result


def test_a_transformer_with_micro_batches(data: str, tmp_path: Path) -> None:
    """All micro-batches of a step have the step's window."""
    straight, parts = (train_transformer(data, tmp_path / str(parts), 0.0, parts) for parts in (1, 3))
    assert_same_run(parts.folder, straight, parts.values)


def test_a_transformer_resumes_to_the_same_bits(data: str, tmp_path: Path) -> None:
    """Dropout, masks and windows on, a day held out; the run is then evaluated, and its test split decoded."""
    day = {"holdout": (SpeechTask(data).sessions[2],)}
    straight = train_transformer(data, tmp_path / "straight", 0.2, **day)
    for steps in (2, STEPS):
        found = train_transformer(data, tmp_path / "resumed", 0.2, 1, steps > 2, steps, **day)
    assert bits(found.folder) == bits(straight.folder)
    assert found.values == straight.values and "unseen_per" in found.values
    evaluated = evaluate_run(found.folder, data, device="cpu")
    assert evaluated.per.rate > 0 and RunLogits(found.folder, data, "test", "cpu").read(tmp_path).trials


CHANGES = {  # split, and what changes in a trial
    "features": ("train", lambda trial: trial["input_features"].__setitem__((3, 5), 9)),
    "labels": ("val", lambda trial: trial["seq_class_ids"].__setitem__(0, 1 + (trial["seq_class_ids"][0] == 1))),
    "a sentence": ("train", lambda trial: trial.attrs.update(sentence_label=trial.attrs["sentence_label"][::-1]))}


def test_changed_recordings_are_refused(data: str, whole: Result, tmp_path: Path) -> None:
    """A run does not go on with other content under the same names, lengths and times; one trial is enough."""
    run, other = shutil.copytree(whole.folder, tmp_path / "run"), shutil.copytree(data, tmp_path / "hdf5_data_final")
    assert train_small(str(other), str(run), resume=True).step == STEPS  # a copy has the same content
    for split, change in CHANGES.values():
        changed = sorted(other.iterdir())[1] / f"data_{split}.hdf5"
        before, content = changed.stat(), changed.read_bytes()
        with h5py.File(changed, "r+") as file:
            change(file["trial_0000"])
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(KitError) as caught:
            train_small(str(other), str(run), resume=True)
        message = str(caught.value)
        assert f"data.{split}.content.{changed.parent.name} was" in message and str(run) in message and "\n" not in message
        assert message.count("t15.") == 1  # no other day
        changed.write_bytes(content)
