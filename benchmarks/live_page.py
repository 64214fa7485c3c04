"""What the live page shows of each fault, after how many seconds, driven in Chromium; and pictures of the page.

    b2t demo --out demo
    python benchmarks/live_page.py --demo demo [--pictures DIR] [--only bad_signals ...]

Needs chromium, chromedriver and selenium. A bad signal follows three good seconds and is looked at on the listener's
page, with its voice switched on and recorded; the others on the operator's. `overload` keeps this process, with the
lowest priority, and eight busy ones on one core (as root). Seconds are those from the fault to the page, to 0.03 s.
Writes benchmarks/results/live_page.json.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from selenium import webdriver

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/live"))

from stand_ins import CHROMIUM, DRIVER, OPTIONS, VOICE, Rig, Spoken, Words, beside, free_port, text, until

from b2t_kit.core import save_json
from b2t_kit.decode.stream import StreamConfig
from b2t_kit.live.page import PageServer
from b2t_kit.live.session import LiveSession, open_decoder
from b2t_kit.live.sources import ParticipantSource, StreamSource

RESULTS = Path(__file__).with_name("results") / "live_page.json"
RNG = np.random.default_rng(1)
LOOP = RNG.standard_normal((10, 1, 512))
SIGNALS: dict[str, tuple[float, Callable[[np.ndarray, int], np.ndarray | None]]] = {  # seconds a bin, and the bin sent
    "good": (0.02, lambda row, at: row),
    "NaN in 40 % of the bins": (0.02, lambda row, at: np.where(RNG.random() < 0.4, np.nan, row)),
    "10 bins in a second": (0.1, lambda row, at: row),
    "100 bins in a second": (0.01, lambda row, at: row),
    "30 % of the bins lost": (0.02, lambda row, at: None if RNG.random() < 0.3 else row),
    "30 % of the bins lost, zeros for them": (0.02, lambda row, at: 0 * row if RNG.random() < 0.3 else row),
    "ten bins again and again": (0.02, lambda row, at: LOOP[at % 10]),
    "25 % of the features flat": (0.02, lambda row, at: np.where(np.arange(512) < 128, 0, row)),
    "45 % of the features flat": (0.02, lambda row, at: np.where(np.arange(512) < 230, 0, row)),
    "amplitudes of 1e-6": (0.02, lambda row, at: 1e-6 * row),
    "0.15 times as large": (0.02, lambda row, at: 0.15 * row),
    "4 times as large": (0.02, lambda row, at: 4 * row),
    "3 added to all": (0.02, lambda row, at: row + 3),
}
PHONES = {"desktop": (1100, 900, False), "phone": (390, 844, True), "sideways": (844, 390, True)}


@contextmanager
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for one in [*OPTIONS, f"--user-data-dir={tempfile.mkdtemp()}"]:
        options.add_argument(one)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def screen(browser: Any, name: str, dark: bool = False) -> None:
    width, height, mobile = PHONES[name]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})


def seconds_until(true: Callable[[], object], most: float = 15.0) -> float | None:
    "How long something takes to become true; None if it does not."
    began = time.perf_counter()
    while not true():
        if time.perf_counter() - began > most:
            return None
        time.sleep(0.02)
    return round(time.perf_counter() - began, 2)


@contextmanager
def running(session: LiveSession, **options: Any) -> Iterator[PageServer]:
    "A session in a thread, and its page."
    thread = threading.Thread(target=session.run)
    with PageServer(session, port=0, **options) as server:
        thread.start()
        try:
            yield server
        finally:
            session.request("stop")
            thread.join(20)


def state(browser: Any) -> str:
    return browser.execute_script("return find('state').dataset.state")


def opacity(browser: Any) -> float:
    return float(browser.execute_script("return getComputedStyle(find('words')).opacity"))


@contextmanager
def sending(rig: Rig, kind: str) -> Iterator[None]:
    "Bins of a kind of signal by the clock, for as long as the block takes."
    gap, bad = SIGNALS[kind]

    def go(done: threading.Event) -> None:
        due, at = time.perf_counter(), 0
        while not done.is_set():
            due, row, at = due + gap, bad(rig.rng.standard_normal((1, 512)), at), at + 1
            time.sleep(max(0.0, due - time.perf_counter()))
            if row is None:
                rig.number += 1
            else:
                rig.bin(row)

    with beside(go):
        yield


def bad_signals(browser: Any, demo: Path) -> dict[str, Any]:
    "Three good seconds, nine of a signal, good ones again, a cue."
    found = {}
    for kind in SIGNALS:
        rig = Rig(free_port())
        session = LiveSession(Words(), StreamSource(rig.address, stays=True))
        with running(session) as server:
            browser.get(server.listener_url)
            browser.execute_script(VOICE)
            browser.find_element("id", "aloud").click()
            rig.start()
            with sending(rig, "good"):
                until(lambda: state(browser) == "live")
                time.sleep(3)
            with sending(rig, kind):
                after = seconds_until(lambda: state(browser) == "damaged", 9)
                time.sleep(1)
                shown, dim = text(browser, "state"), opacity(browser)
            with sending(rig, "good"):
                until(lambda: state(browser) == "live")
                later = opacity(browser)
            rig.bin(rig.rng.standard_normal((1, 512)), cue=True)
            until(lambda: session.finals)
            time.sleep(0.6)
            found[kind] = {"after": after, "shown": shown, "opacity": dim, "opacity when good again": later,
                           "finished sentences": len(session.sentences),
                           "spoken": sum(one != "stop" for one in browser.execute_script("return spoken"))}
            print(kind, found[kind], flush=True)
        rig.kill()
    return found


def overload(browser: Any, demo: Path) -> dict[str, Any]:
    "A recording from a program of its own; eight busy processes beside the decoder, which yields to them, on one core."
    address, core = f"127.0.0.1:{free_port()}", {min(os.sched_getaffinity(0))}
    decoder = open_decoder(demo / "decoder", config=StreamConfig(end_silence=0))
    session, found = LiveSession(decoder, StreamSource(address, stays=True)), {}

    def share(cores: set[int], nice: int) -> None:
        for thread in psutil.Process().threads():
            os.sched_setaffinity(thread.id, cores)
            os.setpriority(os.PRIO_PROCESS, thread.id, nice)

    with running(session) as server:
        browser.get(server.url)
        until(lambda: not session.state.warming, 120)
        send = [sys.executable, "-m", "b2t_kit.cli", "live", "source", "--data", str(demo / "data"), "--address",
                address]
        sender = subprocess.Popen(send, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: state(browser) == "live", 60)
        time.sleep(3)
        before = os.sched_getaffinity(0)
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
        for one in others:
            os.sched_setaffinity(one.pid, core)
        share(core, 19)
        began, after, states = time.monotonic(), None, Counter()
        while time.monotonic() < began + 20:
            states[state(browser)] += 1
            if states["late"] and after is None:
                after, found["shown"] = round(time.monotonic() - began, 2), text(browser, "state")
            time.sleep(0.1)
        for one in others:
            one.kill()
            one.wait()
        share(before, os.getpriority(os.PRIO_PROCESS, sender.pid))
        found |= {"after": after, "states": dict(states),
                  "live again after": seconds_until(lambda: state(browser) == "live", 30),
                  "counted": text(browser, "counted")}
        sender.kill()
        sender.wait()
        found["then the sender is killed"] = {"after": seconds_until(lambda: state(browser) == "no data"),
                                              "shown": text(browser, "state")}
    print(found, flush=True)
    return found


def unknown_names(browser: Any, demo: Path) -> dict[str, Any]:
    "A name that no lexicon has, and the button that makes it a hotword; hotwords as people type them."
    source = ParticipantSource(demo / "data", stays=True, pace=2)
    session, found = LiveSession(open_decoder(demo / "decoder", source.session), source), {}
    with running(session) as server:
        browser.get(server.url)
        until(lambda: not session.state.warming, 120)
        for said in ("My friend Szczepanski is here now.", "Please call Wojciechowski now.", "How are you today?"):
            before = session.finals
            session.request("say", said)
            until(lambda before=before: session.finals > before, 60)
            time.sleep(0.5)
            item = browser.find_element("css selector", "#sentences li")
            found[said] = item.text.splitlines()
            buttons = [one for one in item.find_elements("tag name", "button") if one.text.startswith("Expect")]
            if buttons:
                buttons[0].click()
                after = seconds_until(lambda: text(browser, "note").startswith("expected from the next sentence"))
                found[said] += [f"pressed: {text(browser, 'note')} (after {after} s)"]
        for typed in ("café", "O’Brien", "Lech Wałęsa", "Weiß", "7up", "x XX"):
            browser.execute_script("find('note').textContent = ''")
            browser.find_element("id", "hotword-text").send_keys(typed + "\n")
            until(lambda: text(browser, "note"))
            found[typed] = text(browser, "note")
    print(json.dumps(found, indent=1, ensure_ascii=False), flush=True)
    return found


MEASURE = """
const box = id => find(id).getBoundingClientRect(), last = find('words').lastElementChild.getBoundingClientRect();
return {"last word ends at": Math.round(last.bottom), "height": innerHeight,
        "newest in sight": last.bottom <= innerHeight && last.bottom <= box('stage').bottom + 1
          && last.top >= box('stage').top - 1,
        "controls": Math.round(100 * box('tools').height / innerHeight) + " %",
        "wide": document.documentElement.scrollWidth > innerWidth,
        "empty buttons": [...document.querySelectorAll('#choices button')]
          .filter(one => !one.textContent.trim()).length};
"""


def family(browser: Any, demo: Path, pictures: Path | None = None) -> dict[str, Any]:
    "Long sentences on a phone, each way; a fault; the dark."
    session, found = LiveSession(words := Words(), Spoken()), {}
    session.state.warming = ""
    with PageServer(session, port=0) as server:
        for name in PHONES:
            for count in (6, 14, 40):
                screen(browser, name)
                browser.get(server.listener_url)
                until(lambda: server.readers and server.readers[-1].shown)
                words.words = [f"another{number}" for number in range(count)]
                session._tell(updates=words.cue())
                until(lambda count=count: browser.execute_script("return find('words').children.length") == count)
                time.sleep(0.3)
                found[f"{name}, {count} words"] = browser.execute_script(MEASURE)
                print(name, count, found[f"{name}, {count} words"], flush=True)
    if pictures:
        take_pictures(browser, demo, pictures)
    return found


def take_pictures(browser: Any, demo: Path, pictures: Path) -> None:
    "The operator's and the listener's page, on each screen, by day and in the dark; and in a fault."
    pictures.mkdir(parents=True, exist_ok=True)
    source = ParticipantSource(demo / "data", stays=True, pace=2)
    session = LiveSession(open_decoder(demo / "decoder", source.session), source)
    with running(session) as server:
        until(lambda: not session.state.warming, 120)
        for said in ("How are you doing today?", "My friend Szczepanski is here now.",
                     "Would you share dinner with me?"):
            before = session.finals
            session.request("say", said)
            until(lambda before=before: session.finals > before, 60)
        for name in PHONES:
            for dark in (False, True):
                for role, url in (("operator", server.url), ("listener", server.listener_url)):
                    screen(browser, name, dark)
                    browser.get(url)
                    until(lambda: text(browser, "words"))
                    time.sleep(0.5)
                    browser.save_screenshot(str(pictures / f"{role}_{name}{'_dark' * dark}.png"))
        session.state.fault = session.state.doubt = "45% of the features have had the same value for 3 s"
        session.inbox.heard = time.perf_counter() + 60
        session._tell(np.zeros((1, 512), np.float32), updates=[])
        for name in PHONES:
            screen(browser, name)
            browser.get(server.listener_url)
            until(lambda: state(browser) == "damaged")
            time.sleep(0.5)
            browser.save_screenshot(str(pictures / f"fault_{name}.png"))


PARTS = {one.__name__: one for one in (overload, bad_signals, unknown_names, family)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with chromium() as browser:
        for name in options.only:
            screen(browser, "desktop")
            more = {"pictures": options.pictures} if name == "family" else {}
            part = PARTS[name](browser, options.demo, **more)
            found[name] = part | {"date": time.strftime("%Y-%m-%d"), "load": round(psutil.getloadavg()[0], 1)}
            save_json(RESULTS, found)


if __name__ == "__main__":
    main()
