"""Measure the noise model's settings on simulated recordings whose electrodes drift from day to day.

    python benchmarks/noise_gru.py                  # all arms, three seeds; an hour or more on one core
    python benchmarks/noise_gru.py --steps 100 --seeds 4,5 --arms "no noise model,reversal 0"

Each arm trains the same small clean speech model: alone, or with a noise model under some reversal strength
and loss weights. Seeds are the outer loop, and a seed sets initial weights, order and noise for all arms,
so arms are compared within a seed. Reported: phoneme error rates (PER) on validation trials of
training days and of held-out days, and the PER of the noisy speech model, which reads only the noise
estimate: 100 % means that it found no speech there; without reversal there is no such model.
Rows are added to benchmarks/results/noise_gru.json one by one.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from b2t_kit.core.files import save_json
from b2t_kit.data.augment import Augment, smooth
from b2t_kit.data.batches import BatchConfig, EvalBatches
from b2t_kit.simulate.neural import SimulateConfig, simulate
from b2t_kit.devices.select import open_device
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.models.ctc import greedy
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.noise_gru import NoiseGRUConfig
from b2t_kit.speech.task import SpeechConfig, SpeechTask, framing
from b2t_kit.text.metrics import edit_distance
from b2t_kit.train import train
from b2t_kit.training.task import TrainConfig

CLEAN = GRUConfig(hidden=128, num_layers=1, patch=4, stride=4)
NOISE = NoiseGRUConfig(hidden=128, num_layers=1, patch=4, stride=4, noise_layers=1, noise_hidden=64, noisy_layers=1,
                       noisy_hidden=64)
ARMS = {
    "no noise model": CLEAN,
    "reversal 0": replace(NOISE, reversal=0.0),
    "reversal 0.1": replace(NOISE, reversal=0.1),
    "reversal 1": replace(NOISE, reversal=1.0),
    "reversal 1, noisy weight 0.3": replace(NOISE, reversal=1.0, noisy_weight=0.3),
}
RECORDINGS = SimulateConfig(sessions=6, trials=120, bins_per_phoneme=8.0, difficulty=0.5, seed=1)
SESSIONS_HELD_OUT = slice(2, None, 3)  # the third and the sixth day


@torch.no_grad()
def noisy_rate(task: SpeechTask, folder: Path) -> float:
    "PER of the noisy speech model on validation trials of the days in training."
    model = load_decoder(folder).model
    edits = labels = 0
    for batch in EvalBatches(task.val, task.config.batches, frames=framing(task.config.model)):
        features = smooth(batch.features, task.config.augment.smooth, "same", batch.num_bins)
        _, noisy = model(features, batch.day, mode="full")
        rows = zip(greedy(noisy, batch.num_patches), batch.labels, batch.num_labels, batch.weight)
        for decoded, true, count, weight in rows:
            if weight:
                edits += edit_distance(true[:count].tolist(), decoded)
                labels += int(count)
    return edits / labels


def run(arm: str, seed: int, steps: int, data: Path, held_out: tuple[str, ...]) -> dict:
    "Train one arm from one seed, and score it."
    batches = BatchConfig(batch_size=8, buckets=3, day_balance=0.0)
    config = SpeechConfig(ARMS[arm], Augment(white_noise=0.6, offset=0.1), batches, holdout=held_out)
    fitted = TrainConfig(
        steps=steps, seed=seed, warmup_steps=min(40, steps // 4), lr=0.003, eps=1e-8, ema_decay=0.98,
        log_every=50, eval_every=0, checkpoint_every=0, keep_checkpoints=1, device="cpu",
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        task = SpeechTask(data, config)
        values = train(task, fitted, Path(folder) / "run", quiet=True).values
        noisy = noisy_rate(task, Path(folder) / "run") if getattr(config.model, "has_adversary", False) else None
        task.close()
    kept = {name: round(values[name], 4) for name in ("per", "unseen_per", "loss", "unseen_loss")}
    noisy = {} if noisy is None else {"noisy_per": round(noisy, 4)}
    seconds = round(time.perf_counter() - started)
    return {"arm": arm, "seed": seed, "steps": steps, **kept, **noisy, "seconds": seconds}


def summary(rows: list[dict]) -> str:
    "Means over seeds, and differences to the first arm within a seed, as a Markdown table."
    lines = ["| arm | PER | minus first arm | PER, days held out | minus first arm | PER of the noise | seeds |",
             "|---|---|---|---|---|---|---|"]
    first = {row["seed"]: row for row in rows if row["arm"] == next(iter(ARMS))}
    for arm in ARMS:
        found = [row for row in rows if row["arm"] == arm and row["seed"] in first]
        if not found:
            continue
        cells = []
        for name in ("per", "unseen_per"):
            gaps = [100 * (row[name] - first[row["seed"]][name]) for row in found]
            spread = f" ({min(gaps):+.1f} to {max(gaps):+.1f})" if len(gaps) > 1 else ""
            cells += [f"{100 * statistics.mean(row[name] for row in found):.1f} %",
                      f"{statistics.mean(gaps):+.1f}{spread}"]
        noisy = [row["noisy_per"] for row in found if "noisy_per" in row]
        cells.append(f"{100 * statistics.mean(noisy):.1f} %" if noisy else "")
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--arms", default=",".join(name.replace(",", ";") for name in ARMS),
                        help="names with commas between; a comma in a name is a semicolon")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/noise_gru.json")
    options = parser.parse_args()
    arms = [name.replace(";", ",") for name in options.arms.split(",")]
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        simulate(Path(folder) / "made", RECORDINGS)
        data = Path(folder) / "made" / "hdf5_data_final"
        sessions = sorted(path.parent.name for path in data.glob("*/data_val.hdf5"))
        held_out = tuple(sessions[SESSIONS_HELD_OUT])
        with open_device("cpu"):
            pass  # fixes what Accelerate may use before the first run
        for seed in map(int, options.seeds.split(",")):
            for arm in arms:
                rows.append(run(arm, seed, options.steps, data, held_out))
                print(json.dumps(rows[-1]), flush=True)
                save_json(options.out, rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
