"The memory plan: beside the compiler's recorded figures, and as the guard of a training run."
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from b2t_kit.core import KitError
from b2t_kit.preflight.plan import GIB, MemoryPlan, Moment, Spot, StepPlan, part
from b2t_kit.train import train
from b2t_kit.training.toy import ToyTask, toy_config

ROOT = Path(__file__).resolve().parent.parent
ROWS = json.loads((ROOT / "benchmarks/results/plan.json").read_text())
sys.path.insert(0, str(ROOT / "benchmarks"))

from plan import CASES, planned  # noqa: E402


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row["case"][:4])))
def test_plan_agrees_with_the_compiler(row):
    "What v5e's compiler said, recorded with the command that asked it, within 10 %."
    assert abs(planned(*row["case"]).total / row["total"] - 1) < 0.10


def test_enough_is_recorded():
    recorded = [row["case"] for row in ROWS]
    assert len(recorded) >= 12 and {case[0] for case in recorded} >= {"tiny", "linear", "baseline", "tpu_v5e8"}
    assert sum(list(case) in recorded for case in CASES) >= 12


@dataclass(frozen=True)
class PlannedTask(ToyTask):
    "The toy task, with a plan of so many GiB for a device that has 16."
    gib: float = 1.0

    def memory(self, config: Any, device: Any) -> MemoryPlan:
        kept = part("activations", GIB, times=self.gib)
        step = StepPlan("8 rows", (Moment("backward", (kept,)),))
        return MemoryPlan("toy", Spot("cpu", 1, 16 * GIB, "CPU"), (), (step,), "use --batch-size 4")


def test_a_run_that_cannot_fit_does_not_start(tmp_path, capsys):
    "Refused in one line that names the change, before anything is built; nothing is left behind."
    with pytest.raises(KitError, match="to make it fit: use --batch-size 4; --memory-guard warn") as refused:
        train(PlannedTask(gib=20.0), toy_config(), tmp_path / "run")
    assert "20.00 GiB of 16.00 GiB" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gib, guard", [(1.0, "refuse"), (17.0, "refuse"), (20.0, "warn")])
def test_the_plan_is_in_the_log_at_the_start(tmp_path, capsys, gib, guard):
    "Also where it is only a little over, since the plan may be wrong by as much, and where the user insists."
    train(PlannedTask(gib=gib), toy_config(steps=2, memory_guard=guard), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("planned ") and f"{gib:.2f} GiB of 16.00 GiB" in lines[0]
    assert sum(line.startswith("planned ") for line in lines) == 3


def test_a_task_without_a_plan_trains(tmp_path, capsys):
    "What is certain is told: the weights, and what training adds to them."
    train(ToyTask(), toy_config(steps=2), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("planned ") for line in lines)
    assert any(line.startswith("state ") and "weights, gradients, two moments, average" in line for line in lines)


def test_command_line(tmp_path):
    "Exit status 0 fits, 1 does not, 2 error; the file holds what was printed."
    from b2t_kit.cli import main

    path = tmp_path / "plan.json"
    assert main(["plan", "tpu_v5e8", "--slice", "v5e-8", "--global-batch", "64", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["fits"] and found["config"] == "tpu_v5e8" and len(found["steps"]) == 6
    assert main(["plan", "tpu_v5e8", "--slice", "v5e-8", "--global-batch", "1024"]) == 1
    assert main(["plan", "tpu_v5e8", "--slice", "v9-8"]) == 2
