"""Errors of public threads: the doctor knows them, and nothing about other programs' errors; some happen here, with their cures."""
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from b2t_kit.plan.failures import UNKNOWN, diagnose, diagnose_parts, known_failures
from commands import TESTS, python

WORLD = json.loads((TESTS / "world_errors.json").read_text(encoding="utf-8"))
ORDINARY = json.loads((TESTS / "ordinary_texts.json").read_text(encoding="utf-8"))
UNRELATED = json.loads((TESTS / "unrelated_errors.json").read_text(encoding="utf-8"))
NAMES = {failure.name for failure in known_failures()}


def known(text: object) -> list[str]:
    """The names of the failures that the doctor finds in a text or an error."""
    return [finding.failure.name for finding in diagnose(str(text))]


# What is known


def test_the_world_s_errors() -> None:
    """Those that the rules were written from are known, and what was reported in other words; of the others, at most one
    failure is named."""
    found = {error["text"]: known(error["text"]) for error in WORLD}
    rules = [error for error in WORLD if error["split"] in ("rules", "field") and error["what"] in NAMES]
    assert len(rules) > 250 and [error for error in rules if found[error["text"]] != [error["what"]]] == []
    others = [error for error in WORLD if error not in rules and error["what"] in NAMES]
    assert [error for error in others if found[error["text"]] not in ([], [error["what"]])] == []
    assert max(map(len, found.values())) == 1


def test_no_false_alarm() -> None:
    """Nothing is known about other programs' errors, some in the same words, nor about logs in which nothing failed."""
    assert len(UNRELATED) == 200 and [one["text"] for one in UNRELATED if diagnose(one["text"])] == []
    lines = [one["text"] for one in ORDINARY]
    assert len(lines) > 60 and [line for line in [*lines, "\n".join(lines)] if diagnose(line)] == []


UNKNOWN_ENDS = [
    "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nflux.FluxError: the coil is cold",
    "---------------------------------------------------------------------------\nFluxError      Traceback (most recent call last)\n"
    "<ipython-input-1> in <cell line: 0>()\nFluxError: the coil is cold",
    "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"a.py\", line 3\n[rank1]: ValueError: the coil is cold",
    "error: coil 3: is cold", "train.sh: error: coil 3 is cold", "Segmentation fault (core dumped)", "Killed"]


@pytest.mark.parametrize("end", UNKNOWN_ENDS)
def test_nothing_hides_an_error_that_is_not_known(end: str) -> None:
    """A harmless line before or after it, a known error before it, and a launcher's lines about it; a known one at the end is known."""
    harmless = "mistune.py:435: SyntaxWarning: invalid escape sequence"
    launcher = "Traceback (most recent call last):\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    before = "Traceback (most recent call last):\nRuntimeError: CUDA error: invalid device ordinal"
    length = len(end.split("\n"))
    for text, line in ((f"{harmless}\nstep 1\n{end}\n", 2), (f"{end}\n{harmless}\n", 0),
                       (f"{before}\nstep 1\n{end}\n", 3), (f"{harmless}\n{end}\n{launcher}\n", 1)):
        (unknown,) = [one for one in diagnose_parts([text]) if one.failure is UNKNOWN]
        assert unknown.line == line + length, text
    assert not [one for one in diagnose_parts([f"{end}\nstep 1\n{before}\n"]) if one.failure is UNKNOWN]


# Made to happen here, with their cures


class Rows(torch.utils.data.Dataset):
    """Two hundred rows; a reader process may die at the first."""

    def __init__(self, ends: bool = False) -> None:
        self.ends = ends

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.ends and torch.utils.data.get_worker_info():
            os._exit(1)
        return torch.full((4,), float(index))


def root_of_zero(least: float) -> None:
    zero = torch.zeros(1, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        torch.where(zero > 0, zero.clamp(min=least).sqrt(), torch.zeros(1)).sum().backward()


def scaled_step(number: int) -> None:
    weights, scaler = [torch.ones(1, requires_grad=True) for _ in range(2)], torch.amp.GradScaler("cpu")
    scaler.scale(weights[0].sum()).backward()
    scaler.step(torch.optim.SGD([weights[number]]))


def read_many(kept: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Keep all rows of a reader process, with few files allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = torch.utils.data.DataLoader(Rows(), num_workers=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
    try:
        assert len([kept(row) for row in rows]) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def packed(lengths: torch.Tensor) -> object:
    return torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4, device="meta"), lengths, batch_first=True)


def reopened(locking: bool) -> None:
    with h5py.File("rows.hdf5", "r", locking=True):
        h5py.File("rows.hdf5", "r", locking=locking)


WRONG_AND_RIGHT: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "lengths_on_the_device": (lambda: packed(torch.tensor([3, 2], device="meta")), lambda: packed(torch.tensor([3, 2]))),
    "loader_worker_died": (lambda: list(torch.utils.data.DataLoader(Rows(True), num_workers=1)),
                           lambda: list(torch.utils.data.DataLoader(Rows(True)))),
    "too_many_open_files": (lambda: read_many(lambda row: row), lambda: read_many(torch.Tensor.clone)),
    "gradient_is_nan": (lambda: root_of_zero(0.0), lambda: root_of_zero(1e-6)),
    "labels_beyond_the_classes": (lambda: torch.nn.functional.cross_entropy(torch.ones(1, 5), torch.tensor([5])),
                                  lambda: torch.nn.functional.cross_entropy(torch.ones(1, 5), torch.tensor([4]))),
    "scaler_saw_no_gradient": (lambda: scaled_step(1), lambda: scaled_step(0)),
    "checkpoint_cut_short": (lambda: torch.load("half.pt"), lambda: torch.load("whole.pt")),
    "checkpoint_is_not_one": (lambda: torch.load("page"), lambda: torch.load("whole.pt")),
    "checkpoint_holds_objects": (lambda: torch.load("objects.pt"), lambda: torch.load("objects.pt", weights_only=False)),
    "checkpoint_of_another_model": (
        lambda: torch.nn.Linear(2, 2).load_state_dict({f"module.{name}": one for name, one in torch.load("whole.pt").items()}),
        lambda: torch.nn.Linear(2, 2).load_state_dict(torch.load("whole.pt"))),
    "hdf5_object_missing": (lambda: h5py.File("rows.hdf5")["lengths"], lambda: h5py.File("rows.hdf5")["rows"]),
    "hdf5_file_cut_short": (lambda: h5py.File("half.hdf5"), lambda: h5py.File("rows.hdf5")),
    "hdf5_file_is_not_one": (lambda: h5py.File("page"), lambda: h5py.File("rows.hdf5")),
    "hdf5_opened_twice_differently": (lambda: reopened(False), lambda: reopened(True)),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint and recordings, half of each, one of a program's objects, and a web page."""
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(2, 2).state_dict(), "whole.pt")
    torch.save(Rows(), "objects.pt")
    with h5py.File("rows.hdf5", "w") as file:
        file["rows"] = np.ones(5000)
    for whole, half in (("whole.pt", "half.pt"), ("rows.hdf5", "half.hdf5")):
        content = Path(whole).read_bytes()
        Path(half).write_bytes(content[:len(content) // 2])
    Path("page").write_text("<html>")


@pytest.mark.parametrize("name", WRONG_AND_RIGHT)
def test_it_happens_here(name: str, files: None) -> None:
    """The doctor knows the message that the installed libraries give, and the cure helps."""
    wrong, right = WRONG_AND_RIGHT[name]
    with pytest.raises(Exception) as failure:
        wrong()
    assert known(failure.exconly()) == [name]
    right()


IN_A_PROCESS = """
import os, signal, subprocess, sys, traceback
os.environ["USE_TORCH_XLA"] = "0"
import h5py, torch
from accelerate import Accelerator, notebook_launcher
from torch.nn.parallel import DistributedDataParallel

def tried(make):
    try:
        print("cured:", make())
    except Exception:
        traceback.print_exc()

def die(rank):
    os.kill(os.getpid(), signal.SIGKILL)

def trained(model, holds=False):
    for step in range(2):
        with model.no_sync() if holds and not step else torch.enable_grad():
            model(torch.ones(3, 2)).sum().backward()
    return sum(one.grad.sum().item() for one in model.parameters() if one.grad is not None)

def doubled(dynamic):
    double = torch.compile(lambda rows: rows + rows, backend="eager", dynamic=dynamic)
    return [len(double(torch.ones(length))) for length in range(3, 30)][-1]

read = "import h5py; print(h5py.File('open.hdf5', 'r') and 'cured: read')"
with h5py.File("open.hdf5", "w") as file:
    file["rows"] = [5.0]
    file.flush()
    subprocess.run([sys.executable, "-c", read], env=os.environ | dict(HDF5_USE_FILE_LOCKING="TRUE"))
subprocess.run([sys.executable, "-c", read])
tried(lambda: torch.multiprocessing.start_processes(die, nprocs=2, start_method="fork"))
tried(lambda: Accelerator(cpu=True, fp16=True))
tried(lambda: notebook_launcher(print))
tried(lambda: Accelerator(cpu=True, mixed_precision="fp16") and "accelerate")
tried(lambda: notebook_launcher(print, num_processes=2))
torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
layers.forward = lambda rows: layers[0](rows)
tried(lambda: trained(DistributedDataParallel(layers)))
tried(lambda: trained(DistributedDataParallel(layers, find_unused_parameters=True)))
tried(lambda: trained(DistributedDataParallel(torch.nn.Linear(2, 1), static_graph=True), holds=True))
tried(lambda: trained(DistributedDataParallel(torch.nn.Linear(2, 1)), holds=True))
print(doubled(True), "cured: lengths")
doubled(False)
"""


def test_it_happens_in_a_process(tmp_path: Path) -> None:
    """The same of what ends a process, or leaves it changed: each is known, and each cure is printed."""
    done = python("-c", IN_A_PROCESS, status=None, cwd=tmp_path)
    said = done.stdout + done.stderr
    assert set(known(said)) == {
        "accelerator_argument_removed", "number_of_processes_missing", "accelerator_created_before_launch",
        "parameters_without_gradient", "static_graph_with_accumulation", "process_killed_by_system", "compiled_too_often",
        "hdf5_file_locked"}, said
    assert done.stdout.count("cured: ") == 5 and "cured: 18.0" in done.stdout, said


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
    done = [python("-c", code.replace("USED", used), chips=1, status=None) for used in ("torch.ones(1, device=torch_xla.device())", "pass")]
    said = [one.stdout + one.stderr for one in done]
    assert known(said[0]) == ["xla_used_before_spawn"] and "started 0" in said[1]
