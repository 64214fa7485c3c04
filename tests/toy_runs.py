"""The program of the processes launched by test_processes.py: train the toy task in several ways.

    toy_runs.py FOLDER      (also as a module, and `everything` as a function)
"""
import json
import os
import resource
import signal
import sys
from pathlib import Path

import torch

from b2t_kit.core import KitError
from b2t_kit.devices.select import open_device
from toy import ToyTask, toy_config
from b2t_kit.train import train

STILL = ToyTask(dropout=0.0)


class Spoiled(ToyTask):
    """A task in which only process 1 gets a NaN, at step 15."""

    def batches(self, config, device, position):
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 14 and device.rank == 1:
                micro_batches[0].features[0, 0, 0] = float("nan")
            yield micro_batches


class Signalled(ToyTask):
    """A task in which only process 1 gets a stop signal, at step 24."""

    def batches(self, config, device, position):
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 23 and position < 23 and device.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield micro_batches


class Full(ToyTask):
    """A task in which process 0, which writes, reaches a quota at step 15."""

    def batches(self, config, device, position):
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 14 and device.rank == 0:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            yield micro_batches


def refusal(task: ToyTask, out: Path) -> str:
    """The message of the KitError that ends a run, or an empty text."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        train(task, toy_config(log_every=100), out, quiet=True)
    except KitError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return ""


def everything(folder: str) -> None:
    """All runs, one after the other; each process writes its results."""
    out = Path(folder)
    with open_device("cpu") as device:
        rank = device.rank
    for accumulation in (1, 3):
        config = toy_config(accumulation=accumulation)
        train(STILL, config, out / f"accumulation_{accumulation}", quiet=True)
    found = {
        "spoiled": refusal(Spoiled(dropout=0.0), out / "spoiled"),
        "full": refusal(Full(dropout=0.0), out / "full"),
    }
    result = train(Signalled(dropout=0.0), toy_config(), out / "signalled", quiet=True)
    found["signalled"] = [result.step, result.stopped]
    dropped = train(ToyTask(), toy_config(steps=20), out / "dropout", quiet=True)
    found["dropout"] = dropped.values
    (out / f"process_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(STILL, toy_config(), Path(sys.argv[1]) / "launched")
