"""Pictures of the live page: on a desk, a phone upright and on its side, dark, with large letters.

    b2t demo --out DEMO
    python benchmarks/live_pictures.py DEMO OUT

The decoder of the demo reads four sentences of a simulated participant once. What it said is then
shown to a real Chromium up to a moment in the middle of the last one, in each view and on each
screen: the operator's page, the listener's page while the next sentence grows and at its end, a
sentence that is being corrected, the dialog "More", and a fault. Each picture is the whole window,
OUT/VIEW-SCREEN.png; OUT/live.png is the front page's, and OUT/listener.png the tutorial's.
"""
import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from b2t_kit.live.belief import UNSURE
from b2t_kit.live.page import PageServer
from b2t_kit.live.session import LiveSession, Moment, open_decoder
from b2t_kit.live.status import Status
from b2t_kit.live.sources import ParticipantSource
from b2t_kit.live.stream import StreamConfig

SENTENCES = [
    "How are you doing today?",
    "I would like a cup of cafe au lait.",
    "My friend Szczepanski is here now.",
    "We should have another look at it tomorrow morning.",
]
LIVE = Status("live", "live")
FAULT = Status("damaged", "damaged: 45% of the features have had the same value for 3 s")
VOICE = """
const here = {name: "Here", lang: "en-US", voiceURI: "here", localService: true};
speechSynthesis.getVoices = () => [here];
speechSynthesis.onvoiceschanged();
choose({phrases: ["Turn me over, please"]});
showPhrases();
"""
MARKS = """
request("mark", "1 wrong");
request("mark", "3 corrected my friend szczepanski is here now");
"""


@dataclass(frozen=True)
class Screen:
    "A window: its size in pixels, and how the system and the browser are set."
    name: str
    width: int
    height: int
    dark: bool = False
    font: int = 16
    scale: float = 1.0


SCREENS = (
    Screen("desk", 1280, 800),
    Screen("desk-dark", 1280, 800, dark=True),
    Screen("phone", 390, 844),
    Screen("phone-dark", 390, 844, dark=True),
    Screen("side", 844, 390),
    Screen("desk-large", 1280, 800, font=32),
    Screen("phone-large", 390, 844, font=32),
    Screen("side-large", 844, 390, font=32),
)


class Recorder:
    "Keeps the moments of a session."

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def show(self, moment: Moment) -> None:
        self.moments.append(moment)


@contextmanager
def browser(font: int) -> Iterator[Any]:
    "Yield a Chromium whose letters are of this size unless a page says otherwise."
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.add_experimental_option("prefs", {"webkit.webprefs.default_font_size": font})
    with tempfile.TemporaryDirectory() as profile:
        for one in ("--headless=new", "--no-sandbox", "--disable-gpu"):
            options.add_argument(one)
        options.add_argument(f"--user-data-dir={profile}")
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def fit_window(driver: Any, screen: Screen) -> None:
    "Give the window the size and the colours of a screen."
    size = {"width": screen.width, "height": screen.height, "deviceScaleFactor": screen.scale}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"mobile": False})
    scheme = {"name": "prefers-color-scheme", "value": "dark" if screen.dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def wait_for(driver: Any, script: str) -> None:
    "Wait until a page has what a script looks for."
    while not driver.execute_script(f"return {script}"):
        time.sleep(0.02)


def side_by_side(paths: list[Path], out: Path) -> None:
    "Put pictures of one height beside each other."
    pictures = [Image.open(path).convert("RGB") for path in paths]
    gap = 24
    width = sum(picture.width + gap for picture in pictures) - gap
    both = Image.new("RGB", (width, pictures[0].height), "white")
    left = 0
    for picture in pictures:
        both.paste(picture, (left, 0))
        left += picture.width + gap
    both.save(out)


def is_doubted(moment: Moment) -> bool:
    "Return whether a moment has a word that is dotted."
    return any(sure < UNSURE for update in moment.updates for _, sure in update.words)


class Stage:
    "A page that shows a part of what was recorded."

    def __init__(self, session: LiveSession, moments: list[Moment]) -> None:
        self.session = session
        self.moments = moments
        ends = [
            index
            for index, moment in enumerate(moments)
            if any(update.final for update in moment.updates)
        ]
        self.end = ends[-1] + 1
        middle = (ends[-2] + ends[-1]) // 2
        doubted = (index for index in range(middle, ends[-1]) if is_doubted(moments[index]))
        self.middle = next(doubted, middle) + 1

    @contextmanager
    def page(self, driver: Any, role: str, until: int, status: Status = LIVE) -> Iterator[None]:
        "Yield while the window shows the moments before this one."
        self.session.status = lambda: status  # type: ignore[method-assign]
        with PageServer(self.session, port=0) as server:
            for moment in self.moments[:until]:
                server.feed.show(moment)
            driver.get(server.listener_url if role == "listener" else server.url)
            driver.execute_script(VOICE)
            wait_for(driver, "find('words').textContent")
            if role == "operator" or until == self.end:
                driver.execute_script(MARKS)
                wait_for(driver, "document.querySelector('li.corrected')")
            yield

    def views(self, driver: Any) -> Iterator[str]:
        "Show one view after the other, and yield their names."
        with self.page(driver, "operator", self.middle):
            yield "operator"
        with self.page(driver, "listener", self.middle):
            yield "listener"
        with self.page(driver, "listener", self.end):
            yield "finished"
            driver.execute_script("openFix(last, 4)")
            yield "fix"
            driver.execute_script("find('fixing').close(); find('more').showModal()")
            yield "more"
        with self.page(driver, "listener", self.middle, FAULT):
            yield "fault"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--screens", nargs="*", help="names of the screens; default: all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = ParticipantSource(options.demo / "data", SENTENCES, pace=0)
    decoder = open_decoder(options.demo / "decoder", source.session, config=StreamConfig())
    recorder = Recorder()
    LiveSession(decoder, source, [recorder]).run()
    session = LiveSession(decoder, ParticipantSource(options.demo / "data", stays=True))
    session.finals = len(SENTENCES)
    session.bins = sum(len(moment.bins) for moment in recorder.moments)
    stage = Stage(session, recorder.moments[:-1])  # the last one is the end of the session
    screens = [one for one in SCREENS if not options.screens or one.name in options.screens]
    for font in sorted({screen.font for screen in screens}):
        with browser(font) as driver:
            for screen in screens:
                if screen.font != font:
                    continue
                fit_window(driver, screen)
                for view in stage.views(driver):
                    driver.save_screenshot(str(options.out / f"{view}-{screen.name}.png"))
            if font == 16:
                fit_window(driver, Screen("front page", 1260, 870, scale=5 / 6))
                with stage.page(driver, "operator", stage.middle):
                    driver.save_screenshot(str(options.out / "live.png"))
    if any(screen.name == "phone" for screen in screens):
        phones = [options.out / f"{view}-phone.png" for view in ("listener", "fix", "fault")]
        side_by_side(phones, options.out / "listener.png")
    print(f"pictures of {len(screens)} screens in {options.out}")


if __name__ == "__main__":
    main()
