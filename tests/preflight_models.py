"""Models for test_preflight.py: some with sizes counted by hand, some that cannot be lowered."""
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from b2t_kit.core.errors import KitError
from b2t_kit.devices.slices import find_slice
from b2t_kit.models.ctc import ctc_losses
from b2t_kit.models.layers import GRU
from b2t_kit.models.scan import gru_layer
from b2t_kit.plan.lower import Program, lower_run, traced
from b2t_kit.plan.preflight import ModelTask, optimizer_settings
from b2t_kit.training.task import TrainConfig

ROWS, TIME, INPUTS, UNITS, CLASSES, LABELS = 8, 40, 24, 16, 41, 6
WIDE = 5120  # units


class Changed(nn.Module):
    """tanh(W x), and what a function makes of it."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(INPUTS, UNITS), change

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.change(torch.tanh(self.layer(features)))


class Recurrent(nn.Module):
    """One of the kit's GRU layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(INPUTS, UNITS) if not hasattr(nn.GRU, "_orig") else nn.GRU._orig(INPUTS, UNITS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return gru_layer(features, None, *self.gru.parameters())[0]


class Wide(nn.Module):
    """Two layers whose recurrent weights are too large for one chip, and a narrow readout."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = GRU(WIDE // 4, WIDE, 2), nn.Linear(WIDE, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(features)[0])


class Scored(nn.Module):
    """Logits that are parameters, so the step consists of the CTC loss only: the kit's, or torch's, which XLA does not have."""

    def __init__(self, theirs: bool = False) -> None:
        super().__init__()
        self.logits, self.theirs = nn.Parameter(torch.zeros(ROWS, TIME, CLASSES)), theirs

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        where = None if self.theirs else labels.device
        frames, count = (torch.full((ROWS,), size, dtype=torch.int32, device=where) for size in (TIME, LABELS))
        if not self.theirs:
            return ctc_losses(self.logits, frames, labels, count)
        return nn.functional.ctc_loss(self.logits.log_softmax(-1).transpose(0, 1), labels, frames, count, reduction="none")


BATCH, WORDS = torch.zeros(ROWS, INPUTS), torch.ones(ROWS, LABELS, dtype=torch.int32)
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {  # and its batch
    "dense": (lambda: Changed(lambda found: found), BATCH),
    "gru": (Recurrent, torch.zeros(ROWS, TIME, INPUTS)),
    "ctc": (Scored, WORDS),
    "item": (lambda: Changed(lambda found: found if found.sum().item() > 0 else -found), BATCH),  # reads a value
    "rows": (lambda: Changed(lambda found: found[found > 0]), BATCH),  # as many as the values say
}


def total(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def lowered(model: nn.Module, batch: torch.Tensor, where: str, **train: Any) -> Program:
    """The program of a training step before compiling."""
    programs: list[Program] = []
    task = ModelTask(model.to("meta"), batch.to("meta"), total, optimizer_settings(model, None)[0])
    with traced():
        lower_run(task, TrainConfig(**train), find_slice(where), programs.append)
    return next(one for one in programs if one.kind == "train")


def count() -> None:
    """Print the programs of the models that are counted by hand, then why others have none."""
    from jaxlib import _jax

    for name, (make, batch) in MODELS.items():
        found: dict[str, Any] = {}
        try:
            made = lowered(make(), batch, "v5e-1", ema_decay=0.0, precision="float32")
            text = _jax.XlaComputation(made.module).get_hlo_module().to_string()
            found = {"hlo": text, "arguments": [vars(one) for one in made.arguments]}
        except KitError as error:
            found = {"refused": str(error)}
        print("REPORT" + json.dumps({name: found}), flush=True)


def lower_wide(folder: Path) -> None:
    """Write down a step of the wide model on eight chips, a layer divided over four, for `compile_program`."""
    with torch.device("meta"):
        model, batch = Wide(), torch.zeros(64, 24, WIDE // 4)
    made = lowered(model, batch, "v5e-8", shard="units", precision="bfloat16", units_over=4)
    (folder / "module.pb").write_bytes(made.module)
    (folder / "job.json").write_text(json.dumps(made.job()))


if __name__ == "__main__":
    lower_wide(Path(sys.argv[1])) if sys.argv[1:] else count()
    sys.stdout.flush()
    os._exit(0)  # nothing may run: the tensors are empty
