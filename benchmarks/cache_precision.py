"""Compare phoneme error rates with a float16 and a float32 cache of the recordings; float16 halves the memory.

    python benchmarks/cache_precision.py                    # strict simulated recordings, minutes on two cores
    python benchmarks/cache_precision.py --data FOLDER --config gpu_16gb

Trains the same decoder from the same seed on the same batches twice, with the training recordings kept in float32
and in float16, and scores both on the validation split. The edits are compared trial by trial (paired bootstrap), so
the difference has its own interval. The result goes to benchmarks/results/cache_precision.json.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import save_json
from b2t_kit.data.dataset import NUM_FEATURES
from b2t_kit.simulate.neural import STRICT, simulate
from b2t_kit.speech.evaluate import Evaluation, evaluate_run
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.shapes import SpeechRun
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import compare
from b2t_kit.train import train, uninterrupted


BYTES = {"float32": 4, "float16": 2}  # per feature


def scored(data: Path, run: SpeechRun, cache: str, out: Path) -> tuple[Evaluation, float]:
    "Validation of a decoder trained from a cache of this precision, and the size of the cache in bytes."
    batches = replace(run.task.batches, cache=cache)
    task = SpeechTask(data, replace(run.task, batches=batches))
    uninterrupted(train(task, run.train, out / cache, quiet=True))
    held = sum(info.num_bins for info in task.train.infos) * NUM_FEATURES * BYTES[cache]
    task.close()
    return evaluate_run(out / cache, data, device=run.train.device), held


def main() -> None:
    "Train twice, compare, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recordings; simulated if left out")
    parser.add_argument("--config", default="tiny", help="recipe to train; default tiny")
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps")
    parser.add_argument("--trials", type=int, default=40, help="simulated trials for each of 40 days")
    options = parser.parse_args()
    run = recipe(options.config)
    run = replace(run, train=replace(run.train, steps=options.steps))
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch) / "data"
        if options.data is None:
            simulate(data, replace(STRICT, trials=options.trials, held_out=0.3))
        found = {cache: scored(data, run, cache, Path(scratch)) for cache in ("float32", "float16")}
    (full, full_bytes), (half, half_bytes) = found["float32"], found["float16"]
    difference = compare(full.counts, half.counts)
    print(f"{'cache':<10}{'phoneme error rate':<32}{'cache, MB':>10}")
    print(f"{'float32':<10}{full.per!r:<32}{full_bytes / 1e6:>10.0f}")
    print(f"{'float16':<10}{half.per!r:<32}{half_bytes / 1e6:>10.0f}")
    print(f"float16 - float32: {difference}")
    save_json(ROOT / "benchmarks/results/cache_precision.json", {
        "config": options.config, "steps": options.steps, "trials": len(full.trials),
        "per": {name: evaluation.per.rate for name, (evaluation, _) in found.items()},
        "cache_bytes": {name: held for name, (_, held) in found.items()},
        "difference": difference.difference, "low": difference.low, "high": difference.high,
    })


if __name__ == "__main__":
    main()
