"""Measure the noise model's settings on strict recordings, whose electrodes drift from day to day.

    python benchmarks/ruler.py --recordings DIR --decoders ""               # makes DIR/data
    python benchmarks/noise_gru.py DIR/data --out DIR/noise                 # all arms, two seeds
    python benchmarks/noise_gru.py DIR/data --out DIR/noise --arms ""       # the table of what is there

Each arm trains the same clean speech model, that of the recipe `tiny`: alone, alone without the noise that the recipe
adds to features, or with a noise model under some reversal strength. Every sixth day is held out, and decoded with the
mean of the other day layers. Decoders that are in the folder are not trained again, and refused if they were trained
with other settings or on other recordings. A seed sets initial weights, order and noise for all arms, so arms are
compared within a seed, sentence by sentence; in the last rows a sentence is redrawn with all seeds. Words are those of
the default language model, on the days in training.
"PER of the noise" is the phoneme error rate of the noisy speech model, which reads only the noise estimate: 100 % means
that it found no speech there; without reversal there is no such model.
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from b2t_kit.core import load_json, save_json
from b2t_kit.data.batches import EvalBatches, smooth
from b2t_kit.data.dataset import Recordings, find_recordings
from b2t_kit.decode.decode import decode_run
from b2t_kit.models.model import greedy
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.noise_gru import NoiseGRUConfig
from b2t_kit.speech.evaluate import evaluate_run, load_decoder
from b2t_kit.speech.task import SpeechRun
from b2t_kit.speech.task import SpeechTask, framing
from b2t_kit.text.metrics import Counts, compare, count_edits, edit_distance
from b2t_kit.text.phonemes import normalise
from b2t_kit.train import train, uninterrupted
from ruler import RESULTS, decoders, heard_by

CLEAN = decoders(1)["strict"].task.model
assert isinstance(CLEAN, GRUConfig)
NOISE = NoiseGRUConfig(hidden=CLEAN.hidden, num_layers=CLEAN.num_layers, patch=CLEAN.patch, stride=CLEAN.stride,
                       subsample=CLEAN.subsample, noise_layers=1, noise_hidden=64, noisy_layers=1, noisy_hidden=64)
ARMS = {
    "no noise model": CLEAN,
    "no noise in training": CLEAN,  # neither white noise nor offsets
    "reversal 0": replace(NOISE, reversal=0.0),
    "reversal 0.1": replace(NOISE, reversal=0.1),
    "reversal 1": replace(NOISE, reversal=1.0),
}


@torch.no_grad()
def noisy_rate(task: SpeechTask, run: Path) -> float:
    "Phoneme error rate of the noisy speech model on validation trials of the days in training."
    model = load_decoder(run).model
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


def days_of(data: Path) -> tuple[list[str], list[str]]:
    "Days with validation sentences: those in training, and every sixth, which is held out."
    days = sorted(path.parent.name for path in find_recordings(data).glob("*/data_val.hdf5"))
    held_out = days[2::6]
    return [day for day in days if day not in held_out], held_out


def run_of(out: Path, arm: str, seed: int) -> Path:
    "Where the decoder of an arm and a seed is kept."
    return out / f"{arm} seed {seed}".replace(" ", "-")


def train_arm(data: Path, run: Path, arm: str, strict: SpeechRun, seed: int) -> None:
    "Train one arm from one seed, or go on; what is there is refused if settings or recordings are others. Score it."
    task = SpeechTask(data, replace(strict.task, model=ARMS[arm], holdout=tuple(days_of(data)[1])))
    uninterrupted(train(task, replace(strict.train, seed=seed), run, resume=run.is_dir()))
    if not (run / "eval/val").is_dir():
        if getattr(ARMS[arm], "has_adversary", False):
            save_json(run / "noisy.json", {"noisy_per": noisy_rate(task, run)})
        evaluate_run(run, data)
    if not (run / "decode/val/sentences.csv").is_file():
        decode_run(run, data, lm="default")
    task.close()


def errors_of(data: Path, run: Path, kind: str) -> Counts:
    "Errors by sentence: phonemes of the days in training or of those held out, or words of the days in training."
    trained, held_out = days_of(data)
    if kind == "words":
        with open(run / "decode/val/sentences.csv", newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["session"] in trained]
        with Recordings(data, "val") as recordings:
            said = {(info.session, str(info.block), str(info.number)): info.sentence for info in recordings.infos}
        true = [said[row["session"], row["block_num"], row["trial_num"]] for row in rows]
        return count_edits(*([normalise(text, True).split() for text in texts]
                             for texts in (true, [row["text"] for row in rows])))
    return count_edits(*heard_by(run, held_out if kind == "held_out" else trained)[:2])


def scored(data: Path, out: Path, arm: str, seeds: list[int]) -> dict:
    "Error rates of an arm, and differences to the first one with the same seeds (95 %, sentences redrawn)."
    steps = load_json(run_of(out, arm, seeds[0]) / "config.json")["train"]["steps"]
    row: dict = {"arm": arm, "seed": seeds, "steps": steps}
    for kind in ("trained", "held_out", "words"):
        found = [[errors_of(data, run_of(out, one, seed), kind) for seed in seeds] for one in (arm, next(iter(ARMS)))]
        mine, first = (Counts(*map(np.concatenate, zip(*each))) for each in found)
        row[kind] = float(mine.edits.sum() / mine.lengths.sum())
        if arm != next(iter(ARMS)):
            gap = compare(first, mine, np.tile(np.arange(len(mine.edits) // len(seeds)), len(seeds)))
            row |= {f"{kind}_gap": gap.difference, f"{kind}_low": gap.low, f"{kind}_high": gap.high}
    noisy = run_of(out, arm, seeds[0]) / "noisy.json"
    return row | (load_json(noisy) if len(seeds) == 1 and noisy.exists() else {})


def table(rows: list[dict]) -> str:
    "Each arm and seed as a line of a Markdown table."
    lines = ["| arm | seed | phoneme errors | minus first arm | days held out | minus first arm | words "
             "| minus first arm | PER of the noise |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        cells = []
        for name in ("trained", "held_out", "words"):
            cells.append(f"{100 * row[name]:.1f} %")
            gap = [100 * row[f"{name}_{part}"] for part in ("gap", "low", "high")] if f"{name}_gap" in row else []
            cells.append("{:+.1f} ({:+.1f} to {:+.1f})".format(*gap) if gap else "")
        noisy = f"{100 * row['noisy_per']:.0f} %" if "noisy_per" in row else ""
        lines.append(f"| {row['arm']} | {', '.join(map(str, row['seed']))} | " + " | ".join([*cells, noisy]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="recordings")
    parser.add_argument("--out", type=Path, required=True, help="folder for the decoders")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--json", type=Path, default=RESULTS / "noise_gru.json")
    options = parser.parse_args()
    out, seeds = options.out, [int(seed) for seed in options.seeds.split(",")]
    for seed in seeds:
        for arm in filter(None, options.arms.split(",")):
            settings = decoders(options.steps)["quiet" if arm == "no noise in training" else "strict"]
            train_arm(options.data, run_of(out, arm, seed), arm, settings, seed)
    there = {arm: [seed for seed in seeds if (run_of(out, arm, seed) / "decode/val/sentences.csv").is_file()]
             for arm in ARMS}
    rows = [scored(options.data, out, arm, [seed]) for arm, trained in there.items() for seed in trained]
    rows += [scored(options.data, out, arm, trained) for arm, trained in there.items() if len(trained) > 1]
    save_json(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
