"""Kill training runs at random moments, and resume them: `killed_runs.py FOLDER KILLS`, started by test_resume.py.

torch is imported once; every try is a fork of this process, which computes nothing itself."""
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

from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_path
from b2t_kit.training.log import read_metrics, series
from commands import newest
from toy import ToyTask, toy_config

CONFIG = toy_config(steps=100, checkpoint_every=4, eval_every=10, log_every=5, keep_checkpoints=2)


def start(folder: Path) -> int:
    """Fork a process that trains or resumes in `folder`; returns its number."""
    process = os.fork()
    if not process:
        try:
            train(ToyTask(hidden=64), CONFIG, folder, resume=folder.exists(), quiet=True)  # its dropout is 0.2
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return process


def wait(process: int) -> int:
    """The exit status of a forked process, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def half_written(folder: Path) -> bool:
    """Whether a checkpoint is being written, or was when the writer died."""
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and any(name.endswith(".partial") for name in os.listdir(checkpoints))


def kill_once(folder: Path, moment: random.Random, while_writing: bool) -> dict:
    """Start or resume a run and kill it after some progress, anywhere or as soon as a checkpoint is being written."""
    begun = newest(folder)
    goal, process = begun + CONFIG.checkpoint_every * moment.randint(0, 3), start(folder)
    while newest(folder) < goal or while_writing and not half_written(folder):
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.0002)
    time.sleep(0 if while_writing else moment.uniform(0, 0.2))  # about the time between two checkpoints
    os.kill(process, signal.SIGKILL)
    return {"killed": wait(process) == -signal.SIGKILL, "half_written": half_written(folder), "from": begun}


def outcome(folder: Path) -> dict:
    """The bits of a finished run: its last checkpoint's tensors, and what it measured."""
    bits = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(checkpoint_path(folder, CONFIG.steps).glob("*.safetensors"))}
    rows = read_metrics(folder)
    return {"tensors": bits, "train": series(rows, "train", "loss"), "eval": series(rows, "eval", "loss"),
            "best": (folder / "best").read_text(), "left": half_written(folder)}


def main(folder: Path, kills: int) -> dict:
    """Train once without interruption, then kill runs until there are enough kills; all outcomes."""
    assert wait(start(folder / "straight")) == 0
    moment, tries, runs = random.Random(20), [], []
    while sum(one["killed"] for one in tries) < kills:
        runs.append(folder / f"run_{len(runs)}")
        while sum(one["killed"] for one in tries) < kills:
            tries.append(kill_once(runs[-1], moment, len(tries) % 2 == 1))
            if not tries[-1]["killed"]:
                break
        else:
            assert wait(start(runs[-1])) == 0, "it could not go on"
    return {"straight": outcome(folder / "straight"), "runs": [outcome(run) for run in runs], "tries": tries}


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what is imported need not be looked through again in every fork
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
