"""Two machines with a disk each, as two folders: torchrun with two nodes of two processes on this machine.

    test_cluster.py OUT dies|resume      the program of each process
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
from unittest import mock

import psutil
import pytest

from b2t_kit.core import processes
from b2t_kit.core.errors import KitError
from b2t_kit.core.processes import Rank, find_rank, join
from b2t_kit.core.program import run_program
from b2t_kit.devices.torch import Device
from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_steps
from b2t_kit.training.run import share_run
from commands import TESTS, TORCHRUN, start
from toy import disturbed
from b2t_kit.training.toy import ToyTask, toy_config

pytestmark = pytest.mark.second_tier


def killed_away(step: int, micro_batches: list, device: Device) -> None:
    """The second machine dies at step 30."""
    if step == 31 and not device.is_main:
        os.kill(os.getpid(), signal.SIGKILL)


STILL = ToyTask(dropout=0.0)


def program(out: str, how: str) -> int:
    if how == "waits":
        join(find_rank(), "gloo")
        Path(f"{out}.{os.getpid()}").touch()
        time.sleep(300)
    if how == "resume":
        share_run(out)
        train(STILL, toy_config(), out, resume=True)
        return 0
    away = os.environ["GROUP_RANK"] == "1"
    try:
        train(ToyTask(dropout=0.0, batch_size=4 if away else 8), toy_config(), out)
    except KitError as error:
        print(f"refused: {error}, {os.path.exists(out)}", flush=True)
    train(disturbed(killed_away, dropout=0.0), toy_config(), out)
    return 0


def two_machines(folder: Path, how: str, processes: int = 2) -> list[str]:
    """What each machine printed with so many processes; neither waits for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    outputs = []
    for node in ("0", "1"):
        home = folder / f"machine_{node}"
        home.mkdir(exist_ok=True)
        outputs.append(start(
            "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", node, "--nproc-per-node", str(processes), "--master-addr", "127.0.0.1",
            "--master-port", port, TESTS / "test_cluster.py", "run", how, cwd=home, stderr=subprocess.STDOUT,
            variables={"ACCELERATE_USE_CPU": "true", "USE_TORCH_XLA": "0"}))
    return [process.communicate(timeout=500)[0] for process in outputs]


def errors_in(output: str) -> set[str]:
    """The lines of our program that begin with "error"."""
    return set(re.findall("^error: .*", output, re.MULTILINE))


def test_two_machines(tmp_path: Path) -> None:
    """A machine with another setting stops all before the first step, by machine and key. A killed one ends all; the other
    one's disk is lost, and the run resumes to the result of one machine."""
    from test_processes import assert_same_training  # whose imports no process of the machines needs
    first, second = two_machines(tmp_path, "dies", processes=1)
    here = socket.gethostname()
    for said in (first, second):
        assert f"refused: process 1, on {here}, differs from process 0, on {here}: task.batch_size was 8 and is 4, False" in said, said
    assert all("another process is gone" in line and "--resume" in line for line in errors_in(first))
    assert "Traceback" not in first.partition("torch/distributed")[0] and errors_in(first)
    run = tmp_path / "machine_0" / "run"
    assert checkpoint_steps(run)[-1] == 20 and not (tmp_path / "machine_1" / "run").exists()
    shutil.move(run, tmp_path / "machine_1" / "run")
    outputs = two_machines(tmp_path, "resume")
    assert "sending the checkpoint of step 20" in outputs[1] and checkpoint_steps(run)[-1] == 60
    train(STILL, toy_config(), tmp_path / "alone", quiet=True)
    assert_same_training(run, tmp_path / "alone")


def test_a_killed_launcher_leaves_no_worker(tmp_path: Path) -> None:
    """torchrun that is killed cannot end its processes: they end by themselves."""
    launcher = start(*TORCHRUN, TESTS / "test_cluster.py", tmp_path / "here", "waits",
                     variables={"ACCELERATE_USE_CPU": "true"})
    deadline = time.monotonic() + 300
    while len(found := list(tmp_path.glob("here.*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    workers = [psutil.Process(number) for path in found if psutil.pid_exists(number := int(path.suffix[1:]))]
    assert not psutil.wait_procs(workers, timeout=60)[1]


@pytest.mark.first_tier
@pytest.mark.parametrize("name, interface", [("127.0.1.1", "net0"), ("10.0.0.2", ""), ("127.0.1.1", None)])
def test_a_name_that_is_a_loopback_address(
    name: str, interface: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:
    """Debian's default: the network that leads to the first machine is chosen and said; a refusal where there is none."""
    for variable in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.setenv(variable, "")  # what was unset before is unset again after this test
        monkeypatch.delenv(variable)
    own, master = socket.gethostname(), "first.example"
    monkeypatch.setenv("MASTER_ADDR", master)
    address = "127.0.0.1" if interface is None else "192.0.2.7"
    monkeypatch.setattr(socket, "gethostbyname", {own: name, master: address}.__getitem__)
    probe = mock.MagicMock()
    probe.__enter__.return_value.getsockname.return_value = (address, 5)
    monkeypatch.setattr(socket, "socket", lambda *_: probe)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [mock.Mock(address="127.0.0.1")],
                                                         "net0": [mock.Mock(address="192.0.2.7")]})
    two = Rank(rank=1, local_rank=0, world=2, local_world=1)
    if interface is None:
        with pytest.raises(KitError, match=f"{own}, is the loopback address 127.0.1.1.*GLOO_SOCKET_IFNAME"):
            processes._choose_interface(two)
        return
    processes._choose_interface(two)
    assert os.environ.get("GLOO_SOCKET_IFNAME", "") == interface
    assert ("network" in capsys.readouterr().out) == bool(interface)
    processes._choose_interface(Rank(rank=1, local_rank=1, world=2, local_world=2))  # one machine needs no network


@pytest.mark.first_tier
def test_accelerate_s_simple_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """It starts a process on each machine that knows nothing of the others, and would train twice."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert run_program(lambda: find_rank().rank) == 2 and "torchrun --nnodes" in capsys.readouterr().err


if __name__ == "__main__":
    sys.exit(run_program(lambda: program(*sys.argv[1:])))
