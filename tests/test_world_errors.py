"""Errors of public threads: the doctor knows those that its rules were written from, says nothing wrong about the
others, and nothing about other programs' errors.

Below, failures that need no TPU and no GPU are made to happen, and their cures are tried.
"""
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from b2t_kit.doctor import diagnose, known_failures

TESTS = Path(__file__).parent
PATIENCE = 600  # seconds
WORLD = json.loads((TESTS / "world_errors.json").read_text(encoding="utf-8"))
ORDINARY = json.loads((TESTS / "ordinary_texts.json").read_text(encoding="utf-8"))
UNRELATED = json.loads((TESTS / "unrelated_errors.json").read_text(encoding="utf-8"))
NAMES = {failure.name for failure in known_failures()}
FIELD = {  # what reports to the kit say in their own words, where there is no message
    "every_new_shape_compiles": ["100 % CPU, 5–15 min first step", "the first step takes 5 to 15 minutes"],
    "fewer_chips_not_supported": ["8→2 cores to get memory", "fewer cores = less total memory"],
    "xla_get_metrics_does_not_exist": ["print(xm.get_metrics())", "`xm.get_metrics()`"],
    "missing_path_replaced_by_other_data": [
        "Warning: data/experiment_7 not found, falling back to ./data", "custom path missing → ./data"],
    "use_tpu_option_does_not_exist": [
        "accelerate launch --use_tpu main.py", "xm.get_device_type()", "torch_xla.device.xla_device()",
        "if accelerator.device_type == 'xla':"],
    "two_processes_on_one_gpu": [
        "Exclusive-process GPUs, both ranks on cuda:0", "E. Process",
        "| N/A   35C    P0    63W / 235W |     74MiB / 11439MiB |      0%   E. Process |"],
    "port_already_in_use": [
        "port 29500 was in use", "Port 29500 busy", "Port 29500 is already in use", "MASTER_PORT 29500 is occupied"],
    "gradients_not_summed_over_processes": [
        "loss.backward()+xm.mark_step()", "loss.backward()\nxm.mark_step()\noptimizer.step()"],
    "metrics_of_one_process_only": ["gather not needed on a single node", "gather is not needed on a single node"],
    "steps_take_many_seconds": ["~2–3 min per 1000 images/epoch", "10–18 s/step"],
}


def known(text: object) -> list[str]:
    """The names of the failures that the doctor finds in a text or an error."""
    return [finding.failure.name for finding in diagnose(str(text))]


def python(code: str, **added: str) -> str:
    """What a fresh interpreter prints, however it ends."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1", **added)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                          timeout=PATIENCE)
    return done.stdout + done.stderr


# What is known


def test_the_world_s_errors() -> None:
    """Those that the rules were written from are known; of the others, at most one failure is named."""
    found = {error["text"]: known(error["text"]) for error in WORLD}
    rules = [error for error in WORLD if error["split"] == "rules" and error["what"] in NAMES]
    assert len(rules) > 250 and [error for error in rules if found[error["text"]] != [error["what"]]] == []
    others = [error for error in WORLD if error not in rules and error["what"] in NAMES]
    assert [error for error in others if found[error["text"]] not in ([], [error["what"]])] == []
    assert max(map(len, found.values())) == 1


@pytest.mark.parametrize("name", FIELD)
def test_reports_in_their_own_words(name: str) -> None:
    """What was reported without a message leads to the failure as well."""
    assert [known(text) for text in FIELD[name]] == [[name]] * len(FIELD[name])


def test_no_false_alarm() -> None:
    """Nothing is known about other programs' errors, some in the same words, nor about logs in which nothing failed."""
    assert len(UNRELATED) == 200 and [one["text"] for one in UNRELATED if diagnose(one["text"])] == []
    lines = [one["text"] for one in ORDINARY]
    assert len(lines) > 60 and [line for line in [*lines, "\n".join(lines)] if diagnose(line)] == []


# Made to happen here, with their cures


def test_accelerate_says_what_it_wants() -> None:
    """Three errors before anything starts, and what Accelerate accepts instead."""
    said = python("""
import traceback
from accelerate import Accelerator, notebook_launcher
for options in ({"fp16": True}, {"mixed_precision": "fp16"}):
    try:
        print("created", Accelerator(cpu=True, **options).device)
    except TypeError:
        traceback.print_exc()
for options in ({}, {"num_processes": 2}):
    try:
        notebook_launcher(print, **options)
    except ValueError:
        traceback.print_exc()
""", USE_TORCH_XLA="0")
    assert "created cpu" in said
    assert set(known(said)) == {"accelerator_argument_removed", "number_of_processes_missing",
                                "accelerator_created_before_launch"}


def test_parameters_without_gradient(tmp_path: Path) -> None:
    """A layer that is not used stops the second step; removing it, or looking for it, does not."""
    said = python(f"""
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
layers.forward = lambda rows: layers[0](rows)
for options in ({{"find_unused_parameters": True}}, {{}}):
    model = DistributedDataParallel(layers, **options)
    for step in range(2):
        model(torch.ones(3, 2)).sum().backward()
        print("stepped", options, step)
""")
    assert said.count("stepped") == 3 and known(said) == ["parameters_without_gradient"]


def test_static_graph_with_accumulation(tmp_path: Path) -> None:
    """torch's assertion fails when the first backward pass is not synchronised; without static_graph it is right."""
    said = python(f"""
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
for options in ({{}}, {{"static_graph": True}}):
    model = DistributedDataParallel(torch.nn.Linear(2, 1), **options)
    with model.no_sync():
        model(torch.ones(3, 2)).sum().backward()
    model(torch.ones(3, 2)).sum().backward()
    print("summed", model.module.bias.grad.item())
""")
    assert said.count("summed 6.0") == 1 and known(said) == ["static_graph_with_accumulation"]


def test_process_killed_by_system() -> None:
    """What torch says of a process that got SIGKILL."""
    said = python("""
import os, signal, torch
def die(rank): os.kill(os.getpid(), signal.SIGKILL)
torch.multiprocessing.start_processes(die, nprocs=2, start_method="fork")
""")
    assert known(said) == ["process_killed_by_system"]


def test_lengths_on_the_device() -> None:
    """Lengths must be on the host, whatever the device."""
    rows, lengths = torch.ones(2, 3, 4, device="meta"), torch.tensor([3, 2])
    with pytest.raises(RuntimeError) as failure:
        torch.nn.utils.rnn.pack_padded_sequence(rows, lengths.to("meta"), batch_first=True)
    assert known(failure.value) == ["lengths_on_the_device"]
    torch.nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)


class Rows(torch.utils.data.Dataset):
    """Rows whose reader process ends at the first, if it should."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.ends and torch.utils.data.get_worker_info():
            os._exit(1)
        return torch.full((4,), float(index))


def test_loader_worker_died() -> None:
    """The message hides the reason; without reader processes it would show."""
    with pytest.raises(RuntimeError) as failure:
        list(torch.utils.data.DataLoader(Rows(True), num_workers=1))
    assert known(failure.value) == ["loader_worker_died"]
    assert len(list(torch.utils.data.DataLoader(Rows(True)))) == 200


def test_too_many_open_files() -> None:
    """Tensors in a list keep their files open; copies do not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = torch.utils.data.DataLoader(Rows(False), num_workers=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
    try:
        with pytest.raises((RuntimeError, OSError)) as failure:
            list(rows)
        assert len([row.clone() for row in rows]) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert known(failure.value) == ["too_many_open_files"]


def test_compiled_too_often() -> None:
    """A program for every length, up to a limit; one for all of them with dynamic=True."""
    code = """
import torch
@torch.compile(backend="eager", dynamic=DYNAMIC)
def double(rows): return rows + rows
for length in range(3, 30): double(torch.ones(length))
"""
    assert known(python(code.replace("DYNAMIC", "False"))) == ["compiled_too_often"]
    assert known(python(code.replace("DYNAMIC", "True"))) == []


def test_gradient_is_nan() -> None:
    """The root of zero, hidden afterwards and kept away beforehand."""
    zero = torch.zeros(1, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        with pytest.raises(RuntimeError) as failure:
            torch.where(zero > 0, zero.sqrt(), torch.zeros(1)).sum().backward()
        zero.clamp(min=1e-6).sqrt().sum().backward()
    assert known(failure.value) == ["gradient_is_nan"] and torch.isfinite(zero.grad).all()


def test_scaler_saw_no_gradient() -> None:
    """A loss that does not depend on the optimizer's parameters."""
    used, unused = (torch.ones(1, requires_grad=True) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(used.sum()).backward()
    with pytest.raises(AssertionError) as failure:
        scaler.step(torch.optim.SGD([unused]))
    scaler.step(torch.optim.SGD([used]))
    assert known(failure.value) == ["scaler_saw_no_gradient"] and used.item() < 1


def test_checkpoints(tmp_path: Path) -> None:
    """Half a checkpoint, a web page, an object of a program, and a checkpoint of a wrapped model."""
    model, path = torch.nn.Linear(2, 2), tmp_path / "checkpoint.pt"
    torch.save(model.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(RuntimeError) as failure:
        torch.load(path)
    assert known(failure.value) == ["checkpoint_cut_short"]
    path.write_text("<html>")
    with pytest.raises(pickle.UnpicklingError) as failure:
        torch.load(path)
    assert known(failure.exconly()) == ["checkpoint_is_not_one"]
    torch.save(Rows(False), path)
    with pytest.raises(pickle.UnpicklingError) as failure:
        torch.load(path)
    assert known(failure.exconly()) == ["checkpoint_holds_objects"] and len(torch.load(path, weights_only=False)) == 200
    saved = {f"module.{name}": values for name, values in model.state_dict().items()}
    with pytest.raises(RuntimeError) as failure:
        model.load_state_dict(saved)
    assert known(failure.value) == ["checkpoint_of_another_model"]
    model.load_state_dict({name.removeprefix("module."): values for name, values in saved.items()})


def test_hdf5_files(tmp_path: Path) -> None:
    """Half a file, a web page, and a name that the file does not have."""
    path = tmp_path / "trials.hdf5"

    def fails(name: str = "rows") -> list[str]:
        with pytest.raises((OSError, KeyError)) as failure, h5py.File(path) as file:
            file[name]
        return known(failure.value)

    with h5py.File(path, "w") as file:
        file["rows"] = np.ones(5000)
    assert fails("lengths") == ["hdf5_object_missing"]
    path.write_bytes(path.read_bytes()[:3000])
    assert fails() == ["hdf5_file_cut_short"]
    path.write_text("<html>")
    assert fails() == ["hdf5_file_is_not_one"]


def test_hdf5_locks(tmp_path: Path) -> None:
    """A file that is open for writing elsewhere, and one opened with two settings in one process."""
    path = tmp_path / "trials.hdf5"
    read = f"import h5py; print(list(h5py.File({str(path)!r}, 'r')))"
    with h5py.File(path, "w") as file:
        file["rows"] = np.ones(5)
        file.flush()
        assert known(python(read, HDF5_USE_FILE_LOCKING="TRUE")) == ["hdf5_file_locked"]
    assert "['rows']" in python(read)
    with h5py.File(path, "r", locking=True), pytest.raises(OSError) as failure:
        h5py.File(path, "r", locking=False)
    assert known(failure.value) == ["hdf5_opened_twice_differently"]


@pytest.mark.torch_xla
def test_tensor_left_on_the_host() -> None:
    """A constant made on the host, a model that was not moved, and a table on the host."""
    import torch_xla
    there, here = torch.ones(2, 2, device=torch_xla.device()), torch.ones(2, 2)
    for wrong in (lambda: torch.cat([there, here]), lambda: torch.nn.Linear(2, 2)(there), lambda: here[there.long()]):
        with pytest.raises(RuntimeError) as failure:
            wrong()
        assert known(failure.value) == ["tensor_left_on_the_host"]
    assert torch.cat([there, torch.ones(2, 2, device=there.device)]).shape == (4, 2)


@pytest.mark.torch_xla
def test_xla_used_before_spawn() -> None:
    """A tensor on XLA before the launch."""
    code = """
import torch, torch_xla
def show(rank): print("started", rank)
if __name__ == "__main__":
    USED
    torch_xla.launch(show, start_method="fork")
"""
    said = [python(code.replace("USED", used), PJRT_DEVICE="CPU")
            for used in ("torch.ones(1, device=torch_xla.device())", "pass")]
    assert known(said[0]) == ["xla_used_before_spawn"] and "started 0" in said[1]
