"""Errors by days since training: as trained, adapted without labels, and with five known sentences a day.

    python benchmarks/months.py DIR --sentences SENTENCES.txt [--participants 11,13,14]   half an hour each, a core
                     [--per-day 12]                                                       shorter days
                     [--uncoupled]                                                        without correlations
                     [--set sure=0 recent=1 steps=1 lr=0.001]                             another way to adapt
                     [--live 2023.12.10 2024.02.25 [--carry]]                             live sessions of these days
                     [--noise 0.3 0.6 1]                                                  trained with other noise
    python benchmarks/months.py --figure                                                  the figures, from the results
    python benchmarks/months.py --costs                                                   seconds a trial, and memory

SENTENCES.txt has real sentences, one a line, such as those of the published training split. Each participant has
strict recordings of ten days at 16 bins a phoneme, on which a small GRU is trained, and other sentences of each of
these days and of those after them. The days of training show what adaptation does where nothing has drifted. Known
sentences are never scored. The decoder used on a day is chosen without labels; `with` is adaptation whatever was
chosen. Beside them: each feature moved to its mean and spread in training, and a decoder that is trained with labels
of every day.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from b2t_kit.core.settings import to_dict
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.decode.decode import decode_sentences
from b2t_kit.devices.select import open_device
from b2t_kit.live.requests import SentenceMark
from b2t_kit.live.session import LiveSession, open_decoder
from b2t_kit.live.sources import RecordingSource
from b2t_kit.simulate.recordings import STRICT, day_number, moments, session_names, simulate, zscore
from b2t_kit.speech.decoder import Decoder, load_decoder
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import tiny
from b2t_kit.speech.task import fitted
from b2t_kit.speech.train import train_decoder
from b2t_kit.text.metrics import Counts, compare, count_edits, rate_of
from b2t_kit.text.phonemes import collapse, normalise

RESULTS = Path(__file__).parent / "results"
TRAINED = 10  # first days, of 150 sentences each
LATEST = 38  # days in all: ten months
PER_DAY = 40  # sentences scored
A_SESSION = 30  # sentences of a live session
TOLD = 5  # its first sentences, which people mark right or correct
GOING_ON = ", going on"  # after the name of a way: it begins with what the day before has left
WAYS = {"without labels": AdaptConfig(), "five known": AdaptConfig(labelled=5)}
FIGURES = (40, 12)  # sentences a day of each figure


@dataclass(frozen=True)
class Subject:
    "A simulated participant, whose recordings and decoders are made once, in a folder."
    folder: Path
    seed: int
    sentences: Path
    is_coupled: bool = True  # features hang together as in T15's recordings
    steps: int = 600  # of a training

    def recordings(self, name: str, **changes: Any) -> Path:
        "Return the folder of recordings; a folder with others is refused."
        path = self.folder / name
        world = STRICT if self.is_coupled else replace(STRICT, coupling=0.0)
        config = replace(world, seed=self.seed, bins_per_phoneme=16, labels=str(self.sentences), **changes)
        record = path / "simulation.json"
        if not record.is_file():
            simulate(path, config)
        if load_json(record) != json.loads(json.dumps(to_dict(config))):
            raise SystemExit(f"{path}: holds recordings of other settings; give another folder")
        return path

    @property
    def training(self) -> Path:
        return self.recordings("training", sessions=TRAINED, trials=150, held_out=0.1)

    def scored(self, per_day: int) -> Path:
        return self.recordings(f"scored_{per_day}", sessions=LATEST, trials=per_day, held_out=1.0)

    def run(self, name: str = "run", data: Path | None = None, passes: int = 1, noise: float | None = None) -> Path:
        "Return the folder of a small GRU; `noise` is white, of each bin and channel, None for that of `tiny`."
        steps = self.steps * passes
        out = self.folder / f"{name}_{steps}"
        if out.is_dir():
            return out
        run = tiny()
        augment = run.task.augment if noise is None else replace(run.task.augment, white_noise=noise)
        batches = replace(run.task.batches, cache="float16", impossible="skip")
        train = replace(run.train, steps=steps, eval_every=0, checkpoint_every=steps)
        run = replace(run, task=replace(run.task, batches=batches, augment=augment), train=train)
        task = open_task(run, data or self.training)
        train_decoder(task, run, out)
        task.close()
        return out


def by_day(
    report: Mapping[str, Any], kind: str = "phonemes"  # or "words"
) -> dict[str, dict[str, Any]]:
    """Errors of each day before and with adaptation, of the decoder that is used, the interval of the difference, and
    the judge's gain."""
    rows = {}
    for day, row in report[kind].items():
        if day != "all days":
            judged = report["days"][day]
            used = "with" if judged["adapted"] else "before"
            rows[day] = {name: row[name] for name in ("before", "with", "low", "high") if name in row}
            rows[day] |= {"used": row[used], "gain": judged["gain"]}
    return rows


def adapted(subject: Subject, per_day: int, way: str, adapt: AdaptConfig) -> dict[str, Any]:
    "Return the errors of a way to adapt, by day."
    scored = subject.scored(per_day)
    source = AdaptedRun(subject.run(), scored, "val", "cpu", adapt=adapt)
    out = subject.folder / f"{way}, {per_day}".replace(" ", "_")
    decoded = decode_sentences(source, out=out, progress=print)
    report = load_json(out / "adapt/report.json")
    print(decoded.adaptation)
    return {
        "days": by_day(report),
        "word days": by_day(report, "words"),
        "words": report["words"]["all days"],
        "phonemes": report["phonemes"]["all days"],
    }


def with_statistics(subject: Subject, per_day: int) -> dict[str, Any]:
    "Return phoneme errors if each feature gets the mean and spread of training, by the day's sentences so far."
    with Recordings(subject.training, "train") as recordings:
        bins = np.concatenate([recordings.features(index) for index in range(len(recordings.infos))])
    mean, spread = bins.mean(0), bins.std(0)
    said: dict[str, list[Any]] = {}
    decoded: dict[str, list[Any]] = {}
    so_far = list[np.ndarray]()
    with (
        open_device("cpu", "float32") as device,
        Recordings(subject.scored(per_day), "val") as recordings,
    ):
        learner = Learner(load_decoder(subject.run()), device)
        for index in sorted(range(len(recordings.infos)), key=lambda index: recordings.infos[index].key):
            day = recordings.infos[index].session
            if day not in said:
                learner.begin(day)
                so_far.clear()
            features = recordings.features(index)
            so_far.append(moments(features))
            moved = zscore(features, so_far) * spread + mean
            said.setdefault(day, []).append(recordings.labels(index))
            decoded.setdefault(day, []).append(collapse(learner.logits(moved).argmax(1)))
    return {"days": {day: {"used": rate_of(count_edits(said[day], decoded[day])).rate} for day in said}}


def with_labels(subject: Subject, per_day: int) -> dict[str, Any]:
    "Return phoneme errors of a decoder that is trained on 60 labelled sentences of each of all days."
    labelled = subject.recordings("labelled", sessions=LATEST, trials=60, held_out=0.1)
    return as_trained(subject.run("run_labelled", labelled, 2), subject.scored(per_day))


def as_trained(run: Path, scored: Path) -> dict[str, Any]:
    "Return phoneme errors of a decoder that is what it is."
    days = evaluate_run(run, scored, "val", device="cpu").to_dict()["days"]
    return {"days": {day: {"used": row["rate"]} for day, row in days.items()}}


BESIDE = {"statistics of the day": with_statistics, "labels of every day": with_labels}  # ways without words
LINES = dict(zip(BESIDE, (":", "--")))


def mean_rate(rows: Mapping[str, Mapping[str, float]], side: str, is_trained: bool) -> float:  # percent
    "Return the mean of the days of training, or of those after them."
    trained = set(session_names(TRAINED))
    return 100 * float(np.mean([row[side] for day, row in rows.items() if (day in trained) == is_trained]))


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


def live(subject: Subject, days: list[str], carries: bool) -> None:
    """Print word errors of sessions of a live decoder, each way against none, after the sentences that are told. The
    days are gone through in order, and `carries` adds sessions that go on from the one before."""
    last = session_names(LATEST).index(max(days))
    talk = subject.recordings("talk", sessions=last + 1, trials=A_SESSION, held_out=1.0)
    name = f"participant {subject.seed}"
    ways: list[tuple[str, int, Path | None]] = [("nothing told", 0, None), (f"the first {TOLD} told", TOLD, None)]
    for title, told, _ in [*ways] if carries else ():
        learned = subject.folder / f"learned_{told}.safetensors"
        learned.unlink(missing_ok=True)
        ways.append((f"{title}{GOING_ON}", told, learned))
    kept: dict[str, list[Counts]] = {title: [] for title, _, _ in ways}
    for day in days:
        plain = live_session(subject.run(), talk, day, False, 0)
        for title, told, carried in ways:
            other = live_session(subject.run(), talk, day, True, told, carried)
            before = count_edits(plain.said[TOLD:], plain.decoded[TOLD:])
            after = count_edits(other.said[TOLD:], other.decoded[TOLD:])
            rates = [100 * counts.edits.sum() / counts.lengths.sum() for counts in (before, after)]
            print(
                f"{name}, {day}, {title}: {rates[0]:.1f} to {rates[1]:.1f} % word errors, "
                f"{compare(before, after)}; {other.adapted} of {len(other.said)} sentences adapted",
                flush=True,
            )
            kept[title].append(after)
    for title, _, carried in ways:
        if carried and len(days) > 1:  # the first day has none before it
            pair = (title.removesuffix(GOING_ON), title)
            anew, on = (Counts(*map(np.concatenate, zip(*kept[one][1:]))) for one in pair)
            print(f"{name}, {title}, {len(days) - 1} days: {compare(anew, on)} less {pair[0]}", flush=True)


def summary(found: Mapping[str, Any]) -> str:
    "A line for each way: mean over days, in percent, of training and later."
    lines = []
    for participant, ways in found.items():
        for way, one in ways.items():
            for title, is_trained in (("days of training", True), ("later days", False)):
                parts = []
                for kind, rows in (("phonemes", one["days"]), ("words", one.get("word days"))):
                    if not rows:
                        continue
                    used = f"{kind} {mean_rate(rows, 'used', is_trained):.1f}"
                    if "before" in next(iter(rows.values())):
                        before, everywhere = (mean_rate(rows, side, is_trained) for side in ("before", "with"))
                        used += f", as trained {before:.1f}, adapted on all {everywhere:.1f}"
                    parts.append(used)
                lines.append(f"participant {participant}, {way}, {title}: {'; '.join(parts)}")
    return "\n".join(lines)


def harm(found: Mapping[str, Any], per_day: int) -> str:
    """A table, in Markdown: by how many points of word errors the decoder that is used differs from the one as trained,
    each day and each way of each participant; bold where it is worse beyond chance."""
    columns = {
        (participant, way): ways[f"{way}, {per_day} a day"]["word days"]
        for participant, ways in found.items()
        for way in WAYS
        if f"{way}, {per_day} a day" in ways
    }
    lines = ["| day | since training | " + " | ".join(", ".join(name) for name in columns) + " |"]
    lines.append("|---|--:|" + "--:|" * len(columns))
    last = day_number(session_names(TRAINED)[-1])
    for day in session_names(LATEST):
        cells = []
        for rows in columns.values():
            row = rows.get(day)
            if row is None:
                cells.append("")
                continue
            points = 100 * (row["used"] - row["before"])
            text = f"{points:+.1f}" if points else "0"
            is_certain = points > 0 and row.get("low", 0) > 0
            cells.append(f"**{text}**" if is_certain else text)
        since = day_number(day) - last
        lines.append(f"| {day.removeprefix('t15.')} | {since if since > 0 else 'trained'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(found: Mapping[str, Any], path: Path, per_day: int) -> None:
    "Phoneme errors by days since training, a panel for each participant."
    shown = {
        participant: {way: ways.get(f"{way}, {per_day} a day") for way in (*WAYS, *BESIDE)}
        for participant, ways in found.items()
        if f"without labels, {per_day} a day" in ways
    }
    columns = 3
    rows = -(-len(shown) // columns)
    fig, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.4 * rows), sharey=True, squeeze=False, layout="constrained", dpi=110
    )
    last = day_number(session_names(TRAINED)[-1])
    for axis, (participant, ways) in zip(axes.flat, shown.items()):
        for way, one in ways.items():
            if one is None:
                continue
            days = {day: row for day, row in one["days"].items() if day_number(day) > last}
            since = [day_number(day) - last for day in days]
            if way == "without labels":
                axis.plot(since, [100 * row["before"] for row in days.values()], ".-", color="0.6", label="as trained")
            style = {"color": "black", "linewidth": 1, "linestyle": LINES[way]} if way in BESIDE else {"marker": "."}
            axis.plot(since, [100 * row["used"] for row in days.values()], label=way, **style)
        axis.set(title=f"participant {participant}", xlabel="days since training", ylim=(0, None))
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
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
    own, known = (np.median(many[1:]) for many in seconds.values())
    adapt = learner.adapt
    return (f"{name}, {size:.0f} million parameters, {torch.get_num_threads()} threads: after a trial of 9 s "
            f"{own:.1f} s for its {adapt.steps} steps, {known:.1f} s for the {adapt.labelled_steps} of a known one; "
            f"{memory:,.0f} MB at most")


def ways_of(
    subject: Subject, per_day: int, settings: list[str], only: list[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    "Yield each way with its errors by day."
    if settings:
        changed = {name: json.loads(value) for name, _, value in (one.partition("=") for one in settings)}
        way = " ".join(settings)
        yield way, adapted(subject, per_day, way, replace(AdaptConfig(), **changed))
        return
    for way in only or (*WAYS, *BESIDE):
        if way in WAYS:
            yield way, adapted(subject, per_day, way, WAYS[way])
        else:
            yield way, BESIDE[way](subject, per_day)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--participants", default="11,13,14")
    parser.add_argument("--uncoupled", action="store_true", help="features do not hang together")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--set", nargs="*", default=[], help="another way alone, such as lr=0.001")
    parser.add_argument("--per-day", type=int, default=PER_DAY, help="sentences of a day that are scored")
    parser.add_argument("--only", nargs="*", help="some of the ways, such as 'without labels'")
    parser.add_argument("--live", nargs="*", metavar="DAY", help="live sessions of these days, such as 2024.02.25")
    parser.add_argument("--carry", action="store_true", help="sessions that go on from the one before, too")
    parser.add_argument("--noise", nargs="*", type=float, help="train with white noise of these strengths")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--costs", nargs="*", metavar="RECIPE", help="default: tiny, baseline, transformer")
    parser.add_argument("--json", type=Path, default=RESULTS / "months.json")
    options = parser.parse_args()
    if options.costs is not None:
        for name in options.costs or ("tiny", "baseline", "transformer"):  # the peak so far, so the smallest first
            print(costs(name), flush=True)
        return
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    for participant in options.participants.split(",") if options.folder else ():
        name = f"{participant}, uncoupled" if options.uncoupled else participant
        folder = options.folder / name.replace(", ", "_")
        subject = Subject(folder, int(participant), options.sentences, not options.uncoupled, options.steps)
        if options.noise:
            for noise in options.noise:
                run = subject.run(f"run_noise_{noise:g}", noise=noise)
                rows = as_trained(run, subject.scored(options.per_day))["days"]
                first, later = (mean_rate(rows, "used", is_trained) for is_trained in (True, False))
                print(f"participant {name}, noise {noise:g}: days of training {first:.1f}, later days {later:.1f} %")
        elif options.live:
            live(subject, [f"t15.{day}" for day in sorted(options.live)], options.carry)
        else:
            for way, one in ways_of(subject, options.per_day, options.set, options.only):
                found.setdefault(name, {})[f"{way}, {options.per_day} a day"] = one
                save_json(options.json, found)
    if options.noise or options.live:
        return
    print(summary(found))
    if options.figure:
        for per_day in FIGURES:
            figure(found, options.json.with_name(f"months_{per_day}.png"), per_day)
            print(harm(found, per_day))


if __name__ == "__main__":
    main()
