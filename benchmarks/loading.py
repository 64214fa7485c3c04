"""Trials per second of the kit's batches, compared with the T15 baseline's loader.

    python benchmarks/loading.py                    # writes random recordings to a temporary folder
    python benchmarks/loading.py --data FOLDER      # any recordings in the T15 layout

The baseline's loader, written here from its description: for each batch, 4 sessions are drawn; for each of
them its file is opened and 16 trials are read, drawn with replacement, with labels and attributes; the 64
trials are padded to the longest. (It does so in 4 worker processes; here both sides run in one process.)

Cold: the files are dropped from the page cache, then as many batches are read as one epoch has; the kit's
time includes opening and indexing the files. Warm: later epochs, in turns, medians.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from b2t_kit.data.batches import BatchConfig, Sampler, TrainBatches, bucket_of, choose_buckets
from b2t_kit.data.dataset import Recordings, Trial, find_recordings
from b2t_kit.data.convert import SessionWriter

BATCH, DAYS = 64, 4


def random_lengths(count: int, generator: np.random.Generator) -> np.ndarray:
    "Lengths in bins like those of the published training split: mean 875, sd 308, 138 to 2475."
    return np.clip(generator.normal(875, 308, count), 138, 2475).astype(int)


def write_recordings(folder: Path, sessions: int, trials: int) -> Path:
    "Write random features of realistic lengths; their values do not affect speed."
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((3000, 512), dtype=np.float32)
    for day in range(sessions):
        session = f"t15.2023.{1 + day // 28:02d}.{1 + day % 28:02d}"
        with SessionWriter(folder / "hdf5_data_final" / session, "train") as writer:
            for number, length in enumerate(random_lengths(trials, generator)):
                labels = generator.integers(1, 40, max(3, length // 33))
                start = generator.integers(0, 500)
                writer.write(Trial(noise[start:start + length], labels, session, 1, number, sentence="Hi."))
    return folder / "hdf5_data_final"


def baseline_index(files: list[Path], counts: list[int], batches: int) -> list[list[tuple]]:
    "For each batch, sessions and trials, drawn before anything is timed."
    generator = np.random.default_rng(1)
    index = []
    for _ in range(batches):
        days = generator.choice(len(files), min(DAYS, len(files)), replace=False)
        share = BATCH // len(days)
        index.append([(files[day], day, generator.integers(0, counts[day], share)) for day in days])
    return index


def baseline_batch(parts: list[tuple]) -> dict[str, torch.Tensor]:
    "One batch in the baseline's arrangement."
    features, labels, texts, numbers = [], [], [], []
    for path, day, trials in parts:
        with h5py.File(path, "r") as file:
            for trial in trials:
                group = file[f"trial_{trial:04d}"]
                features.append(torch.from_numpy(group["input_features"][:]))
                labels.append(torch.from_numpy(group["seq_class_ids"][:]))
                texts.append(torch.from_numpy(group["transcription"][:]))
                names = ("n_time_steps", "seq_len", "block_num", "trial_num")
                numbers.append([int(group.attrs[name]) for name in names] + [int(day)])
    padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True, padding_value=0)
    return {"features": padded, "labels": torch.stack(labels), "texts": torch.stack(texts),
            "numbers": torch.tensor(numbers)}


def baseline_epoch(index: list[list[tuple]]) -> tuple[int, int, int]:
    "Read all batches; the numbers of trials, real bins and bins."
    trials = real = bins = 0
    for parts in index:
        batch = baseline_batch(parts)
        trials += len(batch["numbers"])
        real += int(batch["numbers"][:, 0].sum())
        bins += batch["features"].shape[0] * batch["features"].shape[1]
    return trials, real, bins


def kit_epoch(batches: TrainBatches, epoch: int) -> tuple[int, int, int]:
    "The same for an epoch of the kit's batches."
    stream: Iterator = batches.iterate(epoch * batches.steps_per_epoch)
    trials = real = bins = 0
    for _ in range(batches.steps_per_epoch):
        batch = next(stream)[0]
        trials += batch.step_rows
        real += int(batch.num_bins[batch.weight > 0].sum())
        bins += batch.features.shape[0] * batch.features.shape[1]
    stream.close()
    return trials, real, bins


def drop_from_memory(files: list[Path]) -> bool:
    "Drop the files from the page cache; False if that is not possible."
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    return True


def rate(work: Callable[[], tuple[int, int, int]]) -> tuple[float, float]:
    "Trials per second, and the share of padded bins."
    start = time.perf_counter()
    trials, real, bins = work()
    return trials / (time.perf_counter() - start), 1 - real / bins


def cold_rates(root: Path, files: list[Path], index: list, config: BatchConfig) -> dict[str, float]:
    "Median of three cold passes of either side, in turns."
    def kit_from_nothing() -> tuple[int, int, int]:
        with Recordings(root) as recordings:
            return kit_epoch(TrainBatches(recordings, config), 0)
    found: dict[str, list[float]] = {"baseline": [], "kit": []}
    for _ in range(3):
        drop_from_memory(files)
        found["baseline"].append(rate(lambda: baseline_epoch(index))[0])
        drop_from_memory(files)
        found["kit"].append(rate(kit_from_nothing)[0])
    return {name: statistics.median(rates) for name, rates in found.items()}


def warm_rates(root: Path, index: list, configs: dict[str, BatchConfig], rounds: int) -> dict:
    "Medians over epochs: for each variant, the baseline and the kit in turns, and their ratio."
    recordings = Recordings(root)
    found = {}
    for name, config in configs.items():
        batches = TrainBatches(recordings, config)
        kit_epoch(batches, 0)
        baseline_epoch(index)
        pairs = [(rate(lambda: baseline_epoch(index)), rate(lambda: kit_epoch(batches, number)))
                 for number in range(1, rounds + 1)]
        rates = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
        found[name] = (*rates, statistics.median(kit[0] / base[0] for base, kit in pairs),
                       pairs[0][0][1], statistics.median(kit[1] for _, kit in pairs))
    return found


def full_size_padding() -> tuple[float, float]:
    "Padded share of both sides for 8,072 trials of 45 sessions, from lengths alone."
    generator = np.random.default_rng(2)
    lengths = random_lengths(8072, generator)
    random_batches = generator.choice(lengths, (2000, BATCH))
    baseline = 1 - random_batches.sum() / (random_batches.max(1).sum() * BATCH)
    labels = lengths // 33
    buckets = choose_buckets(lengths, labels, 6, BATCH)
    bucket = bucket_of(buckets, lengths, labels)
    steps = Sampler(generator.integers(0, 45, 8072), bucket, BATCH, 1.0).epoch(0)
    real = sum(lengths[step.trials].sum() for step in steps)
    return float(baseline), 1 - real / sum(buckets[step.bucket].bins * BATCH for step in steps)


def report(cold: dict[str, float], warm: dict[str, tuple], dropped: bool) -> str:
    "The result as a table."
    lines = [f"{'trials per second':28}{'baseline':>10}{'kit':>10}{'ratio':>8}"]
    for name, (base, kit, ratio, _, _) in warm.items():
        lines.append(f"{'warm, ' + name:28}{base:10.0f}{kit:10.0f}{ratio:8.1f}")
    name = "cold" if dropped else "cold (still in page cache)"
    lines.append(f"{name:28}{cold['baseline']:10.0f}{cold['kit']:10.0f}"
                 f"{cold['kit'] / cold['baseline']:8.1f}")
    lines += ["", f"{'padded share of all bins':28}{'baseline':>10}{'kit':>10}{'ratio':>8}"]
    *_, base, kit = next(iter(warm.values()))
    shares = {"these recordings": (base, kit), "8,072 trials, lengths only": full_size_padding()}
    for name, (base, kit) in shares.items():
        lines.append(f"{name:28}{base:10.1%}{kit:10.1%}{kit / base:8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="recordings; random ones are written if not given")
    parser.add_argument("--sessions", type=int, default=8, help="of the random recordings")
    parser.add_argument("--trials", type=int, default=80, help="per session")
    parser.add_argument("--rounds", type=int, default=7, help="warm epochs, of which medians are taken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = find_recordings(options.data) if options.data else write_recordings(
            Path(folder), options.sessions, options.trials)
        files = sorted(root.glob("*/data_train.hdf5"))
        with Recordings(root) as recordings:
            sessions = [path.parent.name for path in files]
            counts = [sum(info.session == one for info in recordings.infos) for one in sessions]
            bins = np.array([info.num_bins for info in recordings.infos])
        index = baseline_index(files, counts, len(bins) // BATCH)
        plain = {"batch_size": BATCH, "day_balance": 0.0, "cut": 0}
        configs = {"float32 cache": BatchConfig(**plain),
                   "float32, no threads": BatchConfig(**plain, prefetch=0),
                   "float16 cache": BatchConfig(**plain, cache="float16")}
        dropped = drop_from_memory(files)
        cold = cold_rates(root, files, index, configs["float32 cache"])
        warm = warm_rates(root, index, configs, options.rounds)
        print(f"{len(bins)} trials of {len(files)} sessions, mean {bins.mean():.0f} bins, "
              f"sd {bins.std():.0f}; batches of {BATCH}; {platform.machine()}, "
              f"{psutil.cpu_count()} cores, Python {platform.python_version()}, "
              f"torch {torch.__version__}, h5py {h5py.__version__}\n")
        print(report(cold, warm, dropped))


if __name__ == "__main__":
    main()
