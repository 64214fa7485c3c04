"""Training in two processes: equal to one process, and both stop together.

    test_processes.py FOLDER      the program that Accelerate's launcher starts
"""
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.core import KitError
from b2t_kit.devices.select import open_device
from b2t_kit.devices.torch import Device
from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_steps
from b2t_kit.training.log import read_metrics, series
from commands import ACCELERATE, TESTS, python, tensors
from several_processes import torchrun
from toy import ToyTask, disturbed, toy_config

STILL = ToyTask(dropout=0.0)


def spoiled(step: int, micro_batches: list, device: Device) -> None:
    """Process 1 gets a NaN."""
    if step == 15 and device.rank == 1:
        micro_batches[0].features[0, 0, 0] = float("nan")


def full(step: int, micro_batches: list, device: Device) -> None:
    """Process 0, which writes, reaches a quota."""
    if step == 15 and device.rank == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def signalled(step: int, micro_batches: list, device: Device) -> None:
    """Process 1 gets a stop signal."""
    if step == 24 and device.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def refusal(action: Callable, out: Path) -> str:
    """The message of the KitError that ends a run."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        train(disturbed(action, dropout=0.0), toy_config(log_every=100), out, quiet=True)
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
        train(STILL, toy_config(accumulation=accumulation), out / f"accumulation_{accumulation}", quiet=True)
    found: dict[str, object] = {"spoiled": refusal(spoiled, out / "spoiled"), "full": refusal(full, out / "full")}
    result = train(disturbed(signalled, dropout=0.0), toy_config(), out / "signalled", quiet=True)
    found["signalled"] = [result.step, result.stopped]
    found["dropout"] = train(ToyTask(), toy_config(steps=20), out / "dropout", quiet=True).values
    (out / f"process_{rank}.json").write_text(json.dumps(found))


def assert_same_training(run: Path, other: Path) -> None:
    """Equal weights and losses, to float32 tolerance."""
    torch.testing.assert_close(tensors(run, "model"), tensors(other, "model"), rtol=1e-4, atol=1e-5)
    for kind in ("train", "eval"):
        found, expected = (series(read_metrics(one), kind, "loss") for one in (run, other))
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    train(STILL, toy_config(), run, quiet=True)
    return run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    torchrun("test_processes:everything", str(folder), timeout=900)
    return folder


def found_by(pair: Path, what: str) -> list:
    return [json.loads((pair / f"process_{rank}.json").read_text())[what] for rank in (0, 1)]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_processes_equal_one(accumulation: int, pair: Path, alone: Path) -> None:
    """Eight rows a step: 4 and 4, or micro-batches of 2, 2, 1 and 1, 1, 1."""
    assert_same_training(pair / f"accumulation_{accumulation}", alone)


def test_a_signal_to_one_process_stops_both_at_the_same_step(pair: Path, alone: Path) -> None:
    """Processes agree at every tenth step. One process resumes the run and ends like a run of one process."""
    assert found_by(pair, "signalled") == 2 * [[30, "SIGTERM"]] and checkpoint_steps(pair / "signalled")[-1] == 30
    train(STILL, toy_config(), pair / "signalled", resume=True, quiet=True)
    assert_same_training(pair / "signalled", alone)


def test_a_bad_number_in_one_process_stops_both(pair: Path) -> None:
    """Both name the step and the trial, and each saves its own batch; a failed write is every process's error too."""
    trial = np.load(pair / "spoiled" / "bad_step_15_process_1.npz")["0.trial"][0]
    assert (pair / "spoiled" / "bad_step_15_process_0.npz").exists()
    for message in found_by(pair, "spoiled"):
        assert message.startswith("step 15: the loss is nan") and f"features of trial {trial} are not finite" in message
        assert message.endswith("the last good checkpoint is of step 0")
    for message in found_by(pair, "full"):
        assert "00000020: the checkpoint could not be written" in message or "cannot be written" in message


def test_processes_draw_different_dropout(pair: Path, tmp_path: Path) -> None:
    """With dropout the runs differ, as they should: each process drops units of its own rows."""
    alone = train(ToyTask(), toy_config(steps=20), tmp_path / "run", quiet=True)
    first, second = found_by(pair, "dropout")
    assert first == second and first["loss"] != pytest.approx(alone.values["loss"], rel=1e-4)


def test_accelerate_launch(tmp_path: Path, alone: Path) -> None:
    """Accelerate's launcher with two processes on a CPU."""
    done = python(*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", TESTS / "test_processes.py", tmp_path,
                  USE_TORCH_XLA="0", ACCELERATE_USE_CPU="true")
    assert done.stdout.count("step 60/60  validation") == 1
    assert_same_training(tmp_path / "launched", alone)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(STILL, toy_config(), Path(sys.argv[1]) / "launched")
