"""Failures that people reported from real runs: each happens first, then the kit names or prevents it.

C12 in one process is in devices/torch, C18d in devices/select.
"""
import contextlib
import dataclasses
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import several_processes
from several_processes import torchrun
from b2t_kit.core import KitError, from_dict
from b2t_kit.data.dataset import find_recordings
from b2t_kit.devices.torch import Device, DeviceOptions
from b2t_kit.devices.select import open_device
from b2t_kit.precision import audit_gradients, audit_parameters
from toy import ToyTask, toy_config
from b2t_kit.train import train
from commands import TESTS, python, start

PATIENCE = 600  # seconds; only a hang, or a very busy machine, comes near it


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Results and printed lines of `several_processes.everything` in two processes."""
    out = tmp_path_factory.mktemp("two") / "results.json"
    printed = torchrun("several_processes:everything", str(out), timeout=PATIENCE)
    return dict(json.loads(out.read_text()), printed=printed)


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


def test_c12_accumulation_in_two_processes_equals_the_large_batch(two_processes: dict) -> None:
    """Two processes with micro-batches of different sizes give one process's parameters."""
    with open_device("cpu") as device:
        alone = several_processes.train(device, 1)
    found = two_processes["accumulated"]
    for name in ("norms", "parameters"):
        np.testing.assert_allclose(found[name], alone[name], rtol=1e-5, atol=2e-6)
    assert two_processes["objects"] == [[0, 1], 0] and two_processes["sum"] == [2.0, 1.0]


def test_c17c_a_wrong_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported loader silently used ./data instead; the kit names the path."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with pytest.raises(KitError, match="experiment_7"):
        find_recordings("experiment_7")


def test_c17c_a_run_does_not_continue_on_other_data(tmp_path: Path) -> None:
    """The run folder records its data; other data is an error."""
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


def wait_for(condition: object, seconds: float = 120.0) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def running(number: int) -> bool:
    """Whether a process runs (and is not just waiting to be reaped)."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def recorded(folder: Path, count: int) -> list[int]:
    """The numbers of the workers and of their children, once all have written them."""
    wait_for(lambda: len(list(folder.glob("*.pids"))) == count)
    return [int(number) for path in folder.glob("*.pids") for number in path.read_text().split()]


def test_c18e_no_orphans_when_a_worker_dies(tmp_path: Path) -> None:
    """Started by hand, the other worker stays when one dies; torchrun ends the workers that it started, and no others."""
    for name in ("naive", "launched"):
        (tmp_path / name).mkdir()
    (tmp_path / "launched/die").touch()
    workers = [start(TESTS / "several_processes.py", "arrive_late", tmp_path / "naive",
                     variables={"RANK": str(rank), "WORLD_SIZE": "2"}, start_new_session=True) for rank in range(2)]
    try:
        numbers = recorded(tmp_path / "naive", 2)
        workers[1].kill()
        workers[1].wait()
        time.sleep(0.5)
        left = [number for number in numbers if running(number)]
        assert workers[0].pid in left and len(left) == 3, "the other worker and both children stay"
        with pytest.raises(RuntimeError, match="SIGKILL|exitcode *: -9"):
            torchrun("arrive_late", str(tmp_path / "launched"), timeout=PATIENCE)
        first, second = ([int(number) for number in (tmp_path / f"launched/{rank}.pids").read_text().split()] for rank in range(2))
        wait_for(lambda: not any(map(running, [*first, second[0]])))
        assert running(second[1]), "what a dead worker had started itself is nobody's"
        os.kill(second[1], signal.SIGKILL)
        assert workers[0].poll() is None, "a process of another launch goes on"
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)  # only what this test started
        workers[0].wait()


@pytest.fixture
def taken_port() -> int:
    """Port 29500, torch's default, used by another program."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", 29500))
            other.listen()
        except OSError:
            pass  # taken already, which is the point
        yield 29500


MEET_AT = """
from b2t_kit.core import KitError
from b2t_kit.devices.select import open_device
try:
    open_device("cpu", timeout=3.0)
except KitError as error:
    print(error)
"""

START_TOGETHER = """
import os, pathlib, time
import torch.distributed
folder = pathlib.Path(os.environ["START"])
(folder / os.environ["RANK"]).touch()
while len(list(folder.iterdir())) < 2:
    time.sleep(0.01)
"""


def test_c18f_a_taken_port_is_named_and_launch_needs_none(taken_port: int) -> None:
    """A fixed port collides, and the kit says so; two launches at once do not collide."""
    with pytest.raises(RuntimeError, match="EADDRINUSE"):
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{taken_port}", rank=0, world_size=2)
    said = python("-c", MEET_AT, RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(taken_port)).stdout
    assert "port 29500 on 127.0.0.1 is taken by another program" in said
    with ThreadPoolExecutor(2) as pool:
        outputs = pool.map(lambda _: torchrun("several_processes:meet", timeout=PATIENCE), range(2))
    assert [[output.splitlines()[-1] for output in one] for one in outputs] == [["process 0: 3", "process 1: 3"]] * 2


def test_c18f_missing_processes_are_named(tmp_path: Path) -> None:
    """Two of three processes arrive: torch counts them, the kit names the missing one."""
    with socket.socket() as one, socket.socket() as other:
        ports = [str(finder.bind(("127.0.0.1", 0)) or finder.getsockname()[1]) for finder in (one, other)]
    children = [start("-c", START_TOGETHER + MEET_AT, variables={
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3", "START": str(tmp_path), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": ports[0]}) for rank in ("0", "2")]
    code = f"""
import datetime, torch.distributed as dist
try:
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{ports[1]}", rank=0, world_size=3,
                            timeout=datetime.timedelta(seconds=2))
except dist.DistStoreError as error:
    print(error)
"""
    assert "1/3 clients joined" in python("-c", code).stdout  # while the others wait

    said = [child.communicate(timeout=PATIENCE)[0] for child in children]
    assert "process 0 of 3: no sign of process 1 within 3 s" in said[0]
    assert "process 2 of 3: no sign of process 1" in said[1]


def test_c18g_ambient_precision_is_ignored_and_mentioned() -> None:
    """Accelerate takes its precision from a variable that a launcher sets; the policy does not."""
    code = """
import os
from b2t_kit.devices.select import open_device
with open_device("cpu") as device:
    print(device.precision.compute)
    print(device.describe())
from accelerate import Accelerator
from accelerate.state import AcceleratorState
AcceleratorState._reset_state(True)
print(Accelerator(cpu=True).mixed_precision)
"""
    said = python("-c", code, USE_TORCH_XLA="0", ACCELERATE_MIXED_PRECISION="bf16",
                  ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4").stdout.splitlines()
    assert said[0] == "float32" and said[-1] == "bf16", "Accelerate obeys the variable"
    assert "ACCELERATE_MIXED_PRECISION=bf16 is ignored; give the setting to b2t_kit instead" in said
    assert any("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 is ignored" in line for line in said)


def test_c18g_a_launcher_configuration_file_has_no_influence(tmp_path: Path) -> None:
    """In Accelerate, the file of `accelerate config` silently sets precision and accumulation; in the kit it does not."""
    settings, script = tmp_path / "default_config.yaml", tmp_path / "script.py"
    settings.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\n"
                        "use_cpu: true\nmixed_precision: bf16\nnum_processes: 1\nnum_machines: 1\n")
    script.write_text("""
from b2t_kit.devices.select import open_device
with open_device("cpu") as device:
    ours = device.precision.compute
from accelerate.state import AcceleratorState
AcceleratorState._reset_state(True)
from accelerate import Accelerator
print(Accelerator().mixed_precision, ours)
""")
    done = python("-m", "accelerate.commands.launch", "--config_file", settings, script, USE_TORCH_XLA="0")
    assert done.stdout.splitlines()[-1] == "bf16 float32", done.stderr[-2000:]


def test_c21_replicas_stay_equal_and_clipping_is_global(two_processes: dict) -> None:
    """Local gradients and local clipping let replicas drift; the kit equals one process."""
    difference, found = two_processes["without_reduction"]
    assert difference > 0.01
    assert found.startswith("process 1 has other values than process 0 in 0.")

    with open_device("cpu") as device:
        alone = several_processes.train(device, 1)
    assert max(alone["norms"]) > 1.0, "clipping was at work"
    for name in ("norms", "parameters"):
        np.testing.assert_allclose(two_processes["plain"][name], alone[name], rtol=1e-5, atol=2e-6)


def test_c22_metrics_are_those_of_all_trials(two_processes: dict) -> None:
    """Local rates differ, and so does their mean; summed counts give one process's rate."""
    with open_device("cpu") as device:
        alone = several_processes.evaluate(device)["rate"]
    found = two_processes["evaluation"]
    assert abs(found["local"][0] - alone) > 0.05 and abs(found["local"][1] - alone) > 0.05
    assert abs(found["mean_of_means"] - alone) > 0.01
    assert found["rate"] == alone == 19 / 150


def test_c23_messages_are_said_once(two_processes: dict) -> None:
    """`print` prints on every process, `say` on one."""
    text = "".join(two_processes["printed"])
    assert text.count("printed by everyone") == 2
    assert text.count("said once") == 1
