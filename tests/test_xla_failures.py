"""Failures that people reported from TPUs: each happens with the original recipe, then the kit prevents or names it.

The programs come first, then a table of the processes that run them, since imports take most of the seconds."""
import functools
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.core.errors import KitError
from b2t_kit.data.batches import BatchConfig, TrainBatches
from b2t_kit.data.sampler import choose_buckets
from b2t_kit.core.frames import Frames
from b2t_kit.data.write import tiny_recordings
from b2t_kit.data.dataset import Recordings
from b2t_kit.plan.failures import diagnose
from b2t_kit.precision import refuse_ambient, resolve_precision
from commands import ROOT, python

pytestmark = [pytest.mark.torch_xla, pytest.mark.second_tier]
OLDER = ROOT / ".ci/envs/accelerate-1.13"  # made by tools/ci.py
RAGGED_LENGTHS = [212, 340, 381, 533, 612]


def padded_lengths() -> list[int]:
    buckets = choose_buckets(np.array(RAGGED_LENGTHS), np.full(5, 20), max_buckets=2, batch_size=1)
    return [next(one.bins for one in buckets if one.bins >= length) for length in RAGGED_LENGTHS]


# C1, C3: loaders that Accelerate divides
ACCELERATE_LOADER = """
    import torch
    from accelerate.data_loader import prepare_data_loader

    days = [torch.full((64, 3), float(number)) for number in range(6)]  # whole batches

    class DaySampler:
        "Chooses the trials of a batch, and has no batch_size."
        def __len__(self):
            return 6
        def __iter__(self):
            return iter([[number] for number in range(6)])

    def length(rank, even_batches, **loader):
        loader = torch.utils.data.DataLoader(days, **loader)
        loader = prepare_data_loader(loader, num_processes=8, process_index=rank, put_on_device=False,
                                     even_batches=even_batches)
        return sum(1 for _ in loader)

    for name, even_batches in (("pre-batched:", True), ("pre-batched, uneven:", False)):
        try:
            print(name, length(0, even_batches, batch_size=None))
        except (TypeError, ValueError) as error:
            print(name, error)
    print("per rank:", [length(rank, False, batch_sampler=DaySampler()) for rank in range(8)])
"""

# C4, C6, C7: float32 that is bfloat16
GRU = """
    import torch
    import torch_xla

    device = torch_xla.device()
    gru = torch.nn.GRU(24, 48, batch_first=True).to(device)  # torch_xla has put its own in place
    features = torch.randn(ROWS, 10, 24).to(device)
    state = torch.zeros(1, ROWS, 48).to(device)
    if "FIX" == "state.bfloat16()":
        state = state.bfloat16()
    if "FIX" == "features.float()":
        features = features.to(torch.float32)
    print("they say", features.dtype, gru.weight_hh_l0.dtype)
    try:
        gru(features, state)[0].sum().backward()
        torch_xla.sync()
        print("fine")
    except RuntimeError as error:
        print(error)
"""
WANTED = {  # failure: rows, what the report then did, and the error
    "c4": ("64", "nothing", "got parameter 0 shape: f32[64,48], argument shape: bf16[64,48]"),
    "c6": ("64", "state.bfloat16()", "got parameter 1 shape: f32[144], argument shape: bf16[144]"),
    "c7": ("32", "features.float()", "got parameter 0 shape: f32[32,48], argument shape: bf16[32,48]"),
}
LENGTHS_ON_DEVICE = """
    import torch, torch_xla
    bins = torch.tensor([777.0, 1025.0, 1999.0]).to(torch_xla.device())
    print("float", ((bins.float() - 14) / 4 + 1).to(torch.int32).tolist())
"""
LENGTHS_OF_THE_KIT = """
    import torch
    from b2t_kit.core.frames import Frames
    from b2t_kit.devices.select import open_device
    with open_device("xla", "bfloat16") as device, device.autocast():
        expected = [Frames().of(bins) for bins in range(14, 3006)]  # as many as eight chips divide
        held = device.place({"num_patches": torch.tensor(expected, dtype=torch.int32)})["num_patches"]
        on_device = (device.place({"b": torch.arange(14, 3006, dtype=torch.int32)})["b"] - 14) // 4 + 1
        print("equal", held.cpu().tolist() == expected == on_device.cpu().tolist())
"""

# C8: minutes before the first step
RAGGED = """
    import torch, torch_xla
    from b2t_kit.devices.runtime import count_programs
    device = torch_xla.device()
    readout = torch.nn.Linear(WIDTH, 3).to(device)
    torch_xla.sync()
    before = count_programs()
    for length in 2 * LENGTHS:
        readout(torch.ones(4, length, WIDTH).to(device)).square().sum().backward()
        torch_xla.sync()
        readout.zero_grad()
    print("compiled", count_programs().since(before).compiled)
"""

# C9: flags that come too late
FLAGS = """
    import os
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_multiprocessing as xmp
    own = os.environ["XLA_FLAGS"]
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ["PYTORCH_XLA_COMPILATION_THREADS"] = "8"
    print("changed", os.environ["XLA_FLAGS"] != own)
    print("devices", len(xm.get_xla_supported_devices()))
    try:
        xmp.spawn(print, args=())
    except RuntimeError as error:
        print("spawn:", error)
"""
IMPORTING = """
    import os, pkgutil, importlib, sys, warnings
    before = dict(os.environ)
    import b2t_kit
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="b2t_kit")
        warnings.filterwarnings("error", message=".*torch_xla.device.*")
        for one in pkgutil.walk_packages(b2t_kit.__path__, "b2t_kit."):
            importlib.import_module(one.name)
    from b2t_kit.training.task import TrainConfig
    TrainConfig(device="xla")
    print("changed", {name for name in os.environ if os.environ[name] != before.get(name)})
    print("imported", [name for name in ("torch_xla", "timm", "tensorflow") if name in sys.modules])
"""

# C10: fewer chips for more memory
ROWS_PER_CHIP = """
    import torch
    from torch_xla import _XLAC
    from b2t_kit.devices.select import open_device
    with open_device("xla") as device:
        batch = device.place({"features": torch.zeros(64, 10, 8)})["features"]
        shards = _XLAC._get_local_shards([batch])[0]
        print("rows", {tuple(one.shape) for one, _ in shards}, "kit", device.chips, device.world, device.rank, device.is_main)
"""
SPAWN_TWO = """
    import torch_xla.distributed.xla_multiprocessing as xmp
    try:
        xmp.spawn(print, args=(), nprocs=2)
    except ValueError as error:
        print(error)
"""

# C13: diagnostics that do not exist; C14: fp16 on a TPU; C17d, C20: functions that do not exist; C19: a warning
DIAGNOSTICS = """
    import torch_xla.core.xla_model as xm
    import torch_xla
    from b2t_kit.devices.runtime import count_programs, device_memory
    device = torch_xla.device()
    for question in ("xm.get_metrics()", "xm.get_memory_info(device)"):
        try:
            print("answer", eval(question))
        except (AttributeError, RuntimeError) as error:
            print(type(error).__name__, str(error).splitlines()[0])
    print("memory", device_memory(device), "executed", count_programs().executed)
"""
FP16 = """
    from accelerate import Accelerator
    print("accepted", Accelerator(mixed_precision="fp16").mixed_precision)
    import accelerate.accelerator as module
    module.is_torch_xla_available = lambda check_is_tpu=False, **_: True  # as on a TPU
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state()
    try:
        Accelerator(mixed_precision="fp16")
    except ValueError as error:
        print(error)
"""
NAMES = """
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime
    for question in ("xm.get_world_size()", "xm.xrt_world_size()", "xm.get_ordinal()",
                     "xm.get_device_type()", "torch_xla.device.xla_device()"):
        try:
            print("answer", eval(question))
        except AttributeError as error:
            print(question, error)
    from b2t_kit.devices.select import open_device
    with open_device("xla") as device:
        print("kit", device.chips, device.world, device.rank, device.is_main)
"""
OLD_NAME = "import warnings; warnings.simplefilter('default'); import torch_xla.core.xla_model as xm; xm.xla_device()"

# C24: "compute it in float32 by hand"
FLOAT_BY_HAND = """
    import torch, torch_xla
    small = torch.tensor([1.0]).float().to(torch_xla.device()).float() + 2.0**-12
    print("left", small.float().item() - 1)
"""
AUTOCAST_BY_HAND = """
    import torch
    from b2t_kit.devices.select import open_device
    with open_device("xla", "bfloat16") as device, device.autocast():
        one = torch.ones(1, 1, device=device.torch_device)
        product = torch.nn.functional.linear(one, one + 2.0**-12)
        print("left", (one + 2.0**-12).item() - 1, product.dtype, one.dtype)
"""
CANARY = """
    import torch, torch_xla
    from b2t_kit.core.errors import KitError
    from b2t_kit.precision import canary
    tensor = torch.ones((), device=torch_xla.device()) + 1e-4
    print(tensor.dtype, tensor.item())
    try:
        canary(torch_xla.device())
    except KitError as error:
        print(error)
"""

# A CPU where torch_xla can be imported
ACCELERATE_ON_CPU = "from accelerate import Accelerator; print('device', Accelerator(cpu=True).device)"
OURS_ON_CPU = """
    import sys
    from b2t_kit.core.errors import KitError
    from b2t_kit.devices.select import open_device
    try:
        with open_device("cpu") as device:
            print("opened", device.torch_device, "torch_xla" in sys.modules)
    except KitError as error:
        print(error)
"""

ONE_AFTER_ANOTHER = """
import json, sys, traceback
for name, code in json.loads(sys.argv[1]).items():
    print("=== " + name, flush=True)
    sys.stderr = sys.stdout
    try:
        exec(code, {"__name__": name})
    except Exception:
        print(traceback.format_exc())
"""
PROCESSES: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {  # chips, variables, programs
    "one chip": (1, {}, {
        "cpu": OURS_ON_CPU, "diagnostics": DIAGNOSTICS, "canary": CANARY,
        "gru": GRU.replace("ROWS", "64").replace("FIX", "nothing"),
        "ragged": RAGGED.replace("LENGTHS", str(RAGGED_LENGTHS)).replace("WIDTH", "8"),
        "padded": RAGGED.replace("LENGTHS", str(padded_lengths())).replace("WIDTH", "9")}),
    "eight chips": (8, {"TPU_PROCESS_ADDRESSES": "local", "ISTPUVM": "1"}, {"spawn": SPAWN_TWO, "rows": ROWS_PER_CHIP, "names": NAMES, "lengths": LENGTHS_OF_THE_KIT,
                            "by hand": AUTOCAST_BY_HAND}),
    "downcast": (1, {"XLA_USE_BF16": "1"}, {
        **{name: GRU.replace("ROWS", rows).replace("FIX", fix) for name, (rows, fix, _) in WANTED.items()},
        "lengths": LENGTHS_ON_DEVICE, "by hand": FLOAT_BY_HAND, "canary": CANARY}),
    "imports": (1, {}, {"importing": IMPORTING, "flags": FLAGS, "fp16": FP16, "old name": OLD_NAME}),
    "accelerate first": (1, {}, {"theirs": ACCELERATE_ON_CPU, "ours": OURS_ON_CPU}),
    "loaders": (1, {"USE_TORCH_XLA": "0"}, {"loader": ACCELERATE_LOADER}),
    "older": (1, {"USE_TORCH_XLA": "0"}, {"loader": f"import sys; sys.path.insert(0, {str(OLDER)!r})\n"
                                                    + textwrap.dedent(ACCELERATE_LOADER)}),
}


@functools.cache
def printed(process: str) -> dict[str, str]:
    """What each program of a process prints. Where torch_xla 2.9 raises, 2.8 ends the process: another one goes on."""
    chips, variables, programs = PROCESSES[process]
    found = dict[str, str]()
    while rest := {name: textwrap.dedent(code) for name, code in programs.items() if name not in found}:
        done = python("-c", ONE_AFTER_ANOTHER, json.dumps(rest), chips=chips, status=None,
                      **{"TF_CPP_MIN_LOG_LEVEL": "2", **variables})
        new = dict(part.partition("\n")[::2] for part in done.stdout.split("=== ")[1:])
        assert new and (done.returncode == 0) == (new.keys() == rest.keys()), done.stdout + done.stderr
        if done.returncode:
            new[[*new][-1]] += done.stderr
        found |= new
    return found


def test_c1_c3_loaders(tmp_path: Path) -> None:
    """A pre-batched loader fails with more than one process, and the reported fix leaves ranks without work."""
    first, second, lengths = [line for line in printed("loaders")["loader"].splitlines() if ":" in line][-3:]
    assert first == "pre-batched: 'NoneType' object is not iterable", "C3; before Accelerate 1.14 it was C1"
    assert second == "pre-batched, uneven: 'NoneType' object is not iterable"
    assert lengths == "per rank: [1, 1, 1, 1, 1, 1, 0, 0]", "two ranks get nothing, and the others wait"

    recordings = Recordings(tiny_recordings(tmp_path / "data", sessions=3, trials=7), "train")
    config = BatchConfig(batch_size=12, buckets=2, prefetch=0)
    for world in (1, 2, 5, 8):
        ranks = [TrainBatches(recordings, config, 1, rank, world) for rank in range(world)]
        assert len({batches.steps_per_epoch for batches in ranks}) == 1
        given = [next(batches.iterate())[0] for batches in ranks]
        assert len({tuple(batch.features.shape) for batch in given}) == 1
        trials = torch.cat([batch.trial[batch.weight > 0] for batch in given]).tolist()
        assert len(trials) == len(set(trials)) == given[0].step_rows
    one = TrainBatches(recordings, config, 1, multiple=8)  # what eight chips of one process get
    assert one.assembler.rows == 16 and next(one.iterate())[0].step_rows <= 12


@pytest.mark.skipif(not OLDER.exists(), reason="needs pip install --no-deps --target .ci/envs/accelerate-1.13 accelerate==1.13.0")
def test_c1_with_the_accelerate_of_the_report() -> None:
    """Accelerate 1.13 and older give C1's message, and C3's where its advice is taken."""
    first, second = [line for line in printed("older")["loader"].splitlines() if line.startswith("pre-batched")]
    assert "You need to use `even_batches=False` when the batch sampler has no batch size" in first
    assert second == "pre-batched, uneven: 'NoneType' object is not iterable"


@pytest.mark.parametrize("name", WANTED)
def test_c4_c6_c7_shapes_that_do_not_match(name: str) -> None:
    """Accelerate's mixed_precision="bf16" sets XLA_USE_BF16, and each reported fix only moves the error."""
    said = printed("downcast")[name]
    assert "they say torch.float32 torch.float32" in said
    assert f"Call parameter must match argument; {WANTED[name][2]}" in said, said
    assert "fine" in printed("one chip")["gru"]
    for variable in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        with pytest.raises(KitError, match=f"{variable}=1 is set: it stores float32 tensors as bfloat16"):
            refuse_ambient({variable: "1"})


def test_the_doctor_knows_the_original_error() -> None:
    """The output of C4's recipe, piped into `b2t doctor`: it names the error and the variable that causes it."""
    done = subprocess.run([sys.executable, "-m", "b2t_kit.cli", "doctor", "--log", "-", "--json"], input=printed("downcast")["c4"],
                          capture_output=True, text=True)
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    aborted = {"xla_check_failed_inside"}  # how torch_xla 2.8 says it
    assert done.returncode == 0 and set(found) - aborted == {"C4", "C24"}, done.stdout
    assert "XLA_USE_BF16" in found["C4"]["cause"]["en"] and "XLA_USE_BF16" in found["C4"]["cause"]["zh"]


def test_c6_lengths_are_integers() -> None:
    """The reported fix for C6 computed lengths as floats on the device, where they were bfloat16."""
    said = printed("downcast")["lengths"]
    assert "float [" in said and "float [191, 253, 497]" not in said, said
    assert [Frames().of(bins) for bins in (777, 1025, 1999)] == [191, 253, 497]
    assert "equal True" in printed("eight chips")["lengths"]


def test_c8_a_program_for_every_length() -> None:
    """Batches as long as their longest trial compile again and again; buckets have few lengths. No more in training: test_xla.py."""
    assert [printed("one chip")[name] for name in ("ragged", "padded")] == ["compiled 5\n", "compiled 2\n"]


def test_c9_flags_after_the_import() -> None:
    """The reported flags change nothing, one is unknown to torch_xla, and asking for devices starts the runtime."""
    said = printed("imports")["flags"]
    assert "changed False" in said and "devices 1" in said
    assert "spawn: Runtime is already initialized. Do not use the XLA" in said
    package = Path(importlib.util.find_spec("torch_xla").origin).parent
    files = [*package.rglob("*.py"), *package.rglob("*.so"), *package.parent.glob("_XLAC*.so")]
    assert not [path for path in files if b"PYTORCH_XLA_COMPILATION_THREADS" in path.read_bytes()]
    changed = printed("imports")["importing"].splitlines()[0]
    assert changed in ("changed set()", "changed {'GOMP_SPINCOUNT'}"), changed  # how waiting threads sleep; nothing of XLA


def test_c10_fewer_chips_hold_more_each() -> None:
    """torch_xla does not start two processes for eight chips; all of them share the rows of a batch."""
    eight = printed("eight chips")
    assert "Unsupported nprocs (2). Please use nprocs=1 or None (default)." in eight["spawn"], eight["spawn"]
    assert "rows {(8, 10, 8)} kit 8 1 0 True" in eight["rows"], eight["rows"]


def test_c13_diagnostics_never_raise() -> None:
    """A guide's diagnosis ended in AttributeError; on a CPU the memory is not counted either."""
    said = printed("one chip")["diagnostics"]
    assert "AttributeError module 'torch_xla.core.xla_model' has no attribute 'get_metrics'" in said
    assert "RuntimeError" in said and "memory None executed 0" in said


def test_c14_fp16_is_refused_before_anything_is_built() -> None:
    """Accelerate accepts fp16 on XLA's CPU backend and refuses it on a TPU; the kit always refuses."""
    said = printed("imports")["fp16"]
    assert "accepted fp16" in said and "fp16 mixed precision requires a" in said, said
    with pytest.raises(KitError, match="precision float16 needs a CUDA GPU, not xla; use bfloat16"):
        resolve_precision("float16", "xla")


def test_c17b_kaggles_addresses_do_no_harm() -> None:
    """The variable that causes libtpu's line in Kaggle's logs disturbs no process with all chips; the line is listed last."""
    assert "kit 8" in printed("eight chips")["rows"]
    port = ("E0000 00:00:1785940598.615268      73 common_lib.cc:943] Could not set metric server port: INVALID_ARGUMENT: "
            "Could not find SliceBuilder port 8471 in any of the 0 ports provided in `tpu_process_addresses`=\"local\"\n"
            "=== Source Location Trace: ===\nlearning/45eac/tfrc/runtime/common_lib.cc:239\n")
    found = diagnose(f"{port}AttributeError: module 'torch_xla.core.xla_model' has no attribute 'get_world_size'\n")
    assert [finding.failure.number for finding in found] == ["C20", "C17b"] and found[1].failure.harmless


def test_c17d_c20_names_that_do_not_exist() -> None:
    """Names from guides that do not exist, and where the kit gets the answers: one main process, as many chips as there are."""
    said = printed("eight chips")["names"]
    assert "module 'torch_xla.core.xla_model' has no attribute 'get_world_size'" in said
    assert said.count("has no attribute") == 5 and "answer" not in said and "kit 8 1 0 True" in said, said
    assert "--use_tpu" in python("-m", "accelerate.commands.launch", "--use_tpu", "x.py", status=2).stderr


def test_c15_c19_the_kit_gives_no_such_warning() -> None:
    """torch_xla's own deprecation is shown; importing the kit's modules gives none, and neither do its devices."""
    assert "Use torch_xla.device instead" in printed("imports")["old name"]
    assert "imported []" in printed("imports")["importing"], printed("imports")["importing"]
    assert "Warning" not in printed("eight chips")["names"], printed("eight chips")["names"]


def test_c24_float32_by_hand() -> None:
    """Under XLA_USE_BF16 casting to float32 has no effect; under autocast it has."""
    assert printed("downcast")["by hand"] == "left 0.0\n"
    assert "left 0.000244140625 torch.bfloat16 torch.float32" in printed("eight chips")["by hand"]


def test_canary_notices_float32_that_is_bfloat16() -> None:
    """XLA_USE_BF16 stores float32 tensors as bfloat16 while their dtype still says float32."""
    assert printed("downcast")["canary"].startswith("torch.float32 1.0\nfloat32 is not float32 on xla:0")
    said = printed("one chip")["canary"]
    assert said.startswith("torch.float32 1.0001") and "is not float32" not in said, said


def test_cpu_stays_cpu_where_torch_xla_can_be_imported() -> None:
    """Accelerate takes torch_xla even with cpu=True; the kit prevents that, or reports that it is too late."""
    assert "device xla:0" in printed("accelerate first")["theirs"]
    assert "has taken torch_xla; restart and open the device first" in printed("accelerate first")["ours"]
    assert "opened cpu False" in printed("one chip")["cpu"]
