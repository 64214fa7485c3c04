"""Killed runs, full disks, read-only folders, and damaged checkpoints.

    test_resume.py FOLDER KILLS      kills runs at random moments, and resumes them
"""
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from b2t_kit.core.errors import KitError
from b2t_kit.training.checkpoint import best_checkpoint, checkpoint_fault, checkpoint_path
from b2t_kit.training.log import read_metrics, series
from b2t_kit.train import train
from commands import TESTS, bits, newest, python
from toy import disturbed
from b2t_kit.training.toy import ToyTask, toy_config

pytestmark = pytest.mark.second_tier

BIG = {"hidden": 3000}  # a checkpoint of 60 kB a part, so that little room is not enough


def disturbed_at_33(action: Callable[[], None]) -> ToyTask:
    """A task during whose training `action` is called once."""
    return disturbed(lambda step, *_: action() if step == 33 else None, **BIG)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("straight") / "run"
    train(ToyTask(**BIG), toy_config(), run, quiet=True)
    return run


OFTEN = toy_config(steps=100, checkpoint_every=4, eval_every=10, log_every=5, keep_checkpoints=2)


def begin(run: Path) -> int:
    """Fork a process that trains or resumes; torch is imported once for all, and this process computes nothing itself."""
    process = os.fork()
    if not process:
        try:
            begun = (run / "config.json").exists()  # a kill before that leaves nothing to resume
            train(ToyTask(hidden=64), OFTEN, run, resume=begun, quiet=True)  # its dropout is 0.2
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return process


def half_written(run: Path) -> bool:
    """Whether a checkpoint is being written, or was when the writer died."""
    return any((run / "checkpoints").glob("*.partial"))


def kill_once(run: Path, moment: random.Random, while_writing: bool) -> dict:
    """Begin or resume a run and kill it after some progress, anywhere or as soon as a checkpoint is being written."""
    begun = newest(run)
    goal, process = begun + OFTEN.checkpoint_every * moment.randint(0, 3), begin(run)
    while newest(run) < goal or while_writing and not half_written(run):
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.0002)
    time.sleep(0 if while_writing else moment.uniform(0, 0.2))  # about the time between two checkpoints
    os.kill(process, signal.SIGKILL)
    killed = os.waitpid(process, 0)[1] == signal.SIGKILL
    return {"killed": killed, "half": half_written(run), "from": begun}


def outcome(run: Path) -> tuple:
    """The bits of a finished run, and what it measured."""
    rows = read_metrics(run)
    return bits(run), series(rows, "train", "loss"), series(rows, "eval", "loss"), (run / "best").read_text(), half_written(run)


def killed(tries: list[dict]) -> int:
    return sum(one["killed"] for one in tries)


def kill_runs(folder: Path, kills: int) -> list[dict]:
    """Train once without interruption, then kill runs until there are enough kills; each ends as the first one did."""
    assert os.waitpid(begin(folder / "straight"), 0)[1] == 0
    moment, tries = random.Random(20), list[dict]()
    while killed(tries) < kills:
        run = folder / f"run_{len(tries)}"
        tries.append(kill_once(run, moment, False))
        while tries[-1]["killed"] and killed(tries) < kills:
            tries.append(kill_once(run, moment, len(tries) % 2 == 1))
        assert not tries[-1]["killed"] or os.waitpid(begin(run), 0)[1] == 0, "it could not go on"
        assert outcome(run) == outcome(folder / "straight") and len(bits(run)) == 3 and not half_written(run)
    return tries


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    """SIGKILL, 20 times, half of them while a checkpoint is written: the same bits and rows at the end."""
    tries = json.loads(python(TESTS / "test_resume.py", tmp_path, 20, timeout=1500, USE_TORCH_XLA="0").stdout)
    assert killed(tries) == 20 and sum(one["half"] for one in tries) >= 5
    assert len({one["from"] for one in tries}) >= 8  # they went on from different steps


def at_a_quota(run: Path, straight: Path) -> list[str]:
    """It is reached at step 33: like a full disk, but without privileges. What was saved stays."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(KitError) as refused:
            limit = (100_000, before[1])
            limited = disturbed_at_33(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
            train(limited, toy_config(), run, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    message = str(refused.value)
    path, kept = checkpoint_path(run, 40), checkpoint_path(run, 20)
    reason = "Error while serializing: I/O error: File too large"
    assert message.startswith(f"{path}: the checkpoint could not be written ({reason}")
    assert message.endswith("checkpoints kept: 0, 20")
    assert best_checkpoint(run) == kept and checkpoint_fault(kept) == ""
    assert sorted(os.listdir(run / "checkpoints")) == ["00000000", "00000020"]
    return [f"{run}, from step 20 to 60"]


def by_a_signal(run: Path, straight: Path) -> list[str]:
    """It saves its step first."""
    signalled = disturbed_at_33(lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = train(signalled, toy_config(), run, quiet=True)
    assert (stopped.stopped, stopped.step) == ("SIGTERM", newest(run)) and 32 <= stopped.step < 40
    return [f"{run}, from step {stopped.step} to 60"]


def with_damage(name: str) -> Callable[[Path, Path], list[str]]:
    """A truncated newest checkpoint is named, and the run resumes from the one before."""
    def stop(run: Path, straight: Path) -> list[str]:
        shutil.copytree(straight, run)
        os.truncate(checkpoint_path(run, 60) / name, 30)
        return [f"{checkpoint_path(run, 60)}: damaged ({name} ", f"{run}, from step 40 to 60"]
    return stop


# how -> stops a run, and returns what is printed when it goes on
STOPS = {"a quota": at_a_quota, "a signal": by_a_signal}
STOPS |= {f"a truncated {name}": with_damage(name)
          for name in ("model.safetensors", "optimizer.safetensors", "state.json", ".complete")}


@pytest.mark.parametrize("how", [
    pytest.param(how, marks=pytest.mark.first_tier) if "truncated" in how else how for how in STOPS])
def test_a_stopped_run_ends_as_one_that_was_never_stopped(
    how: str, tmp_path: Path, straight: Path, capsys: pytest.CaptureFixture
) -> None:
    """With the same bits, and each validation once."""
    run = tmp_path / "run"
    expected = STOPS[how](run, straight)
    train(ToyTask(**BIG), toy_config(), run, resume=True)
    said = capsys.readouterr().out
    assert all(line in said for line in expected), said
    assert checkpoint_fault(checkpoint_path(run, 60)) == ""
    assert bits(run) == bits(straight)
    assert [row["step"] for row in read_metrics(run) if row["kind"] == "eval"] == [20, 40, 60]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """A second process that trains into a run's folder is refused while the first one lives."""
    run = tmp_path / "run"
    said = []

    def intrude() -> None:
        code = ("import sys; from b2t_kit.train import train; from b2t_kit.training.toy import ToyTask, toy_config\n"
                "try: train(ToyTask(hidden=3000), toy_config(), sys.argv[1], resume=True)\n"
                "except Exception as error: print(type(error).__name__, error)")
        said.append(python("-c", code, run).stdout)

    train(disturbed_at_33(intrude), toy_config(), run, quiet=True)
    (line,) = said
    assert line.startswith(f"KitError {run}: process {os.getpid()} on ") and "is writing it; wait" in line, line


if __name__ == "__main__":
    import accelerate  # noqa: F401 - before the forks
    gc.collect()
    gc.freeze()  # what is imported need not be looked through again in every fork
    print(json.dumps(kill_runs(Path(sys.argv[1]), int(sys.argv[2]))))
