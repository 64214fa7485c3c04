"""Five ideas beyond the published Transformer, each judged on recordings and seeds that were named before it ran.

    python benchmarks/ideas.py --out FOLDER                                # the kit's own sentences
    python benchmarks/ideas.py --out FOLDER --labels t15_train_labels.csv  # real sentences

The reference is `transformer_tiny` with the published schedule (warm-up, constant, a tenth after 60 % of the steps), no
average of weights and no further augmentation. Each idea changes one thing:

    ema           validation and decoding use an exponential average of the weights
    cosine        the learning rate falls to its end along a cosine instead of in one step
    channels      a tenth of the channels of each trial is set to zero in training
    gain          each channel of a trial is multiplied by a factor around 1 (standard deviation 0.1) in training
    intermediate  a second CTC loss on the first block's output, through the same last layer, with a weight of 0.3

First each is trained once on one set of recordings, simulated with seed 11, with model seed 1. An idea with fewer
phoneme errors than the reference is then judged on another set, seed 13, with model seeds 4, 5 and 6; the errors of the
three are added up by trial. It is kept if the 95 % interval of the difference (paired bootstrap over trials) is below
zero.
Finished runs are not repeated. The result goes to benchmarks/results/ideas.json.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from recipes import counts_of, recordings

from b2t_kit.core.config import load_json, save_json
from b2t_kit.core.random import uniforms
from b2t_kit.data.batches import Batch
from b2t_kit.models.ctc import ctc_losses
from b2t_kit.models.gru import in_float32
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import SpeechRun, SpeechTask
from b2t_kit.text.metrics import compare, rate_of
from b2t_kit.train import train
from b2t_kit.training.task import LossSum

IDEAS = ("reference", "ema", "cosine", "channels", "gain", "intermediate")
TRIED, JUDGED, JUDGES = 11, 13, (4, 5, 6)  # seeds: of the first recordings, of the second, of the models there
DROPPED, SHARE = 0.1, 0.3  # of the channels; of the second loss
PURPOSE = 60  # of the random numbers that choose channels


class IdeaTask(SpeechTask):
    "The speech task with one idea that changes the loss or the features."

    def __init__(self, idea: str, *given: Any) -> None:
        self.idea = idea
        super().__init__(*given)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossSum:
        "The loss in evaluation is always the reference's."
        if not model.training:
            return super().compute_loss(model, batch)
        if self.idea == "channels":
            chosen = uniforms(batch.noise_key, PURPOSE, 1, batch.features.shape[2])  # (B, 1, C) in (-1, 1)
            batch = replace(batch, features=batch.features * (chosen > 2 * DROPPED - 1))
        if self.idea != "intermediate":
            return super().compute_loss(model, batch)
        with output_of(model.blocks[0]) as seen:
            found = super().compute_loss(model, batch)
        logits = in_float32(model.out, model.norm(seen[0][0]))
        losses = ctc_losses(logits, batch.num_patches, batch.labels, batch.num_labels) / batch.num_labels.clamp(min=1)
        return replace(found, sum=(1 - SHARE) * found.sum + SHARE * (batch.weight * losses).sum())


@contextmanager
def output_of(module: nn.Module) -> Iterator[list[Any]]:
    "What a module returns while the block runs."
    seen: list[Any] = []
    hook = module.register_forward_hook(lambda _, given, returned: seen.append(returned))
    try:
        yield seen
    finally:
        hook.remove()


def settings(idea: str, steps: int, seed: int) -> SpeechRun:
    "The reference with what an idea changes in the settings."
    run = recipe("transformer_tiny")
    drop = round(0.6 * steps)
    changed = dict(steps=steps, warmup_steps=max(1, steps // 50), decay_start=drop, decay_steps=drop, lr_floor=0.1,
                   ema_decay=0.0, eval_every=0, checkpoint_every=0, seed=seed, lr=0.002)
    if idea == "ema":
        changed |= {"ema_decay": 0.98}
    if idea == "cosine":
        changed |= {"decay_start": 0, "decay_steps": 0, "lr_floor": 0.02}
    gain = 0.1 if idea == "gain" else 0.0
    task = replace(run.task, augment=replace(run.task.augment, gain=gain))
    return SpeechRun(task, replace(run.train, **changed))


def trained(idea: str, steps: int, seed: int, data: Path, out: Path) -> dict[str, Any]:
    "One run, trained and scored unless that has been done."
    result = out.with_suffix(".json")
    if not result.exists():
        torch.set_num_threads(1)
        shutil.rmtree(out, ignore_errors=True)
        run = settings(idea, steps, seed)
        task = IdeaTask(idea, data, run.task)
        train(task, run.train, out, quiet=True)
        task.close()
        evaluate_run(out, data, device="cpu")
        save_json(result, {"idea": idea, "seed": seed, "steps": steps, "per": vars(rate_of(counts_of([out])))})
    return load_json(result)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    "Try every idea, judge those that were better."
    tried, judged = (recordings(options.out / f"set_{seed}", seed, options) for seed in (TRIED, JUDGED))
    found: dict[str, Any] = {"difficulty": options.difficulty, "labels": options.labels is not None, "judged": {}}
    with ThreadPoolExecutor(options.beside) as pool, get_context("spawn").Pool(options.beside) as processes:
        def asked(idea: str, seed: int, data: Path, name: str) -> Any:
            given = (idea, options.steps, seed, data, options.out / f"{name}_{idea}_{seed}")
            return pool.submit(processes.apply, trained, given)

        runs = {idea: asked(idea, 1, tried, "try") for idea in IDEAS}
        found["tried"] = {idea: one.result()["per"] for idea, one in runs.items()}
        least = found["tried"]["reference"]["rate"]
        better = [idea for idea in IDEAS[1:] if found["tried"][idea]["rate"] < least]
        for one in [asked(idea, seed, judged, "judge") for idea in ("reference", *better) for seed in JUDGES]:
            one.result()
    sums = {idea: counts_of([options.out / f"judge_{idea}_{seed}" for seed in JUDGES])
            for idea in ("reference", *better)}
    for idea, counts in sums.items():
        less = vars(compare(sums["reference"], counts))
        found["judged"][idea] = {"per": vars(rate_of(counts)), "minus reference": less}
    return found


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for recordings and runs")
    parser.add_argument("--labels", type=Path, help="table of sentences, as `b2t simulate --labels` takes it")
    parser.add_argument("--difficulty", type=float, default=0.65, help="of the simulation")
    parser.add_argument("--steps", type=int, default=450, help="of each run")
    parser.add_argument("--beside", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = measure(options)
    for idea, rate in found["tried"].items():
        print(f"tried   {idea:<14}" + "{rate:.1%} ({low:.1%} to {high:.1%})".format(**rate))
    for idea, one in found["judged"].items():
        print(f"judged  {idea:<14}" + "{rate:.1%} ({low:.1%} to {high:.1%})".format(**one["per"]) + "  minus reference "
              + "{difference:+.2%} ({low:+.2%} to {high:+.2%})".format(**one["minus reference"]))
    save_json(ROOT / "benchmarks/results/ideas.json", found)


if __name__ == "__main__":
    main()
