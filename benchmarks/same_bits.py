"""Losses and weights of short runs, for the proof rule: a change that should not alter results gives the same file.

    python benchmarks/same_bits.py before.json      # on the commit before
    python benchmarks/same_bits.py after.json       # on the commit after
    cmp before.json after.json

Four recipes on 48 simulated sentences, twelve steps each, with two validations; one thread, on a CPU. About half a
minute of processor time. The file has the logged losses and SHA-256 of every tensor file of the checkpoints.
"""
import argparse
import hashlib
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from b2t_kit.core.files import save_json
from b2t_kit.simulate.recordings import SimulateConfig, simulate
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import recipe
from b2t_kit.train import train
from b2t_kit.all import open_task

RECIPES = ("tiny", "transformer_tiny", "noise_gru_tiny", "linear")
KEPT = ("step", "loss", "per", "norm", "lr", "clean_loss", "noisy_loss")  # of the metrics; not times


def results(name: str, data: Path, out: Path) -> dict[str, Any]:
    "Losses, phoneme errors and digests of a recipe's first twelve steps."
    run = recipe(name)
    settings = replace(run.train, steps=12, warmup_steps=3, eval_every=6, checkpoint_every=6, log_every=1, device="cpu",
                       seed=5, decay_steps=0)
    task = open_task(replace(run, task=run.task.with_rows(6)), data)
    train(task, settings, out, quiet=True)
    task.close()
    digests = {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
               for path in sorted((out / "checkpoints").rglob("*.safetensors"))}
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: row[key] for key in KEPT if key in row} for row in rows if row.get("kind") != "event"]
    found = evaluate_run(out, data)
    losses = [trial.loss for trial in found.trials if math.isfinite(trial.loss)]
    return {"digests": digests, "rows": kept, "per": repr(found.per), "loss": sum(losses) / max(len(losses), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        simulate(data, SimulateConfig(sessions=2, trials=48, seed=3))
        save_json(options.file, {name: results(name, data, Path(folder, name)) for name in RECIPES})


if __name__ == "__main__":
    main()
