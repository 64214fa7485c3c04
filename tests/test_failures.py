"""Failures that people reported from real runs: each happens first, then the kit names or prevents it.

    test_failures.py meet SECONDS [FOLDER]      the program of processes that tests start
"""
import contextlib
import dataclasses
import datetime
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from b2t_kit.core.errors import KitError
from b2t_kit.core.settings import from_dict
from b2t_kit.data.dataset import find_recordings
from b2t_kit.devices.torch import Device, DeviceOptions
from b2t_kit.devices.select import open_device
from b2t_kit.precision import audit_gradients, audit_parameters
from b2t_kit.training.toy import ToyTask, toy_config
from b2t_kit.train import train
from commands import TESTS, python, start, torchrun

PATIENCE = 600  # seconds; only a hang, or a very busy machine, comes near it


def test_c2_unknown_options_are_named() -> None:
    """Accelerate's TypeError appears deep in a trainer; the kit checks options before anything starts."""
    with open_device("cpu"):
        from accelerate import Accelerator
    with pytest.raises(TypeError) as failure:
        Accelerator(even_batches=False)
    assert str(failure.value) == (
        "Accelerator.__init__() got an unexpected keyword argument 'even_batches'")

    with pytest.raises(KitError, match="unknown setting 'even_batches'; known here: device,"):
        open_device("cpu", even_batches=False)
    with pytest.raises(KitError, match="unknown setting 'even_batches'"):
        from_dict(DeviceOptions, {"even_batches": False})


def test_c17c_no_other_data_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported loader silently used ./data instead: a wrong path is named, and so are other data in a resumed run."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with pytest.raises(KitError, match="experiment_7"):
        find_recordings("experiment_7")
    config = toy_config(steps=2, checkpoint_every=0, eval_every=0)
    train(ToyTask(rows=40), config, tmp_path / "run", quiet=True)
    with pytest.raises(KitError, match="cannot be resumed, because .*data.rows was 40 and is 48"):
        train(ToyTask(rows=48), config, tmp_path / "run", resume=True, quiet=True)


@dataclasses.dataclass(frozen=True)
class CastingTask(ToyTask):
    """A task whose evaluation casts the model like the reported audio demonstration."""

    def evaluate(self, model: torch.nn.Module, device: Device) -> dict[str, float]:
        """Cast to float32 for the demonstration and "restore" bfloat16."""
        found = super().evaluate(model.float(), device)
        model.bfloat16()
        return found


def test_c18a_training_stops_at_the_hook_and_names_it(tmp_path: Path) -> None:
    """The run ends at the validation that cast the model, not in the optimizer some steps later."""
    config = toy_config(steps=10, eval_every=4, ema_decay=0.0)
    with pytest.raises(KitError, match=r"hook '.*' changed 0.weight from float32 .* to bfloat16"):
        train(CastingTask(), config, tmp_path / "run", quiet=True)


def test_c18b_mismatch_warning_is_a_mixed_model() -> None:
    """A float32 norm behind a bfloat16 embedding only warns; the audit rejects the model that causes it."""
    model = torch.nn.Sequential(torch.nn.Embedding(6, 4, dtype=torch.bfloat16), torch.nn.RMSNorm(4))
    torch.set_warn_always(True)  # torch gives this warning once per process
    try:
        with pytest.warns(UserWarning, match="Mismatch dtype between input and weight: input dtype = c10::BFloat16"):
            model(torch.tensor([1, 2]))
    finally:
        torch.set_warn_always(False)
    with pytest.raises(KitError, match="parameters must be float32: 0.weight is bfloat16"):
        audit_parameters(model)


@pytest.mark.parametrize("dtype, refused", [(torch.float16, "Attempting to unscale FP16 gradients."),
                                            (torch.bfloat16, "")])
def test_c18c_scaler_sees_float32_gradients_only(dtype: torch.dtype, refused: str) -> None:
    """torch's CPU scaler rejects float16 gradients but accepts bfloat16 ones; the audit names both."""
    model = torch.nn.Linear(2, 1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2, dtype=dtype)).float().sum()).backward()
    with pytest.raises(KitError, match=f"gradients must be float32: weight is {str(dtype)[6:]}"):
        audit_gradients(model)
    with pytest.raises(ValueError, match=refused) if refused else contextlib.nullcontext():
        scaler.unscale_(optimizer)


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


ARRIVE_LATE = """
import os, pathlib, signal, subprocess, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
child = subprocess.Popen(["sleep", "300"])
(folder / f"{rank}.part").write_text(f"{os.getpid()} {child.pid}")
os.replace(folder / f"{rank}.part", folder / f"{rank}.pids")
while len(list(folder.glob("*.pids"))) < 2:
    time.sleep(0.05)
if rank == "1" and (folder / "die").exists():
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(300)
"""  # write the process numbers and wait, each with a child process; process 1 may die


def running(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_c18e_no_orphans_when_a_worker_dies(tmp_path: Path) -> None:
    """Started by hand, the other worker stays when one dies; torchrun ends the workers that it started, and no others."""
    naive, launched = tmp_path / "naive", tmp_path / "launched"
    naive.mkdir()
    launched.mkdir()
    (launched / "die").touch()
    program = tmp_path / "program.py"
    program.write_text(ARRIVE_LATE)

    def numbers(folder: Path) -> list[list[int]]:  # of both workers: its own and its child's
        return [[int(number) for number in path.read_text().split()] for path in sorted(folder.glob("*.pids"))]

    workers = [start(program, naive, variables={"RANK": str(rank), "WORLD_SIZE": "2"},
                     start_new_session=True) for rank in range(2)]
    try:
        wait_for(lambda: len(numbers(naive)) == 2)
        workers[1].kill()
        workers[1].wait()
        left = [number for pair in numbers(naive) for number in pair if running(number)]
        assert workers[0].pid in left and len(left) == 3, "the other worker and both children stay"
        with pytest.raises(RuntimeError, match="SIGKILL|exitcode *: -9"):
            torchrun(program, launched)
        first, second = numbers(launched)
        wait_for(lambda: not any(map(running, [*first, second[0]])))
        assert running(second[1]), "what a dead worker had started itself is nobody's"
        os.kill(second[1], signal.SIGKILL)
        assert workers[0].poll() is None, "a process of another launch goes on"
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)  # only what this test started
        workers[0].wait()


def meet(timeout: str, folder: str = "") -> None:
    """Join the other processes, or say why not; two processes may begin together, as a folder tells."""
    if folder:
        Path(folder, os.environ["RANK"]).touch()
        wait_for(lambda: len(list(Path(folder).iterdir())) == 2)
    try:
        with open_device("cpu", timeout=float(timeout)) as device:
            print(f"process {device.rank} of {device.world}")
    except KitError as error:
        print(error)


def test_c18f_a_taken_port_is_named() -> None:
    """A fixed port collides, and the kit says so; torchrun chooses one itself (test_processes.py)."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RuntimeError, match="EADDRINUSE"):
            torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
        said = python(TESTS / "test_failures.py", "meet", "300", RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port)).stdout
    assert f"port {port} on 127.0.0.1 is taken by another program" in said


def test_c18f_missing_processes_are_named(tmp_path: Path) -> None:
    """Two of three processes arrive: torch counts them, the kit names the missing one."""
    with socket.socket() as one, socket.socket() as other:
        ports = [str(finder.bind(("127.0.0.1", 0)) or finder.getsockname()[1]) for finder in (one, other)]
    children = [start(TESTS / "test_failures.py", "meet", "3", tmp_path, variables={
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}) for rank in ("0", "2")]
    with pytest.raises(torch.distributed.DistStoreError, match="1/3 clients joined"):  # while the others wait
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{ports[1]}", rank=0, world_size=3,
                                             timeout=datetime.timedelta(seconds=2))

    said = [child.communicate(timeout=PATIENCE)[0] for child in children]
    assert "process 0 of 3: no sign of process 1 within 3 s" in said[0]
    assert "process 2 of 3: no sign of process 1" in said[1]


def test_c18g_ambient_precision_is_ignored_and_mentioned(tmp_path: Path) -> None:
    """Accelerate takes precision and accumulation from variables that its launcher sets, by a file of `accelerate config`."""
    settings, script = tmp_path / "default_config.yaml", tmp_path / "script.py"
    settings.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\n"
                        "use_cpu: true\nmixed_precision: bf16\nnum_processes: 1\nnum_machines: 1\n")
    script.write_text("""
from b2t_kit.devices.select import open_device
with open_device("cpu") as device:
    print(device.describe())
    ours = device.precision.compute
from accelerate import Accelerator
from accelerate.state import AcceleratorState
AcceleratorState._reset_state(True)
print(Accelerator().mixed_precision, ours)
""")
    said = python("-m", "accelerate.commands.launch", "--config_file", settings, script, USE_TORCH_XLA="0",
                  ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4").stdout.splitlines()
    assert said[-1] == "bf16 float32", "Accelerate obeys the variable, the kit does not"
    assert "ACCELERATE_MIXED_PRECISION=bf16 is ignored; give the setting to b2t_kit instead" in said
    assert any("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 is ignored" in line for line in said)


if __name__ == "__main__":
    meet(*sys.argv[2:])
