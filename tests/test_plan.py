"The memory plan: beside the compiler's recorded figures, and as the guard of a training run."
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from b2t_kit.core.config import KitError
from b2t_kit.memory.torch import GIB, PeakPoint, MemoryTarget, StepPlan, part
from b2t_kit.memory.plan import MemoryPlan, check_memory
from b2t_kit.devices.topologies import find_slice
from b2t_kit.train import train
from b2t_kit.training.task import ToyTask, toy_config

ROOT = Path(__file__).resolve().parent.parent
ROWS = [one for one in json.loads((ROOT / "benchmarks/results/plan.json").read_text())
        if one["case"][4].get("train.shard") != "all"]  # has no rule for what gathering weights needs
sys.path.insert(0, str(ROOT / "benchmarks"))

from plan import CASES, IMAGES, ON_THE_CHIP, images, planned  # noqa: E402


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row["case"][:4])))
def test_plan_agrees_with_the_compiler(row):
    "What v5e's compiler said, recorded with the command that asked it, within 10 %."
    plan, share = planned(*row["case"]), row["total"] / find_slice(row["case"][1]).available
    assert plan.fits == (share <= 1) or 0.9 < share < 1.1
    if row["compiles"]:  # or the total is what was left when the compiler gave up
        assert abs(plan.total / row["total"] - 1) < 0.10


@pytest.mark.parametrize("name, batch", IMAGES)
def test_plan_of_images_agrees_with_the_compiler(name, batch):
    "What `b2t preflight` said of tomography networks, within 10 %."
    compiled = images(name, batch)["bytes_per_chip"]["total"]
    assert abs(planned(name, "v5e-8", batch, 0, {}).total / compiled - 1) < 0.10


@pytest.mark.parametrize("name, batch", ON_THE_CHIP)
def test_plan_of_a_tiny_network_is_too_high(name, batch):
    "By a thousandth of a chip's memory at most: its tensors lie in the memory on the chip, which no plan counts."
    found = images(name, batch)["bytes_per_chip"]
    assert 0 < planned(name, "v5e-8", batch, 0, {}).total - found["total"] < found["available"] / 1000


def test_enough_is_recorded():
    recorded = [row["case"] for row in ROWS]
    assert len(recorded) >= 12 and {case[0] for case in recorded} >= {"tiny", "linear", "baseline", "tpu_v5e8"}
    assert sum(list(case) in recorded for case in CASES) >= 12


def planning(gib: float) -> Callable[..., None]:
    "The memory check, with a plan of so many GiB for a device that has 16."
    def plan(task: Any, config: Any, device: Any) -> MemoryPlan:
        kept = part("activations", GIB, times=gib)
        step = StepPlan("8 rows", (PeakPoint("backward", (kept,)),))
        return MemoryPlan("toy", MemoryTarget("cpu", 1, 16 * GIB, "CPU"), (), (step,), "use --batch-size 4")

    return partial(check_memory, plan=plan)


def test_a_run_that_cannot_fit_does_not_start(tmp_path, capsys):
    "Refused in one line that names the change, before anything is built; nothing is left behind."
    with pytest.raises(KitError, match="to make it fit: use --batch-size 4; --memory-guard warn") as refused:
        train(ToyTask(), toy_config(), tmp_path / "run", check_memory=planning(20.0))
    assert "20.00 GiB of 16.00 GiB" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gib, guard", [(1.0, "refuse"), (17.0, "refuse"), (20.0, "warn")])
def test_the_plan_is_in_the_log_at_the_start(tmp_path, capsys, gib, guard):
    "Also where it is only a little over, since the plan may be wrong by as much, and where the user insists."
    config = toy_config(steps=2, memory_guard=guard)
    train(ToyTask(), config, tmp_path / "run", check_memory=planning(gib))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("planned ") and f"{gib:.2f} GiB of 16.00 GiB" in lines[0]
    assert sum(line.startswith("planned ") for line in lines) == 3


def test_a_task_without_a_plan_trains(tmp_path, capsys):
    "What is certain is told: the weights, and what training adds to them."
    train(ToyTask(), toy_config(steps=2), tmp_path / "run", check_memory=check_memory)
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("planned ") for line in lines)
    assert any(line.startswith("state ") and "weights, gradients, two moments, average" in line for line in lines)


@pytest.fixture(scope="module")
def tanks(tmp_path_factory):
    "A few simulated measurements to train on."
    from b2t_kit.tasks.eit_physics import PhantomConfig, simulate_folder

    folder = tmp_path_factory.mktemp("tanks")
    for part, count in (("train", 4), ("valid", 2)):
        simulate_folder(folder / part, PhantomConfig(count=count, seed=count), quiet=True)
    return folder


def give_memory(monkeypatch, size: int) -> None:
    "Let a CPU have so many bytes."
    monkeypatch.setattr("b2t_kit.memory.plan.target_of", lambda device: MemoryTarget("cpu", 1, size, "CPU"))


def eit_train(tanks, out, *words) -> int:
    from b2t_kit.cli import main

    return main(["eit", "train", "--data-path", str(tanks), "--device", "cpu", "--num-workers", "0", "--epochs", "1",
                 "--out", str(out), *words])


def test_a_tomography_run_that_cannot_fit_does_not_start(tanks, tmp_path, capsys, monkeypatch):
    "The original's size in 64 MiB: one line, and nothing is left behind."
    give_memory(monkeypatch, GIB // 16)
    assert eit_train(tanks, tmp_path / "run", "--model", "cdeit", "--global-batch", "4") == 2
    error = capsys.readouterr().err
    assert "memory: the plan needs" in error and "--memory-guard warn" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_tomography_run_starts_in_spite_of_its_plan(tanks, tmp_path, capsys, monkeypatch):
    "The plan is in its log, with what would have helped."
    give_memory(monkeypatch, 5 * 2**20)
    words = "--model", "tiny", "--global-batch-size", "4"
    assert eit_train(tanks, tmp_path / "run", *words) == 2
    assert "to make it fit: --accumulation 4" in capsys.readouterr().err
    assert eit_train(tanks, tmp_path / "run", *words, "--memory-guard", "warn") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("planned ")]
    assert len(lines) == 3 and "does not fit" in lines[0] and "4 images of 128 x 128" in lines[1]


def test_command_line(tmp_path):
    "Exit status 0 fits, 1 does not, 2 error; the file holds what was printed."
    from b2t_kit.cli import main

    path = tmp_path / "plan.json"
    assert main(["plan", "tpu_v5e8", "--slice", "v5e-8", "--global-batch", "64", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["fits"] and found["config"] == "tpu_v5e8" and len(found["steps"]) == 6
    assert main(["plan", "tpu_v5e8", "--slice", "v5e-8", "--global-batch", "1024"]) == 1
    assert main(["plan", "tpu_v5e8", "--slice", "v9-8"]) == 2


def test_command_line_of_images(tmp_path):
    "The same options, but no lengths; and a change by its name in `b2t eit train`."
    from b2t_kit.cli import main

    path = tmp_path / "plan.json"
    assert main(["plan", "eit_cdeit", "--slice", "v5e-8", "--global-batch", "1024", "--json", str(path)]) == 1
    found = json.loads(path.read_text())
    assert not found["fits"] and found["remedy"] == "--accumulation 8" and found["global_batch"] == 1024
    assert main(["plan", "eit_cdeit", "--global-batch", "1024", *found["remedy"].split()]) == 0
    assert main(["plan", "eit_cdeit", "--bins", "1010"]) == 2
