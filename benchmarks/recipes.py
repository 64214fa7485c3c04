"""The GRU and the Transformer on the same simulated recordings: tuned with the same effort, then three seeds each.

    python benchmarks/recipes.py --out FOLDER                                # the kit's own sentences
    python benchmarks/recipes.py --out FOLDER --labels t15_train_labels.csv  # real sentences
    python benchmarks/recipes.py --out FOLDER --steps 0.1                    # a tenth of the steps, to try it

1. Two sets of recordings are simulated: other participants (seeds), other days, the same difficulty.
2. On the first set, each model is trained with every setting of its list in SETTINGS: lists of the same length, and
   steps that take about the same time. The setting with the fewest phoneme errors on validation is kept.
3. On the second set, each model is trained with its kept setting and three seeds, twice as long, and scored on
   the validation trials, alone and as an average of three (`b2t eval --runs`).

Every run is a command, `b2t train` or `b2t eval`, with one thread. Finished parts are not run again, so the command
can be repeated after a stop. The result goes to benchmarks/results/recipes.json, the curves to recipes.png beside it.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import load_json, save_json
from b2t_kit.cli import flagged
from b2t_kit.text.metrics import Counts, compare
from b2t_kit.training.log import read_metrics

SEEDS = (1, 2, 3)
TUNING_STEPS = {"tiny": 300, "transformer_tiny": 450}  # about two minutes each on one core
LONGER = 2  # steps on the second set, in multiples of these
SETTINGS = {  # what is tried on the first set: learning rate and regularisation, as many for one model as the other
    "tiny": [{"lr": 0.003}, {"lr": 0.0015}, {"lr": 0.006}, {"lr": 0.003, "white_noise": 1.0}, {"lr": 0.01}],
    "transformer_tiny": [
        {"lr": 0.001, "block_dropout": 0.1}, {"lr": 0.002, "block_dropout": 0.1}, {"lr": 0.002, "block_dropout": 0.2},
        {"lr": 0.004, "block_dropout": 0.1}, {"lr": 0.004, "block_dropout": 0.2},
    ],
}


def command(words: list[str], log: Path) -> float:
    "Run `b2t` with one thread and its output in a log; returns seconds, stops the benchmark if it fails."
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with open(log, "w") as output:
        status = subprocess.run([sys.executable, "-m", "b2t_kit.cli", *words], env=environment, stdout=output,
                                stderr=subprocess.STDOUT).returncode
    if status:
        raise SystemExit(f"b2t {words[0]} ended with status {status}; its output is in {log}")
    return time.monotonic() - started


def recordings(out: Path, seed: int, options: argparse.Namespace) -> Path:
    "A set of recordings, simulated unless it is there."
    if not out.exists():
        words = ["simulate", "--out", str(out), "--sessions", "6", "--trials", "250", "--seed", str(seed),
                 "--difficulty", str(options.difficulty), "--bins-per-phoneme", "18"]
        command([*words, *(["--labels", str(options.labels)] if options.labels else [])], out.with_suffix(".txt"))
    return out


def trained(
    recipe: str,
    setting: dict[str, float],
    steps: int,
    seed: int,
    data: Path,
    run: Path,
) -> dict[str, Any]:  # phoneme errors, seconds of training, curve
    "One run, trained and scored unless that has been done."
    result = run.with_suffix(".json")
    if not result.exists():
        shutil.rmtree(run, ignore_errors=True)
        words = ["train", "--config", recipe, "--data", str(data), "--out", str(run), "--steps", str(steps)]
        words += ["--seed", str(seed), "--device", "cpu", "--eval-every", str(max(1, steps // 6)),
                  "--checkpoint-every", str(steps)]
        words += [word for name, value in setting.items() for word in flagged(name, value)]
        seconds = command(words, run.with_suffix(".txt"))
        rate = scored(["--run", str(run)], data, run.with_name(f"{run.name}_scores.json"))
        curve = [(row["step"], row["per"]) for row in read_metrics(run) if row["kind"] == "eval"]
        save_json(result, {"recipe": recipe, "setting": setting, "steps": steps, "seed": seed,
                           "seconds": round(seconds, 1), "per": rate, "curve": curve})
    return load_json(result)


def scored(runs: list[str], data: Path, file: Path) -> dict[str, float]:
    "Phoneme errors on the validation trials: count, rate, 95 % interval."
    command(["eval", *runs, "--data", str(data), "--device", "cpu", "--json", str(file)], file.with_suffix(".txt"))
    return load_json(file)["summary"]["all trials"]


def counts_of(runs: list[Path]) -> Counts:
    "Edits and labels by trial, added up over runs."
    tables = []
    for run in runs:
        with open(run / "eval/val/trials.csv", newline="") as file:
            tables.append([(int(row["edits"]), int(row["phonemes"])) for row in csv.DictReader(file)])
    edits, lengths = np.sum(tables, axis=0).T
    return Counts(edits, lengths)


def measure(out: Path, options: argparse.Namespace) -> dict[str, Any]:
    "All parts; `options.beside` runs at once."
    tuning, judging = (recordings(out / f"set_{seed}", seed, options) for seed in options.sets)
    found: dict[str, Any] = {"difficulty": options.difficulty, "labels": options.labels is not None,
                             "cores": os.cpu_count(), "tuning": {}, "judging": {}, "ensemble": {}}
    with ThreadPoolExecutor(options.beside) as pool:
        def asked(part: str, recipe: str, number: int) -> Any:
            steps = max(1, round(TUNING_STEPS[recipe] * options.steps))
            if part == "tuning":
                return pool.submit(trained, recipe, SETTINGS[recipe][number], steps, 1, tuning,
                                   out / f"tune_{recipe}_{number}")
            return pool.submit(trained, recipe, kept[recipe], LONGER * steps, number, judging,
                               out / f"judge_{recipe}_{number}")

        tried = {recipe: [asked("tuning", recipe, number) for number in range(len(SETTINGS[recipe]))]
                 for recipe in SETTINGS}
        found["tuning"] = {recipe: [one.result() for one in runs] for recipe, runs in tried.items()}
        kept = {recipe: min(runs, key=lambda one: one["per"]["rate"])["setting"]
                for recipe, runs in found["tuning"].items()}
        judged = {recipe: [asked("judging", recipe, seed) for seed in SEEDS] for recipe in SETTINGS}
        found["judging"] = {recipe: [one.result() for one in runs] for recipe, runs in judged.items()}
    for recipe in SETTINGS:
        runs = [str(out / f"judge_{recipe}_{seed}") for seed in SEEDS]
        found["ensemble"][recipe] = scored(["--runs", *runs], judging, out / f"ensemble_{recipe}.json")
    gru, attention = (counts_of([out / f"judge_{recipe}_{seed}" for seed in SEEDS]) for recipe in SETTINGS)
    found["transformer minus gru"] = vars(compare(gru, attention))
    return found


def draw(found: dict[str, Any], file: Path) -> None:
    "Validation errors of the judged runs against seconds of training."
    _, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for color, (recipe, runs) in zip(("tab:blue", "tab:orange"), found["judging"].items()):
        for number, one in enumerate(runs):
            steps, rates = zip(*one["curve"])
            seconds = np.array(steps) * one["seconds"] / one["steps"]
            axes.plot(seconds, 100 * np.array(rates), color=color, label=None if number else recipe)
    axes.set(xlabel="seconds of training, one thread", ylabel="phoneme errors on validation, %", ylim=0)
    axes.legend(frameon=False)
    plt.savefig(file, dpi=100)


def show(found: dict[str, Any]) -> None:
    "The tables."
    for part in ("tuning", "judging"):
        for recipe, runs in found[part].items():
            for one in runs:
                rate = "{rate:.1%} ({low:.1%} to {high:.1%})".format(**one["per"])
                print(f"{part:<9}{recipe:<18}{one['setting']}  seed {one['seed']}  {one['steps']} steps  "
                      f"{one['seconds']:.0f} s  {rate}")
    for recipe, rate in found["ensemble"].items():
        print("average  {:<18}{rate:.1%} ({low:.1%} to {high:.1%})".format(recipe, **rate))
    print("transformer minus gru, three seeds: {difference:+.1%} ({low:+.1%} to {high:+.1%})".format(
        **found["transformer minus gru"]))


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for recordings and runs")
    parser.add_argument("--labels", type=Path, help="table of sentences, as `b2t simulate --labels` takes it")
    parser.add_argument("--difficulty", type=float, default=0.65, help="of the simulation")
    parser.add_argument("--sets", type=int, nargs=2, default=(11, 12), help="seeds of the two sets of recordings")
    parser.add_argument("--steps", type=float, default=1.0, help="steps, as a multiple of the benchmark's")
    parser.add_argument("--beside", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = measure(options.out, options)
    show(found)
    save_json(ROOT / "benchmarks/results/recipes.json", found)
    draw(found, ROOT / "benchmarks/results/recipes.png")


if __name__ == "__main__":
    main()
