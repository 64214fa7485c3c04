"""Two machines with a disk each, as two folders: torchrun with two nodes of two processes on this machine.

    test_cluster.py OUT [resume|wrong|dies]      the program of each process
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from b2t_kit.core import find_place, run_program
from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_steps
from b2t_kit.training.run import share_run
from commands import TESTS, start
from test_processes import assert_same_training
from toy import ToyTask, toy_config
from toy_runs import STILL



class Dying(ToyTask):
    """A task whose second machine dies at step 30."""

    def batches(self, config, device, position):
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 30 and device.rank > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield micro_batches


def program(out: str, how: str = "") -> int:
    """What each process does."""
    if how == "resume":
        share_run(out)
    away = find_place().rank > 1
    task = Dying(dropout=0.0) if how == "dies" else ToyTask(dropout=0.0, batch_size=4) if how == "wrong" and away else STILL
    train(task, toy_config(), out, resume=how == "resume")
    return 0


def two_machines(folder: Path, how: str = "") -> tuple[list[str], float]:
    """What each machine printed, and the seconds until both had ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    outputs = []
    began = time.monotonic()
    for node in ("0", "1"):
        home = folder / f"machine_{node}"
        home.mkdir(exist_ok=True)
        outputs.append(start(
            "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", node, "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
            "--master-port", port, TESTS / "test_cluster.py", "run", how, cwd=home, stderr=subprocess.STDOUT,
            variables={"ACCELERATE_USE_CPU": "true", "USE_TORCH_XLA": "0"}))
    return [process.communicate(timeout=300)[0] for process in outputs], time.monotonic() - began


def errors_in(output: str) -> set[str]:
    """The lines of our program that begin with "error"."""
    return set(re.findall("^error: .*", output, re.MULTILINE))


def test_two_machines(tmp_path: Path) -> None:
    """A killed machine ends all; the other one's disk is lost, and the run resumes to the result of one machine."""
    (first, _), seconds = two_machines(tmp_path, "dies")
    assert seconds < 60 and all("another process is gone" in line and "--resume" in line for line in errors_in(first))
    assert "Traceback" not in first.partition("torch/distributed")[0] and errors_in(first)
    run = tmp_path / "machine_0" / "run"
    assert checkpoint_steps(run)[-1] == 20 and not (tmp_path / "machine_1" / "run").exists()
    shutil.move(run, tmp_path / "machine_1" / "run")
    outputs, _ = two_machines(tmp_path, "resume")
    assert "sending the checkpoint of step 20" in outputs[1] and checkpoint_steps(run)[-1] == 60
    train(STILL, toy_config(), tmp_path / "alone", quiet=True)
    assert_same_training(run, tmp_path / "alone")


def test_a_machine_with_another_setting_stops_all(tmp_path: Path) -> None:
    """Before the first step, in seconds, by machine and key."""
    outputs, seconds = two_machines(tmp_path, "wrong")
    for output in outputs:
        assert errors_in(output) == {f"error: process 2, on {socket.gethostname()}, differs from process 0, on "
                                     f"{socket.gethostname()}: task.batch_size was 8 and is 4"}
    assert seconds < 60 and not (tmp_path / "machine_0" / "run").exists()


def test_accelerate_s_simple_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """It starts a process on each machine that knows nothing of the others, and would train twice."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert run_program(lambda: find_place().rank) == 2 and "torchrun --nnodes" in capsys.readouterr().err


if __name__ == "__main__":
    sys.exit(run_program(lambda: program(*sys.argv[1:])))
