"""The program of the child process of test_xla_eit.py: one training on the CPU and on XLA, then window attention there.

    xla_eit.py FOLDER
"""
import json
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from b2t_kit.devices.runtime import start_runtime
from b2t_kit.tasks.eit_model import UNET_SIZES, attend
from b2t_kit.tasks.eit_physics import PhantomConfig, simulate_folder
from b2t_kit.tasks.eit import EITConfig, EITTask, original_training
from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_path, read_part
from b2t_kit.training.log import read_metrics, series
from xla_runs import counted

SHAPE = (2, 3, 4, 36, 8)  # images, windows, heads, tokens, features


def inputs() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [SHAPE, SHAPE, SHAPE, (SHAPE[2], SHAPE[3], SHAPE[3]), SHAPE]
    *parts, slope = (torch.randn(shape, generator=generator) for shape in shapes)
    return parts, slope


def plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Attention by the formula, all scores at once."""
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5 + bias, -1) @ value


def largest_array(tensors: list[torch.Tensor]) -> int:
    """Elements of the largest array in the program that computes the tensors."""
    import torch_xla

    text = torch_xla._XLAC._get_xla_tensors_hlo(tensors)
    shapes = re.findall(r"f32\[([\d,]+)\]", text)
    return max(int(np.prod([int(one) for one in shape.split(",")])) for shape in shapes)


def attention(out: Path) -> None:
    import torch_xla

    found: dict[str, np.ndarray] = {}
    device = torch_xla.device()
    for name, function in (("loop", attend), ("plain", plainly)):
        parts, slope = inputs()
        placed = [one.to(device).requires_grad_() for one in parts]
        output = function(*placed)
        output.backward(slope.to(device))
        results = [output.detach(), *(one.grad for one in placed)]
        found[f"{name}_largest"] = np.array(largest_array(results))
        for number, result in enumerate(results):
            found[f"{name}_{number}"] = result.cpu().numpy()
    np.savez(out, **found)


class Awake(EITTask):
    """A task whose new network has a nonzero output, so all parameters have a gradient."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for parameter in model.parameters():
            if parameter.requires_grad and not parameter.any():
                nn.init.normal_(parameter, std=0.02)
        return model


def run(folder: Path, device: str) -> None:
    """Train a tiny network by the original's recipe for five steps."""
    model = replace(UNET_SIZES["tiny"], width=16, downs=1, hints=0)
    task = Awake(folder / "data", EITConfig(model, batch_size=6, eval_batch=8))
    config = replace(original_training(5), device=device, precision="float32", compile_cache="none", ema_decay=0.995,
                     log_every=1, eval_every=0, checkpoint_every=0)
    counts: dict[str, Any] = {}
    with counted(counts) if device == "xla" else nullcontext():
        result = train(task, config, folder / device, quiet=True)
    checkpoint = checkpoint_path(result.folder, result.step)
    losses = series(read_metrics(result.folder), "train", "loss")[1]
    (folder / f"{device}.json").write_text(json.dumps({"loss": losses, "values": result.values, **counts}))
    np.savez(folder / f"{device}.npz", **{f"{part}/{name}": value.numpy() for part in ("model", "ema")
                                          for name, value in read_part(checkpoint, part).items()})


def main(folder: Path) -> None:
    start_runtime("none")  # autograd counts the kinds of devices at its first gradient
    for part, count in (("train", 18), ("valid", 5)):
        simulate_folder(folder / "data" / part, PhantomConfig(count=count, seed=count), quiet=True)
    for device in ("cpu", "xla"):
        run(folder, device)
    attention(folder / "attention.npz")


if __name__ == "__main__":
    os.environ.pop("XLA_PERSISTENT_CACHE_PATH", None)
    main(Path(sys.argv[1]))
