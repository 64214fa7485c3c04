"""Killed runs, full disks, read-only folders, and damaged checkpoints."""
import json
import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path
from collections.abc import Callable, Iterator

import pytest
import torch

from b2t_kit.training.checkpoint import (
    best_checkpoint, checkpoint_fault, checkpoint_path, checkpoint_steps, read_part,
)
from b2t_kit.core import KitError
from b2t_kit.training.log import read_metrics
from b2t_kit.train import train
from commands import TESTS, python
from toy import ToyTask, toy_config

BIG = {"hidden": 3000}  # a checkpoint of 60 kB a part, so that little room is not enough


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """Weights, average and moments of a run's newest checkpoint."""
    newest = checkpoint_path(run, checkpoint_steps(run)[-1])
    return {f"{part}/{name}": value for part in ("model", "ema", "optimizer")
            for name, value in read_part(newest, part).items()}


def assert_same_bits(run: Path, other: Path) -> None:
    """The newest checkpoints of two runs hold the same bits."""
    found, expected = tensors_of(run), tensors_of(other)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def refusal(action: Callable[..., object], *arguments: object, **named: object) -> str:
    """The one-line message of the KitError that a call must raise."""
    with pytest.raises(KitError) as caught:
        action(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Disturbed(ToyTask):
    """The toy task; at step 33 something happens to the machine."""

    disturb: Callable[[], None] = staticmethod(lambda: None)

    def batches(self, config, device, position):
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 33 and position < 33:
                type(self).disturb()
            yield micro_batches


def disturbed_by(action: Callable[[], None]) -> ToyTask:
    """A task during whose training `action` is called once."""
    Disturbed.disturb = staticmethod(action)
    return Disturbed(**BIG)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    run = tmp_path_factory.mktemp("straight") / "run"
    train(ToyTask(**BIG), toy_config(), run, quiet=True)
    return run


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    """SIGKILL, 20 times, half of them while a checkpoint is written: the same bits and rows at the end."""
    found = json.loads(python(TESTS / "killed_runs.py", tmp_path, 20, timeout=1500).stdout)
    assert sum(one["killed"] for one in found["tries"]) == 20
    assert sum(one["half_written"] for one in found["tries"]) >= 5
    assert len({one["from"] for one in found["tries"]}) >= 8  # they went on from different steps
    assert all(run == found["straight"] for run in found["runs"])
    assert len(found["straight"]["tensors"]) == 3 and found["straight"]["left"] == []


@contextmanager
def file_size_limit() -> Iterator[Callable[[], None]]:
    """Yields a function that limits the files of this process to 100 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def assert_stopped_at(run: Path, message: str, reason: str) -> None:
    """Check a run that could not write step 40: its error, and the files in its folder."""
    assert f"{checkpoint_path(run, 40)}: the checkpoint could not be written ({reason}" in message
    assert message.endswith("checkpoints kept: 0, 20")
    assert checkpoint_fault(checkpoint_path(run, 20)) == ""
    assert best_checkpoint(run) == checkpoint_path(run, 20)
    assert sorted(os.listdir(run / "checkpoints")) == ["00000000", "00000020"]


def test_file_size_limit(tmp_path: Path, straight: Path) -> None:
    """A quota is reached at step 33: like a full disk, but without privileges."""
    run = tmp_path / "run"
    with file_size_limit() as limit:
        message = refusal(train, disturbed_by(limit), toy_config(), run, quiet=True)
    assert_stopped_at(run, message, "Error while serializing: I/O error: File too large")
    train(ToyTask(**BIG), toy_config(), run, resume=True, quiet=True)
    assert_same_bits(run, straight)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", ".complete"])
def test_truncated_checkpoint(name: str, tmp_path: Path, straight: Path, capsys) -> None:
    """A truncated newest checkpoint is named, and the run resumes from the one before."""
    run = tmp_path / "run"
    train(ToyTask(**BIG), toy_config(), run, quiet=True)
    os.truncate(checkpoint_path(run, 60) / name, 30)
    train(ToyTask(**BIG), toy_config(), run, resume=True)
    said = capsys.readouterr().out
    assert f"{checkpoint_path(run, 60)}: damaged ({name} " in said
    assert f"{run}, from step 40 to 60" in said
    assert checkpoint_fault(checkpoint_path(run, 60)) == ""
    assert_same_bits(run, straight)
    assert [row["step"] for row in read_metrics(run) if row["kind"] == "eval"] == [20, 40, 60]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """A second process that trains into a run's folder is refused while the first one lives."""
    run = tmp_path / "run"
    said = []

    def intrude() -> None:
        code = ("import sys; from b2t_kit.train import train; from toy import ToyTask, toy_config\n"
                "try: train(ToyTask(hidden=3000), toy_config(), sys.argv[1], resume=True)\n"
                "except Exception as error: print(type(error).__name__, error)")
        said.append(python("-c", code, run).stdout)

    train(disturbed_by(intrude), toy_config(), run, quiet=True)
    assert said == [f"KitError {run}: another process is training into this folder\n"]
