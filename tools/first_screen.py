"""Pictures of the front page's first screen, in both languages, on a desktop and on a phone.

    python tools/first_screen.py [FOLDER]      # default: benchmarks/results

It needs chromium, chromedriver, `pip install selenium markdown-it-py`, and a font with Chinese letters. The page has
the widths and sizes of text that GitHub uses; the letters are this machine's.
"""
import io
import sys
import tempfile
import time
from pathlib import Path

from markdown_it import MarkdownIt
from moving_picture import open_browser
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"en": "README.md", "zh": "README.zh.md"}
SCREENS = {1280: 800, 390: 844}  # width: height, pixels
COLOURS = 64
PLAYED = 8.0  # seconds of the moving picture before the photograph

STYLE = """
body { box-sizing: border-box; max-width: 1012px; margin: 0 auto; padding: 32px; color: #1f2328;
       font: 16px/1.5 sans-serif; overflow-wrap: break-word; }
@media (max-width: 700px) { body { padding: 16px; } }
h1, h2 { padding-bottom: .3em; border-bottom: 1px solid #d1d9e0; }
h1 { font-size: 2em; margin-top: 0; }
h2 { font-size: 1.5em; }
a { color: #0969da; text-decoration: none; }
img { max-width: 100%; vertical-align: middle; }
blockquote { margin: 0; padding: 0 1em; color: #59636e; border-left: .25em solid #d1d9e0; }
pre, code { background: #f6f8fa; border-radius: 6px; font: 85%/1.45 monospace; }
code { padding: .2em .4em; }
pre { padding: 16px; overflow: auto; }
pre code { padding: 0; font-size: 100%; }
table { display: block; max-width: 100%; overflow: auto; border-collapse: collapse; }
td, th { padding: 6px 13px; border: 1px solid #d1d9e0; }
"""


def page_of(readme: Path) -> str:  # HTML
    "Return a front page as it looks on GitHub."
    text = readme.read_text(encoding="utf-8")
    body = MarkdownIt("commonmark").enable("table").render(text)
    return f"""<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}"""


def photographed(page: Path, width: int) -> Image.Image:
    "Return the first screen of a page."
    with tempfile.TemporaryDirectory() as profile:
        browser = open_browser(profile)
        try:
            size = {"width": width, "height": SCREENS[width], "deviceScaleFactor": 1, "mobile": width < 700}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(page.as_uri())
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, f"{page.name} is {wide} pixels wide on a screen of {width}"
            time.sleep(PLAYED)
            shot = browser.get_screenshot_as_png()
        finally:
            browser.quit()
    return Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as pages:
        for language, readme in PAGES.items():
            page = Path(pages) / f"{language}.html"
            page.write_text(page_of(ROOT / readme), encoding="utf-8")
            for width in SCREENS:
                path = folder / f"first_screen_{language}_{width}.png"
                photographed(page, width).save(path, optimize=True)
                print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results")
