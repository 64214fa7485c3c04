"""Training in two processes: equal to one process, and both stop together."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import toy_runs
from several_processes import torchrun
from b2t_kit.training.checkpoint import checkpoint_path, checkpoint_steps, read_part
from b2t_kit.training.log import read_metrics, series
from b2t_kit.train import train
from commands import ACCELERATE, TESTS, python
from toy import ToyTask, toy_config


def weights(run: Path) -> torch.Tensor:
    """All weights of a run's newest checkpoint as one vector."""
    newest = checkpoint_path(run, checkpoint_steps(run)[-1])
    return torch.cat([one.flatten() for _, one in sorted(read_part(newest, "model").items())])


def assert_same_training(run: Path, other: Path) -> None:
    """Equal weights and losses, to float32 tolerance."""
    torch.testing.assert_close(weights(run), weights(other), rtol=1e-4, atol=1e-5)
    for kind in ("train", "eval"):
        found, expected = (series(read_metrics(one), kind, "loss") for one in (run, other))
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    train(toy_runs.STILL, toy_config(), run, quiet=True)
    return run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of two processes."""
    folder = tmp_path_factory.mktemp("pair")
    torchrun("toy_runs:everything", str(folder), timeout=900)
    return folder


def found_by(pair: Path, rank: int) -> dict:
    """The results that a process wrote."""
    return json.loads((pair / f"process_{rank}.json").read_text())


@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_processes_equal_one(accumulation: int, pair: Path, alone: Path) -> None:
    """Eight rows a step: 4 and 4, or micro-batches of 2, 2, 1 and 1, 1, 1."""
    assert_same_training(pair / f"accumulation_{accumulation}", alone)


def test_a_run_may_go_on_in_another_number_of_processes(pair: Path, alone: Path) -> None:
    """Two processes are stopped; one process resumes and ends like a run of one process."""
    assert checkpoint_steps(pair / "signalled")[-1] == 30
    train(toy_runs.Signalled(dropout=0.0), toy_config(), pair / "signalled", resume=True, quiet=True)
    assert_same_training(pair / "signalled", alone)


def test_a_signal_to_one_process_stops_both_at_the_same_step(pair: Path) -> None:
    """Process 1 gets a stop signal at step 24; the processes agree at every tenth step."""
    for rank in (0, 1):
        assert found_by(pair, rank)["signalled"] == [30, "SIGTERM"]


def test_a_bad_number_in_one_process_stops_both(pair: Path) -> None:
    """Both name the step and the trial, and each saves its own batch."""
    messages = [found_by(pair, rank)["spoiled"] for rank in (0, 1)]
    trial = np.load(pair / "spoiled" / "bad_step_15_process_1.npz")["0.trial"][0]
    assert (pair / "spoiled" / "bad_step_15_process_0.npz").exists()
    for message in messages:
        assert message.startswith("step 15: the loss is nan")
        assert f"features of trial {trial} are not finite" in message
        assert message.endswith("the last good checkpoint is of step 0")


def test_a_failed_write_is_every_process_s_error(pair: Path) -> None:
    """Process 0 cannot write; process 1 does not wait for it."""
    for rank in (0, 1):
        message = found_by(pair, rank)["full"]
        assert "00000020: the checkpoint could not be written" in message or "cannot be written" in message


def test_processes_draw_different_dropout(pair: Path, tmp_path: Path) -> None:
    """With dropout the runs differ, as they should: each process drops units of its own rows."""
    train(ToyTask(), toy_config(steps=20), tmp_path / "run", quiet=True)
    expected = read_metrics(tmp_path / "run")
    for rank in (0, 1):
        found = found_by(pair, rank)["dropout"]
        assert found == found_by(pair, 0)["dropout"]
        assert found["loss"] != pytest.approx(expected[-1]["loss"], rel=1e-4)


def test_accelerate_launch(tmp_path: Path, alone: Path) -> None:
    """Accelerate's launcher with two processes on a CPU."""
    done = python(*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", TESTS / "toy_runs.py", tmp_path,
                  USE_TORCH_XLA="0", ACCELERATE_USE_CPU="true")
    assert done.stdout.count("step 60/60  validation") == 1
    assert_same_training(tmp_path / "launched", alone)
