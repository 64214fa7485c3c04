"""Zero-shot phoneme error rates: which day layer is best for a day that was not in training?

    python benchmarks/unseen_days.py                                   # simulated recordings
    python benchmarks/unseen_days.py --data FOLDER --holdout SESSION,SESSION
    python benchmarks/unseen_days.py --size linear --steps 200

Trains one decoder with some days held out, then decodes the validation trials of these days with each choice of
`speech.adapt`. The days in training are decoded by the same decoder for comparison. Intervals: 95 %, bootstrap
over trials. The result goes to
benchmarks/results/unseen_days_<size>.json.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import save_json
from b2t_kit.data.batches import Augment, BatchConfig
from b2t_kit.simulate import SimulateConfig, simulate
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.adapt import Unseen
from b2t_kit.models.gru import GRU_SIZES
from b2t_kit.training.task import TrainConfig
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import train, uninterrupted


def settings(size: str, steps: int, holdout: tuple[str, ...]) -> tuple[SpeechConfig, TrainConfig]:
    "A short run on a CPU."
    task = SpeechConfig(
        GRU_SIZES[size], Augment(white_noise=0.6, offset=0.1), holdout=holdout,
        batches=BatchConfig(batch_size=16, buckets=4, day_balance=0.0),
    )
    fitted = TrainConfig(
        steps=steps, warmup_steps=min(50, steps // 4), lr=0.002, eps=1e-8, ema_decay=0.98,
        log_every=25, eval_every=max(1, steps // 3), checkpoint_every=0, keep_checkpoints=1,
    )
    return task, fitted


def compare(data: Path, size: str, steps: int, holdout: tuple[str, ...], work: Path) -> dict:
    "Train once, decode the held-out days with every choice."
    config, fitted = settings(size, steps, holdout)
    task = SpeechTask(data, config)
    days, trained = len(task.sessions), len(task.trained)
    step = uninterrupted(train(task, fitted, work / "run")).step
    task.close()
    result = {"decoder": size, "steps": step, "days": days, "trained": trained, "rates": {}}
    for unseen in get_args(Unseen):
        summary = evaluate_run(work / "run", data, unseen=unseen, out=work / unseen).summary
        kept = {"days in training": "in training", "days never seen": unseen}
        for name, label in kept.items():
            rate = summary[name]
            values = {key: round(getattr(rate, key), 4) for key in ("rate", "low", "high")}
            values = {key: None if math.isnan(value) else value for key, value in values.items()}  # of a single trial
            result["rates"][label] = values
            print(f"{label:12} {rate}")
    return result


def main() -> None:
    "Parse, simulate if there is no folder, compare, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recordings; simulated ones if absent")
    parser.add_argument("--holdout", default="", help="sessions with commas; else every third")
    parser.add_argument("--size", default="tiny", choices=list(GRU_SIZES))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--sessions", type=int, default=9, help="simulated days")
    parser.add_argument("--trials", type=int, default=120, help="simulated training trials per day")
    parser.add_argument("--difficulty", type=float, default=1.0, help="of the simulation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work, data = Path(folder), options.data
        if data is None:
            made = SimulateConfig(
                sessions=options.sessions, trials=options.trials, bins_per_phoneme=8.0,
                difficulty=options.difficulty, seed=1,
            )
            simulate(work / "data", made)
            data = work / "data" / "hdf5_data_final"
        sessions = sorted(path.name for path in data.iterdir() if (path / "data_val.hdf5").exists())
        holdout = tuple(options.holdout.split(",")) if options.holdout else tuple(sessions[1::3])
        result = compare(data, options.size, options.steps, holdout, work)
    result["data"] = str(options.data.name) if options.data else (
        f"simulated, {options.sessions} days, {options.trials} training trials each, "
        f"8 bins a phoneme, difficulty {options.difficulty:g}")
    save_json(ROOT / "benchmarks" / "results" / f"unseen_days_{options.size}.json", result)


if __name__ == "__main__":
    main()
