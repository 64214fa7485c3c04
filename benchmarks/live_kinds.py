"""Kinds of faulty streams, what would be right to say of each, and a program that sends them in real time.

    python benchmarks/live_kinds.py DEMO "sign flipped" --address 127.0.0.1:5560

It sends the validation recordings of the demo's last day, healthy for eight seconds, then faulty, then healthy again,
to whoever listens at the address, as `b2t live source` does, and prints a JSON line when a sentence, the fault or the
repair begins. `live_faults.py` starts it, and judges what a page says.

What is right was written down before any result was looked at.
"""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from b2t_kit.data.dataset import BIN_SECONDS, Recordings
from b2t_kit.live.rigs import _BIN_HEADER, StreamSender, to_message
from b2t_kit.live.sources import ParticipantSource, Piece
from b2t_kit.text.phonemes import SILENCE

HEALTHY = 400  # bins
FAULTY = 1300
AFTER = 1300  # at most: until a sentence is over that was said wholly after the repair
NUMBER = 10_000  # of the first bin of the fault, by the sender's counter
NUM_FEATURES = 512  # crossings of 256 electrodes, then their powers
rng = np.random.default_rng(5)
ORDER = rng.permutation(NUM_FEATURES)
GAINS = np.exp(rng.normal(0, 0.4, NUM_FEATURES))
SIGNS = rng.choice([-1.0, 1.0], NUM_FEATURES)
RISE = 2 * BIN_SECONDS / 60  # standard deviations a step, two a minute
ELECTRODE = np.arange(NUM_FEATURES) % 256
RANK = rng.permutation(256)[ELECTRODE] / 256  # of a feature's electrode, for a fraction of them

Message = list[bytes]
Values = Callable[[np.ndarray, int], np.ndarray]


def same(row: np.ndarray, step: int) -> np.ndarray:
    return row


def own_number(step: int, at: int) -> int:
    return at


def as_it_is(parts: Message, step: int) -> list[Message]:
    return [parts]


@dataclass(frozen=True)
class Kind:
    """What is wrong with a stream while the fault lasts, in steps from 0, and what would be right to say.

    "damaged no-data" means that either state is right; so does "live", if nothing is wrong enough to be told.
    "believed" means that the words judge: nothing needs to be told while four of five finished words are right, and
    "damaged", "unsure" or "untrusted" otherwise.
    """

    right: str
    within: float = 5.0  # seconds in which it should be told
    line: str = ""  # what the line should have besides, such as what to do
    values: Values = same  # (1, C) of a bin -> (1, C)
    picks: Callable[[int], Sequence[int]] = lambda step: (0,)  # bins sent at a step, counted from it
    number: Callable[[int, int], int] = own_number  # of a bin sent at a step; both counted from the fault's first
    stream: Callable[[int], int] = lambda step: 0  # another is a sender that starts again
    cue: Callable[[bool, int], bool] = lambda cue, step: cue
    wire: Callable[[Message, int], list[Message]] = as_it_is
    delay: Callable[[int], float] = lambda step: 0.0  # seconds that a step is late
    every: float = BIN_SECONDS  # seconds from a step to the next
    lasts: int = FAULTY  # steps
    rows: str = ""  # "other participant", "other day", "silence" or "no pauses" in place of the trials
    process: str = ""  # "kill", "stop" or "half-open": what becomes of the program itself, for eight seconds

    @property
    def foreign(self) -> bool:
        return self.rows == "other participant"

    @property
    def restarts(self) -> bool:
        "Return whether only a new start mends the sender; other faults end by themselves."
        return self.number is not own_number or self.wire is not as_it_is

    @property
    def well(self) -> bool:
        return self.right == "live"


def only(mask: np.ndarray, value: float) -> Values:
    return lambda row, step: np.where(mask, np.float32(value), row)


def electrodes(fraction: float, values: Values) -> Values:
    "Apply values to the features of a fraction of the electrodes."
    return lambda row, step: np.where(RANK < fraction, values(row, step), row)


def dead(row: np.ndarray, step: int) -> np.ndarray:
    return 0 * row


def permuted(row: np.ndarray, step: int) -> np.ndarray:
    return row[:, ORDER]


def noise(row: np.ndarray, step: int) -> np.ndarray:
    return rng.standard_normal(row.shape)


def hum(size: float, row: np.ndarray, step: int) -> np.ndarray:
    return row + size * np.sin(2.1 * step + 0.01 * np.arange(NUM_FEATURES))


def body(change: Callable[[np.ndarray], bytes]) -> Callable[[Message, int], list[Message]]:
    "Return a wire that writes the bins in another way."
    return lambda parts, step: [[parts[0], change(np.frombuffer(parts[1], "<f4")), *parts[2:]]]


def two_senders(parts: Message, step: int) -> list[Message]:
    "A second program sends noise to the same receiver, with numbers of its own."
    mark, stream, _, *rest = _BIN_HEADER.unpack(parts[0])
    other = rng.standard_normal(NUM_FEATURES).astype("<f4").tobytes()
    return [parts, [_BIN_HEADER.pack(mark, stream + 7, step, *rest), other, b""]]


def lost(fraction: float) -> Callable[[int], Sequence[int]]:
    return lambda step: () if rng.random() < fraction else (0,)


def late_by_chance(step: int) -> Sequence[int]:
    "Every tenth bin comes after the next one."
    return {0: (), 1: (0, -1)}.get(step % 10, (0,))


def in_chunks(bins: int) -> Callable[[int], float]:
    return lambda step: BIN_SECONDS * (bins - 1 - step % bins)


FIRST = np.arange(NUM_FEATURES) == 37
WORDS_WITHIN = 20.0  # seconds: two sentences, which is what a judgement of words takes
KINDS = {
    "no fault": Kind("live"),
    # single bins and features, and pauses: nothing that a sentence should stop for
    "NaN in one feature": Kind("live", line="without 1 of 512", values=only(FIRST, np.nan)),
    "1e4 in one feature": Kind("live", line="without 1 of 512", values=only(FIRST, 1e4)),
    "1e30 in one feature": Kind("live", line="without 1 of 512", values=only(FIRST, 1e30)),
    "1 % of the bins NaN": Kind("live", values=lambda row, step: row * (np.nan if step % 100 == 50 else 1)),
    "loss of 1 %": Kind("live", picks=lost(0.01)),
    "10 % late by a bin": Kind("live", picks=late_by_chance),
    "10 % twice, with their number": Kind("live", picks=lambda step: (0, 0) if step % 10 == 0 else (0,)),
    "jitter of 15 ms": Kind("live", delay=lambda step: 0.03 * rng.random()),
    "lag of 500 ms": Kind("live", delay=lambda step: 0.5),
    "ten bins at a time": Kind("live", delay=in_chunks(10)),
    "fifty bins at a time": Kind("live", delay=in_chunks(50)),
    "network stands still for 3 s": Kind("live no-data", delay=lambda step: 3.0 * (step == 100)),
    "5 s of bins are lost at once": Kind("live no-data", picks=lambda step: () if 100 <= step < 350 else (0,)),
    "steps of 0.25": Kind("live", values=lambda row, step: np.round(4 * row) / 4),
    "noise of 0.3 more": Kind("live", values=lambda row, step: row + 0.3 * noise(row, step)),
    "5 % slow": Kind("live", every=BIN_SECONDS * 1.05),
    "5 % fast": Kind("live", every=BIN_SECONDS / 1.05),
    "1 % of the electrodes dead": Kind("live", values=electrodes(0.01, dead)),
    "sender starts again once": Kind("live", stream=lambda step: 1, number=lambda step, at: step),
    # ends of sentences
    "cue on every bin": Kind("live", line="cues come all the time", cue=lambda cue, step: True),
    "no cue": Kind("live", cue=lambda cue, step: False),  # silence ends them
    "cues at random": Kind("live", cue=lambda cue, step: rng.random() < 0.02),  # a person may press it
    "silence": Kind("live", rows="silence"),  # and no word is made of it
    "speech that never ends": Kind("live", rows="no pauses", cue=lambda cue, step: False),
    # numbers and bins that are not the next ones
    "loss of 10 %": Kind("live damaged", picks=lost(0.1)),
    "loss of 30 %": Kind("damaged", picks=lost(0.3)),
    "half a second of three lost": Kind("damaged", picks=lambda step: () if step % 150 < 25 else (0,)),
    "every second bin, numbered as all": Kind("damaged", picks=lambda step: (0,) if step % 2 else ()),
    "every second bin, numbered anew": Kind(
        "damaged", picks=lambda step: (0,) if step % 2 else (), number=lambda step, at: step // 2
    ),
    "every third bin, as fast as all": Kind(  # speech three times as fast: only its words can tell
        "believed", WORDS_WITHIN, picks=lambda step: (2 * step,), number=lambda step, at: step, lasts=FAULTY // 3
    ),
    "every bin twice, as fast as all": Kind(
        "damaged", picks=lambda step: (step // 2 - step,), number=lambda step, at: step
    ),
    "every bin twice, 100 a second": Kind(
        "damaged", picks=lambda step: (step // 2 - step,), number=lambda step, at: step, every=0.01
    ),
    "ten bins again and again": Kind("damaged", picks=lambda step: (step % 10 - step,), number=lambda step, at: step),
    "time reversed in half seconds": Kind(
        "believed", WORDS_WITHIN, picks=lambda step: (24 - 2 * (step % 25),), number=lambda step, at: step
    ),
    "number stands still": Kind("damaged", number=lambda step, at: 0),
    "number runs back": Kind("damaged", number=lambda step, at: -step),
    "number of 2^63": Kind("refused damaged", number=lambda step, at: 2**63),
    "number counts samples": Kind("damaged", line="go up by 600", number=lambda step, at: 600 * step),
    "number jumps back to 0": Kind("live", number=lambda step, at: step - NUMBER),  # a counter that wraps
    "starts again each half second": Kind("damaged", stream=lambda step: 1 + step // 25),
    "two senders at once": Kind("damaged", wire=two_senders),
    # messages
    "256 features": Kind("refused", line="512 wanted", values=lambda row, step: row[:, :256]),
    "float64": Kind("refused", wire=body(lambda row: row.astype("<f8").tobytes())),
    "big-endian": Kind("damaged", wire=body(lambda row: row.astype(">f4").tobytes())),
    "foreign messages": Kind("refused", wire=lambda parts, step: [[b"not", b"ours"]]),
    # values that no healthy z-score has
    "NaN": Kind("damaged", line="NaN", values=lambda row, step: row * np.nan),
    "infinite": Kind("damaged", line="NaN or enormous", values=lambda row, step: row * np.inf),
    "NaN in 40 % of the features": Kind("damaged", line="NaN", values=electrodes(0.4, lambda row, step: row * np.nan)),
    "NaN in 30 % of the bins": Kind(
        "damaged", line="NaN", values=lambda row, step: row * (np.nan if step % 10 < 3 else 1)
    ),
    "raw counts": Kind("damaged", line="z-score them", values=lambda row, step: np.abs(3 * row).round()),
    "ten times as large": Kind("damaged", line="z-score them", values=lambda row, step: 10 * row),
    "a tenth as large": Kind("damaged", line="z-score them", values=lambda row, step: row / 10),
    "twice as large": Kind("believed", WORDS_WITHIN, values=lambda row, step: 2 * row),
    "clipped at 1": Kind("believed", WORDS_WITHIN, values=lambda row, step: np.clip(row, -1, 1)),
    "hum of 8": Kind("damaged", line="swing together", values=lambda row, step: hum(8, row, step)),
    "hum of 2": Kind("damaged believed", WORDS_WITHIN, values=lambda row, step: hum(2, row, step)),
    "movement, a second of four": Kind(
        "damaged", values=lambda row, step: row + 15 * noise(row[:, :1], step) * (step % 200 < 50)
    ),
    "the same values": Kind("damaged", line="same value", picks=lambda step: (-step,), number=lambda step, at: step),
    # electrodes
    "10 % of the electrodes dead": Kind("believed", WORDS_WITHIN, values=electrodes(0.1, dead)),
    "25 % of the electrodes dead": Kind("damaged", line="same value", values=electrodes(0.25, dead)),
    "50 % of the electrodes dead": Kind("damaged", line="same value", values=electrodes(0.5, dead)),
    "one array dead": Kind("damaged", line="array 2", values=only(ELECTRODE // 64 == 1, 0.0)),
    "10 % of the electrodes new": Kind("believed", WORDS_WITHIN, values=electrodes(0.1, permuted)),
    "25 % of the electrodes new": Kind("believed", WORDS_WITHIN, values=electrodes(0.25, permuted)),
    "50 % of the electrodes new": Kind("believed", WORDS_WITHIN, values=electrodes(0.5, permuted)),
    # another brain, order, sign or scale: only the words can tell
    "noise only": Kind("unsure untrusted", WORDS_WITHIN, values=noise),
    "noise of 2 more": Kind("believed", WORDS_WITHIN, values=lambda row, step: row + 2 * noise(row, step)),
    "other participant": Kind("unsure untrusted", WORDS_WITHIN, rows="other participant"),
    "other day": Kind("believed", WORDS_WITHIN, rows="other day"),
    "sign flipped": Kind("unsure untrusted", WORDS_WITHIN, values=lambda row, step: -row),
    "channels permuted": Kind("unsure untrusted", WORDS_WITHIN, values=permuted),
    "channels shifted by one": Kind("unsure untrusted", WORDS_WITHIN, values=lambda row, step: np.roll(row, 1, 1)),
    "arrays swapped": Kind(
        "believed", WORDS_WITHIN, values=lambda row, step: np.roll(row.reshape(4, 128), 1, 0).reshape(1, NUM_FEATURES)
    ),
    "kinds swapped": Kind("believed", WORDS_WITHIN, values=lambda row, step: np.roll(row, 256, 1)),
    "offset of 0.5": Kind("believed", WORDS_WITHIN, values=lambda row, step: row + 0.5),
    "offset of 1.4": Kind("unsure untrusted damaged", WORDS_WITHIN, values=lambda row, step: row + 1.4),
    "another decoder's normalisation": Kind(
        "believed", WORDS_WITHIN, values=lambda row, step: GAINS * row + 0.5 * (ORDER / 256 - 1)
    ),
    "drift up, 2 SD a minute": Kind(
        "live unsure damaged", 30.0, "drift", lambda row, step: row + RISE * step, lasts=2 * FAULTY
    ),
    "drift up and down, 2 SD a minute": Kind(
        "live unsure damaged", 30.0, "drift", lambda row, step: row + RISE * SIGNS * step, lasts=2 * FAULTY
    ),
    # rates; bins of another length are the first two and every second bin
    "100 bins a second": Kind("damaged", line="50 wanted", every=0.01, lasts=2 * FAULTY // 3),
    "10 bins a second": Kind("damaged", 6.0, "50 wanted", every=0.1, lasts=200),
    "40 bins a second": Kind("believed damaged", WORDS_WITHIN, every=0.025),
    "60 bins a second": Kind("believed damaged", WORDS_WITHIN, every=1 / 60),
    # programs and networks
    "killed, and started after 8 s": Kind("no-data", line="has gone", process="kill"),
    "SIGSTOP for 8 s": Kind("no-data", process="stop", lasts=500),
    "half-open for 8 s": Kind("no-data", process="half-open", lasts=500),  # the connection stands, and nothing passes
}


def load(folder: Path, day: str | None = None) -> tuple[str, list[tuple[np.ndarray, str]]]:
    "The last day of some recordings, and its validation trials."
    with Recordings(folder, "val") as recordings:
        day = day or recordings.infos[-1].session
        chosen = [index for index, info in enumerate(recordings.infos) if info.session == day]
        return day, [(recordings.features(index), recordings.infos[index].sentence or "") for index in chosen]


@dataclass(frozen=True)
class Script:
    "What a stream is made of before anything is wrong with it."

    rows: np.ndarray  # (N, C) float32
    begins: dict[int, str]  # sentences, by their first bin
    ends: dict[int, str]  # and by their last


def script(trials: Iterable[tuple[np.ndarray, str]]) -> Script:
    "Return trials one after the other."
    rows = list[np.ndarray]()
    begins = dict[int, str]()
    ends = dict[int, str]()
    start = 0
    for features, said in trials:
        begins[start] = said
        start += len(features)
        ends[start - 1] = said
        rows.append(features)
    return Script(np.concatenate(rows), begins, ends)


def joined(*parts: tuple[Script, int]) -> Script:
    "Return the first so many bins of each script, one after the other."
    rows = list[np.ndarray]()
    begins = dict[int, str]()
    ends = dict[int, str]()
    start = 0
    for part, count in parts:
        rows.append(part.rows[:count])
        begins |= {start + at: said for at, said in part.begins.items() if at < count}
        ends |= {start + at: said for at, said in part.ends.items() if at < count}
        start += count
    return Script(np.concatenate(rows), begins, ends)


def instead(kind: Kind, data: Path, stranger: Path, trials: list) -> Script:
    "Return what is said in place of the trials while the fault lasts."
    if kind.foreign:
        return script(load(stranger)[1])
    if kind.rows == "other day":
        with Recordings(data, "val") as recordings:
            first = recordings.infos[0].session
        return script(load(data, first)[1])
    if kind.rows == "silence":
        participant = ParticipantSource(data)
        quiet = participant.day.say((SILENCE,) * 120, rng, len(participant.day))[0]
        return script([(participant.simulator.zscore(quiet, participant.moments), "")])
    return script([(features[25:-35], said) for features, said in trials])  # no pauses


def prepared(kind: Kind, data: Path, stranger: Path, bins: int) -> Script:
    "Return so many bins, HEALTHY of them before the fault."
    _, trials = load(data)
    many = trials * (1 + bins // sum(len(features) for features, _ in trials))
    if not kind.rows:
        return script(many)
    other = instead(kind, data, stranger, trials)
    return joined((script(trials), HEALTHY), (other, kind.lasts), (script(trials[2:]), AFTER))


class Rig:
    "A program that sends a stream, and says on its standard output what it does."

    def __init__(self, kind: Kind, plan: Script, address: str) -> None:
        self.kind = kind
        self.plan = plan
        self.sender = StreamSender(address)
        self.told = 0  # bins whose sentences were told
        self.reached = -1  # the newest bin of the fault that was sent
        self.due = 0.0  # when the next bin is over, by time.perf_counter

    def tell(self, event: str, said: str = "") -> None:
        print(json.dumps({"event": event, "said": said, "time": time.time()}), flush=True)

    def wait(self, late: float = 0.0) -> None:
        time.sleep(max(0.0, self.due + late - time.perf_counter()))

    def send(self, at: int, row: np.ndarray, number: int, stream: int, cue: bool, step: int | None) -> None:
        "Send a bin, counted from the fault's first, and say which sentence begins."
        index = HEALTHY + at
        for first in range(self.told, index + 1):
            if first in self.plan.begins:
                self.tell("sentence", self.plan.begins[first])
        self.told = max(self.told, index + 1)
        said = self.plan.ends.get(index, "") if cue else ""
        piece = Piece(number, row, 0.0, self.sender.stream + stream, cue, said)
        parts = to_message(piece)
        for message in [parts] if step is None else self.kind.wire(parts, step):
            self.sender.socket.send_multipart(message)

    def send_well(self, first: int, end: int, number: int, stream: int) -> None:
        "Send the bins from one to another as they are; the first one has this number."
        for at in range(first, end):
            self.due += BIN_SECONDS
            self.wait()
            row = self.plan.rows[HEALTHY + at][None]
            self.send(at, row, number + at - first, stream, HEALTHY + at in self.plan.ends, None)

    def send_fault(self, step: int) -> None:
        kind = self.kind
        self.due += kind.every
        self.wait(kind.delay(step))
        for pick in kind.picks(step):
            at = max(step + pick, -HEALTHY)
            with np.errstate(all="ignore"):
                row = np.asarray(kind.values(self.plan.rows[HEALTHY + at][None], step), np.float32)
            cue = kind.cue(HEALTHY + at in self.plan.ends, step)
            number = max(NUMBER + kind.number(step, at), 0)
            self.send(at, row, number, kind.stream(step), cue, step)
            self.reached = max(self.reached, at)

    def run(self) -> None:
        self.due = time.perf_counter()
        self.send_well(-HEALTHY, 0, NUMBER - HEALTHY, 0)
        self.tell("fault")
        for step in range(self.kind.lasts):
            self.send_fault(step)
        self.repair(self.reached + 1)

    def repair(self, first: int) -> None:
        "Send what comes after the fault; a sender that had to be started again counts anew."
        kind = self.kind
        self.tell("repair")
        again = kind.restarts or kind.process == "kill"
        stream = 1000 if again else kind.stream(kind.lasts)
        whole = min(at for at in self.plan.begins if at > HEALTHY + first + 25)
        end = min(at for at in self.plan.ends if at > whole) + 60 - HEALTHY
        self.send_well(first, end, 0 if again else NUMBER + first, stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--stranger", type=Path, help="recordings of another participant")
    parser.add_argument("--address", default="127.0.0.1:5560")
    parser.add_argument("--bins", type=int, help="of the fault")
    parser.add_argument("--repaired", action="store_true", help="only what comes after the fault")
    options = parser.parse_args()
    kind = KINDS[options.kind]
    if options.bins:
        kind = replace(kind, lasts=options.bins)
    plan = prepared(kind, options.data, options.stranger, HEALTHY + kind.lasts + AFTER)
    rig = Rig(kind, plan, options.address)
    rig.sender.wait_for_receiver(threading.Event())
    if options.repaired:
        rig.due = time.perf_counter()
        rig.told = max(at for at in plan.begins if at <= HEALTHY + kind.lasts)
        rig.repair(kind.lasts)
    else:
        rig.run()
    rig.tell("end")
    time.sleep(1.0)


if __name__ == "__main__":
    main()
