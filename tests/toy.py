"""The smallest task: rows of different lengths, dropout, and a batch that does not divide evenly over micro-batches."""
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from b2t_kit.core.random import fold_seed
from b2t_kit.devices.torch import Device
from b2t_kit.training.optim import GroupRule, group_parameters
from b2t_kit.training.task import LossSum, Task, TrainConfig, mean_loss


@dataclass
class ToyBatch:
    "Rows of unequal length, padded with zeros."
    features: torch.Tensor  # (B, T, 3) float32
    targets: torch.Tensor  # (B, T) float32
    num_bins: torch.Tensor  # (B,) int64, real bins
    trial: torch.Tensor  # (B,) int64, row numbers
    step_rows: int  # rows of the whole optimizer step


def toy_row(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    "Features (T, 3) and targets (T,) of one row of 5 to 20 bins; the same number gives the same row."
    generator = torch.Generator().manual_seed(fold_seed("toy", number))
    length = int(torch.randint(5, 21, (), generator=generator))
    features = torch.randn(length, 3, generator=generator)
    return features, torch.sin(2 * features[:, 0]) * features[:, 1] + 0.3 * features[:, 2]


def toy_batch(numbers: list[int], step_rows: int) -> ToyBatch:
    features, targets = zip(*(toy_row(number) for number in numbers))
    return ToyBatch(
        nn.utils.rnn.pad_sequence(features, batch_first=True),
        nn.utils.rnn.pad_sequence(targets, batch_first=True),
        torch.tensor([len(target) for target in targets]), torch.tensor(numbers), step_rows)


@dataclass(frozen=True)
class ToyTask(Task):
    "Predict a function of three features at every bin."
    rows: int = 40  # training rows; ten more rows are for validation
    batch_size: int = 8  # rows of an optimizer step, over all processes and micro-batches
    hidden: int = 16  # hidden units of the network
    dropout: float = 0.2  # dropout probability of the hidden units

    def describe(self) -> dict[str, Any]:
        return {"name": "toy", **asdict(self)}

    def fingerprint(self, memo: Path | None = None) -> dict[str, Any]:
        return {"rows": self.rows, "first": toy_row(0)[1][0].item()}

    def plan(self) -> dict[str, str]:
        return {"rows": f"{self.rows} to train on, 10 to validate on, {self.batch_size} per step"}

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, self.hidden), nn.Tanh(), nn.Dropout(self.dropout), nn.Linear(self.hidden, 1))

    def parameter_groups(self, model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
        return group_parameters(model, [
            GroupRule("biases", ("*.bias",), config.lr, 0.0),
            GroupRule("weights", ("*",), config.lr, config.weight_decay)])

    def batches(self, config: TrainConfig, device: Device, position: int) -> Generator[list[ToyBatch], None, None]:
        parts = config.accumulation * device.world
        per_epoch = self.rows // self.batch_size
        while True:
            epoch, number = divmod(position, per_epoch)
            generator = torch.Generator().manual_seed(fold_seed(config.seed, "order", epoch))
            order = torch.randperm(self.rows, generator=generator).tolist()
            chosen = order[number * self.batch_size:(number + 1) * self.batch_size]
            dealt = [chosen[part::parts] for part in range(parts)]
            mine = dealt[device.rank * config.accumulation:][:config.accumulation]
            yield [toy_batch(numbers, self.batch_size) for numbers in mine]
            position += 1

    def compute_loss(self, model: nn.Module, batch: ToyBatch) -> LossSum:
        errors = model(batch.features).squeeze(-1).float() - batch.targets  # (B, T)
        bins = torch.arange(errors.shape[1], device=errors.device)
        real = bins < batch.num_bins[:, None]  # (B, T)
        return LossSum((errors.square() * real).sum(), len(batch.num_bins), {"absolute": (errors.abs() * real).sum()})

    def evaluate(self, model: nn.Module, device: Device) -> dict[str, float]:
        numbers = range(self.rows, self.rows + 10)[device.rank::device.world]
        return mean_loss(self, model, [toy_batch(list(numbers), 10)], device)

    def size(self, batch: ToyBatch) -> dict[str, int]:
        return {"trials": len(batch.num_bins), "bins": int(batch.num_bins.sum())}


def disturbed(action: Callable[[int, list[ToyBatch], Device], object], **settings: Any) -> ToyTask:
    "The toy task; something may happen to the machine, or to the batch, before each step, which is counted from 1."
    class Disturbed(ToyTask):
        def batches(self, config: TrainConfig, device: Device, position: int) -> Generator[list[ToyBatch], None, None]:
            for step, micro_batches in enumerate(super().batches(config, device, position), position + 1):
                action(step, micro_batches, device)
                yield micro_batches

    return Disturbed(**settings)


def toy_config(**changes: Any) -> TrainConfig:
    settings = TrainConfig(
        steps=60, device="cpu", lr=0.1, warmup_steps=5, eps=1e-8, ema_decay=0.9, log_every=10,
        eval_every=20, checkpoint_every=20, select="loss")
    return replace(settings, **changes)
