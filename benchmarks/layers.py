"""Compare alternatives of two choices in models.layers: selecting a row's day layer, and cutting patches.

    python benchmarks/layers.py [--device cuda]

Each alternative runs forward and backward on the same numbers, in turns; medians, and ratios to the one the kit
uses on that device. On a CPU one thread's own time is counted, so that other programs matter little. The result goes to
benchmarks/results/layers_<device>.json.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import save_json
from b2t_kit.models.model import patches, rows_by_lookup, rows_by_product

DAYS, CHANNELS, BATCH, BINS = 45, 512, 16, 900


def seconds(action: Callable[[], torch.Tensor], device: str) -> float:
    "Time of a forward and backward pass: of the processor on a CPU, on the wall with a GPU."
    clock = time.process_time if device == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    started = clock()
    action().sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - started


def medians(actions: dict[str, Callable[[], torch.Tensor]], device: str, rounds: int) -> dict[str, float]:
    "Milliseconds of each alternative, measured in turns after one round of warming up."
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            spent = seconds(action, device)
            if number:
                times[name].append(1000 * spent)
    return {name: round(statistics.median(found), 2) for name, found in times.items()}


def day_alternatives(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    "Picking each row's matrix, and the product with it."
    features = torch.randn(BATCH, BINS, CHANNELS, device=device)
    day = torch.randint(0, DAYS, (BATCH,), device=device)
    table = nn.Parameter(torch.eye(CHANNELS, device=device).repeat(DAYS, 1, 1))
    listed = [nn.Parameter(one.clone()) for one in table.detach()]
    numbers = day.tolist()
    return {
        "look-up": lambda: features @ rows_by_lookup(table, day),
        "one-hot product": lambda: features @ rows_by_product(table, day),
        "indexing": lambda: features @ table[day],
        "a parameter per day": lambda: features @ torch.stack([listed[one] for one in numbers]),
    }


def slices(features: torch.Tensor) -> torch.Tensor:
    "Patches from one strided slice per bin of a patch."
    end = 4 * ((features.shape[1] - 14) // 4) + 1
    return torch.cat([features[:, first : first + end : 4] for first in range(14)], dim=2)


def patch_alternatives(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    "Cutting patches, and a product with them, since `unfold` alone copies nothing."
    features = torch.randn(BATCH, BINS, CHANNELS, device=device, requires_grad=True)
    weight = torch.randn(14 * CHANNELS, 384, device=device)
    return {
        "slices of rows": lambda: patches(features) @ weight,
        "a slice per bin": lambda: slices(features) @ weight,
        "unfold": lambda: features.unfold(1, 14, 4).transpose(2, 3).flatten(2) @ weight,
    }


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device == "cpu":
        torch.set_num_threads(1)
    result: dict = {"batch": BATCH, "bins": BINS, "days": DAYS, "threads": torch.get_num_threads()}
    for title, made in (("day layer", day_alternatives), ("patches", patch_alternatives)):
        found = medians(made(options.device), options.device, options.rounds)
        ours = next(iter(found.values()))
        result[title] = {name: {"ms": ms, "ratio": round(ms / ours, 2)} for name, ms in found.items()}
        for name, values in result[title].items():
            print(f"{title:10} {name:20} {values['ms']:8.1f} ms  {values['ratio']:.2f}")
    save_json(ROOT / "benchmarks" / "results" / f"layers_{options.device}.json", result)


if __name__ == "__main__":
    main()
