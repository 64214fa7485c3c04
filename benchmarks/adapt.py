"""Adaptation to days that were not in training: does it help, does it harm?

    python benchmarks/adapt.py                       # three simulated participants, ten minutes on one core
    python benchmarks/adapt.py --recipe tiny --steps 200 --seed 1
    python benchmarks/adapt.py --run RUN --data DATA [--afresh]         # a decoder's days without training, in order

Trains the recipes `tiny` and `transformer_tiny` shortly with the last days held out, then evaluates the held-out
days as trained and with `--adapt`; the same with each participant. Both decode the same trials. Intervals of a
difference are over participants (Student's t): three participants are three, however many trials they have. The
learning rates are those of `--adapt`, tuned on nothing here. The result goes to benchmarks/results/adapt.json, the
errors by trial to adapt.png beside it.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core.errors import KitError
from b2t_kit.core.files import save_json
from b2t_kit.data.folders import find_recordings
from b2t_kit.decode.pipeline import evaluate_adapting
from b2t_kit.simulate.neural import SimulateConfig, simulate
from b2t_kit.speech.adapt import AdaptConfig
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import Counts, rate_of
from b2t_kit.train import train

STEPS = {"tiny": 80, "transformer_tiny": 300}  # of training, by recipe


def trained(name: str, data: Path, steps: int, holdout: tuple[str, ...], work: Path) -> tuple[Path, float]:
    "A run of a recipe without the held-out days; its folder and seconds."
    run = recipe(name)
    third, batches = max(1, steps // 3), replace(run.task.batches, impossible="skip")
    fitted = replace(run.train, steps=steps, eval_every=third, checkpoint_every=0, select="per", device="cpu")
    task, start = SpeechTask(data, replace(run.task, holdout=holdout, batches=batches)), time.monotonic()
    train(task, fitted, work / name, quiet=True)
    task.close()
    return work / name, time.monotonic() - start


def held_out_only(data: Path, holdout: tuple[str, ...], work: Path) -> Path:
    "A folder that holds only the held-out days."
    folder = work / "held_out"
    folder.mkdir(exist_ok=True)
    for day in holdout:
        (folder / day).symlink_to(data / day)
    return folder


def together(reports: list[Any], kind: str) -> tuple[Counts, Counts]:
    "The trials of all participants, as trained and adapted."
    pairs = [report.errors[kind] for report in reports]
    return tuple(Counts(*(np.concatenate(part) for part in zip(*side))) for side in zip(*pairs))


def over_participants(pairs: list[tuple[Counts, Counts]]) -> dict[str, float]:
    "The mean difference of the rates, with a 95 % interval (Student's t): participants vary, not only trials."
    gaps = np.array([rate_of(after).rate - rate_of(before).rate for before, after in pairs])
    if len(gaps) < 2:
        return {"mean": float(gaps.mean())}
    half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
    return {"mean": float(gaps.mean()), "low": float(gaps.mean() - half), "high": float(gaps.mean() + half)}


def plot(reports: dict[str, list[Any]], path: Path) -> None:
    "Errors so far, by trial, adapted minus as trained: each participant, and their mean."
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 2.8), dpi=72, layout="constrained")
    for number, (name, ours) in enumerate(reports.items()):
        lines = [np.cumsum(after.edits - before.edits) for before, after in (one.errors["phonemes"] for one in ours)]
        for line in lines:
            axes.plot(np.arange(1, len(line) + 1), line, color=f"C{number}", linewidth=0.7, alpha=0.5)
        shortest = min(map(len, lines))
        mean = np.mean([line[:shortest] for line in lines], axis=0)
        axes.plot(np.arange(1, shortest + 1), mean, color=f"C{number}", linewidth=2, label=f"{name}, mean")
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set(xlabel="trials of held-out days, in order of recording",
             ylabel="phoneme errors,\nadapted minus as trained, so far")
    axes.legend()
    figure.savefig(path)


def participant(seed: int, options: argparse.Namespace, work: Path) -> dict[str, tuple[Any, float, float]]:
    "Simulate a participant, train and adapt every recipe: its report, seconds of training and of evaluation."
    simulate(work / "data", SimulateConfig(
        sessions=options.sessions, trials=options.trials, bins_per_phoneme=16.0, difficulty=options.difficulty,
        held_out=options.share, seed=seed))
    data = work / "data" / "hdf5_data_final"
    days = sorted(path.name for path in data.iterdir() if (path / "data_val.hdf5").exists())
    holdout, found = tuple(days[-options.held_out:]), {}
    scored = held_out_only(data, holdout, work)
    for name in options.recipe or STEPS:
        steps = options.steps or STEPS.get(name, recipe(name).train.steps)
        run, trained_in = trained(name, data, steps, holdout, work)
        start = time.monotonic()
        _, report = evaluate_adapting(run, scored, unseen=options.unseen, device="cpu", progress=print,
                                      adapt=AdaptConfig(copies=options.copies, lr=options.lr))
        found[name] = report, trained_in, time.monotonic() - start
        print(f"participant {seed}, {name}: {steps} steps in {trained_in:.0f} s", report, sep="\n", flush=True)
    return found


def days_without_training(options: argparse.Namespace) -> None:
    "Adapt a decoder on every day that it was not trained on."
    folder, trained = find_recordings(options.data), load_decoder(options.run).trained
    scored_days = sorted(path.parent.name for path in folder.glob("*/data_val.hdf5"))
    days = [day for day in scored_days if day not in trained]
    with tempfile.TemporaryDirectory() as work:
        scored = held_out_only(folder, tuple(days), Path(work))
        start = time.monotonic()
        _, report = evaluate_adapting(options.run, scored, unseen=options.unseen, device="cpu", progress=print,
                                      adapt=AdaptConfig(copies=options.copies, lr=options.lr, afresh=options.afresh))
    print(report)
    path = options.out / f"adapt_months{'_afresh' if options.afresh else ''}.json"
    save_json(path, {**report.to_dict(), "seconds": time.monotonic() - start})


def main() -> None:
    "Simulate, train, evaluate, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", action="append", help="such as tiny; may be repeated; default: those of STEPS")
    parser.add_argument("--steps", type=int, help="of training; default: those of STEPS")
    parser.add_argument("--sessions", type=int, default=5, help="simulated days")
    parser.add_argument("--held-out", type=int, default=2, help="of them the last, not in training")
    parser.add_argument("--trials", type=int, default=60, help="training trials per day")
    parser.add_argument("--share", type=float, default=0.35, help="trials to score per training trial")
    parser.add_argument("--difficulty", type=float, default=0.5, help="of the simulation; scales the drift too")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3], help="of the simulated participants")
    parser.add_argument("--copies", type=int, default=AdaptConfig.copies)
    parser.add_argument("--lr", type=float, help="of the steps; default: that of --adapt")
    parser.add_argument("--unseen", default="mean", help="day layer that a held-out day starts from")
    parser.add_argument("--run", type=Path, help="adapt this decoder, on all days that it was not trained on")
    parser.add_argument("--data", type=Path, help="with --run: its recordings")
    parser.add_argument("--afresh", action="store_true", help="with --run: each day begins from trained layers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the result")
    options = parser.parse_args()
    if options.run:
        days_without_training(options)
        return
    result: dict[str, Any] = {"settings": {name: value for name, value in vars(options).items() if name != "out"}}
    found = {}
    for seed in options.seed:
        with tempfile.TemporaryDirectory() as folder:
            found[seed] = participant(seed, options, Path(folder))
    reports = {name: [one[name][0] for one in found.values()] for name in options.recipe or STEPS}
    for name, ours in reports.items():
        pairs = {kind: together(ours, kind) for kind in ("phonemes", "words")}
        result[name] = {"participants": {seed: {"train_seconds": one[name][1], "adapt_seconds": one[name][2],
                                                **one[name][0].to_dict()} for seed, one in found.items()}}
        for kind, (before, after) in pairs.items():
            difference = over_participants([one.errors[kind] for one in ours])
            print(f"{name}, {kind}: {rate_of(before)} {rate_of(after)} {difference}")
            result[name][kind] = {"as trained": vars(rate_of(before)), "adapted": vars(rate_of(after)),
                                  "difference": difference}
    options.out.mkdir(parents=True, exist_ok=True)
    save_json(options.out / "adapt.json", result)
    plot(reports, options.out / "adapt.png")


if __name__ == "__main__":
    try:
        main()
    except KitError as error:
        sys.exit(f"error: {error}")
