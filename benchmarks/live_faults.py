"""What faults of a live stream cost in errors, and what ten minutes of them and of slow pages do to a session.

    python benchmarks/live_faults.py RUN DATA [--seeds 3] [--trials 72] [--json FILE]

RUN is a trained run and DATA its recordings, such as `demo/decoder` and `demo/data` of `b2t demo`. The first --trials
validation trials of each day are cut into single bins, disturbed by each fault of `INJECTED`, repaired by a
bridge that repeats the last bin, by one that puts zeros, or not at all, and decoded live. Arrival times are those of
real time, but nothing waits for them. Phoneme errors are of the most likely path, word errors of the final sentence.
--seeds draws each fault anew; how often `Quality` calls a stream damaged is counted.

    python benchmarks/live_faults.py RUN DATA --minutes 10 [--json FILE]

decodes a stream for so long instead, over a real socket, in real time. Every 40 seconds the sender is killed in a
sentence and started again (at once, or after three seconds, in turn), or says that it ends. One page reads at once, one
draws each message a second late, and one never reads.
"""
import argparse
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from b2t_kit.data.dataset import BIN_SECONDS, Recordings
from b2t_kit.decode.decode import known_sentences
from b2t_kit.decode.stream import StreamConfig, StreamDecoder
from b2t_kit.live.page import PageServer
from b2t_kit.live.repair import Bridge, Quality, count_repairs
from b2t_kit.live.session import LiveSession, Moment, open_decoder
from b2t_kit.live.sources import Piece, RecordingSource, StreamSender, StreamSource
from b2t_kit.models.model import collapse
from b2t_kit.text.metrics import edit_distance
from b2t_kit.text.phonemes import normalise

WAYS = ("repeat", "zero", "no bridge")
FAULT_RATE = 0.01  # share of the pieces that a fault meets
BURST = 25  # bins that are lost together: 500 ms
BETWEEN = 500  # bins from one burst or restart to the next, on average


def _lost(piece: Piece) -> list[Piece]:
    "A cue is a separate event and is not lost with the bins."
    return [replace(piece, first=piece.end, bins=piece.bins[:0])] if piece.cue else []


def _lose(pieces: Iterable[Piece], rng: np.random.Generator) -> Iterator[Piece]:
    "One piece in a hundred does not come."
    for piece in pieces:
        yield from _lost(piece) if rng.random() < FAULT_RATE else [piece]


def _lose_bursts(pieces: Iterable[Piece], rng: np.random.Generator) -> Iterator[Piece]:
    "Every ten seconds, 500 ms do not come."
    left = 0
    for piece in pieces:
        left = BURST if not left and rng.random() < 1 / BETWEEN else left
        yield from _lost(piece) if left else [piece]
        left = max(left - 1, 0)

def _delay(
    pieces: Iterable[Piece],
    rng: np.random.Generator,
    pieces_later: int,  # by how many pieces one is overtaken
    share: float = FAULT_RATE,
) -> Iterator[Piece]:
    "Some pieces are overtaken."
    slow: list[tuple[int, Piece]] = []  # position at which it arrives
    now = 0.0
    for place, piece in enumerate(pieces):
        now = piece.arrived
        if rng.random() < share and not piece.cue:
            slow.append((place + pieces_later, piece))
        else:
            yield piece
        due = [one for one in slow if one[0] <= place]
        slow = [one for one in slow if one[0] > place]
        yield from (replace(one, arrived=now) for _, one in due)
    yield from (replace(one, arrived=now) for _, one in slow)


def _repeat(pieces: Iterable[Piece], rng: np.random.Generator) -> Iterator[Piece]:
    "One piece in a hundred comes twice."
    for piece in pieces:
        yield from [piece, replace(piece, cue=False)] if rng.random() < FAULT_RATE else [piece]

def _damage(pieces: Iterable[Piece], rng: np.random.Generator) -> Iterator[Piece]:
    "One piece in a hundred has NaN or infinity in a tenth of its features."
    for piece in pieces:
        if rng.random() < FAULT_RATE:
            wrong = rng.random(piece.bins.shape) < 0.1
            value = rng.choice(np.float32([np.nan, np.inf, -np.inf]))
            piece = replace(piece, bins=np.where(wrong, value, piece.bins))
        yield piece


def _restart(pieces: Iterable[Piece], rng: np.random.Generator) -> Iterator[Piece]:
    "Every ten seconds, the sender starts again: 300 ms do not come, and it counts from 0."
    stream, offset, left = 1, 0, 0
    for piece in pieces:
        if not left and rng.random() < 1 / BETWEEN:
            stream, left = stream + 1, 15
            offset = piece.first + left
        if not left:
            yield replace(piece, stream=stream, first=piece.first - offset)
        elif piece.cue:
            yield replace(piece, stream=stream, first=0, bins=piece.bins[:0])
        left = max(left - 1, 0)

INJECTED: dict[str, Callable[[Iterable[Piece], np.random.Generator], Iterator[Piece]]] = {
    "loss of 1 %": _lose,
    "bursts of 500 ms": _lose_bursts,
    "5 % out of order": lambda pieces, rng: _delay(pieces, rng, 2, 0.05),
    "1 % late by 200 ms": lambda pieces, rng: _delay(pieces, rng, 10),
    "1 % twice": _repeat,
    "1 % with NaN": _damage,
    "restart of the sender": _restart,
}


def inject(
    pieces: Iterable[Piece],  # single bins, numbered from 0
    fault: str,  # a key of `INJECTED`
    seed: int = 0,
) -> Iterator[Piece]:
    "Yield the pieces with a fault, always the same for a seed."
    return INJECTED[fault](pieces, np.random.default_rng(seed))


def stream_of(data: str, session: str, trials: int) -> list[Piece]:
    "A day's validation trials as single bins with the times of a real recording."
    pieces = RecordingSource(data, session=session, trials=trials, pace=0).pieces(threading.Event())
    return [replace(one, arrived=0.02 * one.end) for one in pieces]


def unbridged(pieces: Iterable[Piece]) -> Iterable[Piece]:
    "What a receiver makes of a stream that concatenates what comes; NaN has to become something, here 0."
    for one in pieces:
        yield replace(one, bins=np.nan_to_num(one.bins, posinf=0, neginf=0))


def bridged(pieces: Iterable[Piece], bridge: Bridge) -> Iterable[Piece]:
    for one in pieces:
        yield from bridge.take(one)


def errors(decoder: StreamDecoder, pieces: Iterable[Piece], labels: list[list[int]]) -> np.ndarray:
    "Phoneme errors, phonemes, word errors and words; a sentence that never ended counts as empty."
    total, number = np.zeros(4, int), 0
    words: list[str] = []
    heard: list[int] = []
    for piece in pieces:
        if len(piece.bins):
            decoder.push(piece.bins)
        if piece.cue:  # a restart of the sender ends a sentence too; what follows is the rest of the same recording
            found = [one for one in decoder.end(piece.reason) if one.final]
            words += found[-1].sentence.split() if found else []
            heard += collapse(decoder.logits.argmax(1)) if found else []
        if piece.cue and piece.reason == "cue":
            said = normalise(piece.said).split()
            total += (edit_distance(labels[number], heard), len(labels[number]), edit_distance(said, words), len(said))
            number, words, heard = number + 1, [], []
    assert number == len(labels)
    return total


def alarms(pieces: Iterable[Piece]) -> Counter:
    "What `Quality` says of a stream, by how many of its pieces."
    quality, found = None, Counter()
    for piece in pieces:
        quality = quality or Quality(piece.bins.shape[1], zscored=True)
        if len(piece.bins) and (fault := quality.take(piece)):
            found[fault.lstrip("0123456789")] += 1
    return found


def never_reading(server: PageServer) -> socket.socket:
    "A page's connection that will never read."
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", server.port))
    own = f"127.0.0.1:{server.port}"
    reader.sendall((f"GET /stream HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\nUpgrade: websocket\r\n"
                    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
    return reader


def sending(data: str, port: int, stop: threading.Event, counts: Counter) -> None:
    "A sender that is killed, or ends, every 40 seconds, and starts again."
    for turn in itertools.count():
        until, source, sender = time.monotonic() + 40, RecordingSource(data), StreamSender(f"127.0.0.1:{port}")
        sender.wait_for_receiver(stop)
        for piece in source.pieces(stop):
            sender.send(piece)
            if time.monotonic() > until and not piece.cue:
                break
        if turn % 3 == 2:
            sender.send(replace(piece, first=piece.end, bins=piece.bins[:0]), end=True)
        counts[("killed, started at once", "killed, started after 3 s", "ended")[turn % 3]] += 1
        counts["dropped"] += sender.dropped
        sender.close()
        if stop.wait(3.0 if turn % 3 else 0.0):
            return


def reading(server: PageServer, late: float, stop: threading.Event) -> dict:
    "A page that draws each message so late; returns what it saw."
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    seen = {"draws late by": late, "messages": 0, "seconds behind, at most": 0.0, "states": []}
    url = f"127.0.0.1:{server.port}"

    def read() -> None:
        with suppress(ConnectionClosed), connect(f"ws://{url}/stream", origin=f"http://{url}", max_size=None) as page:
            while not stop.is_set():
                message = json.loads(page.recv())
                time.sleep(late)
                behind = (server.session.bins - message["bins"]) * BIN_SECONDS
                seen["messages"] += 1
                seen["seconds behind, at most"] = round(max(seen["seconds behind, at most"], behind), 2)
                if message["state"] not in seen["states"]:
                    seen["states"].append(message["state"])
                page.send(json.dumps({"ask": "shown", "text": str(message["number"])}))

    threading.Thread(target=read, daemon=True).start()
    return seen


def for_minutes(run: str, data: str, minutes: float) -> dict:
    "What a session of so many minutes did."
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    day = RecordingSource(data).session
    decoder = open_decoder(run, day, config=StreamConfig(end_silence=0), exclude=known_sentences(data))
    session = LiveSession(decoder, StreamSource(f"127.0.0.1:{port}", stays=True))
    stop, counts, reasons, memory = threading.Event(), Counter(), Counter(), []

    class Reasons:
        def show(self, moment: Moment) -> None:
            reasons.update(one.reason for one in moment.updates if one.final)

    session.watchers.append(Reasons())
    with PageServer(session, port=0) as server:
        pages = [reading(server, late, stop) for late in (0.0, 1.0)]
        silent = never_reading(server)
        threading.Thread(target=sending, args=(data, port, stop, counts), daemon=True).start()
        running = threading.Thread(target=session.run)
        running.start()
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and running.is_alive():
            time.sleep(30)
            memory.append(round(psutil.Process().memory_info().rss / 1e6))
            print(f"{session.bins * BIN_SECONDS:.0f} s decoded, {memory[-1]} MB, {session.status().text}", flush=True)
        stop.set()
        session.request("stop")
        running.join(10)
        silent.close()
    times = {name: round(1000 * value, 1) for name, value in session.ledger.summary()["words"].items()}
    return {"minutes": minutes, "decoded s": round(session.bins * BIN_SECONDS), "sender": dict(counts),
            "repairs": session.counted(), "sentences": session.finals, "ended by": dict(reasons), "ms": times,
            "frames": session.ledger.count, "late": session.ledger.late, "MB, every 30 s": memory,
            "pages": pages, "load": psutil.getloadavg()}


def measured(days: dict, labels: dict, seeds: int) -> tuple[np.ndarray, list[dict]]:
    "Errors without faults, and a row for each fault."
    clean, rows = sum(errors(decoder, pieces, labels[day]) for day, (decoder, pieces) in days.items()), []
    print("called damaged without faults:", dict(sum((alarms(one) for _, one in days.values()), Counter())), flush=True)
    print(f"none: phonemes {clean[0]}/{clean[1]}, words {clean[2]}/{clean[3]}", flush=True)
    for fault in INJECTED:
        broken = [inject(pieces, fault, seed) for seed in range(seeds) for _, pieces in days.values()]
        row = {"fault": fault, "called damaged": dict(sum(map(alarms, broken), Counter()))}
        for way in WAYS:
            counts, totals = [], []
            for seed in range(seeds):
                for day, (decoder, pieces) in days.items():
                    bridge = Bridge(decoder.features, "zero" if way == "zero" else "repeat")
                    broken = inject(pieces, fault, seed)
                    mended = unbridged(broken) if way == "no bridge" else bridged(broken, bridge)
                    totals.append(errors(decoder, mended, labels[day]))
                    counts.append(bridge.repairs)
            row[way] = sum(totals).tolist()
            row["counted"] = count_repairs(sum(counts, Counter())) if way == "repeat" else row["counted"]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return clean, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=72)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.minutes:
        found = for_minutes(options.run, options.data, options.minutes)
        print(json.dumps(found, indent=1))
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
        return
    with Recordings(options.data, "val") as recordings:
        labels = {}
        for index, info in enumerate(recordings.infos):
            labels.setdefault(info.session, []).append(recordings.labels(index).tolist())
    labels = {day: found[:options.trials] for day, found in labels.items()}
    config, known = StreamConfig(end_silence=0), known_sentences(options.data)
    days = {day: (open_decoder(options.run, day, config=config, exclude=known),
                  stream_of(options.data, day, options.trials)) for day in labels}
    with ExitStack() as stack:
        for decoder, _ in days.values():
            stack.enter_context(decoder)  # one thread of the network: the fastest for single frames
        clean, rows = measured(days, labels, options.seeds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"none": clean.tolist(), "faults": rows}, file, indent=1)


if __name__ == "__main__":
    main()
