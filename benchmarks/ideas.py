"""Six ideas beyond the published Transformer, each judged on recordings and seeds that were named before it ran.

    python benchmarks/ideas.py --out FOLDER                                # the kit's own sentences
    python benchmarks/ideas.py --out FOLDER --labels t15_train_labels.csv  # real sentences
    python benchmarks/ideas.py --out FOLDER --round 2                      # the second round, twice as many steps

The reference is `transformer_tiny` with the published schedule (warm-up, constant, a tenth after 60 % of the steps), no
average of weights and no further augmentation. Each idea changes one thing:

    ema           validation and decoding use an exponential average of the weights
    cosine        the learning rate falls to its end along a cosine instead of in one step
    channels      a tenth of the channels of each trial is set to zero in training
    gain          each channel of a trial is multiplied by a factor around 1 (standard deviation 0.1) in training
    intermediate  a second CTC loss on the first block's output, through the same last layer, with a weight of 0.3
    distilled     half of the loss is the divergence from the averaged logits of three references, model seeds 1, 2, 3

First each is trained once on one set of recordings, simulated with seed 11, with model seed 1. An idea with fewer
phoneme errors than the reference is then judged on another set, seed 13 (second round: 14), with model seeds 4, 5 and
6; the errors of the three are added up by trial. It is kept if the 95 % interval of the difference (paired bootstrap
over trials) is below zero.
Finished runs are not repeated. The results go to benchmarks/results/ideas.json, by round.
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
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from recipes import counts_of, recordings

from b2t_kit.core import load_json, save_json, uniforms
from b2t_kit.data.batches import Batch, smooth
from b2t_kit.models.model import ctc_losses
from b2t_kit.models.gru import in_float32
from b2t_kit.speech.evaluate import evaluate_run, load_decoder
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import SpeechRun
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import compare, rate_of
from b2t_kit.train import train, uninterrupted
from b2t_kit.training.task import LossSum

ROUNDS = {  # ideas, steps of each run, seed of the recordings that judge
    1: (("reference", "ema", "cosine", "channels", "gain", "intermediate"), 450, 13),
    2: (("reference", "channels", "gain", "distilled"), 900, 14),
}
TRIED, JUDGES, TEACHERS = 11, (4, 5, 6), (1, 2, 3)  # seeds: of the first recordings, of the models that judge and teach
DROPPED, SHARE, TAUGHT = 0.1, 0.3, 0.5  # of the channels; of the second loss; of the divergence
PURPOSE = 60  # of the random numbers that choose channels


class IdeaTask(SpeechTask):
    "The speech task with one idea that changes the loss or the features."

    def __init__(self, idea: str, teachers: list[Path], *given: Any) -> None:
        self.idea, self.teachers = idea, [load_decoder(run).model.eval() for run in teachers]
        super().__init__(*given)

    def compute_loss(self, model: nn.Module, batch: Batch) -> LossSum:
        "The loss in evaluation is always the reference's."
        if not model.training:
            return super().compute_loss(model, batch)
        if self.idea == "channels":
            chosen = uniforms(batch.noise_key, PURPOSE, 1, batch.features.shape[2])  # (B, 1, C) in (-1, 1)
            batch = replace(batch, features=batch.features * (chosen > 2 * DROPPED - 1))
        if self.idea == "distilled":
            return self.distilled_loss(model, batch)
        if self.idea != "intermediate":
            return super().compute_loss(model, batch)
        with output_of(model.blocks[0]) as seen:
            found = super().compute_loss(model, batch)
        logits = in_float32(model.out, model.norm(seen[0][0]))
        losses = ctc_losses(logits, batch.num_patches, batch.labels, batch.num_labels) / batch.num_labels.clamp(min=1)
        return replace(found, sum=(1 - SHARE) * found.sum + SHARE * (batch.weight * losses).sum())

    def distilled_loss(self, model: nn.Module, batch: Batch) -> LossSum:
        "The loss, half of it the divergence from the teachers' averaged logits on features without noise and masks."
        with output_of(model) as seen:
            found = super().compute_loss(model, batch)
        with torch.no_grad():
            features = smooth(batch.features, self.config.augment.smooth, num_bins=batch.num_bins)
            target = torch.stack([teacher(features, batch.day) for teacher in self.teachers]).mean(0).log_softmax(-1)
        apart = F.kl_div(seen[0].log_softmax(-1), target, reduction="none", log_target=True).sum(-1)  # (B, P)
        counts = torch.arange(apart.shape[1]) < batch.num_patches[:, None]
        losses = (apart * counts).sum(1) / batch.num_labels.clamp(min=1)
        return replace(found, sum=(1 - TAUGHT) * found.sum + TAUGHT * (batch.weight * losses).sum())


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


def trained(idea: str, steps: int, seed: int, data: Path, out: Path, teachers: list[Path]) -> dict[str, Any]:
    "One run, trained and scored unless that has been done."
    result = out.with_suffix(".json")
    if not result.exists():
        torch.set_num_threads(1)
        shutil.rmtree(out, ignore_errors=True)
        run = settings(idea, steps, seed)
        task = IdeaTask(idea, teachers, data, run.task)
        uninterrupted(train(task, run.train, out, quiet=True))
        task.close()
        evaluate_run(out, data, device="cpu")
        save_json(result, {"idea": idea, "seed": seed, "steps": steps, "per": vars(rate_of(counts_of([out])))})
    return load_json(result)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    "Try every idea of a round, judge those that were better."
    ideas, steps, judged_by = ROUNDS[options.round]
    ideas = tuple(idea for idea in ideas if idea in ("reference", *(options.ideas or ideas)))
    sets = {"try": TRIED, "judge": judged_by}
    data = {name: recordings(options.out / f"set_{seed}", seed, options) for name, seed in sets.items()}
    name = "{}" if options.round == 1 else f"{{}}_{options.round}"
    found: dict[str, Any] = {"difficulty": options.difficulty, "labels": options.labels is not None, "steps": steps,
                             "judged": {}}
    with ThreadPoolExecutor(options.beside) as pool, get_context("spawn").Pool(options.beside) as processes:
        def run_of(part: str, idea: str, seed: int) -> Path:
            return options.out / f"{name.format(part)}_{idea}_{seed}"

        def asked(part: str, idea: str, seed: int) -> Any:
            teachers = [run_of(part, "reference", one) for one in TEACHERS] if idea == "distilled" else []
            given = (idea, steps, seed, data[part], run_of(part, idea, seed), teachers)
            return pool.submit(processes.apply, trained, given)

        def finish(part: str, ideas: tuple[str, ...], seeds: tuple[int, ...]) -> dict[str, Any]:
            if "distilled" in ideas:
                for one in [asked(part, "reference", seed) for seed in TEACHERS]:
                    one.result()
            runs = [(idea, asked(part, idea, seed)) for idea in ideas for seed in seeds]
            return {idea: one.result()["per"] for idea, one in runs}

        found["tried"] = finish("try", ideas, (1,))
        least = found["tried"]["reference"]["rate"]
        better = tuple(idea for idea in ideas[1:] if found["tried"][idea]["rate"] < least)
        finish("judge", ("reference", *better), JUDGES)
    sums = {idea: counts_of([run_of("judge", idea, seed) for seed in JUDGES]) for idea in ("reference", *better)}
    for idea, counts in sums.items():
        less = vars(compare(sums["reference"], counts))
        found["judged"][idea] = {"per": vars(rate_of(counts)), "minus reference": less}
    return found


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for recordings and runs")
    parser.add_argument("--labels", type=Path, help="table of sentences, as `b2t simulate --labels` takes it")
    parser.add_argument("--ideas", nargs="+", help="only these of the round")
    parser.add_argument("--difficulty", type=float, default=0.65, help="of the simulation")
    parser.add_argument("--round", type=int, choices=ROUNDS, default=1, help="which ideas; default 1")
    parser.add_argument("--beside", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = measure(options)
    for idea, rate in found["tried"].items():
        print(f"tried   {idea:<14}" + "{rate:.1%} ({low:.1%} to {high:.1%})".format(**rate))
    for idea, one in found["judged"].items():
        print(f"judged  {idea:<14}" + "{rate:.1%} ({low:.1%} to {high:.1%})".format(**one["per"]) + "  minus reference "
              + "{difference:+.2%} ({low:+.2%} to {high:+.2%})".format(**one["minus reference"]))
    path = ROOT / "benchmarks/results/ideas.json"
    rounds = load_json(path) if path.exists() else {}
    before = rounds.get(f"round {options.round}", {})
    if all(before.get(name) == found[name] for name in ("difficulty", "labels", "steps")):  # other ideas of this round
        found |= {part: before[part] | found[part] for part in ("tried", "judged")}
    save_json(path, rounds | {f"round {options.round}": found})


if __name__ == "__main__":
    main()
