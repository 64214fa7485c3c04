"""The moving picture of the front page: the live page in Chromium while a simulated participant says sentences.

    b2t demo --out demo && python tools/moving_picture.py demo/decoder demo/data

It needs `pip install ".[dev,live]"`, chromium and chromedriver. The page runs in real time, and each frame is shown for
as long as it was there, so a busy machine makes fewer frames and no faster a page.
"""
import argparse
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from selenium import webdriver

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ("Please put that treasure on the shelf.", "We should have another look at it tomorrow morning.")
WINDOW = (1280, 720)
WIDTH = 840  # of the picture, pixels
COLOURS = 48
LARGEST = 2_000_000  # bytes
Frames = list[tuple[float, Image.Image]]  # seconds, what the page looked like


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def open_browser(profile: str) -> webdriver.Chrome:
    "Return a Chromium without a window."
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                f"--window-size={WINDOW[0]},{WINDOW[1]}"):
        options.add_argument(one)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    size = {"width": WINDOW[0], "height": WINDOW[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    return browser


def wait(true: Callable[[], object], seconds: float = 240) -> None:
    "Wait until something is true."
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise SystemExit("error: the page did not get this far; is the run a decoder of these recordings?")
        time.sleep(0.1)


def take_frames(browser: webdriver.Chrome) -> Frames:
    "Say each sentence in turn, and photograph the page until all are finished."
    frames: Frames = []

    def photograph() -> None:
        picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        frames.append((time.monotonic(), picture))

    for sentence in SENTENCES:
        browser.find_element("id", "say-text").send_keys(f"{sentence}\n")
        end = time.monotonic() + 60
        while sentence not in browser.find_element("id", "sentences").text and time.monotonic() < end:
            photograph()
    for _ in range(3):
        photograph()
    return frames


def write_gif(frames: Frames, path: Path, colours: int = COLOURS) -> int:  # bytes
    "Write the frames with one palette, each for as long as it was on the page; the last one comes first, as a still."
    size = (WIDTH, WIDTH * WINDOW[1] // WINDOW[0])
    small = [picture.resize(size, Image.Resampling.LANCZOS) for _, picture in frames]
    palette = small[len(small) * 2 // 3].quantize(colours, method=Image.Quantize.MEDIANCUT)
    pictures = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in small]
    times = [at for at, _ in frames]
    durations = [max(40, round(1000 * (after - at))) for at, after in zip(times, times[1:])]
    pictures[-1].save(
        path, save_all=True, append_images=pictures, duration=[1500, *durations, 3000], loop=0, optimize=True
    )
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "nbs/images/live.gif")
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "b2t_kit", "live", "--run", str(options.run), "--data", str(options.data),
               "--source", "participant", "--page", "--port", str(port)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        live = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
            browser = open_browser(profile)
            try:
                browser.get(f"http://127.0.0.1:{port}")
                wait(lambda: "waiting for a sentence" in browser.find_element("id", "state").text)
                frames = take_frames(browser)
            finally:
                browser.quit()
        finally:
            live.terminate()
            live.wait(30)
    step = 1
    while (size := write_gif(frames[::step], options.out)) >= LARGEST:
        step += 1  # fewer frames
    print(f"{options.out}: {len(frames[::step])} frames, {frames[-1][0] - frames[0][0]:.0f} s, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
