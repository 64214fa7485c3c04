"""Devices where torch_xla can be imported, in processes of their own."""
import os
import subprocess
import sys

import pytest

PATIENCE = 600  # seconds; only a hang, or a very busy machine, comes near it


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
