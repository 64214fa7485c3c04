"""The live page in a real browser: what it shows, what it asks for, and that strangers' pages cannot use it."""
import asyncio
import http.server
import io
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.data.convert import convert
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.decode import choose_words
from b2t_kit.decode.stream import StreamConfig, StreamDecoder, Update
from b2t_kit.importers.kept import KeptSession
from b2t_kit.live.keep import keep_session, report_kept
from b2t_kit.live.page import PageServer
from b2t_kit.live.session import LiveSession, Moment, SentenceMark, Status, Terminal
from b2t_kit.live.sources import ParticipantSource, Piece, StreamSender, StreamSource
from b2t_kit.models.gru import GRUConfig
from b2t_kit.simulate import SimulateConfig, simulate
from b2t_kit.simulate import labels_of
from b2t_kit.speech.evaluate import Decoder
from b2t_kit.speech.task import SpeechConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from live_faults import never_reading

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
browser_needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--window-size=1100,900",
           "--host-resolver-rules=MAP rebound.example 127.0.0.1,MAP live.example 127.0.0.1", "--ignore-certificate-errors"]


def random_decoder(hidden: int = 16) -> StreamDecoder:
    """A network with random weights and a search over the kit's words."""
    torch.manual_seed(0)
    config = SpeechConfig(model=GRUConfig(hidden=hidden, num_layers=1, num_days=1, num_features=512))
    model = config.model.build().eval()
    day = "t15.2023.08.11"
    return StreamDecoder(Decoder(model, config, (day,), (day,), "random", T15), BeamSearch(*choose_words(None)),
                       StreamConfig(end_silence=0))


@pytest.fixture(scope="module")
def decoder() -> Iterator[StreamDecoder]:
    """A decoder that is compiled."""
    made = random_decoder()
    made.warm_up()
    yield made


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    simulate(folder / "data", SimulateConfig(sessions=1, trials=8, seed=2, bins_per_phoneme=6.0), progress=False)
    return folder / "data"


@contextmanager
def serving(decoder: StreamDecoder, recordings: Path, host: str = "127.0.0.1",
            origin: str = "") -> Iterator[tuple[LiveSession, PageServer]]:
    """A session with a participant who waits to be told what to say, and its page."""
    session = LiveSession(decoder, ParticipantSource(recordings, stays=True, pace=4))
    thread = threading.Thread(target=session.run)
    with PageServer(session, host, 0, origin) as server:
        thread.start()
        try:
            yield session, server
        finally:
            session.request("stop")
            thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for one in [*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "never became true"
        time.sleep(0.05)


def text(browser, name: str) -> str:
    return browser.find_element("id", name).text


PAINTED = """
const canvas = document.getElementById('recording');
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
return [canvas.height, new Set(pixels).size];
"""


@browser_needed
def test_page_shows_and_asks(decoder: StreamDecoder, recordings: Path, browser) -> None:
    from selenium.webdriver.common.keys import Keys

    with serving(decoder, recordings) as (session, server):
        browser.get(server.url)
        until(lambda: text(browser, "state") == "waiting for a sentence to say" and browser.find_element("id", "say").is_displayed())
        browser.find_element("id", "say-text").send_keys("How are you today?" + Keys.ENTER)
        until(lambda: text(browser, "sentences"))
        (said, decoded), = session.sentences
        assert text(browser, "kept") == "Nothing of this session is kept."
        assert not browser.find_element("id", "keep-delete").is_displayed()
        assert text(browser, "calm-text") == "shown at once"
        browser.execute_script("find('calm').value = 0.4; find('calm').onchange()")
        until(lambda: text(browser, "calm-text") == "shown after 0.40 s")
        assert session.decoder.config.calm == 0.4
        browser.execute_script("find('calm').value = 0; find('calm').onchange()")
        until(lambda: "words per minute" in text(browser, "measures") or not decoded)
        assert text(browser, "note") == "will be said: How are you today?"
        lines = text(browser, "sentences").splitlines()
        assert said == "How are you today?" and lines[0] == (decoded or "(nothing)")
        assert lines[-1] == "said: How are you today?"
        assert text(browser, "words").split() == decoded.split()
        rows, colours = browser.execute_script(PAINTED)
        assert rows == 128 and colours > 50
        until(lambda: text(browser, "words-ms").endswith(" ms") and text(browser, "display-ms").endswith(" ms"))
        assert session.ledger.displays  # the page said when it had drawn
        until(lambda: text(browser, "state") == "waiting for a sentence to say")
        assert text(browser, "counted") == "Stream: no fault counted. Page: nothing left out."
        assert browser.execute_script("return document.getElementById('words').textContent").split() == decoded.split()

        browser.find_element("id", "hotword-text").send_keys("wojciechowski V OY CH EH HH AO F S K IY" + Keys.ENTER)
        until(lambda: text(browser, "note").startswith("expected from the next sentence on: wojciechowski"))
        assert text(browser, "hotwords") == "wojciechowski ✕"
        browser.find_element("id", "hotword-text").send_keys("x XX" + Keys.ENTER)
        until(lambda: browser.find_element("id", "note").get_attribute("class") == "bad")
        assert "type a name in letters, such as" in text(browser, "note")
        browser.find_element("id", "say-text").send_keys("We should have another look at it." + Keys.ENTER)
        until(lambda: text(browser, "words"))
        browser.find_element("id", "words").click()
        browser.find_element("tag name", "body").send_keys("c")  # the key for a cue
        until(lambda: len(session.sentences) >= 2)
        assert "wojciechowski" in {one.word for one in session.decoder.search.hotwords}

        browser.find_element("id", "cue").send_keys(Keys.TAB)  # the controls are reached one after the other
        assert browser.switch_to.active_element.get_attribute("id") == "say-text"
        browser.find_element("css selector", "#hotwords button").click()
        until(lambda: text(browser, "note").startswith("not expected any more"))
        until(lambda: not text(browser, "hotwords"))
        browser.find_element("id", "cue").click()
        until(lambda: text(browser, "note") == "no sentence is open, so there was nothing to end")
        severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE" and "favicon" not in one["message"]]
        assert not severe, severe
    until(lambda: text(browser, "state") == "stopped")
    time.sleep(2.5)  # the page does not try again, and says why its controls do nothing
    assert text(browser, "state") == "stopped" and not browser.find_element("id", "cue").is_enabled()
    assert "do nothing any more" in text(browser, "note") and "nothing to repair" not in text(browser, "counted")


STRANGER = """<!doctype html><title>trying</title><script>
const found = [];
function done(what) { found.push(what); if (found.length === 2) document.title = found.sort().join(", "); }
const socket = new WebSocket("ws://127.0.0.1:PORT/streamTOKEN");
socket.onopen = () => socket.send(JSON.stringify({ask: "hotword", text: "stranger"}));
socket.onmessage = () => done("socket read");
socket.onclose = () => done("socket refused");
fetch("http://127.0.0.1:PORT/TOKEN").then(one => one.text()).then(() => done("page read"), () => done("page refused"));
</script>"""


@contextmanager
def stranger(port: int, token: str = "") -> Iterator[int]:
    """Another web server with a page that tries to open the stream; yields its port."""
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(STRANGER.replace("PORT", str(port)).replace("TOKEN", token).encode())

        def log_message(self, *words) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@browser_needed
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_strangers_page_gets_nothing(decoder: StreamDecoder, recordings: Path, browser, host: str) -> None:
    """Neither from another port nor under a host name that was made to point here, and not even with the token."""
    with serving(decoder, recordings, host) as (session, server):
        before = set(session.decoder.hotwords)
        token = f"?token={server.tokens['operator']}" if server.tokens["operator"] else ""
        with stranger(server.port, token) as port:
            browser.get(f"http://127.0.0.1:{port}/")
            until(lambda: browser.title != "trying")
            assert browser.title == "page refused, socket refused"
        if not token:
            browser.get(f"http://rebound.example:{server.port}/")
            assert "not allowed" in browser.page_source
        session.source.say("Hello.")
        until(lambda: len(session.sentences) == 1)
        assert set(session.decoder.hotwords) == before


@contextmanager
def tls_proxy(folder: Path) -> Iterator[tuple[int, Callable[[int], None]]]:
    """A proxy with a certificate of its own, that passes bytes on; yields its port, and what names the port behind it."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=live.example", "-days", "2",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    behind: list[int] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while some := await reader.read(1 << 16):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", behind[0])
        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1], behind.append
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


@browser_needed
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl for a certificate")
def test_page_behind_a_proxy_with_tls(decoder: StreamDecoder, recordings: Path, browser, tmp_path: Path) -> None:
    with tls_proxy(tmp_path) as (outside, passes_to):
        origin = f"https://live.example:{outside}"
        with serving(decoder, recordings, origin=origin) as (session, server):
            passes_to(server.port)
            assert server.url.startswith(f"{origin}/?token=")
            browser.get(f"{origin}/")
            assert "not allowed" in browser.page_source
            for url in (server.url, server.listener_url):
                before = set(map(id, server.readers))
                browser.get(url)
                session.source.say("Hello.")
                until(lambda: browser.execute_script("return socket.url.startsWith('wss://') && socket.readyState == 1"))
                until(lambda old=before: any(one.display_ms and id(one) not in old for one in server.readers))  # a bin is drawn


def test_slow_reader_of_the_page_slows_nobody(decoder: StreamDecoder, recordings: Path) -> None:
    """One page never reads, another does: the first is left behind, and the second goes on with the decoder."""
    from websockets.sync.client import connect

    flood = np.random.default_rng(0).normal(size=(400, 512)).astype(np.float32)
    with serving(decoder, recordings) as (session, server), never_reading(server):
        own = f"127.0.0.1:{server.port}"
        with connect(f"ws://{own}/stream", origin=f"http://{own}", max_size=None) as quick:
            until(lambda: len(server.readers) == 2)
            slow, reading = server.readers

            def behind() -> bool:
                server.feed.show(Moment(flood, 0.0))
                next_of(quick)
                return slow.bins < reading.bins - 4_000

            until(behind)
            before = slow.messages, slow.bins, slow.shown
            session.source.say("We should have another look at it.")
            sentences: list[dict] = []
            end = time.monotonic() + 60
            while not sentences:
                assert time.monotonic() < end, f"no finished sentence came to the page that reads; {session.status().text}"
                sentences += next_of(quick)["sentences"]
            assert sentences[0]["said"] == "We should have another look at it."
            assert (slow.messages, slow.bins, slow.shown) == before


def next_of(stream) -> dict:
    """A page's next message, which it says to have drawn."""
    message = json.loads(stream.recv(20))
    stream.send(json.dumps({"ask": "shown", "text": str(message["number"])}))
    return message


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

    def update(self, reason: str) -> Update:
        seconds = {"final": 0.0} if reason else {"wait": 0.0, "model": 0.0, "search": 0.0}
        words = tuple((word, 0.9) for word in self.words)
        return Update(self.bins // 10, self.bins, "AH", words, ("another",), seconds, final=bool(reason), reason=reason,
                      ends=(self.bins,) * len(words))

    def end(self, reason: str, back: int = 0) -> list[Update]:
        found, self.words = [self.update(reason)] if self.words else [], []
        return found

    def cue(self) -> list[Update]:
        return self.end("cue")


class Rig:
    """A sender that can be made to fail in many ways."""

    def __init__(self, port: int) -> None:
        self.address, self.port, self.sender, self.number = f"127.0.0.1:{port}", port, None, 0
        self.rng, self.stop = np.random.default_rng(0), threading.Event()

    def start(self) -> None:
        self.sender, self.number = StreamSender(self.address), 0
        self.sender.wait_for_receiver(self.stop)

    def send(self, bins: int, cue: bool = False) -> None:
        for at in range(bins):
            self.bin(self.rng.standard_normal((1, 512)), cue and at == bins - 1)
            time.sleep(0.019)

    def bin(self, row: np.ndarray, cue: bool = False) -> None:
        self.sender.send(Piece(self.number, row.astype(np.float32), 0.0, cue=cue))
        self.number += 1

    @contextmanager
    def sending(self, made: Callable[[np.ndarray], np.ndarray | None]) -> Iterator[None]:
        """Send such bins, or such messages, in a thread for as long as the block takes."""
        done = threading.Event()

        def go() -> None:
            while not done.wait(0.019):
                row = made(self.rng.standard_normal((1, 512)))
                if row is None:
                    self.sender.socket.send_multipart([b"not", b"ours"])
                else:
                    self.bin(row)

        thread = threading.Thread(target=go)
        thread.start()
        yield
        done.set()
        thread.join()

    def end(self) -> None:
        self.sender.send(Piece(self.number, np.zeros((0, 512), np.float32), 0.0), end=True)
        self.kill()

    def kill(self) -> None:
        self.sender.close()
        self.sender = None

    @contextmanager
    def web_server(self) -> Iterator[None]:
        with http.server.ThreadingHTTPServer(("127.0.0.1", self.port), http.server.SimpleHTTPRequestHandler) as server:
            server.RequestHandlerClass.log_message = lambda *words: None
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()


BAD_BINS = [  # what comes, and what page and terminal call it
    (lambda rows: rows[:, :256], "refused", "256 features, 512 wanted (", "256 features, 512 wanted"),
    (lambda rows: None, "refused", "a message is not of a b2t stream", "refused"),
    (lambda rows: rows * np.nan, "damaged", "100% of the bins have NaN or enormous values", "NaN"),
    (lambda rows: np.ones((1, 512)), "damaged", "100% of the features have had the same value for 3 s", "same value"),
    (lambda rows: np.abs(rows * 3).round(), "damaged", "whole numbers, such as counts of spikes", "whole numbers"),
    (lambda rows: 40 * rows, "damaged", "values of about", "values of about"),
    (lambda rows: 1e-6 * rows, "damaged", "values of about 1e-06", "values of about"),
    (lambda rows: np.where(np.arange(512) < 230, 0, rows), "damaged", "45% of the features have had the same value", "% of the"),
]


@browser_needed
def test_ways_to_fail(browser, tmp_path: Path) -> None:
    """What page and terminal say of each, in order; the server goes on through all of them but the last two."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rig, terminal = Rig(port), io.StringIO()
    session = LiveSession(Words(), StreamSource(rig.address, stays=True), [Terminal(terminal)])
    keeper = keep_session(session, tmp_path / "kept", {})
    thread = threading.Thread(target=session.run)

    def seen(state: str, words: str, written: str) -> None:
        where = "return [find('state').dataset.state, find('state').textContent + find('sentences').textContent]"
        until(lambda: (now := browser.execute_script(where))[0] == state and words in now[1])
        until(lambda: written in terminal.getvalue())
        footer = text(browser, "counted")
        assert state == "live" or "nothing to repair" not in footer, footer

    with PageServer(session, port=0) as server:
        browser.get(server.url)
        seen("warming up", "warming up", "")
        thread.start()
        seen("waiting", f"nobody answers at {rig.address}", "nobody answers")
        with rig.web_server():
            seen("refused", "is not a b2t stream", "is not a b2t stream")
        rig.start()
        for wrong, state, words, written in BAD_BINS:
            with rig.sending(wrong):
                seen(state, words, written)
        with rig.sending(lambda rows: rows):
            seen("live", "live", "[live]")
            assert browser.find_element("id", "words").get_attribute("data-doubt") is not None  # the sentence stays in doubt
        seen("no data", f" s: the sender at {rig.address} sends nothing", "no data for")  # it stalls
        seen("no data", "ended by a stream that stopped", "(a stream that stopped)")
        with rig.sending(lambda rows: rows):
            seen("live", "live", "")
        rig.kill()
        seen("no data", "has gone", "")
        rig.start()
        rig.send(60)
        rig.kill()
        rig.start()  # at once: before the sentence was given up
        with rig.sending(lambda rows: rows):
            seen("live", "live", "(a restart of the sender)")
            assert "ended by a restart of the sender" in text(browser, "sentences")
        rig.send(60)
        rig.end()
        seen("waiting", f"the sender at {rig.address} has ended", "has ended")
        seen("waiting", "ended by the end of the sender", "(the end of the sender)")
        rig.start()  # the server is still there
        with rig.sending(lambda rows: rows):
            seen("live", "live", "")
        before = session.finals
        rig.send(60, cue=True)
        listed = "return find('sentences').children.length"
        until(lambda: before < session.finals == browser.execute_script(listed))
        assert thread.is_alive()
        shown = [one.text for one in browser.find_elements("css selector", "#sentences li:not(.doubt) > span:first-child")]
        assert shown == [one for _, one in reversed(session.sentences)]  # each once, none glued to another
        unfinished = browser.find_elements("css selector", "#sentences li.doubt")  # words of damaged signals
        assert unfinished and all("not finished: " in one.text and not one.find_elements("tag name", "button") for one in unfinished)
        server.server.force_exit = True
        server.server.should_exit = True  # the page's server dies; the decoder goes on
        seen("connection lost", "connection lost", "")
    session.request("stop")
    thread.join(10)
    rig.kill()
    assert not thread.is_alive()
    keeper.stop()
    events = [json.loads(line) for line in (tmp_path / "kept/events.jsonl").read_text().splitlines()]
    assert {"waiting", "refused", "damaged", "no data", "live", "ended"} <= {one.get("state") for one in events}
    ends = [one for one in events if one["event"] == "final"]
    assert {"restart", "sender", "cue"} <= {one["reason"] for one in ends}
    assert "stall" in {one["reason"] for one in events if one["event"] == "unfinished" and one["doubt"]}
    assert [" ".join(word for word, _ in one["words"]) for one in ends] == [one for _, one in session.sentences]
    assert any("30 refused" in one.get("counted", "") or "refused: a message" in one.get("counted", "") for one in events)


def test_a_kept_session(decoder: StreamDecoder, recordings: Path, tmp_path: Path) -> None:
    """It becomes recordings to learn from; the page can stop and delete it."""
    source = ParticipantSource(recordings, ["Hello there.", "How are you today?"], pace=0)
    session = LiveSession(decoder, source)
    keeper = keep_session(session, tmp_path / "kept", {"run": "random"}, features=True)
    session.run()
    session.request("keep-stop")
    assert (tmp_path / "kept/features.bin").stat().st_size == 4 * 512 * session.bins
    assert not keeper.on and keeper.line == "This session was kept."
    session.request("mark", "2 corrected Where are you?")  # too late: nothing is kept any more
    told = report_kept(tmp_path / "kept")
    assert " sentences, " in told and "words per minute" in told and "bits per minute" in told
    assert "How are you today?" in (tmp_path / "kept/report.html").read_text()
    convert(KeptSession(tmp_path / "kept", tmp_path / "mine"))
    with Recordings(tmp_path / "mine", "train") as learned:  # what a decoder can learn from
        for number, info in enumerate(learned.infos):
            assert info.sentence == session.sentences[number][0]
            assert np.array_equal(learned.features(number), source.record(info.sentence, number))
            assert tuple(learned.labels(number)) == labels_of(info.sentence)
    assert len(learned.infos) == 2
    session.request("keep-delete")
    assert not (tmp_path / "kept").exists()


def test_a_session_that_cannot_be_kept_any_more_says_so(tmp_path: Path) -> None:
    """A full disk: the page, and everybody who watches, learns that nothing more is kept."""
    session, lines = LiveSession(Words(), Spoken()), io.StringIO()
    session.watchers.append(Terminal(lines))
    keeper = keep_session(session, tmp_path / "kept", {})
    (tmp_path / "kept/events.jsonl").symlink_to("/dev/full")
    session.note("something to keep")
    until(lambda: not keeper.on, 10)
    assert keeper.line == "Nothing more is kept: No space left on device."
    until(lambda: f"refused: {keeper.line}" in lines.getvalue(), 5)


@contextmanager
def phone(browser) -> Iterator[None]:
    """The browser with the screen of a phone."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True})
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


EDGES = """
let edges = [];
const canvas = find("phonemes"), draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function(name, at) {
  const half = this.measureText(name).width / 2;
  edges.push([at - half, at + half - canvas.clientWidth]);
};
newest = 400; spoken = [[1, "OW"], [400, "OW"]];
drawPhonemes();
CanvasRenderingContext2D.prototype.fillText = draw;
return [edges[0][0], edges[1][1]];
"""


@browser_needed
def test_what_was_kept_can_be_deleted_after_keeping_was_stopped(browser, tmp_path: Path) -> None:
    session = LiveSession(Words(), Spoken())
    keep_session(session, tmp_path / "kept", {})
    with PageServer(session, port=0) as server:
        browser.get(server.url)
        until(lambda: text(browser, "kept") == "This session is kept.")
        with phone(browser):
            stop, delete = (browser.find_element("id", name).rect for name in ("keep-stop", "keep-delete"))
            assert stop["y"] != delete["y"] and delete["y"] - stop["y"] - stop["height"] >= 8  # a thumb hits one of them
            left, right = browser.execute_script(EDGES)
            assert left >= 0 and right <= 0, (left, right)
        browser.find_element("id", "keep-stop").click()
        until(lambda: text(browser, "kept") == "This session was kept.")
        browser.find_element("id", "keep-delete").click()
        browser.switch_to.alert.accept()
        until(lambda: text(browser, "kept") == "What was kept of this session has been deleted.", 10)
        assert not (tmp_path / "kept").exists() and not browser.find_element("id", "keep-delete").is_enabled()


@browser_needed
def test_a_page_that_comes_back_shows_nothing_twice(browser) -> None:
    session = LiveSession(Words(), Spoken())
    session.run()
    with PageServer(session, port=0) as server:
        for _ in range(3):
            server.feed.show(Moment(np.zeros((1, 512), np.float32), 0.0, [Words().update("stall")]))
        browser.get(server.url)
        until(lambda: text(browser, "sentences").count("ended by a stream that stopped") == 3)
        browser.execute_script("socket.close()")
        until(lambda: browser.execute_script("return socket.readyState") != 1)
        session.state.ended = ""
        until(lambda: browser.execute_script("return socket.readyState") == 1, 10)
        until(lambda: len(server.readers) == 1 and server.readers[0].shown > 0)
        assert text(browser, "sentences").count("ended by a stream that stopped") == 3 and server.readers[0].skipped == 0
        assert browser.execute_script("return find('say').offsetHeight") == 0  # hidden is hidden: this source says nothing


@browser_needed
def test_a_lost_connection_leaves_nothing_that_may_be_untrue(browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server dies while the stream is well and the session is kept: nobody says so of it any more."""
    session = LiveSession(Words(), Spoken())
    keep_session(session, tmp_path / "kept", {})
    session.bins = 5
    monkeypatch.setattr(session, "status", lambda: Status("live", "live"))
    for path in ("", "listen"):
        with PageServer(session, port=0) as server:
            browser.get(server.listener_url if path else server.url)
            until(lambda: text(browser, "kept") == "This session is kept.")
            assert path or "nothing to repair" in text(browser, "counted")
            server.server.force_exit = server.server.should_exit = True
            until(lambda: text(browser, "state").startswith("connection lost"))
            assert text(browser, "kept") == "Whether this session is kept is not known now."
            assert path or text(browser, "counted") == "Stream: not known while the connection is lost."


@browser_needed
def test_an_error_that_ends_a_session_is_a_fault(browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args) -> None:
        raise ValueError("no number")

    session = LiveSession(Words(), Spoken())
    monkeypatch.setattr(session.decoder, "push", fail)
    with PageServer(session, port=0) as server:
        browser.get(server.url)
        with pytest.raises(ValueError, match="no number"):
            session.run()
        until(lambda: text(browser, "state") == "stopped by an error: ValueError('no number')")
        assert browser.find_element("id", "state").get_attribute("data-state") == "failed"


@browser_needed
def test_a_silent_stream_is_not_shown_late(browser) -> None:
    """How long a frame took to the screen is measured once: not again with each sign of life, nor by a tab that came later."""
    session = LiveSession(Words(), Spoken())
    session.state.warming = ""
    with PageServer(session, port=0) as server:
        browser.get(server.url)
        until(lambda: server.readers and server.readers[0].shown)
        session.decoder.bins = 10
        server.feed.show(Moment(np.zeros((1, 512), np.float32), time.perf_counter(), [session.decoder.update("")]))
        until(lambda: server.readers[0].display_ms)
        first, messages = server.readers[0].display_ms, server.readers[0].shown
        until(lambda: server.readers[0].shown > messages + 1)  # signs of life, a second apart
        assert server.readers[0].display_ms == first and text(browser, "display-ms") == f"{first:.0f} ms"
        before = server.readers[0]
        browser.get(server.url)
        until(lambda: len(server.readers) == 1 and server.readers[0] is not before and server.readers[0].shown > 1)
        assert server.readers[0].display_ms is None and text(browser, "display-ms") == "–"


class Spoken:
    """A source that has nothing to say."""

    num_features, waits = 512, True

    def pieces(self, stop: threading.Event) -> Iterator[Piece]:
        yield Piece(0, np.zeros((5, 512), np.float32), 0.0)


def test_messages_that_are_not_text_and_readers_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary frame drops nobody; a page that gives no sign of life is closed."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    monkeypatch.setattr("b2t_kit.live.page.GONE", 3.0)
    session = LiveSession(Words(), Spoken())
    with PageServer(session, port=0) as server:
        own = f"127.0.0.1:{server.port}"
        page = {"uri": f"ws://{own}/stream", "origin": f"http://{own}"}
        with connect(**page) as alive, connect(**page) as silent, never_reading(server):
            until(lambda: len(server.readers) == 3)
            alive.send(b"\x00\xff")
            until(lambda: next_of(alive)["number"] > 5)
            until(lambda: next_of(alive) and len(server.readers) == 1, 15)
            with pytest.raises(ConnectionClosed):
                for _ in range(5):
                    silent.recv(1)


def test_one_page_cannot_keep_the_others_out(tmp_path: Path) -> None:
    """A flood, silent connections, nine pages, and a deletion that was meant for another session."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    session = LiveSession(Words(), Spoken())
    session.state.warming, session.decoder.add_hotword = "", lambda text: time.sleep(0.05)
    keeper, stop = keep_session(session, tmp_path / "kept", {}), threading.Event()

    def flood(page) -> None:
        with suppress(ConnectionClosed):
            while not stop.is_set():
                page.send(json.dumps({"ask": "hotword", "text": "spam"}))

    def answer_to(page, what: str, more: str) -> str:
        page.send(json.dumps({"ask": what, "text": more}))
        while not (answers := next_of(page)["answers"]):
            pass
        return answers[0]["text"]

    with PageServer(session, port=0) as server:
        own = f"127.0.0.1:{server.port}"
        page = {"uri": f"ws://{own}/stream", "origin": f"http://{own}"}
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        with connect(**page) as good, connect(**page) as bad:
            threading.Thread(target=flood, args=(bad,), daemon=True).start()
            began = time.monotonic()
            while time.monotonic() < began + 2:
                before = time.monotonic()
                name = next_of(good)["feed"]
                assert time.monotonic() - before < 3
            assert answer_to(good, "hotword", "anna") == "expected from the next sentence on: anna"
            stop.set()
            assert "nothing was deleted" in answer_to(good, "keep-delete", "") and keeper.exists
            good.send(json.dumps({"ask": "keep-delete", "text": name}))
            until(lambda: not keeper.exists)
        until(lambda: not server.readers)
        pages = [connect(**page) for _ in range(8)]
        for each in pages:
            next_of(each)
        with connect(**page) as ninth, pytest.raises(ConnectionClosed, match="8 pages are open"):
            ninth.recv(5)
        with connect(f"ws://{own}/listen-stream", origin=f"http://{own}") as listener:
            next_of(listener)  # pages of an operator do not keep a listener out
        time.sleep(3.5)
        with connect(**page) as ninth:
            next_of(ninth)  # takes the place of one that has been silent
        silent[0].settimeout(15)
        assert silent[0].recv(1) == b""  # closed: it asked for nothing
        for each in pages:
            each.close()


def test_finish_waits_for_the_last_words_but_not_for_ever() -> None:
    """A page that is slow has drawn them before the server goes; one that draws nothing is waited for so long and no longer."""
    from websockets.sync.client import connect

    session, seen = LiveSession(Words(), Spoken()), []

    def draw_slowly(page) -> None:
        for body in page:
            time.sleep(0.3)
            message = json.loads(body)
            seen.append((message["over"], message["text"], [one["text"] for one in message["sentences"]]))
            page.send(json.dumps({"ask": "shown", "text": str(message["number"])}))

    with PageServer(session, port=0) as server:
        page = {"uri": f"ws://127.0.0.1:{server.port}/stream", "origin": f"http://127.0.0.1:{server.port}"}
        with connect(**page) as slow:
            reader = threading.Thread(target=draw_slowly, args=(slow,))
            reader.start()
            until(lambda: server.readers and server.readers[0].shown)
            session.decoder.words = ["last", "words"]
            session.run()
            server.finish(20.0)
            assert (True, "the source has ended", ["last words"]) == (*seen[-1][:2], [one for *_, found in seen for one in found])
            slow.close()
            reader.join(10)
        until(lambda: not server.readers)
        start = time.monotonic()
        server.finish(20.0)  # nobody is there
        assert time.monotonic() - start < 5
        with connect(**page):
            until(lambda: server.readers and server.readers[0].messages)
            start = time.monotonic()
            server.finish(1.0)
            assert 1.0 <= time.monotonic() - start < 10


VOICE = """
window.spoken = [];
window.SpeechSynthesisUtterance = function(text) { this.text = text; };
speechSynthesis.getVoices = () => [{name: "Here", lang: "en-US", voiceURI: "here", localService: true}];
speechSynthesis.onvoiceschanged();
speechSynthesis.speak = one => spoken.push([one.text, one.rate]);
speechSynthesis.cancel = () => spoken.push("stop");
"""


@browser_needed
def test_a_listener(browser) -> None:
    """The voice is called when a sentence is final, if it is switched on, and never for what was said before. No sound is heard here."""
    words = Words()
    session = LiveSession(words, Spoken())
    kept: list[SentenceMark] = []
    session.watchers.append(Marks(kept))

    def said(*sentence: str, final: bool = True) -> None:
        seconds = {"final": 0.0} if final else {"wait": 0.0, "model": 0.0, "search": 0.0}
        shown = tuple((word, 0.3 if word == "maybe" else 0.995) for word in sentence)
        update = Update(1, 1, "AH", shown, ("maybe later", " ", "later"), seconds, final=final, reason="cue" if final else "",
                        ends=(1,) * len(shown))
        session._tell(np.zeros((1, 512), np.float32), updates=[update])

    with PageServer(session, port=0) as server:
        said("before", "my", "time")
        browser.get(server.listener_url)
        browser.execute_script(VOICE)
        until(lambda: text(browser, "words") == "before my time")
        said("maybe", "now", final=False)
        until(lambda: text(browser, "words") == "maybe now" and text(browser, "before") == "before my time")
        assert [one.text for one in browser.find_elements("css selector", "#words .unsure")] == ["maybe"]
        said("maybe", "now")
        until(lambda: browser.find_element("id", "right").is_displayed())
        assert [one.text for one in browser.find_elements("css selector", "#choices button")] == ["maybe later", "later"]
        assert browser.execute_script("return spoken") == []  # off, unless it is asked for
        browser.find_element("id", "aloud").click()
        said("come", "here")
        until(lambda: browser.execute_script("return spoken").count(["come here", 1]) == 1)
        browser.find_element("css selector", "#choices button").click()  # the first alternative was meant
        until(lambda: text(browser, "words") == "maybe later")
        until(lambda: browser.execute_script("return spoken").count(["maybe later", 1]) == 1)
        browser.find_element("id", "repeat").click()
        browser.find_element("id", "hush").click()
        assert browser.execute_script("return spoken.slice(-2)") == [["maybe later", 1], "stop"]
        browser.find_element("id", "open").click()
        browser.find_element("id", "correct-text").send_keys("much later\n")
        until(lambda: text(browser, "words") == "much later")
        said("go", "away")
        until(lambda: text(browser, "words") == "go away")
        browser.find_element("id", "wrong").click()
        until(lambda: browser.find_element("id", "words").get_attribute("data-wrong") is not None)
        browser.find_element("id", "open").click()
        browser.find_element("id", "correct-text").send_keys("stay ")
        said("and", final=False)
        until(lambda: text(browser, "words") == "and")
        browser.find_element("id", "correct-text").send_keys("he")  # the next sentence grows, and is final, while somebody types
        said("and", "then")
        until(lambda: text(browser, "words") == "and then")
        assert text(browser, "note") == "You correct: go away"
        browser.find_element("id", "correct-text").send_keys("re\n")
        until(lambda: len(kept) == 4)
        assert kept == [SentenceMark(3, "corrected", "maybe later"), SentenceMark(3, "corrected", "much later"),
                        SentenceMark(4, "wrong"), SentenceMark(4, "corrected", "stay here")]
        browser.find_element("id", "right").click()
        until(lambda: kept[4:] == [SentenceMark(5, "right")])
        assert "Not a medical device" in browser.page_source
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


REMOTE = """
speechSynthesis.getVoices = () => [{name: "Far away", lang: "en-US", voiceURI: "far", localService: false}];
speechSynthesis.onvoiceschanged();
"""


@browser_needed
def test_no_sentence_leaves_the_device_to_be_spoken(browser) -> None:
    """A browser whose voices are all elsewhere speaks nothing, and says why; so it does after the session has ended."""
    session = LiveSession(Words(), Spoken())
    with PageServer(session, port=0) as server:
        browser.get(server.listener_url)
        browser.execute_script(VOICE + REMOTE)
        browser.find_element("id", "aloud").click()
        until(lambda: "no voice" in text(browser, "note"))
        assert browser.find_element("id", "voice").get_attribute("textContent") == "none on this device"
        session.decoder.words = ["come", "here"]
        session.run()
        until(lambda: "do nothing any more" in text(browser, "note"))
        assert not browser.find_element("id", "right").is_enabled() and browser.find_element("id", "repeat").is_enabled()
        browser.find_element("id", "repeat").click()
        assert "no voice" in text(browser, "note") and browser.execute_script("return spoken") == []


class Marks:
    """Keeps what is said of sentences."""

    def __init__(self, kept: list[SentenceMark]) -> None:
        self.kept = kept

    def show(self, moment: Moment) -> None:
        if moment.mark:
            self.kept.append(moment.mark)
