"""Killed runs, full disks, read-only folders, and damaged checkpoints."""
import json
import os
import resource
import signal
import subprocess
import sys
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
from toy import ToyTask, toy_config
from b2t_kit.train import train

TESTS = Path(__file__).parent
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, str(TESTS / "killed_runs.py"), str(tmp_path), "20"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(one["killed"] for one in found["tries"]) == 20
    assert sum(one["half_written"] for one in found["tries"]) >= 5
    assert len({one["from"] for one in found["tries"]}) >= 8  # they went on from different steps
    assert all(run == found["straight"] for run in found["runs"])
    assert len(found["straight"]["tensors"]) == 3 and found["straight"]["left"] == []


def may_mount() -> bool:
    """Whether this process may mount file systems."""
    with os.scandir("/") as _:
        probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                               capture_output=True)
    return probe.returncode == 0


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


@contextmanager
def read_only(folder: Path) -> Iterator[Callable[[], None]]:
    """Yields a function that makes `folder` read-only."""
    mounted = []

    def forbid() -> None:
        if os.geteuid():
            folder.chmod(0o500)
            return
        mounted.append(folder)  # permissions do not bind root, a mount does
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)

    try:
        yield forbid
    finally:
        for one in mounted:
            subprocess.run(["umount", "--lazy", str(one)], check=True)
        if folder.exists():
            folder.chmod(0o700)


def test_folder_that_becomes_read_only(tmp_path: Path, straight: Path) -> None:
    """The folder becomes read-only at step 33; once it is writable again, the resumed run ends with the same bits."""
    if os.geteuid() == 0 and not may_mount():
        pytest.skip("root may not mount here, and permissions do not bind root")
    run = tmp_path / "run"
    with read_only(run / "checkpoints") as forbid:
        message = refusal(train, disturbed_by(forbid), toy_config(), run, quiet=True)
        assert_stopped_at(run, message, "")
        assert "Read-only file system" in message or "Permission denied" in message
    train(ToyTask(**BIG), toy_config(), run, resume=True, quiet=True)
    assert_same_bits(run, straight)


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A run folder below a file, and one that is read-only from the start."""
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    message = refusal(train, ToyTask(), toy_config(), blocker / "run", quiet=True)
    assert str(blocker / "run") in message and "cannot be written to" in message
    locked = tmp_path / "locked"
    locked.mkdir()
    if os.geteuid() == 0 and not may_mount():
        return
    with read_only(locked) as forbid:
        forbid()
        message = refusal(train, ToyTask(), toy_config(), locked / "run", quiet=True)
        assert str(locked / "run") in message and "cannot be written to" in message
    assert list(locked.iterdir()) == []


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
        done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])})
        said.append(done.stdout)

    train(disturbed_by(intrude), toy_config(), run, quiet=True)
    assert said == [f"KitError {run}: another process is training into this folder\n"]
