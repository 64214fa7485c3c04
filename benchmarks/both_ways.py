"""Decoders that read in both directions against causal ones, on strict recordings, paired by seeds.

    python benchmarks/both_ways.py DIR [--steps 250] [--sessions 8] [--trials 40] [--seeds 1 2] [--models gru]

Each model is trained twice a seed, with and without `causal`, on the same simulated sentences; validation trials of
all days are scored, and differences are over sentences and seeds together (95 %, sentences redrawn). Decoders that are
in DIR are not trained again.
"""
import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from b2t_kit.core import save_json
from b2t_kit.simulate import STRICT, simulate
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import Counts, compare, count_edits
from b2t_kit.train import train, uninterrupted

RECIPES = {"gru": "tiny", "transformer": "transformer_tiny"}


def decoded(data: Path, run: Path, model: str, causal: bool, seed: int, steps: int) -> tuple[Counts, int]:
    "The phoneme errors of a decoder, trained if it is not there, and its parameters."
    settings = recipe(RECIPES[model])
    settings = settings.with_rows(8)
    task = SpeechTask(data, replace(settings.task, model=replace(settings.task.model, causal=causal)))
    fitted = replace(settings.train, steps=steps, seed=seed, eval_every=0, checkpoint_every=100, log_every=50, device="cpu")
    uninterrupted(train(task, fitted, run, resume=run.is_dir()))
    parameters = sum(parameter.numel() for parameter in task.build_model().parameters())
    task.close()
    result = evaluate_run(run, data, device="cpu")
    return count_edits([trial.true for trial in result.trials], [trial.decoded for trial in result.trials]), parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", default=list(RECIPES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = options.out / "data"
    if not data.is_dir():
        simulate(data, replace(STRICT, sessions=options.sessions, trials=options.trials, seed=3))
    rows = []
    for model in options.models:
        found: dict[bool, list[Counts]] = {True: [], False: []}
        sizes = {}
        for seed in options.seeds:
            for causal in (True, False):
                run = options.out / f"{model}_{'causal' if causal else 'both'}_{seed}"
                counts, sizes[causal] = decoded(data, run, model, causal, seed, options.steps)
                found[causal].append(counts)
        causal, both = (Counts(*(np.concatenate(part) for part in zip(*found[way]))) for way in (True, False))
        gap = compare(causal, both)
        rows.append({"model": model, "parameters": [sizes[True], sizes[False]],
                     "causal": [float(one.edits.sum() / one.lengths.sum()) for one in found[True]],
                     "both": [float(one.edits.sum() / one.lengths.sum()) for one in found[False]],
                     "difference": gap.difference, "low": gap.low, "high": gap.high})
        print(rows[-1], flush=True)
    if options.json:
        save_json(options.json, rows)


if __name__ == "__main__":
    main()
