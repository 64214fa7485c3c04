"""Kill training runs at random moments and resume them; started by test_resume.py.

    python killed_runs.py FOLDER KILLS

It prints one JSON object. torch is imported once; every try is a fork of this process, which itself
computes nothing, so a try takes milliseconds to start.
"""
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

os.environ["USE_TORCH_XLA"] = "0"  # as the kit does when it imports Accelerate
import accelerate  # noqa: F401

from b2t_kit.training.checkpoint import checkpoint_path, checkpoint_steps
from b2t_kit.training.log import read_metrics, series
from toy import ToyTask, toy_config
from b2t_kit.train import train

TASK = ToyTask(hidden=64)  # its dropout is 0.2
CONFIG = toy_config(steps=100, checkpoint_every=4, eval_every=10, log_every=5, keep_checkpoints=2)


def start(folder: Path) -> int:
    """Fork a process that trains or resumes in `folder`; returns its number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        train(TASK, CONFIG, folder, resume=folder.exists(), quiet=True)
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def wait(process: int) -> int:
    """The exit status of a forked process, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def ended(process: int) -> bool:
    """Whether a forked process has ended; it is not reaped."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, -1 if there is none."""
    return max(checkpoint_steps(folder), default=-1)


def half_written(folder: Path) -> bool:
    """Whether a checkpoint is being written, or was when the writer died."""
    checkpoints = folder / "checkpoints"
    names = os.listdir(checkpoints) if checkpoints.is_dir() else []
    return any(name.endswith(".partial") for name in names)


def kill_once(folder: Path, moment: random.Random, within: float | None) -> dict:
    """Start or resume a run and kill it after some progress, anywhere or within some seconds of a write's beginning."""
    begun = newest_step(folder)
    goal = begun + CONFIG.checkpoint_every * moment.randint(0, 3)
    process = start(folder)
    while newest_step(folder) < goal and not ended(process):
        time.sleep(0.0005)
    pause = moment.uniform(0, 0.2)  # about the time between two checkpoints
    if within is not None:
        while not half_written(folder) and not ended(process):
            time.sleep(0.0002)
        pause = moment.uniform(0, within)
    time.sleep(pause)
    os.kill(process, signal.SIGKILL)
    killed = wait(process) == -signal.SIGKILL
    return {"killed": killed, "half_written": half_written(folder), "from": begun,
            "to": newest_step(folder)}


def outcome(folder: Path) -> dict:
    """The bits of a finished run: its last checkpoint's tensors, and what it measured."""
    last = checkpoint_path(folder, CONFIG.steps)
    bits = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(last.glob("*.safetensors"))}
    rows = read_metrics(folder)
    return {"tensors": bits, "train": series(rows, "train", "loss"), "eval": series(rows, "eval", "loss"),
            "best": (folder / "best").read_text(),
            "left": sorted(path.name for path in folder.rglob("*.partial"))}


def main(folder: Path, kills: int) -> dict:
    """Train once without interruption, then kill runs until there are enough kills; prints all outcomes."""
    if wait(start(folder / "straight")):
        sys.exit("the uninterrupted run failed")
    moment, tries, runs = random.Random(20), [], []
    while sum(one["killed"] for one in tries) < kills:
        run = folder / f"run_{len(runs)}"
        runs.append(run)
        done = False
        while not done and sum(one["killed"] for one in tries) < kills:
            within = (None, 0.0, None, 0.01)[len(tries) % 4]  # on a fast disk a write takes two milliseconds
            tries.append(kill_once(run, moment, within))
            done = not tries[-1]["killed"]
        if not done and wait(start(run)):
            sys.exit(f"{run} could not go on")
    return {"straight": outcome(folder / "straight"), "runs": [outcome(run) for run in runs], "tries": tries}


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what is imported need not be looked through again in every fork
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
