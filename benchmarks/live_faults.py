"""Faulty live streams in real time: what is said of each, how soon, and what becomes of its words.

    b2t demo --out DEMO
    python benchmarks/live_faults.py DEMO [--kinds NAME ...] [--healthy MINUTES]

Each stream is the demo's validation recordings, healthy for eight seconds and then faulty for sixteen. A row says what
states were shown, how many seconds after the first faulty bin the session first said something else than "live",
and of the sentences that ended while the stream was faulty: words of finished ones, how many of these are right, how
many are spoken aloud, and of how many sentences no words were finished. `--healthy` plays so many minutes without a
fault and prints every alarm.
"""
import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein

from b2t_kit.data.dataset import BIN_SECONDS, Recordings
from b2t_kit.live.session import LiveSession, Moment, open_decoder
from b2t_kit.live.sources import LiveSource, Piece
from b2t_kit.simulate.recordings import SimulateConfig, simulate
from b2t_kit.text.phonemes import normalise

HEALTHY, FAULTY = 400, 800  # bins
rng = np.random.default_rng(5)
ORDER = rng.permutation(512)
ODD = np.arange(512) % 2 == 1


def same(row: np.ndarray, bin: int) -> np.ndarray:
    return row


@dataclass(frozen=True)
class Kind:
    "What is wrong with a stream."
    values: Callable[[np.ndarray, int], np.ndarray] = same  # (1, C) of a bin of the fault, counted from 0
    number: Callable[[int], int] = int  # the sender's number of a bin of the fault
    cue: Callable[[bool], bool] = bool
    pause: float = 0.0  # seconds in which nothing arrives, once; then all comes at once
    every: float = BIN_SECONDS  # seconds from a bin to the next
    lasts: int = FAULTY  # bins
    restarts: bool = False  # the sender starts again when the fault is over
    foreign: bool = False  # bins of another participant
    well: bool = False  # no fault: words should go on


def only(mask: np.ndarray, value: float) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda row, bin: np.where(mask, np.float32(value), row)


FIRST = np.arange(512) == 37
KINDS = {
    "no fault": Kind(well=True),
    "NaN in one feature": Kind(only(FIRST, np.nan), well=True),
    "1e4 in one feature": Kind(only(FIRST, 1e4), well=True),
    "network stands still for 3 s": Kind(pause=3.0, well=True),
    "sleep of 5 s": Kind(pause=5.0, well=True),
    "cue on every bin": Kind(cue=lambda cue: True),
    "number stands still": Kind(number=lambda bin: 0),
    "number runs back": Kind(number=lambda bin: -bin),
    "number of 2^63": Kind(number=lambda bin: 2**63),
    "number counts samples": Kind(number=lambda bin: 600 * bin),
    "100 bins a second": Kind(every=0.01),
    "10 bins a second": Kind(every=0.1),
    "NaN for 8 s, sender repaired": Kind(lambda row, bin: row * np.nan, lasts=400, restarts=True),
    "hum of 8": Kind(lambda row, bin: row + np.float32(8 * np.sin(2.1 * bin + 0.01 * np.arange(512)))),
    "hum of 2": Kind(lambda row, bin: row + np.float32(2 * np.sin(2.1 * bin + 0.01 * np.arange(512)))),
    "quarter of the features flat": Kind(only(np.arange(512) < 128, 0.0)),
    "raw counts": Kind(lambda row, bin: np.abs(3 * row).round()),
    "noise only": Kind(lambda row, bin: rng.standard_normal(row.shape).astype(np.float32)),
    "other participant": Kind(foreign=True),
    "sign flipped": Kind(lambda row, bin: -row),
    "channels permuted": Kind(lambda row, bin: row[:, ORDER]),
    "channels shifted by one": Kind(lambda row, bin: np.roll(row, 1, 1)),
    "arrays swapped": Kind(lambda row, bin: np.roll(row.reshape(4, 128), 1, 0).reshape(1, 512)),
    "kinds swapped": Kind(lambda row, bin: np.roll(row, 256, 1)),
    "offset of 1.4": Kind(lambda row, bin: row + np.float32(1.4)),
    "half of the features drawn from others": Kind(lambda row, bin: np.where(ODD, row[:, ORDER], row)),
}


def load(folder: Path, day: str | None = None) -> tuple[str, list[tuple[np.ndarray, str]]]:
    "The last day of some recordings, and its validation trials."
    with Recordings(folder, "val") as recordings:
        day = day or recordings.infos[-1].session
        chosen = [index for index, info in enumerate(recordings.infos) if info.session == day]
        return day, [(recordings.features(index), recordings.infos[index].sentence or "") for index in chosen]


class Faulty(LiveSource):
    "Trials one after the other in real time, with a fault."
    num_features = 512

    def __init__(self, kind: Kind, trials: list, others: list, bins: int) -> None:
        self.kind, self.trials, self.bins = kind, trials, bins
        self.others = np.concatenate([features for features, _ in others])
        self.began: float | None = None  # when the fault began

    def pieces(self, stop: threading.Event) -> Iterator[Piece]:
        kind, sent, due = self.kind, 0, time.perf_counter()
        paused = -1
        while sent < self.bins:
            for features, said in self.trials:
                for at, row in enumerate(features):
                    fault, stream = sent - HEALTHY, 1
                    is_faulty = 0 <= fault < kind.lasts
                    row, number, is_last = row[None], sent, at + 1 == len(features)
                    cue = is_last
                    if is_faulty:
                        self.began = self.began or time.perf_counter()
                        row = kind.values(self.others[None, fault % len(self.others)] if kind.foreign else row, fault)
                        number = HEALTHY + kind.number(fault)
                        cue = kind.cue(cue)
                    if fault >= kind.lasts and kind.restarts:
                        stream, number = 2, fault - kind.lasts
                    due += kind.every if is_faulty else BIN_SECONDS
                    if kind.pause and fault == 100 and paused != sent:
                        paused = sent
                        time.sleep(kind.pause)
                    stop.wait(max(0.0, due - time.perf_counter()))
                    if stop.is_set():
                        return
                    bins = np.ascontiguousarray(row, np.float32)
                    yield Piece(number, bins, time.perf_counter(), stream, cue, said if is_last else "")
                    sent += 1
                if sent >= self.bins:
                    return


class Seen:
    "A watcher that notes states and finished sentences."

    def __init__(self, source: Faulty) -> None:
        self.source, self.first, self.finals = source, None, []
        self.states: dict[str, str] = {}  # the first line of each state other than "live"

    def show(self, moment: Moment) -> None:
        now = time.perf_counter()
        if self.source.began and moment.status.name not in ("live", "late") and not moment.over and self.first is None:
            self.first = now - self.source.began
        if not moment.over and moment.status.text != "live":
            self.states.setdefault(moment.status.name, moment.status.text)
        for update in moment.updates:
            if update.final and self.source.began and self.source.began < now:
                spoken = not (moment.fault or getattr(moment, "unsure", ""))
                self.finals.append((update.sentence.split(), normalise(moment.said).split(),
                                    bool(moment.fault), spoken))

    def shown(self) -> str:
        "The states shown, but those before the first bin and after the last one."
        return "; ".join(text for name, text in self.states.items() if name not in ("warming up", "waiting"))


def play(decoder, kind: Kind, trials: list, others: list, bins: int) -> Seen:
    source = Faulty(kind, trials, others, bins)
    seen = Seen(source)
    LiveSession(decoder, source, [seen]).run()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--run", type=Path, help="another run than the demo's decoder")
    parser.add_argument("--data", type=Path, help="its recordings")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--healthy", type=float, default=0.0, help="minutes")
    options = parser.parse_args()
    data = options.data or options.demo / "data"
    day, trials = load(data)
    decoder = open_decoder(options.run or options.demo / "decoder", day, exclude=tuple(said for _, said in trials))
    decoder.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        other = SimulateConfig(sessions=1, trials=24, seed=99, difficulty=0.5, bins_per_phoneme=18.0)
        simulate(folder + "/data", other, progress=False)
        _, others = load(Path(folder) / "data")
    if options.healthy:
        seen = play(decoder, Kind(well=True), trials, others, int(options.healthy * 60 / BIN_SECONDS))
        print(f"{len(seen.finals)} sentences, states: {seen.shown() or 'live'}; "
              f"{sum(not spoken for *_, spoken in seen.finals)} not spoken, "
              f"{sum(one[2] for one in seen.finals)} not finished")
        return
    print("| stream | states shown | told after | words finished | right | spoken | sentences not finished |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name in options.kinds:
        seen = play(decoder, KINDS[name], trials, others, HEALTHY + FAULTY)
        finished = [one for one in seen.finals if not one[2]]
        words = sum(len(words) for words, *_ in finished)
        right = sum(len(words) - min(Levenshtein.distance(words, said), len(words)) for words, said, *_ in finished)
        spoken = sum(len(words) for words, *_, spoken in finished if spoken)
        told = "" if seen.first is None else f"{seen.first:.1f} s"
        print(f"| {name} | {seen.shown()[:160] or 'live'} | {told} | {words} | {right} | {spoken} | "
              f"{len(seen.finals) - len(finished)} |", flush=True)


if __name__ == "__main__":
    main()
