"""The toy task, disturbed."""
from collections.abc import Callable, Generator
from typing import Any

from b2t_kit.devices.torch import Device
from b2t_kit.training.task import TrainConfig
from b2t_kit.training.toy import ToyBatch, ToyTask


def disturbed(action: Callable[[int, list[ToyBatch], Device], object], **settings: Any) -> ToyTask:
    "The toy task; something may happen to the machine, or to the batch, before each step, which is counted from 1."
    class Disturbed(ToyTask):
        def batches(self, config: TrainConfig, device: Device, position: int) -> Generator[list[ToyBatch], None, None]:
            for step, micro_batches in enumerate(super().batches(config, device, position), position + 1):
                action(step, micro_batches, device)
                yield micro_batches

    return Disturbed(**settings)
