"""Train a small noise model divided by units and by rows, and print one JSON report; run by test_xla.py.

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python tests/xla_units.py NEW      from the same initial weights; writes NEW
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=2 python tests/xla_units.py NEW      goes on with it on two devices
"""
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from b2t_kit.devices import xla
from b2t_kit.devices.torch import Device
from b2t_kit.devices.select import open_device
from b2t_kit.models.model import ctc_losses
from b2t_kit.models.noise_gru import NoiseGRUConfig
from b2t_kit.training.optim import Ema, build_adamw, pack_optimizer, unpack_optimizer

HIDDEN, ROWS, STEPS = 256, 16, 20
xla.STAYS_ON_CHIP = 2 * 3 * (HIDDEN // 2) ** 2  # the noise model is wide for four chips, the decoders are not
CONFIG = NoiseGRUConfig(num_days=2, num_features=8, hidden=32, num_layers=1, dropout=0.4, day_dropout=0.0, noise_layers=2,
                        noise_hidden=HIDDEN, noisy_layers=1, noisy_hidden=24, reversal=0.3)


class Training:
    """A model, its optimizer and its average on a device."""

    def __init__(self, device: Device, recompute: bool = False) -> None:
        torch.manual_seed(0)
        model = replace(CONFIG, recompute=recompute).build()
        groups = [{"params": list(model.parameters()), "lr": 0.002, "weight_decay": 0.01}]
        self.device, self.losses = device, []
        self.model, self.optimizer = device.prepare(model, build_adamw(groups, eps=0.01))
        self.average = Ema(self.model, 0.9, device.scalar)
        device.lay_out_average(self.average.model)

    def run(self, steps: range) -> "Training":
        for step in steps:
            batch = {name: value.roll(step, 0) for name, value in BATCH.items()}
            self.device.seed(step)
            with self.device.accumulate(self.model, last=True), self.device.autocast():
                given = self.device.place(batch)
                clean, noisy = self.model(given["features"], given["day"], mode="full")
                lengths = given["frames"], given["labels"], given["counts"]
                loss = (ctc_losses(clean, *lengths) + ctc_losses(noisy, *lengths)).sum() / self.device.scalar(ROWS)
            self.device.backward(loss)
            self.losses += [loss.detach(), self.device.clip(self.model, 10.0)]
            self.device.step(self.optimizer)
            self.optimizer.zero_grad()
            self.average.update(step + 1)
            self.device.submit("a step")
        return self

    def parts(self) -> tuple[dict[str, dict[str, torch.Tensor]], list]:
        """The tensors of a checkpoint, and the optimizer's settings."""
        tensors, groups = pack_optimizer(self.optimizer, self.model)
        found = {"model": self.model.state_dict(), "optimizer": tensors, "average": self.average.model.state_dict()}
        fetched = {part: self.device.fetch_named(one) for part, one in found.items()}
        return {part: {name: one.clone() for name, one in tensors.items()} for part, tensors in fetched.items()}, groups

    def load(self, parts: dict[str, dict[str, torch.Tensor]], groups: list) -> "Training":
        """Continue from what `parts` returned."""
        self.model.load_state_dict(parts["model"])
        self.average.model.load_state_dict(parts["average"])
        unpack_optimizer(self.optimizer, self.model, parts["optimizer"], groups)
        self.device.submit("loading")
        return self

    def result(self) -> dict[str, torch.Tensor]:
        """Losses and gradient norms of all steps, and all tensors of a checkpoint."""
        parts, _ = self.parts()
        named = {f"{part}/{name}": value for part, one in parts.items() for name, value in one.items()}
        return {"losses": torch.stack(self.device.fetch(self.losses)), **named}


BATCH = {"features": torch.randn(ROWS, 60, 8, generator=torch.Generator().manual_seed(1)),
         "day": torch.arange(ROWS) % 2, "frames": torch.full((ROWS,), 12, dtype=torch.int32),
         "labels": (torch.arange(ROWS * 3).reshape(ROWS, 3) % 40 + 1).int(),
         "counts": torch.full((ROWS,), 3, dtype=torch.int32)}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest, relative to the size of each tensor; losses of the last steps, if one began with another's weights."""
    assert one.keys() == other.keys()
    least = min(len(one["losses"]), len(other["losses"]))
    one, other = ({**found, "losses": found["losses"][-least:]} for found in (one, other))
    return max(float((one[name] - other[name]).norm() / other[name].norm().clamp(min=1e-6)) for name in one)


def main(kept: Path) -> None:
    report: dict[str, Any] = {}
    with open_device("xla", "float32", shard="units") as device:
        training = Training(device).run(range(STEPS // 2))
        half = training.parts()
        by_units = training.run(range(STEPS // 2, STEPS)).result()
        report["described"], report["programs"] = device.describe(), dict(device.watch.programs)
        report["shapes"] = {name: list(one.shape) for name, one in training.model.named_parameters() if "noise" in name}
    with open_device("xla", "float32", shard="units", units_over=8) as device:
        by_eight = Training(device, recompute=True).run(range(STEPS)).result()
        onwards = Training(device, recompute=True).load(*half).run(range(STEPS // 2, STEPS * 3 // 4)).parts()
    with open_device("xla", "float32") as device:
        by_rows = Training(device).run(range(STEPS)).result()
        resumed = Training(device).load(*half)
        loaded = resumed.parts()[0]
        report["same bits"] = all(torch.equal(loaded[part][name], value)
                                  for part, one in half[0].items() for name, value in one.items())
        resumed = resumed.run(range(STEPS // 2, STEPS)).result()
    ways = {"units": by_units, "eight": by_eight, "resumed": resumed}
    report["apart"] = {name: difference(found, by_rows) for name, found in ways.items()}
    halves = []
    for shard in ("units", "none"):
        with open_device("xla", "bfloat16", shard=shard) as device:
            halves.append(Training(device).run(range(STEPS)).result())
    report |= {"bfloat16": difference(*halves), "rounding": difference(halves[1], by_rows)}
    torch.save([*onwards, by_rows], kept)
    print("REPORT" + json.dumps(report | {"loss": by_rows["losses"][::2].tolist()}))


def go_on(kept: Path) -> None:
    parts, groups, by_rows = torch.load(kept)
    with open_device("xla", "float32", shard="units") as device:
        moved = Training(device).load(parts, groups).run(range(STEPS * 3 // 4, STEPS)).result()
        print("REPORT" + json.dumps({"described": device.describe(), "apart": difference(moved, by_rows)}))


if __name__ == "__main__":
    (go_on if Path(sys.argv[1]).exists() else main)(Path(sys.argv[1]))
