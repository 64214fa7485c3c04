"""Faulty live streams in real time, read from a page: what is said of each, how soon, and what becomes of its words.

    b2t demo --out DEMO
    python benchmarks/live_faults.py DEMO [--kinds NAME ...] [--lanes 2]
    python benchmarks/live_faults.py DEMO [WORLD ...] --healthy MINUTES [--busy 1]

Of each kind of `live_kinds.py` a program of its own sends the demo's validation recordings: eight seconds healthy, 26
with the fault, and then healthy until a sentence is over that was said wholly after the repair. `b2t live --page`
decodes it, and a headless Chromium has the page of the people around open. What a row says is read from that page: the
state and the seconds from the first faulty bin until it says something else than "live"; of the sentences that ended
from the fault to its repair the words finished, right, dotted and spoken aloud; the seconds from the repair to "live",
and the words of the sentences after it. Results are kept in `--out`.

`--healthy` plays so many minutes without a fault, to the decoders of several folders side by side, beside so many busy
processes, and prints every alarm.
"""

import argparse
import itertools
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from live_kinds import KINDS, Kind
from rapidfuzz.distance import Levenshtein

from b2t_kit.core.files import load_json, save_json
from b2t_kit.data.dataset import BIN_SECONDS
from b2t_kit.simulate.recordings import SimulateConfig, simulate
from b2t_kit.text.phonemes import normalise

RESULTS = Path(__file__).parent / "results/live_faults.json"
ALARMS = ("damaged", "refused", "unsure", "untrusted", "no-data", "late", "failed", "connection-lost")
ENOUGH = 0.8  # of the finished words are right: nothing needs to be told of a kind that is "believed"
OUTAGE = 8.0  # seconds that a program is killed or stands still
WATCH = """
window.told = [];
window.finished = [];
window.aloud = [];
try { localStorage.setItem("b2t live", JSON.stringify({aloud: true})); } catch { }
window.SpeechSynthesisUtterance = function(text) { this.text = text; };
speechSynthesis.getVoices = () => [{name: "Here", lang: "en-US", voiceURI: "here", localService: true}];
speechSynthesis.speak = one => { aloud.push([Date.now() / 1000, one.text]); if (one.onend) one.onend(); };
document.addEventListener("DOMContentLoaded", () => {
  const state = document.getElementById("state");
  const tell = () => {
    const before = told[told.length - 1] || [];
    const now = [Date.now() / 1000, state.dataset.state, state.textContent];
    if (before[1] !== now[1] || before[2] !== now[2]) told.push(now);
  };
  new MutationObserver(tell).observe(state, {attributes: true, childList: true});
  const add = item => finished.push({
    time: Date.now() / 1000,
    text: item.querySelector(".sentence").textContent,
    doubt: item.classList.contains("doubt"),
    dotted: document.querySelectorAll("#words .unsure, #words .unknown").length,
  });
  new MutationObserver(changes => changes.forEach(one => one.addedNodes.forEach(add)))
    .observe(document.getElementById("sentences"), {childList: true});
});
"""


@dataclass
class Seen:
    "What a page showed of a stream, and what its sender did."

    told: list[tuple[float, str, str]] = field(default_factory=list)  # time, state, line
    finished: list[dict[str, Any]] = field(default_factory=list)
    aloud: list[tuple[float, str]] = field(default_factory=list)  # time, text
    events: list[dict[str, Any]] = field(default_factory=list)  # of the sender

    def when(self, event: str) -> float:
        "Return the time of an event; far away if it has not come."
        return next((one["time"] for one in self.events if one["event"] == event), 1e12)

    def meant(self, start: float, end: float) -> list[str]:
        "Return the words of the sentences that were said for a third of a second of this time."
        said = [one for one in self.events if one["event"] == "sentence"]
        ends = [one["time"] for one in said[1:]] + [end]
        spans = [(max(one["time"], start), min(over, end), one["said"]) for one, over in zip(said, ends)]
        return [word for first, last, text in spans if last - first > 0.3 for word in normalise(text).split()]

    def words(self, start: float, end: float) -> dict[str, int]:
        "Count the words of the sentences that ended in some time."
        counts = dict.fromkeys(("finished", "right", "dotted", "spoken", "unfinished"), 0)
        before = start
        for one in self.finished:
            inside = start <= one["time"] < end
            words = one["text"].split() if one["text"] != "(nothing)" else []
            if inside and one["doubt"]:
                counts["unfinished"] += bool(words)
            elif inside:
                blocks = Levenshtein.opcodes(words, self.meant(before, one["time"]))
                same = sum(block.src_end - block.src_start for block in blocks if block.tag == "equal")
                counts["finished"] += len(words)
                counts["right"] += same
                counts["dotted"] += min(one["dotted"], len(words))
            before = max(start, one["time"])
        texts = [text.removeprefix("Perhaps: ") for at, text in self.aloud if start <= at < end]
        counts["spoken"] = sum(len(text.split()) for text in texts)
        return counts


def is_alarm(state: str) -> bool:
    return state.replace(" ", "-") in ALARMS


@dataclass
class Row:
    "A kind, and what was told of it."

    name: str
    right: str
    state: str  # the first other than "live"
    line: str  # the one that settles the verdict
    seconds: float | None  # from the first faulty bin
    finished: int
    words_right: int
    dotted: int
    spoken: int
    unfinished: int  # sentences that are shown as not finished
    back: float | None  # seconds from the repair to "live"
    after: int  # words finished of what was said after it
    after_right: int
    verdict: str


def verdict(kind: Kind, told: Sequence[tuple[float, str, str]], words: dict[str, int]) -> tuple[str, str]:
    """Return what the page did, and the line that says so.

    `told` are the states from the fault to its repair, with seconds since the fault's first bin.
    """
    right = kind.right.split()
    alarms = [one for one in told if is_alarm(one[1])]
    wanted = [one for one in alarms if one[1].replace(" ", "-") in right or
              ("believed" in right and one[1] in ("damaged", "unsure", "untrusted"))]
    remarks = [one for one in told if kind.line and kind.line in one[2]]
    if "live" in right:
        if others := [one for one in alarms if one not in wanted]:
            return "accused", others[0][2]
        if kind.line and not remarks:
            return "not told", told[-1][2] if told else "live"
        if not wanted and words["right"] < ENOUGH * words["finished"]:
            return "words wrong", "live"
        line = remarks[0][2] if kind.line else wanted[0][2] if wanted else "live"
        is_soon = not kind.line or remarks[0][0] <= kind.within
        return ("told right" if is_soon else "told late"), line
    if not alarms:
        is_right = "believed" in right and words["right"] >= ENOUGH * words["finished"] > 0
        return ("told right" if is_right else "not told"), "live"
    if not wanted or (kind.line and not remarks):
        return "told wrong", alarms[0][2]
    line = next((one[2] for one in remarks if one in wanted), wanted[0][2])
    return ("told right" if wanted[0][0] <= kind.within else "told late"), line


def judge(name: str, kind: Kind, seen: Seen) -> Row:
    fault = seen.when("fault")
    repair = seen.when("repair")
    # the sentence that goes on at the repair has faulty bins
    whole = min((one["time"] for one in seen.events if one["event"] == "sentence" and one["time"] > repair + 0.5),
                default=1e12)
    words = seen.words(fault, whole + 0.2)
    after = seen.words(whole + 0.2, 1e12)
    told = [(at - fault, state, line) for at, state, line in seen.told if fault <= at < repair + 0.2]
    others = [one for one in told if one[2] != "live"]
    before = [line for at, state, line in seen.told if at < fault and is_alarm(state)]
    later = [(at, state) for at, state, _ in seen.told if at >= repair]
    at_repair = [state for at, state, _ in seen.told if at < repair][-1:]
    is_back = not at_repair or not is_alarm(at_repair[0])
    back = 0.0 if is_back else next((at - repair for at, state in later if state == "live"), None)
    called, line = ("accused", before[0]) if before else verdict(kind, told, words)
    return Row(
        name, kind.right, others[0][1] if others else "live", line, others[0][0] if others else None,
        words["finished"], words["right"], words["dotted"], words["spoken"], words["unfinished"],
        back, after["finished"], after["right"], called,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Proxy:
    "Passes bytes between a receiver and a sender, until it stands still without a word."

    def __init__(self, port: int, target: int) -> None:
        self.target = target
        self.passing = threading.Event()
        self.passing.set()
        self.sockets: list[socket.socket] = []
        self.server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.server.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.passing.wait()
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def go_on(self) -> None:
        "Let the connections go, so that new ones are made."
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.passing.set()


@contextmanager
def browser() -> Iterator[Any]:
    "Yield a Chromium that notes what the page of the people around shows and speaks."
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
                    "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"):
            options.add_argument(one)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        try:
            yield driver
        finally:
            driver.quit()


@contextmanager
def program(*command: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    "Run a program of Python with one thread, and end it."
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, *map(str, command)], env=environment, text=True, **more)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class World:
    "A folder with recordings, those of a stranger, and a decoder."

    folder: Path

    @property
    def run(self) -> Path:
        decoder = self.folder / "decoder"
        return decoder if decoder.is_dir() else self.folder / "run"

    def prepare(self) -> None:
        stranger = self.folder / "stranger"
        if not stranger.is_dir():
            config = SimulateConfig(sessions=1, trials=24, seed=99, difficulty=0.5, bins_per_phoneme=18.0)
            simulate(stranger, config, progress=False)


class Trial:
    "One stream: its sender, the server that decodes it, and the page."

    def __init__(self, driver: Any, world: World, name: str, bins: int | None = None) -> None:
        self.driver = driver
        self.world = world
        self.name = name
        self.kind = KINDS[name]
        self.bins = bins
        self.seen = Seen()
        self.own = free_port()  # of the sender
        self.port = free_port() if self.kind.process == "half-open" else self.own
        self.proxy = Proxy(self.port, self.own) if self.kind.process == "half-open" else None

    def play(self) -> Seen:
        page = free_port()
        command = ("-m", "b2t_kit", "live", "--run", self.world.run, "--data", self.world.folder / "data",
                   "--source", f"127.0.0.1:{self.port}", "--page", "--port", page)
        with ExitStack() as stack:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            server = stack.enter_context(program(*command, stdout=log, stderr=log))
            self._open(server, page, log)
            self._send(stack)
            time.sleep(0.5)
            self.seen.told, self.seen.finished, self.seen.aloud = self.driver.execute_script(
                "return [told, finished, aloud]")
        return self.seen

    def _open(self, server: subprocess.Popen[str], port: int, log: Any) -> None:
        "Open the page, and wait until its decoder is ready."
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if server.poll() is not None:
                log.seek(0)
                raise SystemExit(f"b2t live: {log.read()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.5)
                continue
            if not self.seen.told:
                self.driver.get(f"http://127.0.0.1:{port}/listen")
            self.seen.told = self.driver.execute_script("return told")
            if self.seen.told and self.seen.told[-1][1] == "waiting":
                return
            time.sleep(0.5)
        raise SystemExit("b2t live: was not ready in five minutes")

    def _send(self, stack: ExitStack) -> None:
        self._follow(stack.enter_context(self._sender()))
        if self.kind.process == "kill":
            time.sleep(OUTAGE)
            self._follow(stack.enter_context(self._sender("--repaired")))

    def _sender(self, *more: str) -> Any:
        bins = ("--bins", self.bins) if self.bins else ()
        script = Path(__file__).with_name("live_kinds.py")
        return program(script, self.world.folder / "data", self.name, "--stranger", self.world.folder / "stranger",
                       "--address", f"127.0.0.1:{self.own}", *bins, *more, stdout=subprocess.PIPE)

    def _follow(self, sender: subprocess.Popen[str]) -> None:
        "Note what a sender says until it ends; make it fail at its fault, if its kind is that."
        for line in sender.stdout or ():
            event = json.loads(line)
            self.seen.events.append(event)
            if event["event"] != "fault" or not self.kind.process:
                continue
            if self.kind.process == "kill":
                sender.kill()
                return
            if self.kind.process == "stop":
                sender.send_signal(signal.SIGSTOP)
                time.sleep(OUTAGE)
                sender.send_signal(signal.SIGCONT)
            if self.proxy:
                self.proxy.passing.clear()
                threading.Timer(OUTAGE, self.proxy.go_on).start()


def play_all(worlds: Sequence[World], names: Sequence[str], lanes: int, bins: int | None = None) -> Iterator[tuple[
        World, str, Seen]]:
    "Yield what was seen of each kind, from so many browsers side by side."
    waiting: queue.SimpleQueue[tuple[World, str]] = queue.SimpleQueue()
    found: queue.SimpleQueue[tuple[World, str, Seen | BaseException]] = queue.SimpleQueue()
    jobs = list(itertools.product(worlds, names))
    for job in jobs:
        waiting.put(job)

    def work() -> None:
        with browser() as driver:
            while not waiting.empty():
                with suppress(queue.Empty):
                    world, name = waiting.get_nowait()
                    try:
                        found.put((world, name, Trial(driver, world, name, bins).play()))
                    except BaseException as error:
                        found.put((world, name, error))

    threads = [threading.Thread(target=work) for _ in range(min(lanes, len(jobs)))]
    for thread in threads:
        thread.start()
    for _ in jobs:
        world, name, seen = found.get()
        if isinstance(seen, BaseException):
            print(f"{name}: {seen!r}", flush=True)
        else:
            yield world, name, seen
    for thread in threads:
        thread.join()


def cells(row: Row) -> str:
    "Return a row of the table."
    told = "" if row.seconds is None else f"{row.seconds:.1f}"
    back = "never" if row.back is None else f"{row.back:.1f}"
    right = " or ".join(one.replace("-", " ") for one in row.right.split())
    line = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", row.line).partition(";")[0]
    numbers = f"{row.finished}, {row.words_right}, {row.dotted}, {row.spoken}"
    return (f"| {row.name} | {right} | {line} | {told} | {numbers} | {row.unfinished} | {back} | "
            f"{row.after_right} of {row.after} | {row.verdict} |")


HEADER = """| stream | right | what the page said | after, s | words finished, right, dotted, spoken | not finished | \
back, s | right after it | verdict |
|---|---|---|--:|---|--:|--:|--:|---|"""


def play_healthy(worlds: Sequence[World], minutes: float, busy: int) -> None:
    "Play streams without a fault to the end, and print every alarm, with what was read and meant then."
    bins = int(minutes * 60 / BIN_SECONDS)
    with ExitStack() as stack:
        for _ in range(busy):
            stack.enter_context(program("-c", "while True: pass"))
        for world, _, seen in play_all(worlds, ["no fault"], len(worlds), bins):
            start = seen.when("sentence")
            alarms = [(at, line) for at, state, line in seen.told
                      if start < at < seen.when("end") and is_alarm(state)]
            print(f"{world.folder.name}: {minutes:g} minutes beside {busy} busy processes, {len(seen.finished)} "
                  f"sentences, {seen.words(0.0, 1e12)}; {len(alarms)} alarms", flush=True)
            for at, line in alarms:
                finals = [one for one in seen.finished if one["time"] < at + 0.1]
                before = finals[-2]["time"] if len(finals) > 1 else start
                read = f"{finals[-1]['text']!r} of {seen.meant(before, finals[-1]['time'])}" if finals else ""
                print(f"    {at - start:.0f} s: {line}: {read}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="with data, and decoder or run")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--lanes", type=int, default=1, help="streams side by side")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--healthy", type=float, default=0.0, help="minutes")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside healthy streams")
    parser.add_argument("--table", action="store_true", help="print what is kept in --out, and play nothing")
    options = parser.parse_args()
    if options.table:
        print(HEADER, *(cells(Row(**row)) for row in load_json(options.out).values()), sep="\n")
        return
    worlds = [World(folder) for folder in options.folders]
    for world in worlds:
        world.prepare()
    if options.healthy:
        play_healthy(worlds, options.healthy, options.busy)
        return
    results = load_json(options.out) if options.out.is_file() else {}
    print(HEADER)
    for _, name, seen in play_all(worlds[:1], options.kinds, options.lanes):
        row = judge(name, KINDS[name], seen)
        results[name] = asdict(row)
        print(cells(row), flush=True)
        save_json(options.out, {one: results[one] for one in KINDS if one in results})


if __name__ == "__main__":
    main()
