"""Decisions of the uncoupled world, made again with trained decoders of strict, coupled recordings.

    python benchmarks/strict.py DIR --sentences SENTENCES.txt [--questions order masks lost] [--steps 450]

SENTENCES.txt has real sentences, one a line, as for months.py. A participant has ten days of 150 of them at 16 bins a
phoneme, and on nine of these days 30 others, which are scored. A small GRU is trained for each row, or found in DIR.

order  Which way to combine three seeds makes the fewest word errors? And which of their words would have a dot, at
       which limit of confidence? One participant. The ten best sentences of each seed, and of the decoder with masks,
       stay in DIR/31/lists/NAME.jsonl, for merge.py.
masks  Do channel masks in training help? In each trial a random share of the electrodes, 0 to 20 %, is zero.
       On days of training, and on twelve sentences of each of six later days. Two participants.
lost   What does a quarter of the electrodes, lost on the days that are scored, cost a decoder that was trained with
       5 % lost, with masks, or, one participant, with none lost?
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein

from b2t_kit.core.random import uniforms
from b2t_kit.data.augment import augment
from b2t_kit.data.batches import Batch
from b2t_kit.decode.combine import decode_runs
from b2t_kit.decode.decode import decode_run
from b2t_kit.decode.lists import DecodedTrial, write_nbest
from b2t_kit.publish.votes import combine_votes
from b2t_kit.simulate.recordings import STRICT, simulate
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import tiny
from b2t_kit.speech.task import SpeechTask
from b2t_kit.speech.train import is_complete, train_decoder
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of
from b2t_kit.text.phonemes import normalise
from b2t_kit.text.tables import read_table
from b2t_kit.training.task import LossSum

PARTICIPANTS = ("31", "32")
SEEDS = ("seed_0", "seed_1", "seed_2")
DAYS = 10  # of training
LATER = 6  # days after them
MASKED = 0.2  # largest share of the electrodes that a mask takes
MASKS = 6  # purpose of its random numbers; the package has 1 to 5
LISTED = 10  # sentences of a list that merge.py reads
LIMITS = (0.8, 0.9, 0.95, 0.99, 0.999)  # of a word's confidence, below which it has a dot
CHANGED = {  # from the recordings of training
    "training": {},
    "whole": {"lost": 0.0},
    "lost": {"lost": 0.25},
    "later": {"sessions": DAYS + LATER, "trials": 12, "held_out": 1.0},
}


class MaskedTask(SpeechTask):
    "The speech task, with a random share of the electrodes set to zero in each trial of training."

    def compute_loss(self, model: torch.nn.Module, batch: Batch) -> LossSum:
        "Summed CTC loss; masks come last, as those of time do."
        if not model.training:
            return super().compute_loss(model, batch)
        noise = self.config.augment
        features = augment(batch.features, batch.num_bins, batch.noise_key, noise, batch.width)
        electrodes = features.shape[-1] // 2  # crossings of all of them, then power
        draws = uniforms(batch.noise_key, MASKS, 1, electrodes + 1).add(1).mul(0.5)  # (B, 1, 257)
        stays = draws[..., 1:] >= MASKED * draws[..., :1]  # (B, 1, 256); the first draw is the share
        losses, _ = self.config.model.losses(model, features * stays.repeat(1, 1, 2), batch)
        return LossSum((batch.weight * losses).sum(), (batch.weight > 0).sum())


class World:
    "Recordings and decoders of a folder; what is not there is made."

    def __init__(self, folder: Path, sentences: Path, steps: int) -> None:
        self.folder = folder
        self.steps = steps
        self.config = replace(
            STRICT, bins_per_phoneme=16, labels=str(sentences), sessions=DAYS, trials=150, held_out=0.2
        )

    def recordings(self, participant: str, name: str = "training") -> Path:
        path = self.folder / participant / name
        if not (path / "hdf5_data_final").is_dir():
            simulate(path, replace(self.config, seed=int(participant), **CHANGED[name]))
        return path

    def decoder(self, participant: str, name: str) -> Path:
        "Return the run folder of a seed, or of seed 0 with `masks`, or on recordings without lost electrodes."
        run = tiny()
        seed = int(name.removeprefix("seed_")) if name in SEEDS else 0
        batches = replace(run.task.batches, cache="float16", impossible="skip")
        once = {"steps": self.steps, "eval_every": 0, "checkpoint_every": self.steps}
        train = replace(run.train, seed=seed, **once)
        run = replace(run, task=replace(run.task, batches=batches), train=train)
        out = self.folder / participant / name
        if not is_complete(out, run):
            kind = MaskedTask if name == "masks" else SpeechTask
            data = self.recordings(participant, "whole" if name == "none_lost" else "training")
            task = kind(data, run.task)
            train_decoder(task, run, out, resume=out.is_dir())
            task.close()
        return out

    def phonemes(self, participant: str, name: str, data: Path) -> Counts:
        "Phoneme errors of each sentence; of days after training where there are any."
        evaluation = evaluate_run(self.decoder(participant, name), data, device="cpu")
        is_later = np.array([one.info.session not in evaluation.trained for one in evaluation.trials])
        chosen = is_later if is_later.any() else ~is_later
        return Counts(evaluation.counts.edits[chosen], evaluation.counts.lengths[chosen])


def show(title: str, rows: dict[str, Counts]) -> None:
    "Print error rates, and how each differs from the first, by sentence."
    usual, *_ = rows
    for name, own in rows.items():
        gap = "" if name == usual else f"; less {usual}: {compare(rows[usual], own)}"
        print(f"{title}, {name}: {rate_of(own)}{gap}", flush=True)


def dots(trials: list[DecodedTrial]) -> None:
    "Print what a dot below each limit of confidence would say of the words."
    sure = list[float]()
    right = list[bool]()
    for trial in trials:
        if not trial.hypotheses:
            continue
        best = trial.hypotheses[0]
        blocks = Levenshtein.opcodes(best.words, normalise(trial.truth or "").split())
        for block in blocks:
            words = range(block.src_start, block.src_end)
            sure += [best.confidences[at] for at in words]
            right += [block.tag == "equal" for _ in words]
    is_right = np.array(right)
    print(f"{len(right)} words, {(~is_right).sum()} wrong")
    for limit in LIMITS:
        dotted = np.array(sure) < limit
        print(
            f"limit {limit:g}: undotted ones right {is_right[~dotted].mean():.1%}, "
            f"right ones dotted {dotted[is_right].mean():.1%}, wrong ones {dotted[~is_right].mean():.1%}"
        )


def order(world: World) -> None:
    participant = PARTICIPANTS[0]
    data = world.recordings(participant)
    lists = world.folder / participant / "lists"
    seeds = [world.decoder(participant, name) for name in SEEDS]
    found = {
        way: decode_runs(seeds, data, together=way, device="cpu", out=lists / way)
        for way in ("average", "pool")
    }
    for name in (*SEEDS, "masks"):
        found[name] = decode_run(world.decoder(participant, name), data, device="cpu", out=lists / name)
        short = [replace(trial, hypotheses=trial.hypotheses[:LISTED]) for trial in found[name].trials]
        write_nbest(lists / f"{name}.jsonl", short)
    truths = {trial.key: normalise(trial.truth or "").split() for trial in found["pool"].trials}
    texts = {way: {trial.key: trial.sentence for trial in one.trials} for way, one in found.items()}
    for way, file in (("vote of texts", "sentences.csv"), ("vote of lists", "nbest.jsonl")):
        tables = [read_table(lists / name / file, prefer_trial_keys=True) for name in SEEDS]
        texts[way] = combine_votes(tables).sentences
    rows = {
        way: count_edits([*truths.values()], [normalise(one[key]).split() for key in truths])
        for way, one in texts.items()
    }
    show("words", rows)
    dots([trial for name in SEEDS for trial in found[name].trials])


def masks(world: World) -> None:
    for name, title in (("training", "days of training"), ("later", "later days")):
        found: dict[str, list[Counts]] = {"seed_0": [], "masks": []}
        for participant in PARTICIPANTS:
            data = world.recordings(participant, name)
            for decoder, counts in found.items():
                counts.append(world.phonemes(participant, decoder, data))
            show(f"participant {participant}, {title}", {one: counts[-1] for one, counts in found.items()})
        both = {one: Counts(*map(np.concatenate, zip(*counts))) for one, counts in found.items()}
        show(f"both, {title}", both)


def lost(world: World) -> None:
    for participant in PARTICIPANTS:
        is_first = participant == PARTICIPANTS[0]
        decoders = ("seed_0", "masks", "none_lost") if is_first else ("seed_0", "masks")
        found: dict[str, dict[str, Counts]] = {}
        for name in ("training", "whole", "lost") if is_first else ("training", "lost"):
            data = world.recordings(participant, name)
            found[name] = {one: world.phonemes(participant, one, data) for one in decoders}
            show(f"participant {participant}, recordings {name}", found[name])
        for one in decoders:
            cost = compare(found["training"][one], found["lost"][one])
            print(f"participant {participant}, {one}, a quarter of the electrodes lost: {cost}", flush=True)


QUESTIONS = {"order": order, "masks": masks, "lost": lost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=450, help="of each training")
    parser.add_argument("--questions", nargs="+", choices=[*QUESTIONS], default=[*QUESTIONS])
    options = parser.parse_args()
    world = World(options.folder, options.sentences, options.steps)
    for question in options.questions:
        QUESTIONS[question](world)


if __name__ == "__main__":
    main()
