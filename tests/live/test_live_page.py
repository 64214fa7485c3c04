"""The live page in one Chromium: what an operator and a family see and ask for, and that strangers and slow pages do no harm."""
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from b2t_kit.adapt.live import LiveAdaptation
from b2t_kit.importers.convert import convert
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.decode.words import made_up_words
from b2t_kit.decode.search import BeamSearch
from b2t_kit.live.stream import StreamConfig, StreamDecoder
from b2t_kit.devices.select import open_device
from b2t_kit.importers.kept import KeptSession
from b2t_kit.live.belief import Hearing, WordEvidence
from b2t_kit.live.keep import keep_session
from b2t_kit.live.page import PageServer
from b2t_kit.live.rigs import StreamSource
from b2t_kit.live.requests import SentenceMark
from b2t_kit.live.session import LiveSession, Moment
from b2t_kit.live.status import DISBELIEF, Status
from b2t_kit.live.sources import ParticipantSource, Piece
from b2t_kit.live.terminal import Terminal
from b2t_kit.models.gru import GRUConfig
from b2t_kit.simulate.recordings import SimulateConfig, labels_of, simulate
from b2t_kit.speech.decoder import Decoder
from b2t_kit.speech.task import SpeechConfig
from stand_ins import (CHROMIUM, DRIVER, OPTIONS, VOICE, Marks, Rig, Spoken, Words, free_port, never_reading, next_of, press, shows,
                       text, until, web_server)

pytestmark = pytest.mark.second_tier

browser_needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "data"
    simulate(folder, SimulateConfig(sessions=1, trials=8, seed=2, bins_per_phoneme=6.0), progress=False)
    return folder


@pytest.fixture(scope="module")
def decoder() -> StreamDecoder:
    """A network with random weights and a search over the kit's words, compiled."""
    torch.manual_seed(0)
    config, day = SpeechConfig(model=GRUConfig(hidden=16, num_layers=1, num_days=1, num_features=512)), "t15.2023.08.11"
    made = StreamDecoder(Decoder(config.model.build().eval(), config, (day,), (day,), "random", T15),
                         BeamSearch(*made_up_words()), StreamConfig(end_silence=0))
    made.warm_up()
    return made


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


def quiet_session() -> LiveSession:
    """A session that is ready and whose source says nothing; what is shown is told by hand."""
    session = LiveSession(Words(), Spoken())
    session.state.warming = ""
    return session


def address(server: PageServer, role: str = "", query: str = "") -> dict:
    """How a page opens its stream."""
    own = f"127.0.0.1:{server.port}"
    return {"uri": f"ws://{own}/{role}stream{query}", "origin": f"http://{own}", "max_size": None, "close_timeout": 0.5}


@pytest.mark.first_tier
@browser_needed
def test_page_shows_and_asks(decoder: StreamDecoder, recordings: Path, browser) -> None:
    """An operator's hour: words and how late they are, hotwords good and bad, the dial, a cue by key and button, the end."""
    session = LiveSession(decoder, ParticipantSource(recordings, stays=True, pace=4))
    thread = threading.Thread(target=session.run, daemon=True)
    with PageServer(session, port=0) as server:
        thread.start()
        browser.get(server.url)
        shows(browser, state="waiting for a sentence to say", kept="Nothing of this session is kept.", calm_text="shown at once")
        press(browser, "say-text", "How are you today?\n")
        shows(browser, sentences=bool, note="will be said: How are you today?")
        (said, decoded), = session.sentences
        lines = text(browser, "sentences").splitlines()
        assert said == "How are you today?" and lines[0] == (decoded or "(nothing)") and lines[-1] == f"said: {said}"
        assert text(browser, "words").split() == decoded.split()
        assert len(set(browser.execute_script("return paint.getImageData(0, 0, 400, recording.height).data"))) > 50
        shows(browser, words_ms=lambda now: now.endswith(" ms"), phonemes=bool,
              state="waiting for a sentence to say", counted="Stream: no fault counted.")
        browser.execute_script("find('calm').value = 0.4; find('calm').onchange()")
        shows(browser, calm_text="shown after 0.40 s")
        press(browser, "hotword-text", "wojciechowski V OY CH EH HH AO F S K IY\n")
        shows(browser, hotwords="wojciechowski ✕", note=lambda now: now.startswith("expected from the next sentence on: wojcie"))
        press(browser, "hotword-text", "x XX\n")
        shows(browser, note=lambda now: "type a name in letters, such as" in now)
        press(browser, "say-text", "We should have another look at it.\n")
        shows(browser, words=bool)
        press(browser, "words")
        browser.find_element("tag name", "body").send_keys("c")  # the key for a cue
        until(lambda: len(session.sentences) >= 2)
        assert "wojciechowski" in {one.word for one in session.decoder.search.hotwords}
        browser.find_element("css selector", "#hotwords button").click()
        shows(browser, note=lambda now: now.startswith("not expected any more"), hotwords="")
        shows(browser, state="waiting for a sentence to say")  # the key may have come before the last words
        press(browser, "cue")
        shows(browser, note="no sentence is open, so there was nothing to end")
        severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE" and "favicon" not in one["message"]]
        assert not severe, severe
        session.request("stop")
        thread.join(10)
    shows(browser, state="stopped", note=lambda now: "do nothing any more" in now)
    time.sleep(2.5)  # the page does not try again
    assert text(browser, "state") == "stopped" and not browser.find_element("id", "cue").is_enabled()


BAD_BINS = [  # what comes, and what page and terminal call it
    (lambda rows: rows[:, :256], "refused", "256 features, 512 wanted ("),
    (lambda rows: None, "refused", "a message is not of a b2t stream"),
    (lambda rows: rows * np.nan, "damaged", "of the bins have NaN or enormous values"),
    (lambda rows: np.ones((1, 512)), "damaged", "100% of the features have had the same value for 3 s"),
    (lambda rows: np.abs(rows * 3).round(), "damaged", "none below 0, such as counts of spikes"),
    (lambda rows: 40 * rows, "damaged", "values of about"),
    (lambda rows: np.where(np.arange(512) < 230, 0, rows), "damaged", "45% of the features have had the same value"),
]


@browser_needed
def test_ways_to_fail(browser, tmp_path: Path) -> None:
    """What page and terminal say of each, in order; the server goes on through all of them but the last two."""
    port, terminal = free_port(), io.StringIO()
    rig = Rig(port, gap=0.004)
    session = LiveSession(Words(), StreamSource(rig.address, stays=True), [Terminal(terminal)])
    session.quality.pace = 0  # bins come five times as fast as in real time, to judge sooner
    keeper = keep_session(session, tmp_path / "kept", {})
    thread = threading.Thread(target=session.run, daemon=True)

    def seen(state: str, words: str, written: str | None = None) -> None:
        where = "return [find('state').dataset.state, find('state').textContent + find('sentences').textContent]"
        until(lambda: (now := browser.execute_script(where))[0] == state and words in now[1])
        until(lambda: (words if written is None else written) in terminal.getvalue())
        footer = text(browser, "counted")
        assert state == "live" or "nothing to repair" not in footer, footer

    with PageServer(session, port=0) as server:
        browser.get(server.url)
        seen("warming up", "warming up", "")
        thread.start()
        seen("waiting", f"nobody answers at {rig.address}")
        with web_server(port):
            seen("waiting", "takes connections and says nothing")
        rig.start()
        for wrong, state, words in BAD_BINS:
            with rig.sending(wrong):
                seen(state, words)
        with rig.sending():
            seen("live", "live", "[live]")
            assert browser.find_element("id", "words").get_attribute("data-doubt") is not None  # the sentence stays in doubt
        seen("no data", f" s: the sender at {rig.address} sends nothing")  # it stalls
        seen("no data", "ended by a stream that stopped", "(a stream that stopped)")
        with rig.sending():
            seen("live", "live")
        rig.kill()
        seen("no data", "has gone")
        rig.start()
        rig.send(60)
        rig.kill()
        rig.start()  # at once: before the sentence was given up
        with rig.sending():
            seen("live", "ended by a restart of the sender", "(a restart of the sender)")
        rig.send(60)
        rig.end()
        seen("waiting", f"the sender at {rig.address} has ended")
        seen("waiting", "ended by the end of the sender", "(the end of the sender)")
        rig.start()  # the server is still there
        with rig.sending():
            seen("live", "live")
        before = session.finals
        rig.send(60, cue=True)
        until(lambda: before < session.finals == browser.execute_script("return find('sentences').children.length"))
        shown = [one.text for one in browser.find_elements("css selector", "#sentences li:not(.doubt) > span:first-child")]
        assert shown == [one for _, one in reversed(session.sentences)]  # each once, none glued to another
        unfinished = browser.find_elements("css selector", "#sentences li.doubt")  # words of damaged signals
        assert unfinished and all("not finished: " in one.text and not one.find_elements("tag name", "button") for one in unfinished)
        server.close()  # the page's server dies; the decoder goes on
        seen("connection lost", "connection lost", "")
    session.request("stop")
    thread.join(10)
    rig.kill()
    keeper.stop()
    events = [json.loads(line) for line in (tmp_path / "kept/events.jsonl").read_text().splitlines()]
    assert {"waiting", "refused", "damaged", "no data", "live", "ended"} <= {one.get("state") for one in events}
    ends = [one for one in events if one["event"] == "final"]
    assert {"restart", "sender", "cue"} <= {one["reason"] for one in ends}
    assert "stall" in {one["reason"] for one in events if one["event"] == "unfinished" and one["doubt"]}
    assert [" ".join(word for word, _ in one["words"]) for one in ends] == [one for _, one in session.sentences]


def test_words_of_a_bad_signal_are_no_reason_to_doubt_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a decoder lacks in words that it made of hum says nothing of those after the repair."""
    lacking = [WordEvidence("", 100.0, 5)] * 3
    monkeypatch.setattr("b2t_kit.live.session.word_evidence", lambda *given: lacking)
    final = Words().update("cue", tuple((word, 0.995) for word in ("come", "here", "now")))
    session = quiet_session()
    session.state.sentence_fault = "hum"
    session._tell(NO_BINS, updates=[final])
    assert session.state.belief == ""
    session._tell(NO_BINS, updates=[final])
    assert session.state.belief == "untrusted"


def test_a_network_that_is_lost_is_told_before_its_sentence_ends() -> None:
    session = quiet_session()
    session.hearing = Hearing(expected=0.5, frame_seconds=0.08)
    told = list[Moment]()
    session.watchers.append(SimpleNamespace(show=told.append))
    sure = np.eye(41, dtype=np.float32)[5] * 20
    words = (("come", 0.995), ("here", 0.995), ("now", 0.995))

    def hear(logits: np.ndarray, seconds: float) -> None:
        """Tell so many seconds of frames that sound like this; usable bins come meanwhile."""
        for _ in range(round(seconds / 0.08)):
            session.state.received = time.perf_counter()
            session._tell(NO_BINS, updates=[replace(Words().update("", words), logits=logits)])

    hear(sure, 8.0)
    assert session.status().name == "live"
    hear(np.zeros(41, np.float32), 4.0)
    assert session.status().name == "unsure"
    session._tell(NO_BINS, updates=[Words().update("cue", words)])
    assert told[-1].unsure and not told[-1].fault
    hear(sure, 5.0)  # repaired: no sentence has to end for it
    assert session.status().name == "live"
    session._tell(NO_BINS, updates=[Words().update("cue", words)])
    assert not told[-1].unsure


def test_words_of_a_drift_are_not_held_against_what_comes_after_it() -> None:
    session = quiet_session()
    rng = np.random.default_rng(0)

    def drifts(offset: float, seconds: float) -> list[bool]:
        """Whether it is remarked after each bin of so many seconds with an offset."""
        found = []
        for number in range(session.quality.count, session.quality.count + round(50 * seconds)):
            row = offset + rng.normal(size=(1, Words.features)).astype(np.float32)
            session._repair(Piece(number, row, number / 50))
            found.append(session.quality.values.drifts)
        return found

    assert not any(drifts(0.0, 12.0)) and drifts(0.5, 60.0).count(True) > 0
    session.state.belief = "unsure"
    near = drifts(0.5, 60.0)  # at the limit it is not remarked, taken back and remarked again
    assert all(near) and session.state.belief == "unsure"
    assert not drifts(0.0, 3.0)[-1] and session.state.belief == ""


def test_a_kept_session(decoder: StreamDecoder, recordings: Path, tmp_path: Path) -> None:
    """It becomes recordings to learn from; it can be stopped and deleted."""
    source = ParticipantSource(recordings, ["Hello there.", "How are you today?"], pace=0)
    session = LiveSession(decoder, source)
    keeper = keep_session(session, tmp_path / "kept", {"run": "random"}, features=True)
    session.run()
    session.request("keep-stop")
    assert not keeper.on and keeper.line == "This session was kept."
    convert(KeptSession(tmp_path / "kept", tmp_path / "mine"))
    with Recordings(tmp_path / "mine", "train") as learned:  # what a decoder can learn from
        assert len(learned.infos) == 2
        for number, info in enumerate(learned.infos):
            assert info.sentence == session.sentences[number][0]
            assert np.array_equal(learned.features(number), source.record(info.sentence, number))
            assert tuple(learned.labels(number)) == labels_of(info.sentence)
    session.request("keep-delete")
    assert not (tmp_path / "kept").exists()


@browser_needed
def test_what_a_page_says_of_keeping(browser, tmp_path: Path) -> None:
    """On a phone, where a thumb hits one button, not two: kept, stopped, deleted; and that a full disk keeps nothing more."""
    session, lines = quiet_session(), io.StringIO()
    keep_session(session, tmp_path / "kept", {})
    with PageServer(session, port=0) as server:
        browser.get(server.url)
        shows(browser, kept="This session is kept.")
        screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        stop, delete = (browser.find_element("id", name).rect for name in ("keep-stop", "keep-delete"))
        assert delete["y"] - stop["y"] - stop["height"] >= 8
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        press(browser, "keep-stop")
        shows(browser, kept="This session was kept.")
        press(browser, "keep-delete")
        browser.switch_to.alert.accept()
        shows(browser, kept="What was kept of this session has been deleted.")
        assert not (tmp_path / "kept").exists() and not browser.find_element("id", "keep-delete").is_enabled()
        session.watchers = [server, Terminal(lines)]
        keep_session(session, tmp_path / "full", {})
        (tmp_path / "full/events.jsonl").symlink_to("/dev/full")
        session.note("something to keep")
        shows(browser, kept="Nothing more is kept: No space left on device.", note="Nothing more is kept: No space left on device.")
        assert "refused: Nothing more is kept: No space left on device." in lines.getvalue()


@browser_needed
def test_back_to_the_decoder_of_the_morning(decoder: StreamDecoder, browser) -> None:
    """What a decoder that learns says of itself, and the button that ends it."""
    session = LiveSession(decoder, Spoken())
    session.state.warming = ""
    with open_device("cpu", "float32") as device, PageServer(session, port=0) as server:
        browser.get(server.url)
        until(lambda: text(browser, "counted"))
        assert not browser.find_element("id", "learning").is_displayed()
        session.adaptation = adaptation = LiveAdaptation(session, device)
        adaptation.compared.gain = 4.0
        adaptation._choose()
        session.note(adaptation.line)
        adapted = "Decoding with the adapted decoder; learned from 0 sentences, expected gain 4.0 words."
        until(lambda: text(browser, "learned") == adapted)
        assert decoder.next_steps is not adaptation.morning
        press(browser, "morning")
        until(lambda: text(browser, "learned") == "Decoding with the decoder as trained; adaptation is off.")
        assert decoder.next_steps is adaptation.morning
        assert not browser.find_element("id", "morning").is_enabled()
    decoder.next_steps = None


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
        assert text(browser, "sentences").count("ended by a stream that stopped") == 3


@browser_needed
def test_words_that_may_not_be_known(browser) -> None:
    """They stay marked after the end; each that stands apart can be expected, once it is asked how it is written."""
    with PageServer(session := quiet_session(), port=0) as server:
        browser.get(server.url)
        words = tuple((word, 0.995) for word in ("i", "met", "three", "and", "saw", "trip", "glass"))
        unknown = ("", "", "K R IY", "", "", "T R IH P", "AH")
        server.feed.show(Moment(np.zeros((1, 512), np.float32), 0.0, [Words().update("cue", words)], unknown=unknown,
                                known=("T R IH P AH",)))
        buttons = ["✓", "✗", "Fix", "Expect kree"]
        until(lambda: texts(browser, "#sentences .marks button") == buttons)
        time.sleep(1.5)  # a message comes each second
        assert texts(browser, "#words .unknown") == ["three", "trip", "glass"]
        browser.find_elements("css selector", "#sentences .marks button")[-1].click()
        assert browser.find_element("id", "hotword-text").get_property("value") == "kree K R IY" and not session.decoder.hotwords
        assert browser.find_element("id", "cue").accessible_name == "The sentence ends here"


@browser_needed
def test_a_lost_connection_leaves_nothing_that_may_be_untrue(browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server dies while the stream is well and the session is kept: nobody says so of it any more."""
    session = quiet_session()
    keep_session(session, tmp_path / "kept", {})
    session.bins = 5
    monkeypatch.setattr(session, "status", lambda: Status("live", "live"))
    for path in ("", "listen"):
        with PageServer(session, port=0) as server:
            browser.get(server.listener_url if path else server.url)
            shows(browser, kept="This session is kept.", **({} if path else {"counted": lambda now: "nothing to repair" in now}))
            server.close()
            shows(browser, state=lambda now: now.startswith("connection lost"))
            assert text(browser, "kept") == "Whether this session is kept is not known now."
            assert path or text(browser, "counted") == "Stream: not known while the connection is lost."


def test_slow_reader_of_the_page_slows_nobody() -> None:
    """One page never reads, another does: the first is left behind, and the second gets the words of the decoder."""
    session, flood = quiet_session(), np.random.default_rng(0).normal(size=(400, 512)).astype(np.float32)
    with PageServer(session, port=0) as server, never_reading(server.port), connect(**address(server)) as quick:
        until(lambda: len(server.readers) == 2)
        slow, reading = server.readers

        def behind() -> bool:
            server.feed.show(Moment(flood, 0.0))
            next_of(quick)
            return slow.seen < reading.seen - 10

        until(behind)
        before = slow.messages, slow.seen, slow.shown
        session.decoder.words = ["another", "look"]
        session.run()
        sentences: list[dict] = []
        until(lambda: sentences.extend(next_of(quick)["sentences"]) or sentences)
        assert sentences[0]["text"] == "another look" and (slow.messages, slow.seen, slow.shown) == before


def test_one_page_cannot_keep_the_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood, bytes that are no text, silent connections and pages, nine pages, a deletion meant for another session."""
    monkeypatch.setattr("b2t_kit.live.page.GONE", 3.0)
    monkeypatch.setattr("b2t_kit.live.page.QUIET", 1.0)
    monkeypatch.setattr("b2t_kit.live.page.SILENT", 5.0)
    session, stop = quiet_session(), threading.Event()
    session.decoder.add_hotword = lambda text: time.sleep(0.05)
    keeper = keep_session(session, tmp_path / "kept", {})

    def flood(page) -> None:
        with suppress(ConnectionClosed):
            while not stop.is_set():
                page.send(json.dumps({"ask": "hotword", "text": "spam"}))

    def answer_to(page, what: str, more: str) -> str:
        page.send(json.dumps({"ask": what, "text": more}))
        while not (answers := next_of(page)["answers"]):
            pass
        return answers[0]["text"]

    with PageServer(session, port=0) as server, ExitStack() as stack:
        page = address(server)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(50)]
        silent[0].settimeout(15)
        with connect(**page) as good, connect(**page) as bad, connect(**page), never_reading(server.port):
            until(lambda: len(server.readers) == 4)
            threading.Thread(target=flood, args=(bad,), daemon=True).start()
            good.send(b"\x00\xff")
            began = time.monotonic()
            while len(server.readers) > 1:  # those that draw nothing are closed, the good one never
                before = time.monotonic()
                name = next_of(good)["feed"]
                assert time.monotonic() - before < 3 and time.monotonic() - began < 20
            assert answer_to(good, "hotword", "anna") == "expected from the next sentence on: anna"
            stop.set()
            assert "nothing was deleted" in answer_to(good, "keep-delete", "") and keeper.folder.exists()
            good.send(json.dumps({"ask": "keep-delete", "text": name}))
            until(lambda: not keeper.folder.exists())
        until(lambda: not server.readers)
        for each in [stack.enter_context(connect(**page)) for _ in range(8)]:
            next_of(each)
        with connect(**page) as ninth, pytest.raises(ConnectionClosed, match="8 pages are open"):
            ninth.recv(5)
        with connect(**address(server, "listen-")) as listener:
            next_of(listener)  # pages of an operator do not keep a listener out
        time.sleep(1.5)
        with connect(**page) as ninth:
            next_of(ninth)  # takes the place of one that has been silent
        assert silent[0].recv(1) == b""  # closed: it asked for nothing


def test_finish_waits_for_the_last_words_but_not_for_ever() -> None:
    """A page that is slow has drawn them before the server goes; one that draws nothing is waited for so long and no longer."""
    session, seen = LiveSession(Words(), Spoken()), []

    def draw_slowly(page) -> None:
        for body in page:
            time.sleep(0.3)
            message = json.loads(body)
            seen.append((message["over"], message["text"], *(one["text"] for one in message["sentences"])))
            page.send(json.dumps({"ask": "shown", "text": str(message["number"])}))

    with PageServer(session, port=0) as server:
        with connect(**address(server)) as slow:
            threading.Thread(target=draw_slowly, args=(slow,), daemon=True).start()
            until(lambda: server.readers and server.readers[0].shown)
            session.decoder.words = ["last", "words"]
            session.run()
            server.finish(20.0)
            assert seen[-1][:2] == (True, "the source has ended") and "last words" in {one for found in seen for one in found}
        until(lambda: not server.readers)
        with connect(**address(server)):
            until(lambda: server.readers and server.readers[0].messages)
            start = time.monotonic()
            server.finish(1.0)
            assert 1.0 <= time.monotonic() - start < 10


def texts(browser, selector: str) -> list[str]:
    """At one moment: the page draws its words again whenever a message comes."""
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(one => one.textContent.trim())", selector)


NO_BINS = np.zeros((1, 512), np.float32)


def say(
    server: PageServer, *sentence: str, final: bool = True, others: tuple[str, ...] = ("later",)
) -> None:
    """Have a session's pages see words, as the decoder would show them."""
    words = tuple((word, 0.3 if word == "maybe" else 0.995) for word in sentence)
    server.session._tell(NO_BINS, updates=[Words().update("cue" * final, words, others)])


def spoken(browser) -> list:
    return browser.execute_script("return spoken")


def click(browser, selector: str) -> None:
    browser.find_element("css selector", selector).click()


@browser_needed
def test_a_listener(browser) -> None:
    """The voice is called when a sentence is final, if it is switched on, and never for what was
    said before. The last sentence is marked and repeated while the next one grows, and the mark is
    taken back. No sound is heard here."""
    session, kept = LiveSession(Words(), Spoken()), Marks()
    session.watchers.append(kept)
    with PageServer(session, port=0) as server:
        say(server, "before", "my", "time")
        browser.get(server.listener_url)
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        browser.execute_script(VOICE)
        shows(browser, words="before my time", before="")
        say(server, "maybe", "now", final=False)
        shows(browser, words="maybe now", before="before my time")
        assert texts(browser, "#words .unsure") == ["maybe"]
        press(browser, "wrong")  # of the sentence before, while this one grows
        wrong = browser.find_element("id", "wrong")
        until(lambda: wrong.get_attribute("aria-pressed") == "true")
        assert wrong.accessible_name == "“before my time” is wrong"
        press(browser, "repeat")
        assert text(browser, "words") == "maybe now"
        assert spoken(browser)[-1] == ["before my time", 1]
        say(server, "maybe", "now")
        shows(browser, words="maybe now", before="")
        assert spoken(browser).count(["maybe now", 1]) == 0  # off, unless it is asked for
        press(browser, "aloud")
        say(server, "come", "here")
        until(lambda: spoken(browser).count(["come here", 1]) == 1)
        press(browser, "repeat")
        press(browser, "hush")
        assert spoken(browser)[-2:] == [["come here", 1], "stop"]
        press(browser, "wrong")
        stage = browser.find_element("id", "words")
        until(lambda: stage.get_attribute("data-wrong") is not None)
        press(browser, "wrong")  # undo
        until(lambda: stage.get_attribute("data-wrong") is None)
        marks = (1, "wrong"), (3, "wrong"), (3, "none")
        assert kept.marks == [SentenceMark(*mark) for mark in marks]
        for number, unsure, doubt, said in (
            (4, True, "", ""),
            (5, True, "", "Not spoken"),
            (6, False, DISBELIEF, "Not a sentence"),
        ):
            updates = [Words().update("cue", (("sentence", 0.995), (str(number), 0.995)))]
            server.feed.show(Moment(NO_BINS, 0.0, updates, unsure=unsure, fault=doubt))
            shows(browser, note=lambda now, said=said: said in now)
            if number == 4:
                until(lambda: spoken(browser)[-1:] == [["Perhaps: sentence 4", 1]])
                assert texts(browser, "#words .unsure") == ["sentence", "4"]
                press(browser, "open")
                press(browser, "perhaps")
                press(browser, "close")
        assert spoken(browser)[-1] == ["Perhaps: sentence 4", 1]
        assert "Not a medical device" in browser.page_source
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@browser_needed
def test_a_correction_by_touching_words(browser) -> None:
    """A word of the sentence has what the decoder would have said instead; the correction stays of
    that sentence when the next one ends meanwhile. In lists what was meant is large and what was
    wrong is small, and older sentences can be corrected too."""
    session, kept = LiveSession(Words(), Spoken()), Marks()
    session.watchers.append(kept)
    with PageServer(session, port=0) as server:
        browser.get(server.listener_url)
        browser.execute_script(VOICE)
        others = "bring my class", "bring your glass", "ring my glass please"
        say(server, "bring", "my", "glass", others=others)
        shows(browser, words="bring my glass")
        click(browser, "#words span:nth-of-type(3)")
        assert texts(browser, "#fix-words button") == ["bring", "my", "glass"]
        options = ["class", "glass please", "Leave it out", "Another word …"]
        assert texts(browser, "#fix-options button") == options
        click(browser, "#fix-options button:nth-of-type(2)")
        click(browser, "#fix-words button:nth-of-type(2)")
        click(browser, "#fix-options button")  # your
        sentence = browser.find_element("id", "correct-text")
        assert sentence.get_property("value") == "bring your glass please"
        click(browser, "#fix-words button:nth-of-type(2)")  # back, and another word typed over it
        click(browser, "#fix-words button:nth-of-type(2)")
        click(browser, "#fix-options button:last-of-type")
        say(server, "and", "then")
        shows(browser, words="and then")
        browser.switch_to.active_element.send_keys("our\n")
        until(lambda: kept.marks == [SentenceMark(1, "corrected", "bring our glass please")])
        # it was asked for, so though finished sentences are not spoken
        until(lambda: spoken(browser)[-1:] == [["bring our glass please", 1]])
        press(browser, "fix")
        assert texts(browser, "#fix-words button") == ["and", "then"]
        press(browser, "fix-close")
        press(browser, "open")
        click(browser, "#sentences [data-number='2'] [aria-label$='is wrong']")
        until(lambda: texts(browser, "#sentences .wrong .sentence") == ["and then"])
        assert texts(browser, "#sentences .corrected .sentence") == ["bring our glass please"]
        remark = "corrected; it was read as: bring my glass"
        assert texts(browser, "#sentences .corrected small") == [remark]
        sizes = [
            browser.find_element("css selector", f"#sentences .{mark} .sentence").rect["height"]
            for mark in ("wrong", "corrected")
        ]
        assert sizes[0] < sizes[1]
        click(browser, "#sentences [data-number='1'] [aria-label^='Repeat']")
        assert spoken(browser)[-1] == ["bring our glass please", 1]
        click(browser, "#sentences [data-number='1'] [aria-label^='Fix']")
        click(browser, "#choices button")  # the whole sentence, as the decoder's next best
        until(lambda: kept.marks[-1] == SentenceMark(1, "corrected", "bring my class"))
        until(lambda: texts(browser, "#sentences .corrected .sentence") == ["bring my class"])
        browser.get(server.url)  # the operator can do it too, without a voice
        until(lambda: texts(browser, "#sentences .corrected .sentence") == ["bring my class"])
        click(browser, "#sentences [data-number='2'] [aria-label^='Fix']")
        assert text(browser, "correct-do") == "Correct it"
        press(browser, "correct-text", " went\n")
        until(lambda: kept.marks[-1] == SentenceMark(2, "corrected", "and then went"))


@browser_needed
def test_by_keyboard_alone(browser) -> None:
    """A word is corrected, and a sentence in the list marked twice, without a pointer."""
    from selenium.webdriver.common.keys import Keys

    session, kept = quiet_session(), Marks()
    session.watchers.append(kept)

    def focused(attribute: str = "textContent") -> str:
        return browser.switch_to.active_element.get_property(attribute)

    def keys(*pressed: str) -> None:
        for one in pressed:
            browser.switch_to.active_element.send_keys(one)

    def tab_to(name: str) -> None:
        for _ in range(40):
            keys(Keys.TAB)
            if name in (focused(), focused("id"), focused("ariaLabel")):
                return
        raise AssertionError(f"no way to {name} by Tab")

    with PageServer(session, port=0) as server:
        browser.get(server.listener_url)
        browser.execute_script(VOICE)
        say(server, "bring", "my", "glass", others=("bring my class",))
        shows(browser, words="bring my glass")
        tab_to("fix")
        keys(Keys.ENTER)
        assert focused() == "bring"
        tab_to("glass")
        keys(Keys.SPACE)
        tab_to("class")
        keys(Keys.ENTER)
        assert focused() == "class"  # the word in its new place
        tab_to("correct-do")
        keys(Keys.ENTER)
        until(lambda: kept.marks == [SentenceMark(1, "corrected", "bring my class")])
        assert focused("id") == "fix"
        tab_to("open")
        keys(Keys.ENTER)
        until(lambda: texts(browser, "#sentences .corrected .sentence"))
        tab_to("“bring my class” is wrong")
        keys(Keys.ENTER)
        until(lambda: texts(browser, "#sentences .wrong .sentence"))
        keys(Keys.ENTER)  # the focus has stayed
        until(lambda: not texts(browser, "#sentences .wrong .sentence"))
        keys(Keys.ESCAPE)
        assert focused("id") == "open"


@browser_needed
def test_words_of_ones_own_without_the_decoder(browser) -> None:
    """Anything that is typed is spoken, also when the session has ended; phrases are buttons, and
    own ones are kept when the page is loaded again, like the voice, its speed and whether finished
    sentences are spoken."""
    session = quiet_session()
    with PageServer(session, port=0) as server:
        browser.get(server.listener_url)
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        low = "{name: 'Low', lang: 'en-GB', voiceURI: 'low', localService: true}"
        voices = VOICE.replace("[{name", f"[{low}, {{name")
        browser.execute_script(voices)
        assert texts(browser, "#phrases button") == PHRASES
        click(browser, "#phrases button:last-of-type")
        press(browser, "type-text", "Turn me over\n")
        assert spoken(browser)[-3:] == [["Pain", 1], "stop", ["Turn me over", 1]]
        browser.switch_to.active_element.send_keys("Hello\n")  # in the place of what was typed
        assert spoken(browser)[-1] == ["Hello", 1] and text(browser, "note") == "Spoken: Hello"
        press(browser, "phrase-add")
        press(browser, "aloud")
        press(browser, "open")
        browser.find_element("id", "voice").send_keys("Low")
        browser.execute_script("find('rate').value = 0.7; find('rate').onchange()")
        press(browser, "perhaps")
        browser.refresh()
        assert text(browser, "aloud") == "Speak: off"  # the browser has no voice yet
        browser.execute_script(voices)
        assert text(browser, "aloud") == "Speak: on"
        state = "return [find('voice').value, find('rate').value, find('perhaps').checked]"
        assert browser.execute_script(state) == ["low", "0.7", False]
        assert texts(browser, "#phrases button") == [*PHRASES, "Hello"]
        session.state.ended = "the source has ended"
        server.feed.show(Moment(np.zeros((0, 512), np.float32), 0.0, over=True))
        shows(browser, note=lambda now: "do nothing any more" in now)
        click(browser, "#phrases button:last-of-type")
        assert spoken(browser)[-1] == ["Hello", 0.7]
        press(browser, "open")
        click(browser, "#own-phrases button")
        assert texts(browser, "#phrases button") == PHRASES
        browser.execute_script("localStorage.clear()")


@browser_needed
def test_what_somebody_asked_to_hear_is_not_cut_off(browser) -> None:
    """A finished sentence is spoken after it; what is asked for next cuts it off."""
    with PageServer(quiet_session(), port=0) as server:
        browser.get(server.listener_url)
        keeps = "speechSynthesis.speak = one => { window.utterance = one; spoken.push(one.text); };"
        browser.execute_script(VOICE + keeps)
        press(browser, "aloud")
        click(browser, "#phrases button")
        say(server, "come", "here")
        until(lambda: spoken(browser) == ["stop", "Yes", "come here"])
        click(browser, "#phrases button")
        browser.execute_script("utterance.onend()")
        say(server, "come", "again")
        until(lambda: spoken(browser)[3:] == ["stop", "Yes", "stop", "come again"])
        browser.execute_script("utterance.onerror({error: 'not-allowed'})")
        assert "Touch this page once" in text(browser, "note")
        browser.execute_script("localStorage.clear()")


@browser_needed
def test_a_fault_has_two_lines(browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is for the family, and one for the technician."""
    session = quiet_session()
    status = [Status("damaged", "damaged: 45% of the features have had the same value for 3 s")]
    family = "The signal is bad: words cannot be trusted."
    monkeypatch.setattr(session, "status", lambda: status[0])
    with PageServer(session, port=0) as server:
        for url in (server.url, server.listener_url):
            browser.get(url)
            shows(browser, family=family, state=status[0].text)
            assert texts(browser, "#announce") == [family]
        rows = np.random.default_rng(0).normal(size=(150, 512))
        rows[:, :230] = 0  # of the fourth array only a part, as by chance
        session.quality.bins.extend(rows)
        shows(browser, state=f"{status[0].text} (crossings of array 1, 2, 3)")
        status[0] = Status("live", "live")
        shows(browser, family="", state="live")


EVERYBODY = (Path(__file__).parent / "everybody.js").read_text(encoding="utf-8")
PHRASES = ["Yes", "No", "Wait", "Pain"]


@browser_needed
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_for_everybody(browser, scheme: str) -> None:
    """What is pressed has 44 pixels and a name, text can be told from its ground, and letters of
    twice the size fit a phone."""
    session = quiet_session()
    session.decoder.hotwords = ["anna"]
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    try:
        with PageServer(session, port=0) as server:
            for number in range(3):
                say(server, "maybe", "sentence", str(number))
            session.request("mark", "1 wrong")
            session.request("mark", "2 corrected another sentence")
            session.note("something to know", True)
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            screen = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            for url, dialog in (
                (server.url, ""),
                (server.listener_url, ""),
                (server.listener_url, "openFix(last, 0)"),
                (server.listener_url, "find('more').showModal()"),
            ):
                browser.get(url)
                browser.execute_script(VOICE + "choose({phrases: ['Hello']}); showPhrases();")
                until(lambda: texts(browser, "#sentences .corrected .sentence"))
                browser.execute_script(dialog)
                for size in ("100%", "200%"):
                    larger = f"document.documentElement.style.fontSize = '{size}'"
                    browser.execute_script(larger)
                    found = browser.execute_script(EVERYBODY)
                    assert found == {"small": [], "pale": [], "edges": [], "wide": False}, size
                around = "dialog[open] " if dialog else ""  # the rest cannot be reached
                for one in browser.find_elements("css selector", f"{around}:is(button, input, a)"):
                    name = one.accessible_name.strip()
                    assert name or not one.is_displayed(), one.get_attribute("outerHTML")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.execute_script("localStorage.clear()")


@browser_needed
def test_no_sentence_leaves_the_device_to_be_spoken(browser) -> None:
    """A browser whose voices are all elsewhere speaks nothing, and says why; so it does after the session has ended. A proxy
    has put a path in front of the page, whose address has a token."""
    session, port = LiveSession(Words(), Spoken()), free_port()
    with PageServer(session, port=port, origin=f"http://127.0.0.1:{port}/ward/live") as server:
        browser.get(server.listener_url)
        browser.execute_script(VOICE.replace("localService: true", "localService: false"))
        press(browser, "aloud")
        shows(browser, note=lambda now: "no voice" in now)
        assert browser.find_element("id", "voice").get_attribute("textContent") == "none on this device"
        assert text(browser, "aloud") == "Speak: off"
        session.decoder.words = ["come", "here"]
        session.run()
        shows(browser, note=lambda now: "do nothing any more" in now)
        assert not browser.find_element("id", "right").is_enabled()
        press(browser, "repeat")
        assert "no voice" in text(browser, "note") and browser.execute_script("return spoken") == []
