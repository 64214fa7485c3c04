"""Killed runs, full disks, read-only folders, and damaged checkpoints."""
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from b2t_kit.core import KitError
from b2t_kit.training.checkpoint import best_checkpoint, checkpoint_fault, checkpoint_path
from b2t_kit.training.log import read_metrics
from b2t_kit.train import train
from commands import TESTS, bits, python
from toy import ToyTask, disturbed, toy_config

BIG = {"hidden": 3000}  # a checkpoint of 60 kB a part, so that little room is not enough


def disturbed_at_33(action: Callable[[], None]) -> ToyTask:
    """A task during whose training `action` is called once."""
    return disturbed(lambda step, *_: action() if step == 33 else None, **BIG)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    assert len(found["straight"]["tensors"]) == 3 and not found["straight"]["left"]


def test_file_size_limit(tmp_path: Path, straight: Path) -> None:
    """A quota is reached at step 33: like a full disk, but without privileges. What was saved stays, and is resumed."""
    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(KitError) as refused:
            limited = disturbed_at_33(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1])))
            train(limited, toy_config(), run, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    message = str(refused.value)
    assert message.startswith(f"{checkpoint_path(run, 40)}: the checkpoint could not be written (Error while serializing: I/O "
                              "error: File too large") and message.endswith("checkpoints kept: 0, 20")
    assert best_checkpoint(run) == checkpoint_path(run, 20) and checkpoint_fault(checkpoint_path(run, 20)) == ""
    assert sorted(os.listdir(run / "checkpoints")) == ["00000000", "00000020"]
    train(ToyTask(**BIG), toy_config(), run, resume=True, quiet=True)
    assert bits(run) == bits(straight)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", ".complete"])
def test_truncated_checkpoint(name: str, tmp_path: Path, straight: Path, capsys) -> None:
    """A truncated newest checkpoint is named, and the run resumes from the one before."""
    run = shutil.copytree(straight, tmp_path / "run")
    os.truncate(checkpoint_path(run, 60) / name, 30)
    train(ToyTask(**BIG), toy_config(), run, resume=True)
    said = capsys.readouterr().out
    assert f"{checkpoint_path(run, 60)}: damaged ({name} " in said
    assert f"{run}, from step 40 to 60" in said
    assert checkpoint_fault(checkpoint_path(run, 60)) == ""
    assert bits(run) == bits(straight)
    assert [row["step"] for row in read_metrics(run) if row["kind"] == "eval"] == [20, 40, 60]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """A second process that trains into a run's folder is refused while the first one lives."""
    run = tmp_path / "run"
    said = []

    def intrude() -> None:
        code = ("import sys; from b2t_kit.train import train; from toy import ToyTask, disturbed, toy_config\n"
                "try: train(ToyTask(hidden=3000), toy_config(), sys.argv[1], resume=True)\n"
                "except Exception as error: print(type(error).__name__, error)")
        said.append(python("-c", code, run).stdout)

    train(disturbed_at_33(intrude), toy_config(), run, quiet=True)
    assert said == [f"KitError {run}: another process is training into this folder\n"]
