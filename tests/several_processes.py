"""The program of the processes launched by test_failures.py."""
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from b2t_kit.core import KitError
from b2t_kit.devices.torch import Device
from b2t_kit.devices.select import open_device
from commands import TESTS, TORCHRUN, python

STEPS, ROWS = 5, 12


def torchrun(target: str, *arguments: str, timeout: float = 600.0) -> list[str]:
    """Run `module:function` of these tests in two processes; what each printed."""
    with tempfile.TemporaryDirectory() as logs:
        done = python(*TORCHRUN, "--log-dir", logs, "--redirects", "3", TESTS / "several_processes.py", target, *arguments,
                      status=None, timeout=timeout, ACCELERATE_USE_CPU="true")
        outputs, errors = ([path.read_text() for path in sorted(Path(logs).rglob(f"{name}.log"))] for name in ("stdout", "stderr"))
    if done.returncode:
        raise RuntimeError(f"{done.stderr[-2000:]}\n" + "\n".join(one[-2000:] for one in [*outputs, *errors]))
    return outputs


def toy_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def toy_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (STEPS, ROWS, 6) and targets (STEPS, ROWS, 3); the rows differ in size."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, ROWS, 6, generator=generator)
    targets = torch.randn(STEPS, ROWS, 3, generator=generator)
    return inputs, targets * torch.arange(1, ROWS + 1)[:, None] / 4


def shares(rank: int, world: int, accumulation: int) -> list[torch.Tensor]:
    """This process's rows of a global step, in micro-batches of different sizes."""
    mine = torch.arange(rank, ROWS, world)
    if accumulation == 1:
        return [mine]
    return list(mine.split([1, *[1] * (accumulation - 2), len(mine) - accumulation + 1]))


def train(device: Device, accumulation: int) -> dict:
    """Train the toy model; gradient norms of all steps, the final parameters."""
    model = toy_model()
    if not device.is_main:  # replicas must start from process 0's parameters
        for parameter in model.parameters():
            parameter.data.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = device.prepare(model, optimizer)
    inputs, targets = toy_data()
    norms = []
    for step in range(STEPS):
        parts = shares(device.rank, device.world, accumulation)
        for number, rows in enumerate(parts):
            with device.accumulate(model, last=number == len(parts) - 1), device.autocast():
                batch = device.place({"inputs": inputs[step, rows], "targets": targets[step, rows]})
                loss = (model(batch["inputs"]) - batch["targets"]).square().sum() / ROWS
                device.backward(loss)
        norms.append(device.clip(model, 1.0).item())
        device.step(optimizer)
        optimizer.zero_grad()
    device.check_replicas(model)
    state = device.fetch_named(device.unwrap(model).state_dict())
    parameters = torch.cat([one.flatten() for one in state.values()])
    return {"norms": norms, "parameters": parameters.tolist()}


def train_without_reduction(device: Device) -> list[float | str]:
    """The recipe of failure C21: every process clips and steps on its own gradients."""
    model = toy_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs, targets = toy_data()
    for step in range(STEPS):
        rows = torch.arange(device.rank, ROWS, device.world)
        (model(inputs[step, rows]) - targets[step, rows]).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    found = ""
    try:
        device.check_replicas(model)
    except KitError as error:
        found = str(error)
    parameters = torch.cat([one.detach().flatten() for one in model.parameters()])
    everyone = torch.tensor(device.gather_objects(parameters.tolist()))
    return [(everyone - everyone[0]).abs().max().item(), found]


def errors_per_trial() -> list[tuple[float, int]]:
    """Seven trials: edits and length of each."""
    return [(1.0, 10), (0.0, 5), (8.0, 8), (2.0, 20), (0.0, 4), (3.0, 3), (5.0, 100)]


def evaluate(device: Device) -> dict:
    """An error rate over unevenly distributed trials: process 0 gets all but one."""
    trials = errors_per_trial()
    mine = trials if device.world == 1 else (trials[:-1] if device.is_main else trials[-1:])
    local = sum(edits for edits, _ in mine) / sum(length for _, length in mine)
    edits, length = device.sum_over_processes(torch.tensor(mine, dtype=torch.float64).sum(0))
    rates = device.gather_objects(local)
    return {"local": rates, "mean_of_means": sum(rates) / len(rates),
            "rate": (edits / length).item()}


def everything(out: str) -> None:
    """All of the above in one launch; process 0 writes the results."""
    with open_device("cpu", accumulation=3) as device:
        results = {
            "describe": device.describe(),
            "plain": train(device, 1),
            "accumulated": train(device, 3),
            "without_reduction": train_without_reduction(device),
            "evaluation": evaluate(device),
            "objects": [device.gather_objects(device.rank), device.broadcast_object(device.rank)],
            "sum": device.sum_over_processes(torch.tensor([1.0, device.rank])).tolist(),
        }
        device.gather_objects(None)  # waits for all
        print("printed by everyone")
        device.say("said once")
        if device.is_main:
            Path(out).write_text(json.dumps(results))


def arrive_late(folder: str) -> None:
    """Write the process numbers and wait, each with a child process; process 1 may die."""
    rank = int(os.environ["RANK"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(folder, f"{rank}.part").write_text(f"{os.getpid()} {child.pid}")
    os.replace(Path(folder, f"{rank}.part"), Path(folder, f"{rank}.pids"))
    while len(list(Path(folder).glob("*.pids"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
    if rank == 1 and Path(folder, "die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)


def meet() -> None:
    """Join the other processes and sum a value."""
    with open_device("cpu") as device:
        total = device.sum_over_processes(torch.tensor(float(device.rank + 1)))
        print(f"process {device.rank}: {total.item():g}")


if __name__ == "__main__":
    module, _, function = sys.argv[1].rpartition(":")
    (getattr(importlib.import_module(module), function) if module else globals()[function])(*sys.argv[2:])
