"""Two processes under common launchers (the kit's own launcher is in test_failures.py)."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import several_processes
from b2t_kit.devices.select import open_device

TESTS = Path(__file__).parent
PATIENCE = 600  # seconds; only a hang, or a very busy machine, comes near it
SCRIPT = str(TESTS / "several_processes.py")


@pytest.fixture(scope="module")
def one_process() -> dict:
    """The toy training in this process."""
    with open_device("cpu") as device:
        return {
            "plain": several_processes.train(device, 1),
            "accumulated": several_processes.train(device, 3),
        }


def assert_same_training(found: dict, expected: dict) -> None:
    """Equal parameters and gradient norms to float32 tolerance."""
    for name in ("parameters", "norms"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=2e-6)


def test_accumulation_equals_the_large_batch(one_process: dict) -> None:
    """Micro-batches of 1, 1 and 10 rows give the parameters of one batch of 12."""
    assert_same_training(one_process["accumulated"], one_process["plain"])


def launcher_command(launcher: str, arguments: list[str]) -> list[str]:
    """The usual commands that start two processes on one machine."""
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "2", SCRIPT, *arguments]
    return [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu",
            "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
            "--dynamo_backend", "no", "--main_process_port", "0", SCRIPT, *arguments]


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes_equal_one(launcher: str, one_process: dict, tmp_path: Path) -> None:
    """The same global batch in two processes, started by torchrun and by accelerate launch."""
    out = tmp_path / "results.json"
    path = os.pathsep.join(filter(None, sys.path))
    environment = dict(os.environ, PYTHONPATH=path, ACCELERATE_USE_CPU="true", USE_TORCH_XLA="0",
                       OMP_NUM_THREADS="1")
    command = launcher_command(launcher, ["report", str(out)])
    done = subprocess.run(command, env=environment, capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(out.read_text())
    assert results["world"] == 2
    assert_same_training(results["plain"], one_process["plain"])


def python(code: str, **added: str) -> str:
    """The output of a fresh interpreter, with no variable set about torch_xla."""
    environment = {name: value for name, value in os.environ.items() if name != "USE_TORCH_XLA"}
    environment.update(added, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.torch_xla
def test_cpu_stays_cpu_where_torch_xla_can_be_imported() -> None:
    """Accelerate takes torch_xla even with cpu=True; the kit prevents that, or reports that it is too late."""
    code = "from accelerate import Accelerator; print(Accelerator(cpu=True).device)"
    assert python(code, PJRT_DEVICE="CPU").splitlines()[-1] == "xla:0"
    code = """
import sys
from b2t_kit.devices.select import open_device
with open_device("cpu") as device:
    print(device.torch_device, "torch_xla" in sys.modules)
"""
    assert python(code).splitlines()[-1] == "cpu False"
    code = """
import accelerate
from b2t_kit.core import KitError
from b2t_kit.devices.select import open_device
try:
    open_device("cpu")
except KitError as error:
    print(error)
"""
    said = python(code, PJRT_DEVICE="CPU")
    assert "has taken torch_xla; restart and open the device first" in said


@pytest.mark.torch_xla
def test_canary_notices_float32_that_is_bfloat16() -> None:
    """XLA_USE_BF16 stores float32 tensors as bfloat16 while their dtype still says float32."""
    code = """
import torch, torch_xla
from b2t_kit.core import KitError
from b2t_kit.precision import canary
tensor = torch.ones((), device=torch_xla.device()) + 1e-4
print(tensor.dtype, tensor.item())
try:
    canary(torch_xla.device())
except KitError as error:
    print(error)
"""
    said = python(code, PJRT_DEVICE="CPU", XLA_USE_BF16="1").splitlines()
    assert said[-2] == "torch.float32 1.0"
    assert said[-1].startswith("float32 is not float32 on xla:0")
    assert python(code, PJRT_DEVICE="CPU").splitlines()[-1].startswith("torch.float32 1.0001")
