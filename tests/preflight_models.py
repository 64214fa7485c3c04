"""Models for test_preflight.py: some with sizes counted by hand, some that cannot be lowered."""
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from b2t_kit.core import KitError
from b2t_kit.devices.xla import find_slice
from b2t_kit.models.model import GRU, ctc_losses
from b2t_kit.models.scan import gru_layer
from b2t_kit.tpu.lower import Program, lower_run, traced
from b2t_kit.tpu.preflight import ModelTask, optimizer_settings
from b2t_kit.training.task import TrainConfig

ROWS, TIME, INPUTS, UNITS, CLASSES, LABELS = 8, 40, 24, 16, 41, 6
WIDE = 5120  # units


class Dense(nn.Module):
    """y = tanh(W x)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, UNITS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(features))


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
        self.gru = GRU(WIDE // 4, WIDE, 2)
        self.out = nn.Linear(WIDE, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(self.gru(features)[0])


class Scored(nn.Module):
    """Logits that are parameters, so the step consists of the CTC loss only."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(ROWS, TIME, CLASSES))

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        frames = torch.full((ROWS,), TIME, dtype=torch.int32, device=labels.device)
        count = torch.full((ROWS,), LABELS, dtype=torch.int32, device=labels.device)
        return ctc_losses(self.logits, frames, labels, count)


class Impatient(Dense):
    """Reads a value in the middle of the forward pass."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found = super().forward(features)
        return found if found.sum().item() > 0 else -found


class Choosy(Dense):
    """The number of rows of its result depends on values."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found = super().forward(features).flatten()
        return found[found > 0]


class OnTheHost(Scored):
    """torch's own CTC loss, which XLA does not have."""

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        frames, count = torch.full((ROWS,), TIME), torch.full((ROWS,), LABELS)
        scores = self.logits.log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(scores, labels, frames, count, reduction="none")


FEATURES = {"dense": (ROWS, INPUTS), "gru": (ROWS, TIME, INPUTS), "item": (ROWS, INPUTS), "rows": (ROWS, INPUTS)}
MODELS = {"dense": Dense, "gru": Recurrent, "ctc": Scored, "item": Impatient, "rows": Choosy, "host": OnTheHost}


def batch_of(name: str) -> torch.Tensor:
    """A batch of a model."""
    if name in FEATURES:
        return torch.zeros(FEATURES[name])
    return torch.ones(ROWS, LABELS, dtype=torch.int32)


def total(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A loss for any output."""
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

    for name in ("dense", "gru", "ctc", "item", "rows"):
        found: dict[str, Any] = {}
        try:
            made = lowered(MODELS[name](), batch_of(name), "v5e-1", ema_decay=0.0, precision="float32")
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
