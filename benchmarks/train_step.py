"""Time per real bin and memory of a training step, compared with a plain loop.

    python benchmarks/train_step.py                             # a small decoder on this machine's CPU
    python benchmarks/train_step.py --device cuda --size baseline --batch 64 --precision bfloat16

The plain loop follows the T15 baseline, written here from its description: 64 trials of four days,
padded to the longest of them; noise and smoothing over the padded batch; a day layer made by stacking a
parameter per day; patches by `unfold`; torch's GRU and CTC; AdamW and clipping. The kit runs the same step as
`b2t train`. Same sizes, same trials, the same number of trials per step; trials are in memory on both
sides, so only the step is timed. The two take turns; medians of seconds per real bin (padding not
counted) are compared. Peak memory is that of a process that does nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import save_json
from b2t_kit.data.batches import Batch, BatchConfig, smoothing_taps
from b2t_kit.data.dataset import Trial
from b2t_kit.data.convert import SessionWriter
from b2t_kit.models.gru import GRU_SIZES
from b2t_kit.training.run import open_run
from b2t_kit.training.task import TrainConfig
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.training.run import accumulate_gradients, update_weights

SESSIONS, STEPS = 8, 6
Step = Callable[[], int]  # takes one step and returns the real bins in it


def write_recordings(folder: Path, trials: int) -> Path:
    "Random features with lengths like the published ones: mean 875, sd 308, 138 to 2475 bins."
    generator = np.random.default_rng(0)
    for day in range(SESSIONS):
        session = f"t15.2023.08.{day + 1:02d}"
        for split in ("train", "val"):
            with SessionWriter(folder / "hdf5_data_final" / session, split) as writer:
                for number in range(trials if split == "train" else 1):
                    length = int(np.clip(generator.normal(875, 308), 138, 2475))
                    features = generator.standard_normal((length, 512), dtype=np.float32)
                    labels = generator.integers(1, 41, max(3, length // 33))
                    writer.write(Trial(features, labels, session, 1, number, sentence="Hi."))
    return folder / "hdf5_data_final"


class PlainDecoder(nn.Module):
    "The baseline's network, from its description."

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.days = nn.ParameterList(nn.Parameter(torch.eye(512)) for _ in range(SESSIONS))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(1, 512)) for _ in range(SESSIONS))
        self.gru = nn.GRU(7168, hidden, layers, batch_first=True, dropout=0.4)
        self.out = nn.Linear(hidden, 41)
        self.h0 = nn.Parameter(torch.zeros(1, 1, hidden))

    def forward(self, features: torch.Tensor, day: list[int]) -> torch.Tensor:
        weight = torch.stack([self.days[one] for one in day])
        bias = torch.stack([self.biases[one] for one in day])
        inputs = F.dropout(F.softsign(torch.einsum("btd,bdk->btk", features, weight) + bias), 0.2)
        windows = inputs.unfold(1, 14, 4).permute(0, 1, 3, 2).flatten(2)
        state = self.h0.expand(self.gru.num_layers, len(day), -1).contiguous()
        return self.out(self.gru(windows, state)[0])


def plain_steps(folder: Path, options: argparse.Namespace, count: int) -> list[Step]:
    "Steps of the plain loop."
    from b2t_kit.data.dataset import Recordings

    device, size = torch.device(options.device), GRU_SIZES[options.size]
    model = PlainDecoder(size.hidden, size.num_layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, eps=0.1, weight_decay=0.001, fused=True)
    taps = torch.tensor(smoothing_taps(), device=device).view(1, 1, -1).repeat(512, 1, 1)
    kind = getattr(torch, options.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "float16")
    generator = np.random.default_rng(1)
    recordings = Recordings(folder)
    by_day = [[index for index, info in enumerate(recordings.infos) if info.day == day]
              for day in range(SESSIONS)]
    drawn = []
    for _ in range(count):
        days = generator.choice(SESSIONS, 4, replace=False)
        chosen = [index for day in days for index in generator.choice(by_day[day], options.batch // 4)]
        trials = [recordings[index] for index in chosen]
        drawn.append((
            nn.utils.rnn.pad_sequence([torch.from_numpy(one.features) for one in trials], True),
            nn.utils.rnn.pad_sequence([torch.from_numpy(one.labels) for one in trials], True),
            [len(one.features) for one in trials], [len(one.labels) for one in trials],
            [recordings.infos[index].day for index in chosen],
        ))

    def take(batch: tuple) -> int:
        features, labels, bins, lengths, day = batch
        features, labels = features.to(device), labels.to(device)
        with torch.autocast(device.type, kind, enabled=kind != torch.float32):
            features = features + torch.randn_like(features)
            features = features + 0.2 * torch.randn(len(bins), 1, 512, device=device)
            features = F.conv1d(features.mT, taps, padding="same", groups=512).mT
            logits = model(features, day)
        frames = torch.tensor([(length - 14) // 4 + 1 for length in bins])
        log_probs = logits.float().log_softmax(-1).transpose(0, 1)
        losses = F.ctc_loss(log_probs, labels, frames, torch.tensor(lengths), reduction="none")
        optimizer.zero_grad()
        scaler.scale(losses.mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        return sum(bins)

    return [lambda batch=batch: take(batch) for batch in drawn]


def kit_steps(folder: Path, options: argparse.Namespace, count: int, scratch: Path, stack: ExitStack) -> list[Step]:
    "Steps of `b2t train`; the run stays open until the stack is closed."
    batches = BatchConfig(batch_size=options.batch, cache="none")
    task = SpeechTask(folder, SpeechConfig(GRU_SIZES[options.size], batches=batches))
    config = TrainConfig(device=options.device, precision=options.precision, ema_decay=0.0, warmup_steps=0)
    run = stack.enter_context(open_run(task, config, scratch / "run", quiet=True))
    stream = task.batches(config, run.device, 0)
    drawn = [copied(step) for step in islice(stream, 4 * count)]
    stream.close()

    def take(micro_batches: list[Batch]) -> int:
        accumulate_gradients(run, micro_batches)
        update_weights(run)
        return sum(int(one.num_bins[one.weight > 0].sum()) for one in micro_batches)

    return [lambda batch=batch: take(batch) for batch in drawn]


def copied(micro_batches: list[Batch]) -> list[Batch]:
    "Batches whose features are not handed back to the loader for reuse."
    return [replace(one, features=one.features.clone()) for one in micro_batches]


def seconds_per_bin(step: Step, device: str) -> float:
    "Time of one step, per real bin."
    start = time.perf_counter()
    bins = step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / bins


def peak_memory(options: argparse.Namespace, folder: Path) -> int:
    "Peak bytes that two of the longest steps add to a process."
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        steps = made_steps(options.only, folder, options, 2, Path(scratch), stack)[-2:]
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        for step in steps:
            step()
        if options.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return resident("VmHWM") - before


def resident(field: str) -> int:
    "This process's memory (VmRSS) or its peak (VmHWM), in bytes; Linux only."
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def made_steps(name: str, folder: Path, options: argparse.Namespace, count: int, scratch: Path,
               stack: ExitStack) -> list[Step]:
    "The steps of either side."
    return (plain_steps(folder, options, count) if name == "plain loop"
            else kit_steps(folder, options, count, scratch, stack))


def in_own_process(name: str, options: argparse.Namespace, folder: Path) -> int:
    "Peak memory of one side, measured in its own process."
    words = [sys.executable, __file__, "--only", name, "--data", str(folder), "--device", options.device,
             "--size", options.size, "--batch", str(options.batch), "--precision", options.precision]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--size", default="small", choices=list(GRU_SIZES))
    parser.add_argument("--batch", type=int, default=16, help="trials per step, a multiple of 4")
    parser.add_argument("--trials", type=int, default=40, help="trials per session")
    parser.add_argument("--data", type=Path, help="recordings; written if left out")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(peak_memory(options, options.data))
        return
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = options.data or write_recordings(Path(scratch), options.trials)
        sides = {name: made_steps(name, folder, options, STEPS, Path(scratch), stack)
                 for name in ("plain loop", "b2t_kit")}
        for steps in sides.values():  # warm up on every shape
            for step in steps[:4]:
                step()
        found: dict[str, list[float]] = {name: [] for name in sides}
        rounds = max(len(steps) for steps in sides.values())
        for number in range(rounds):
            for name, steps in sides.items():
                found[name].append(seconds_per_bin(steps[number % len(steps)], options.device))
        peaks = {name: in_own_process(name, options, folder) for name in sides}
    middle = {name: statistics.median(values) for name, values in found.items()}
    result = {"device": options.device, "precision": options.precision, "size": options.size, "batch": options.batch,
              "threads": torch.get_num_threads(), "torch": torch.__version__,
              "microseconds_per_bin": {name: round(1e6 * value, 2) for name, value in middle.items()},
              "peak_bytes": peaks,
              "speedup": round(middle["plain loop"] / middle["b2t_kit"], 2),
              "memory_ratio": round(peaks["b2t_kit"] / peaks["plain loop"], 2)}
    for name in sides:
        print(f"{name:<12}{1e6 * middle[name]:10.1f} microseconds per real bin"
              f"{peaks[name] / 1e6:10.0f} MB at the peak")
    print(f"speed-up {result['speedup']}, memory {result['memory_ratio']} of the plain loop's")
    kind = "" if options.precision == "float32" else f"_{options.precision}"
    save_json(ROOT / "benchmarks/results" / f"train_step_{options.device}{kind}.json", result)


if __name__ == "__main__":
    main()
