"""Errors by days since training: as trained, adapted without labels, and with five known sentences a day.

    python benchmarks/months.py DIR --sentences SENTENCES.txt [--participants 11,12,13]   an hour each on two cores
                     [--per-day 40]                                                       longer days, without labels
                     [--set sure=0 recent=1 steps=1 lr=0.001]                             another way to adapt
                     [--live 2023.12.10 2024.02.25 [--carry]]                             live sessions of these days
                     [--ceiling]                                                          trained on labels of all days
                     [--noise 0.3 0.6 1]                                                  trained with other noise
    python benchmarks/months.py --figure                                                  the figure, from the results
    python benchmarks/months.py --costs                                                   seconds a trial, and memory

SENTENCES.txt has real sentences, one a line, such as those of the published training split. Each participant has
strict, coupled recordings of ten days at 16 bins a phoneme, on which a small GRU is trained, and twelve other sentences
of each of these days and of those after them. The days of training show what adaptation does where nothing has
drifted. Known sentences are never scored. The decoder used on a day is chosen without labels; `with` is adaptation
whatever was chosen.
"""

import argparse
import json
import resource
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from b2t_kit.adapt.adapt import AdaptConfig, Learner, Lesson, Stretch
from b2t_kit.adapt.live import LiveAdaptation
from b2t_kit.adapt.source import AdaptedRun
from b2t_kit.all import open_task, recipe
from b2t_kit.core.files import load_json, save_json
from b2t_kit.data.dataset import T15
from b2t_kit.decode.decode import decode_sentences
from b2t_kit.devices.select import open_device
from b2t_kit.live.requests import SentenceMark
from b2t_kit.live.session import LiveSession, open_decoder
from b2t_kit.live.sources import RecordingSource
from b2t_kit.simulate.recordings import STRICT, day_number, session_names, simulate
from b2t_kit.speech.decoder import Decoder
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import tiny
from b2t_kit.speech.task import fitted
from b2t_kit.speech.train import train_decoder
from b2t_kit.text.metrics import Counts, compare, count_edits
from b2t_kit.text.phonemes import normalise

RESULTS = Path(__file__).parent / "results"
TRAINED = 10  # first days, of 150 sentences each
LATEST = 38  # days in all: ten months
PER_DAY = 12  # sentences scored
A_SESSION = 30  # sentences of a live session
TOLD = 5  # its first sentences, which people mark right or correct
GOING_ON = ", going on"  # after the name of a way: it begins with what the day before has left
WAYS = {"without labels": AdaptConfig(), "five known": AdaptConfig(labelled=5)}


def make_recordings(
    folder: Path, participant: int, sentences: Path, per_day: int = PER_DAY
) -> tuple[Path, Path]:
    "Write recordings for training, and those to score, unless they are there."
    config = replace(
        STRICT, seed=participant, bins_per_phoneme=16, labels=str(sentences), sessions=TRAINED, trials=150, held_out=0.1
    )
    training = folder / "training"
    scored = folder / ("scored" if per_day == PER_DAY else f"scored_{per_day}")
    if not training.is_dir():
        simulate(training, config)
    if not scored.is_dir():
        simulate(scored, replace(config, sessions=LATEST, trials=per_day, held_out=1.0))
    return training, scored


def train_small(data: Path, out: Path, steps: int, noise: float | None = None) -> None:  # white noise; None: `tiny`'s
    "Train a small GRU, unless it is there."
    run = tiny()
    augment = run.task.augment if noise is None else replace(run.task.augment, white_noise=noise)
    batches = replace(run.task.batches, cache="float16", impossible="skip")
    train = replace(run.train, steps=steps, eval_every=0, checkpoint_every=steps)
    run = replace(run, task=replace(run.task, batches=batches, augment=augment), train=train)
    if not out.is_dir():
        task = open_task(run, data)
        train_decoder(task, run, out)
        task.close()


def by_day(
    report: Mapping[str, Any], kind: str = "phonemes"  # or "words"
) -> dict[str, dict[str, Any]]:
    "Errors of each day before and with adaptation, and of the decoder that is used."
    rows = {}
    for day, row in report[kind].items():
        if day != "all days":
            taken = report["days"][day]["adapted"]
            rows[day] = {"before": row["before"], "with": row["with"], "used": row["with" if taken else "before"]}
    return rows


def one_participant(
    folder: Path,
    participant: int,
    sentences: Path,
    steps: int,
    ways: Mapping[str, AdaptConfig],
    per_day: int,
) -> dict[str, Any]:
    "Return the errors of each way, by day."
    training, scored = make_recordings(folder, participant, sentences, per_day)
    train_small(training, folder / "run", steps)
    found = {}
    for way, adapt in ways.items():
        source = AdaptedRun(folder / "run", scored, "val", "cpu", adapt=adapt)
        out = folder / way.replace(" ", "_")
        decoded = decode_sentences(source, out=out, progress=print)
        report = load_json(out / "adapt/report.json")
        print(decoded.adaptation)
        found[way] = {
            "days": by_day(report),
            "word days": by_day(report, "words"),
            "words": report["words"]["all days"],
            "phonemes": report["phonemes"]["all days"],
        }
    return found


def as_trained(run: Path, scored: Path) -> str:
    "Phoneme errors of a decoder, means of the days of training and of those after them."
    rates = evaluate_run(run, scored, "val", device="cpu").to_dict()["days"]
    trained = set(session_names(TRAINED))
    first, later = (
        np.mean([100 * row["rate"] for day, row in rates.items() if (day in trained) == is_first])
        for is_first in (True, False)
    )
    return f"days of training {first:.1f}, later days {later:.1f} %"


def ceiling(folder: Path, participant: int, sentences: Path, steps: int) -> str:
    "Errors of a decoder that is trained on 60 labelled sentences of each of all days."
    labelled = folder / "labelled"
    config = replace(
        STRICT, seed=participant, bins_per_phoneme=16, labels=str(sentences), sessions=LATEST, trials=60, held_out=0.1
    )
    if not labelled.is_dir():
        simulate(labelled, config)
    train_small(labelled, folder / "run_labelled", steps)
    return as_trained(folder / "run_labelled", folder / "scored")


def with_noise(folder: Path, participant: int, sentences: Path, steps: int, noise: float) -> str:
    "Errors of a decoder that is trained with other noise."
    training, scored = make_recordings(folder, participant, sentences)
    run = folder / f"run_noise_{noise:g}"
    train_small(training, run, steps, noise)
    return as_trained(run, scored)


class AtOnce:
    "Stands in for the learner's thread: a session that is faster than speech waits for it."

    def submit(self, work: Any, *what: Any) -> None:
        work(*what)

    def shutdown(self, **_: Any) -> None:
        pass


class Listener:
    "Keeps what was decoded and what was said, and marks the first sentences as somebody would."

    def __init__(self, adaptation: LiveAdaptation | None, told: int) -> None:
        self.adaptation = adaptation
        self.told = told
        self.words = list[str]()  # since the last cue; a long silence ends a sentence too
        self.decoded = list[list[str]]()
        self.said = list[list[str]]()
        self.finals = 0  # sentences of the session, as they are marked
        # whether the sentence that is being said is decoded with the learner's weights
        self.is_adapted = adaptation is not None and adaptation.is_used
        self.adapted = 0  # such sentences

    def show(self, moment: Any) -> None:
        for update in moment.updates:
            if not update.final:
                continue
            self.words += [word for word, _ in update.words]
            self.finals += 1
            if not moment.said:
                continue
            self.decoded.append(self.words)
            self.words = []
            self.said.append(normalise(moment.said).split())
            if self.adaptation is None:
                continue
            if len(self.said) <= self.told:
                self.adaptation.learn_from_mark(SentenceMark(self.finals, "corrected", moment.said))
            self.adapted += self.is_adapted
            self.is_adapted = self.adaptation.is_used


def live_session(
    run: Path, data: Path, day: str, adapts: bool, told: int, learned: Path | None = None
) -> Listener:
    "Go through a day as a live session, as fast as it goes; it may begin with what the sessions before have learned."
    decoder = open_decoder(run, day)
    session = LiveSession(decoder, RecordingSource(data, "val", day, A_SESSION, pace=0))
    with open_device("cpu", "float32") as device:
        adaptation = LiveAdaptation(session, device, learned=learned) if adapts else None
        listener = Listener(adaptation, told)
        if adaptation:
            adaptation.worker = AtOnce()
            session.watchers.append(adaptation)
        session.watchers.append(listener)
        session.run()
    if adaptation:
        adaptation.keep()
        print(adaptation.line)
    return listener


def live(folder: Path, participant: int, sentences: Path, days: list[str], carries: bool) -> list[str]:
    """Lines: word errors of sessions of a live decoder, each way against none, after the sentences that are told. The
    days are gone through in order, and `carries` adds sessions that go on from the one before."""
    talk = folder / "talk"
    config = replace(
        STRICT, seed=participant, bins_per_phoneme=16, labels=str(sentences), trials=A_SESSION, held_out=1.0,
        sessions=session_names(LATEST).index(max(days)) + 1,
    )
    if not talk.is_dir():
        simulate(talk, config)
    ways: list[tuple[str, int, Path | None]] = [("nothing told", 0, None), (f"the first {TOLD} told", TOLD, None)]
    for title, told, _ in [*ways] if carries else ():
        learned = folder / f"learned_{told}.safetensors"
        learned.unlink(missing_ok=True)
        ways.append((f"{title}{GOING_ON}", told, learned))
    lines = []
    kept: dict[str, list[Counts]] = {title: [] for title, _, _ in ways}
    for day in days:
        plain = live_session(folder / "run", talk, day, False, 0)
        for title, told, carried in ways:
            other = live_session(folder / "run", talk, day, True, told, carried)
            before = count_edits(plain.said[TOLD:], plain.decoded[TOLD:])
            after = count_edits(other.said[TOLD:], other.decoded[TOLD:])
            rates = [100 * counts.edits.sum() / counts.lengths.sum() for counts in (before, after)]
            lines.append(
                f"participant {participant}, {day}, {title}: {rates[0]:.1f} to {rates[1]:.1f} % word errors, "
                f"{compare(before, after)}; {other.adapted} of {len(other.said)} sentences adapted"
            )
            print(lines[-1], flush=True)
            kept[title].append(after)
    for title, _, carried in ways:
        if carried and len(days) > 1:  # the first day has none before it
            pair = (title.removesuffix(GOING_ON), title)
            anew, on = (Counts(*map(np.concatenate, zip(*kept[one][1:]))) for one in pair)
            gap = f"{compare(anew, on)} less {pair[0]}"
            lines.append(f"participant {participant}, {title}, {len(days) - 1} days: {gap}")
            print(lines[-1], flush=True)
    return lines


def summary(found: Mapping[str, Any]) -> str:
    "A line for each way: mean over days, in percent, of training and later."
    trained = set(session_names(TRAINED))
    lines = []
    for participant, ways in found.items():
        for way, one in ways.items():
            for title, days in (("days of training", True), ("later days", False)):
                parts = []
                for kind, name in (("phonemes", "days"), ("words", "word days")):
                    rows = [row for day, row in one[name].items() if (day in trained) == days]
                    before, used, taken = (
                        100 * np.array([row[name] for row in rows]) for name in ("before", "used", "with")
                    )
                    parts.append(
                        f"{kind} as trained {before.mean():.1f}, used {used.mean():.1f} (adapted on all "
                        f"{taken.mean():.1f}), worst day {(used - before).max():+.1f} points"
                    )
                lines.append(f"participant {participant}, {way}, {title}: {'; '.join(parts)}")
    return "\n".join(lines)


def figure(found: Mapping[str, Any], path: Path, longer: str = "") -> None:
    "Phoneme errors by days since training, a panel for each participant; of longer days, by their name."
    found = {
        participant: {way: ways[way + longer] for way in WAYS if way + longer in ways}
        for participant, ways in found.items()
    }
    found = {participant: ways for participant, ways in found.items() if ways}
    columns = len(found) if len(found) < 4 else 2
    rows = -(-len(found) // columns)
    fig, axes = plt.subplots(
        rows, columns, figsize=(6 * columns, 3.6 * rows), sharey=True, squeeze=False, layout="constrained", dpi=110
    )
    last = day_number(session_names(TRAINED)[-1])
    for axis, (participant, ways) in zip(axes.flat, found.items()):
        for way, one in ways.items():
            days = {day: row for day, row in one["days"].items() if day_number(day) > last}
            since = [day_number(day) - last for day in days]
            if way == "without labels":
                axis.plot(since, [100 * row["before"] for row in days.values()], ".-", color="0.6", label="as trained")
            axis.plot(since, [100 * row["used"] for row in days.values()], ".-", label=way)
        axis.set(title=f"participant {participant}", xlabel="days since training", ylim=(0, None))
    axes[0, 0].set_ylabel("phoneme errors, %")
    axes[0, 0].legend(fontsize=8)
    fig.savefig(path)


def costs(name: str) -> str:
    "A line: what learning from a trial of 9 s takes with a recipe of random weights, beside decoding it."
    config = recipe(name).task
    config = fitted(config, 1, T15.num_features)
    day = session_names(1)[0]
    decoder = Decoder(config.model.build().eval(), config, (day,), (day,), "random", T15)
    rng = np.random.default_rng(0)
    seconds: dict[bool, list[float]] = {False: [], True: []}  # of a known sentence, or not
    with open_device("cpu", "float32") as device:
        learner = Learner(decoder, device)
        learner.begin(day)
        for number in range(8):
            features = rng.normal(size=(450, T15.num_features)).astype(np.float32)
            frames = config.model.framing.of(len(features))
            labels = tuple(rng.integers(1, 40, size=30).tolist())
            is_known = number % 2 == 1
            lesson = Lesson(features, (Stretch(0, frames, labels),), is_known)
            begun = time.perf_counter()
            learner.learn(lesson, (day, 0, number))
            seconds[is_known].append(time.perf_counter() - begun)
    size = sum(parameter.numel() for parameter in decoder.model.parameters()) / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    two, eight = (np.median(many[1:]) for many in seconds.values())
    return (f"{name}, {size:.0f} million parameters, {torch.get_num_threads()} threads: after a trial of 9 s "
            f"{two:.1f} s for its two steps, {eight:.1f} s for the eight of a known one; {memory:,.0f} MB at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--participants", default="11,12,13")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--set", nargs="*", default=[], help="another way alone, such as lr=0.001")
    parser.add_argument("--per-day", type=int, default=PER_DAY, help="sentences of a day that are scored")
    parser.add_argument("--live", nargs="*", metavar="DAY", help="live sessions of these days, such as 2024.02.25")
    parser.add_argument("--carry", action="store_true", help="sessions that go on from the one before, too")
    parser.add_argument("--ceiling", action="store_true", help="train with labels of every day, for twice the steps")
    parser.add_argument("--noise", nargs="*", type=float, help="train with white noise of these strengths")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--costs", nargs="*", metavar="RECIPE", help="default: tiny, baseline, transformer")
    parser.add_argument("--json", type=Path, default=RESULTS / "months.json")
    options = parser.parse_args()
    if options.costs is not None:
        for name in options.costs or ("tiny", "baseline", "transformer"):  # the peak so far, so the smallest first
            print(costs(name), flush=True)
        return
    if options.ceiling or options.noise:
        for participant in options.participants.split(","):
            which = options.folder / participant, int(participant), options.sentences
            if options.ceiling:
                line = ceiling(*which, 2 * options.steps)
                print(f"participant {participant}, labels of every day: {line}", flush=True)
            for noise in options.noise or ():
                line = with_noise(*which, options.steps, noise)
                print(f"participant {participant}, noise {noise:g}: {line}", flush=True)
        return
    if options.live:
        for participant in options.participants.split(","):
            folder = options.folder / participant
            training, _ = make_recordings(folder, int(participant), options.sentences)
            train_small(training, folder / "run", options.steps)
            days = [f"t15.{day}" for day in sorted(options.live)]
            live(folder, int(participant), options.sentences, days, options.carry)
        return
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    ways: Mapping[str, AdaptConfig] = WAYS
    if options.per_day != PER_DAY:
        ways = {f"without labels, {options.per_day} a day": AdaptConfig()}
    if options.set:
        changed = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
        name = " ".join(options.set) + (f", {options.per_day} a day" if options.per_day != PER_DAY else "")
        ways = {name: replace(AdaptConfig(), **changed)}
    if options.folder:
        for participant in options.participants.split(","):
            folder = options.folder / participant
            which = folder, int(participant), options.sentences
            one = one_participant(*which, options.steps, ways, options.per_day)
            found[participant] = found.get(participant, {}) | one
            save_json(options.json, found)
    print(summary(found))
    if options.figure:
        figure(found, options.json.with_suffix(".png"))
        figure(found, options.json.with_name("months_longer.png"), ", 40 a day")


if __name__ == "__main__":
    main()
