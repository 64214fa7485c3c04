"""Does a participant with few sentences gain from another's many? Simulated; the dial of what they share at 1 and 0.

    python benchmarks/pretraining.py FOLDER            # half an hour on two busy cores
    python benchmarks/pretraining.py FOLDER --trials 20 --seeds 1

The target has one array and one day, the other participant two arrays and two days. Alone and joint see the same number
of steps of the target's trials, joint as many of the other's; the best of five validations counts for each.
"""
import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from b2t_kit.core.files import save_json
from b2t_kit.data.augment import Augment
from b2t_kit.data.batches import BatchConfig
from b2t_kit.models.gru import GRUConfig
from b2t_kit.simulate.neural import SimulateConfig, simulate
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import train
from b2t_kit.training.task import TrainConfig

MODEL = GRUConfig(hidden=96, num_layers=2, patch=16, stride=4, subsample=4, dropout=0.2, day_dropout=0.0)
SPEECH = SpeechConfig(MODEL, Augment(white_noise=0.6, offset=0.1), BatchConfig(batch_size=16, buckets=3))
STEPS = TrainConfig(steps=160, lr=0.004, eps=1e-8, warmup_steps=20, ema_decay=0.98, log_every=100, eval_every=32,
                    checkpoint_every=0, keep_checkpoints=1, device="cpu")


def recorded(folder: Path, trials: int, sharing: float) -> tuple[Path, Path]:
    "The recordings of the target and of the other participant."
    common = SimulateConfig(difficulty=0.3, bins_per_phoneme=12.0, sharing=sharing)
    people = {"s1": replace(common, participant="s1", seed=1, arrays=1, sessions=1, trials=trials, held_out=1.0),
              "s2": replace(common, participant="s2", seed=2, arrays=2, sessions=2, trials=200, held_out=0.1)}
    for name, config in people.items():
        if not (folder / name / "hdf5_data_final").exists():
            simulate(folder / name, config, progress=False)
    return folder / "s1", folder / "s2"


def best_of(task: SpeechTask, settings: TrainConfig, out: Path) -> float:
    "The target's phoneme error rate at the best step."
    best = train(task, settings, out, resume=out.is_dir(), quiet=True).best
    task.close()
    assert best is not None
    return best.value


def rates(folder: Path, trials: int, seed: int) -> dict[str, float]:
    "Phoneme error rates of the target, by training."
    few, many = folder / "s1", folder / "s2"
    settings = replace(STEPS, seed=seed)
    shares = replace(SPEECH, batches=replace(SPEECH.batches, set_shares=(0.5, 0.5)))
    joint = replace(settings, steps=2 * STEPS.steps, eval_every=2 * STEPS.eval_every, select="per/s1")
    longer = replace(settings, steps=joint.steps, eval_every=joint.eval_every)
    return {"alone": best_of(SpeechTask(few, SPEECH), settings, folder / f"alone_{seed}"),
            "alone, twice the steps": best_of(SpeechTask(few, SPEECH), longer, folder / f"longer_{seed}"),
            "joint": best_of(SpeechTask([few, many], shares), joint, folder / f"joint_{seed}")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for sharing in (1.0, 0.0):
        folder = options.folder / f"sharing_{sharing:g}"
        recorded(folder, options.trials, sharing)
        every = [rates(folder, options.trials, seed) for seed in range(1, options.seeds + 1)]
        for name in every[0]:
            values = [one[name] for one in every]
            found[f"{sharing:g} {name}"] = values
            print(f"sharing {sharing:g}  {name:<22} {statistics.fmean(values):6.1%}   "
                  f"{'  '.join(f'{value:.1%}' for value in values)}", flush=True)
    save_json(options.folder / "rates.json", found)


if __name__ == "__main__":
    main()
