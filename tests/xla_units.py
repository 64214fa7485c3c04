"""Train a small noise model divided by units and by rows, and print one JSON report; run by test_xla.py.

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python tests/xla_units.py FOLDER
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=2 python tests/xla_units.py FOLDER continue

All arrangements run in this process, on eight simulated devices, from the same initial weights. The second command
goes on from the middle of the first on another number of chips.
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

HIDDEN, ROWS, STEPS, DROPOUT = 256, 16, 20, 0.4
xla.STAYS_ON_CHIP = 2 * 3 * (HIDDEN // 2) ** 2  # the noise model is wide for four chips, the decoders are not
CONFIG = NoiseGRUConfig(num_days=2, num_features=8, hidden=32, num_layers=1, dropout=0.0, day_dropout=0.0, noise_layers=2,
                        noise_hidden=HIDDEN, noisy_layers=1, noisy_hidden=24, reversal=0.3)


class Training:
    """A model, its optimizer and its average on a device."""

    def __init__(self, device: Device, dropout: float = 0.0, recompute: bool = False) -> None:
        torch.manual_seed(0)
        model = replace(CONFIG, dropout=dropout, recompute=recompute).build()
        groups = [{"params": list(model.parameters()), "lr": 0.002, "weight_decay": 0.01}]
        self.device, self.losses = device, []
        self.model, self.optimizer = device.prepare(model, build_adamw(groups, eps=0.01))
        self.average = Ema(self.model, 0.9, device.scalar)
        device.lay_out_average(self.average.model)

    def run(self, steps: range) -> "Training":
        """Train for some steps on invented batches."""
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
    """The largest, relative to the size of each tensor."""
    assert one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)
    return max(float((one[name] - other[name]).norm() / other[name].norm().clamp(min=1e-6)) for name in one)


def without_losses(result: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state at the end, of a run whose beginning may be another's."""
    return {name: value for name, value in result.items() if name != "losses"}


def main(folder: Path) -> None:
    report: dict[str, Any] = {}
    with open_device("xla", "float32", shard="units") as device:
        straight = Training(device).run(range(STEPS))
        report["described"], report["programs"] = device.describe(), dict(device.watch.programs)
        report["shapes"] = {name: list(one.shape) for name, one in straight.model.named_parameters() if "noise" in name}
        by_units = straight.result()
        again = Training(device, recompute=True).run(range(STEPS)).result()
        with_dropout = Training(device, DROPOUT).run(range(STEPS // 2))
        half, with_dropout = with_dropout.parts(), with_dropout.run(range(STEPS // 2, STEPS)).result()
    with open_device("xla", "float32", shard="units", units_over=8) as device:
        by_eight = Training(device, DROPOUT).run(range(STEPS)).result()
        onwards = Training(device, DROPOUT).load(*half).run(range(STEPS // 2, STEPS * 3 // 4)).parts()
    with open_device("xla", "float32", shard="moments") as device:
        onwards = Training(device, DROPOUT).load(*onwards).run(range(STEPS * 3 // 4, STEPS)).result()
    with open_device("xla", "float32") as device:
        by_rows = Training(device).run(range(STEPS)).result()
        resumed = Training(device, DROPOUT).load(*half)
        loaded = resumed.parts()[0]
        report["same bits"] = all(torch.equal(loaded[part][name], value)
                                  for part, one in half[0].items() for name, value in one.items())
        resumed = resumed.run(range(STEPS // 2, STEPS)).result()
        dropout_by_rows = Training(device, DROPOUT).run(range(STEPS)).result()
    torch.save((half, without_losses(dropout_by_rows)), folder / "units.pt")
    with open_device("cpu", "float32") as device:
        alone = Training(device).run(range(STEPS)).result()
    for name, found, expected in (("rows", by_units, by_rows), ("one device", by_units, alone),
                                  ("eight", by_eight, dropout_by_rows), ("recomputed", again, by_units),
                                  ("dropout", with_dropout, dropout_by_rows)):
        report[name] = difference(found, expected)
    report["resumed"] = difference(without_losses(resumed), without_losses(dropout_by_rows))
    report["resumed twice"] = difference(without_losses(onwards), without_losses(dropout_by_rows))
    halves = []
    for shard in ("units", "none"):
        with open_device("xla", "bfloat16", shard=shard) as device:
            halves.append(Training(device).run(range(STEPS)).result())
    report["bfloat16"] = difference(*halves)
    report["rounding"] = difference(halves[1], by_rows)
    report["loss"] = alone["losses"][::2].tolist()
    print("REPORT" + json.dumps(report))


def go_on(folder: Path) -> None:
    """The second half, on the chips of this process."""
    half, straight = torch.load(folder / "units.pt")
    with open_device("xla", "float32", shard="units") as device:
        found = without_losses(Training(device, DROPOUT).load(*half).run(range(STEPS // 2, STEPS)).result())
        print("REPORT" + json.dumps({"described": device.describe(), "resumed": difference(found, straight)}))


if __name__ == "__main__":
    go_on(Path(sys.argv[1])) if len(sys.argv) > 2 else main(Path(sys.argv[1]))
