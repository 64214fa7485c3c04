"""A decoder, senders, a web server and a browser's words for the tests of live/."""
import http.server
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from b2t_kit.live.stream import StreamConfig, Update
from b2t_kit.live.rigs import StreamSender
from b2t_kit.live.session import Moment
from b2t_kit.live.sources import LiveSource, Piece

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--window-size=1100,900"]
VOICE = """
window.spoken = [];
window.SpeechSynthesisUtterance = function(text) { this.text = text; };
speechSynthesis.getVoices = () => [{name: "Here", lang: "en-US", voiceURI: "here", localService: true}];
speechSynthesis.onvoiceschanged();
speechSynthesis.speak = one => spoken.push([one.text, one.rate]);
speechSynthesis.cancel = () => spoken.push("stop");
"""


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "never became true"
        time.sleep(0.02)


@contextmanager
def beside(go: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread while the block runs; its event is set at the end."""
    done = threading.Event()
    thread = threading.Thread(target=go, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def text(browser, name: str) -> str:
    return browser.find_element("id", name).text


def shows(browser, seconds: float = 30.0, **wanted: object) -> None:
    """Wait until elements (a hyphen of their name is an underscore here) have these texts, or texts that are so."""
    until(lambda: all((is_so(now) if callable(is_so) else now == is_so) for name, is_so in wanted.items()
                      for now in [text(browser, name.replace("_", "-"))]), seconds)


def press(browser, name: str, *keys: str) -> None:
    """Click an element, or type into it."""
    element = browser.find_element("id", name)
    element.send_keys(*keys) if keys else element.click()


def next_of(stream) -> dict:
    """A page's next message, which it says to have drawn."""
    message = json.loads(stream.recv(20))
    stream.send(json.dumps({"ask": "shown", "text": str(message["number"])}))
    return message


def never_reading(port: int) -> socket.socket:
    """A page's connection that will never read."""
    reader, own = socket.socket(), f"127.0.0.1:{port}"
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", port))
    reader.sendall((f"GET /stream HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\nUpgrade: websocket\r\n"
                    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
    return reader


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def web_server(port: int = 0, body: str = "") -> Iterator[int]:
    """A web server of somebody else, whose every page is this one; yields its port."""
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Spoken(LiveSource):
    """A source that has nothing to say."""

    num_features, waits = 512, True

    def pieces(self, stop: threading.Event) -> Iterator[Piece]:
        yield Piece(0, np.zeros((5, 512), np.float32), 0.0)


class Words:
    """Stands for a decoder: a word per ten bins. What these tests are about is the stream."""

    norm, features, note = None, 512, ""

    def __init__(self) -> None:
        self.bins, self.words, self.hotwords, self.config = 0, [], [], StreamConfig()

    def warm_up(self, progress: Callable[[str], None]) -> None:
        progress("nothing to prepare")

    def __enter__(self) -> "Words":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def push(self, bins: np.ndarray, arrived: float | None = None) -> list[Update]:
        assert np.isfinite(bins).all() and bins.shape[1] == 512
        before, self.bins = self.bins // 10, self.bins + len(bins)
        self.words += [f"word{number + 1}" for number in range(before, self.bins // 10)]
        return [self.update("")] if self.bins // 10 > before else []

    def update(self, reason: str, words: tuple = (), others: tuple = ("another",)) -> Update:
        seconds = {"final": 0.0} if reason else {"wait": 0.0, "model": 0.0, "search": 0.0}
        words = words or tuple((word, 0.9) for word in self.words)
        return Update(self.bins // 10, self.bins, "AH", words, others, seconds, final=bool(reason), reason=reason,
                      ends=(self.bins,) * len(words))

    def end(self, reason: str) -> list[Update]:
        found, self.words = [self.update(reason)] if self.words else [], []
        return found

    def cue(self) -> list[Update]:
        return self.end("cue")


class Marks:
    """A watcher that keeps what was said of sentences."""

    def __init__(self) -> None:
        self.marks = []

    def show(self, moment: Moment) -> None:
        self.marks.extend(filter(None, [moment.mark]))


class Rig:
    """A sender that can be made to fail in many ways."""

    def __init__(self, port: int, gap: float = 0.019) -> None:  # seconds between two bins
        self.address, self.sender, self.number, self.gap = f"127.0.0.1:{port}", None, 0, gap
        self.rng, self.stop = np.random.default_rng(0), threading.Event()

    def start(self) -> None:
        self.sender, self.number = StreamSender(self.address), 0
        self.sender.wait_for_receiver(self.stop)

    def bin(self, row: np.ndarray, cue: bool = False) -> None:
        self.sender.send(Piece(self.number, row.astype(np.float32), 0.0, ends_sentence=cue))
        self.number += 1

    def send(self, bins: int, cue: bool = False) -> None:
        for at in range(bins):
            self.bin(self.rng.standard_normal((1, 512)), cue and at == bins - 1)
            time.sleep(self.gap)

    @contextmanager
    def sending(self, made: Callable[[np.ndarray], np.ndarray | None] = lambda rows: rows) -> Iterator[None]:
        """Send such bins, or such messages, in a thread for as long as the block takes."""
        def go(done: threading.Event) -> None:
            while not done.wait(self.gap):
                row = made(self.rng.standard_normal((1, 512)))
                self.sender.socket.send_multipart([b"not", b"ours"]) if row is None else self.bin(row)

        with beside(go):
            yield

    def end(self) -> None:
        self.sender.send(Piece(self.number, np.zeros((0, 512), np.float32), 0.0), end=True)
        self.kill()

    def kill(self) -> None:
        self.sender.close()
        self.sender = None
