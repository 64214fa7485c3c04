"""The live page in a real browser: what it shows, what it asks for, and that strangers' pages cannot use it."""
import http.server
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.data.dataset import T15
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.live.page import LiveSession, Moment, PageServer
from b2t_kit.live.pipeline import LiveConfig, LiveDecoder
from b2t_kit.live.sources import ParticipantSource
from b2t_kit.models.gru import GRUConfig
from b2t_kit.simulate.neural import SimulateConfig, simulate
from b2t_kit.speech.evaluate import Decoder
from b2t_kit.speech.task import SpeechConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from live_faults import never_reading

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
browser_needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--window-size=1100,900",
           "--host-resolver-rules=MAP rebound.example 127.0.0.1"]


def random_decoder(hidden: int = 16) -> LiveDecoder:
    """A network with random weights and a search over the kit's words."""
    torch.manual_seed(0)
    config = SpeechConfig(model=GRUConfig(hidden=hidden, num_layers=1, num_days=1, num_features=512))
    model = config.model.build().eval()
    day = "t15.2023.08.11"
    return LiveDecoder(Decoder(model, config, (day,), (day,), "random", T15), BeamSearch(*choose_words(None)),
                       LiveConfig(end_silence=0))


@pytest.fixture(scope="module")
def decoder() -> Iterator[LiveDecoder]:
    """A decoder that is compiled, and whose late frames are not logged: time is not what these tests are about."""
    log = logging.getLogger("b2t_kit.live")
    before = log.level
    log.setLevel(logging.ERROR)
    made = random_decoder()
    made.warm_up()
    yield made
    log.setLevel(before)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    simulate(folder / "data", SimulateConfig(sessions=1, trials=8, seed=2, bins_per_phoneme=6.0), progress=False)
    return folder / "data"


@contextmanager
def serving(decoder: LiveDecoder, recordings: Path, host: str = "127.0.0.1") -> Iterator[tuple[LiveSession, PageServer]]:
    """A session with a participant who waits to be told what to say, and its page."""
    session = LiveSession(decoder, ParticipantSource(recordings, stays=True, pace=4))
    thread = threading.Thread(target=session.run)
    with PageServer(session, host, 0) as server:
        thread.start()
        try:
            yield session, server
        finally:
            session.ask("stop")
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


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
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
def test_page_shows_and_asks(decoder: LiveDecoder, recordings: Path, browser) -> None:
    from selenium.webdriver.common.keys import Keys

    with serving(decoder, recordings) as (session, server):
        browser.get(server.url)
        until(lambda: text(browser, "state") == "live" and browser.find_element("id", "say").is_displayed())
        browser.find_element("id", "say-text").send_keys("How are you today?" + Keys.ENTER)
        until(lambda: text(browser, "sentences"))
        (said, decoded), = session.sentences
        lines = text(browser, "sentences").splitlines()
        assert said == "How are you today?" and lines[0] == (decoded or "(nothing)")
        assert "said: How are you today? · ended by cue" in lines[1]
        assert text(browser, "words").split() == decoded.split()
        rows, colours = browser.execute_script(PAINTED)
        assert rows == 128 and colours > 50
        until(lambda: text(browser, "words-ms").endswith(" ms") and text(browser, "display-ms").endswith(" ms"))
        assert not np.isnan(session.decoder.ledger.rows["display"]).all()  # the page said when it had drawn
        assert text(browser, "mended") == "Stream: nothing to mend. Page: nothing left out."

        browser.find_element("id", "hotword-text").send_keys("wojciechowski V OY CH EH HH AO F S K IY" + Keys.ENTER)
        until(lambda: text(browser, "note").startswith("expected from the next sentence on: wojciechowski"))
        browser.find_element("id", "hotword-text").send_keys("x XX" + Keys.ENTER)
        until(lambda: browser.find_element("id", "note").get_attribute("class") == "bad")
        browser.find_element("id", "say-text").send_keys("We should have another look at it." + Keys.ENTER)
        until(lambda: text(browser, "words"))
        browser.find_element("id", "words").click()
        browser.find_element("tag name", "body").send_keys("c")  # the key for a cue
        until(lambda: len(session.sentences) >= 2)
        assert "wojciechowski" in {one.word for one in session.decoder.search.hotwords}

        browser.find_element("id", "cue").send_keys(Keys.TAB)  # the controls are reached one after the other
        assert browser.switch_to.active_element.get_attribute("id") == "hotword-text"
        severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE" and "favicon" not in one["message"]]
        assert not severe, severe
    until(lambda: text(browser, "state") != "live")


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
def test_strangers_page_gets_nothing(decoder: LiveDecoder, recordings: Path, browser, host: str) -> None:
    """Neither from another port nor under a host name that was made to point here, and not even with the token."""
    with serving(decoder, recordings, host) as (session, server):
        before = {one.word for one in session.decoder.search.hotwords}
        token = f"?token={server.token}" if server.token else ""
        with stranger(server.port, token) as port:
            browser.get(f"http://127.0.0.1:{port}/")
            until(lambda: browser.title != "trying")
            assert browser.title == "page refused, socket refused"
        if not token:
            browser.get(f"http://rebound.example:{server.port}/")
            assert "not allowed" in browser.page_source
        session.source.say("Hello.")
        until(lambda: len(session.sentences) == 1)
        assert {one.word for one in session.decoder.search.hotwords} == before


def test_slow_reader_of_the_page_slows_nobody(decoder: LiveDecoder, recordings: Path) -> None:
    """One page never reads, another does: the first is left behind, and the second goes on with the decoder."""
    from websockets.sync.client import connect

    flood = np.random.default_rng(0).normal(size=(400, 512)).astype(np.float32)
    with serving(decoder, recordings) as (session, server), never_reading(server):
        own = f"127.0.0.1:{server.port}"
        with connect(f"ws://{own}/stream", origin=f"http://{own}", max_size=None) as quick:
            until(lambda: len(server.places) == 2)
            slow, reading = server.places

            def behind() -> bool:
                server.feed.show(Moment(flood, 0.0))
                quick.recv(20)
                return slow.bins < reading.bins - 4_000

            until(behind)
            before = vars(slow).copy()
            session.source.say("We should have another look at it.")
            sentences: list[dict] = []
            while not sentences:
                sentences += json.loads(quick.recv(20))["sentences"]
            assert sentences[0]["said"] == "We should have another look at it." and vars(slow) == before
