"""Streams of laboratories: an LSL outlet, and a real Redis server as BRAND's programs use it."""
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.data.dataset import BIN_SECONDS
from b2t_kit.live.rigs import LslSource, RedisSource, StreamSource, choose_source
from b2t_kit.live.repair import Bridge, count_repairs
from b2t_kit.live.sources import Inbox, Piece
from stand_ins import free_port, until, web_server

pylsl = pytest.importorskip("pylsl")
redis = pytest.importorskip("redis")
SERVER = shutil.which("redis-server")
server_needed = pytest.mark.skipif(not SERVER, reason="needs redis-server")


class Received:
    """What comes from a source, in a thread, and what a bridge makes of it."""

    def __init__(self, source, features: int = 4) -> None:
        self.source, self.inbox, self.bins, self.bridge = source, Inbox(source), [], Bridge(features)

    def __enter__(self) -> "Received":
        self.inbox.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.inbox.__exit__(*error)

    def take(self, count: int) -> list[Piece]:
        """The next pieces, which also go through the bridge."""
        found, end = list[Piece](), time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} came"
            found += filter(None, [self.inbox.take(0.05)])
        self.bins += [one for piece in found for ready in self.bridge.take(piece) for one in ready.bins]
        return found

    def numbers(self, count: int) -> list[int]:
        return [one.first for one in self.take(count)]

    def refuses(self, words: str) -> None:
        """Wait until something is refused in these words; nothing came."""
        until(lambda: any(words in reason for reason in self.source.refused))
        assert not self.inbox.waiting


@pytest.fixture
def name() -> str:
    return f"b2t {uuid.uuid4().hex}"


def outlet(name: str, channels: int = 4, rate: float = 1 / BIN_SECONDS, kind: str = "float32"):
    return pylsl.StreamOutlet(pylsl.StreamInfo(name, "features", channels, rate, kind, name))


def push(made, numbers, shift: float = 0.0) -> None:
    """Push bins that hold their number, stamped as if each were recorded when its 20 ms were over."""
    begin = pylsl.local_clock() - numbers[-1] * BIN_SECONDS
    for number in numbers:
        made.push_sample(np.full(4, number, np.float32), begin + number * BIN_SECONDS - shift)


def test_gaps_groups_and_a_restart_of_an_lsl_stream(name: str) -> None:
    """Bins that never come are missing; of those that are pushed six at a time nothing is invented, nothing lost."""
    with Received(LslSource(name)) as received:
        assert "no LSL stream named" in received.source.waiting
        made = outlet(name)
        assert made.wait_for_consumers(20)
        push(made, [*range(10), *range(40, 50)])
        assert received.numbers(20) == [*range(10), *range(40, 50)]
        assert [one[0] for one in received.bins] == [*range(10), *[9] * 30, *range(40, 50)]
        assert count_repairs(received.bridge.repairs) == "30 missing"
        until(lambda: "sends nothing" in received.source.waiting)
        del made
        until(lambda: "has gone" in received.source.waiting)
        again = outlet(name)
        assert again.wait_for_consumers(20)
        begin, found = pylsl.local_clock(), []
        for group in range(60):
            for number in range(6 * group, 6 * group + 6):
                time.sleep(0.02 * (number % 60 == 2))  # now and then the rest of a group is late
                again.push_sample(np.full(4, number, np.float32), begin + 0.12 * group)
            found += received.numbers(6)
        assert found == [*range(360)] and count_repairs(received.bridge.repairs) == "30 missing, 1 restarts"


@pytest.mark.parametrize("shift", [0.0, 3600.0])
def test_an_lsl_clock_that_is_not_ours(name: str, shift: float) -> None:
    """Bins that all came at once have the times at which they were recorded; with absurd stamps that of their arrival."""
    made = outlet(name)
    with Received(LslSource(name)) as received:
        assert made.wait_for_consumers(20)
        now = time.perf_counter()
        push(made, [*range(20)], shift)
        arrived = np.array([one.arrived for one in received.take(20)])
    assert abs(arrived - now).max() < 5
    assert abs(arrived[-1] - arrived[0] - 19 * BIN_SECONDS * (not shift)) < 0.1


@pytest.mark.parametrize("rate, kind, words", [(30_000, "int16", "30000 samples per second, 50 bins wanted"),
                                               (0, "string", "has text")])
def test_an_lsl_stream_that_is_not_bins(name: str, rate: float, kind: str, words: str) -> None:
    made = outlet(name, rate=rate, kind=kind)
    with Received(LslSource(name)) as received:
        received.refuses(words)
        assert not made.have_consumers()


def test_markers_of_an_lsl_stream_end_sentences(name: str) -> None:
    """Those with the text that was asked for, also after the program that sends them was started again."""
    made = outlet(name)
    with Received(LslSource(name, f"{name} markers", "trial end")) as received:
        assert made.wait_for_consumers(20)
        for first in (0, 130):
            push(made, [*range(first, first + 130)])
            received.take(130)
        until(lambda: any("is announced, so it ends no sentence" in one for one in received.source.refused))
        for _ in range(2):
            markers = outlet(f"{name} markers", 1, 0, "string")
            assert markers.wait_for_consumers(20)
            markers.push_sample(["trial begin"])
            push(made, [*range(5)])
            found = received.take(5)
            assert [len(one.bins) for one in found] == [1] * 5 and not any(one.ends_sentence for one in found)
            markers.push_sample(["trial end"])
            (end,) = received.take(1)
            assert (end.first, len(end.bins), end.ends_sentence, end.reason) == (found[-1].end, 0, True, "cue")
            del markers


@contextmanager
def redis_server(port: int, folder: Path, password: str = "") -> Iterator["redis.Redis"]:
    command = [SERVER, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    command += ["--requirepass", password] if password else []
    with (subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
          redis.Redis(port=port, password=password or None) as client):
        try:
            until(lambda: answers(client))
            yield client
        finally:
            process.kill()


def answers(client) -> bool:
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


@pytest.fixture
def port() -> int:
    return free_port()


def add(client, numbers) -> None:
    """What the rig's program of features adds: counts and powers that hold the number."""
    for number in numbers:
        client.xadd("binnedFeatures", {
            "threshold_crossings": np.full(256, number, np.int16).tobytes(),
            "spike_band_power": np.full(256, number + 0.5, np.float32).tobytes(),
            "iteration_counter": np.uint64(number).tobytes()})


@server_needed
def test_bins_of_a_redis_stream(port: int, tmp_path: Path) -> None:
    """A server that comes, goes and comes back, and a program that starts again; what was added before we came is left."""
    with Received(RedisSource(f"127.0.0.1:{port}"), 512) as received:
        source = received.source
        time.sleep(0.7)
        assert source.waiting == f"nobody answers at 127.0.0.1:{port}"
        with redis_server(port, tmp_path) as client:
            until(lambda: "has no stream binnedFeatures" in source.waiting)
            add(client, [*range(10), *range(15, 20)])  # five were never added
            found = received.take(15)
            assert [one.first for one in found] == [*range(10), *range(15, 20)] and received.bridge.repairs["missing"] == 5
            assert np.array_equal(found[3].bins[0], [3] * 256 + [3.5] * 256)  # counts first, then powers, as in T15's files
            client.xadd("binnedFeatures", {"sync": "{}"})
            received.refuses("an entry with the fields sync")
            assert "gets nothing for binnedFeatures" in source.waiting
            with Received(RedisSource(f"127.0.0.1:{port}"), 512) as late:
                until(lambda: "gets nothing" in late.source.waiting)
                add(client, range(3))  # the program has started again
                assert received.numbers(3) == late.numbers(3) == [0, 1, 2] and received.bridge.repairs["restarts"] == 1
        until(lambda: "has gone" in source.waiting)
        with redis_server(port, tmp_path) as client:  # empty: nothing was saved
            add(client, [3])  # the rig's program goes on counting
            until(lambda: "gets nothing" in source.waiting)
            add(client, [4, 5])
            assert received.numbers(3) == [3, 4, 5] and received.bridge.repairs["restarts"] == 1


@server_needed
def test_states_of_a_task_end_sentences(port: int, tmp_path: Path) -> None:
    """As the laboratory's task adds them: 0 in the delay, 1 from the go cue on, 3 when the trial is over. Or names are of other things."""
    def state(name: str) -> None:
        time.sleep(0.002)  # bins come every 20 ms; within a millisecond the order of two streams is unknown
        client.xadd("task_state", {"trialNum": "1", "taskState": name, "timeStamp": np.float64(1).tobytes()})
        time.sleep(0.002)

    with redis_server(port, tmp_path) as client:
        state("1")  # we come in the middle of a trial
        with Received(RedisSource(f"127.0.0.1:{port}"), 512) as received:
            until(lambda: "has no stream" in received.source.waiting)
            add(client, range(3))
            state("3")
            state("0")
            add(client, range(3, 5))
            state("1")
            add(client, range(5, 7))
            state("3")
            found = received.take(9)
            assert [one.first for one in found if one.ends_sentence] == [3, 7] and not any(len(one.bins) for one in found if one.ends_sentence)
            assert [one.first for one in found if not one.ends_sentence] == [*range(7)] and len(received.bins) == 7
        client.delete("task_state")
        client.set("task_state", "no stream")
        with Received(RedisSource(f"127.0.0.1:{port}"), 512) as received:
            until(lambda: "gets nothing" in received.source.waiting)
            add(client, [7])
            assert received.numbers(1) == [7] and not received.source.refused
        client.delete("binnedFeatures")
        client.set("binnedFeatures", "no stream")
        with Received(RedisSource(f"127.0.0.1:{port}"), 512) as received:
            received.refuses("WRONGTYPE")


@server_needed
def test_a_server_with_a_password(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from the address, a file, or a variable that is named, and no message repeats it."""
    (tmp_path / "password").write_text("opensesame\n")
    monkeypatch.setenv("LAB_PASSWORD", "opensesame")
    place = f"127.0.0.1:{port}/binnedFeatures"
    with redis_server(port, tmp_path, "opensesame") as client:
        add(client, [0])
        for kind, password in ((f"redis::opensesame@{place}", ""), (f"redis:default:opensesame@{place}", ""),
                               (f"redis:{place}", f"{tmp_path}/password"), (f"redis:{place}", "$LAB_PASSWORD")):
            with Received(choose_source(kind, password=password), 512) as received:
                until(lambda now=received.source: "gets nothing" in now.waiting)
                add(client, [1])
                assert received.numbers(1) == [1] and not received.source.refused
        for kind in (f"redis:{place}", f"redis:me:sesameopen@{place}"):
            with Received(choose_source(kind)) as received:
                received.refuses("no Redis stream at")
                assert "sesame" not in str(received.source.refused) + received.source.waiting


def test_a_web_server_where_redis_should_be(port: int) -> None:
    with web_server(port), Received(RedisSource(f"127.0.0.1:{port}"), 512) as received:
        received.refuses(f"no Redis stream at 127.0.0.1:{port}")


SENDER = """
import sys, threading, time
import numpy as np
from b2t_kit.live.rigs import StreamSender
from b2t_kit.live.sources import Piece
sender = StreamSender(sys.argv[1])
sender.wait_for_receiver(threading.Event())
for number in range(10**6):
    sender.send(Piece(number, np.zeros((1, 4), np.float32), 0.0))
    time.sleep(0.02)
"""


def test_a_sender_that_sleeps(port: int) -> None:
    """A program that stands still is no stranger; it is heard again when it wakes. One that never said a word may be one."""
    pytest.importorskip("zmq")
    with subprocess.Popen([sys.executable, "-c", SENDER, f"127.0.0.1:{port}"]) as sender:
        try:
            with Received(StreamSource(f"127.0.0.1:{port}")) as received:
                received.take(5)
                sender.send_signal(signal.SIGSTOP)
                until(lambda: "does not answer" in received.source.waiting)
                assert received.source.link == "asleep"
                sender.send_signal(signal.SIGCONT)
                last = received.bridge.next
                until(lambda: received.take(1)[0].first >= last)
        finally:
            sender.kill()
    with socket.create_server(("127.0.0.1", 0)) as mute, Received(StreamSource(f"127.0.0.1:{mute.getsockname()[1]}")) as received:
        until(lambda: "says nothing" in received.source.waiting)
        assert received.source.link == "mute"
