"""Write README.md, README.zh.md and nbs/README.md from the notebooks: `python tools/readme.py`.

README.md and README.zh.md are nbs/index.ipynb and nbs/index_zh.ipynb as Markdown. nbs/README.md lists all notebooks
in reading order. The badges of the front page are pictures in nbs/images, so that no server is asked for them: the
licence of settings.ini, the Pythons of tools/ci.py, and what the last `.ci/run` found. The tables of failures, in
two languages, and that of other programs' options are written into their pages. Run it where the package is
installed. nbdev's own `nbdev_readme` needs Quarto, a program of 100 MB that pip cannot install offline.
"""
import json
import posixpath
import re
import runpy
from collections.abc import Iterator
from configparser import ConfigParser
from graphlib import TopologicalSorter
from pathlib import Path

from b2t_kit.cli import ELSEWHERE, NOT_HERE
from b2t_kit.plan.failures import known_failures

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "nbs"
READMES = {"index.ipynb": "README.md", "index_zh.ipynb": "README.zh.md"}
REPORTS = ROOT / "benchmarks/field_reports.md"
LAST = ROOT / ".ci/last.json"  # what the last .ci/run found
FAILURES = {"tutorials/failures.md": "en", "tutorials/failures_zh.md": "zh"}
NOTE = "<!-- Written by tools/readme.py from nbs/{}: edit the notebook. -->"
FOLDERS = {  # in reading order
    "tutorials": "Tutorials: notebooks to run from top to bottom. They export no code.",
    "core": "The ground floor: what every other room stands on.",
    "text": "Phonemes, sentences, tables and error rates.",
    "lm": "Language models; they know nothing of recordings.",
    "lexicon": "How words are pronounced, and the words that a search can find.",
    "data": "From files to batches.",
    "models": "What the decoders are made of.",
    "devices": "One interface over CPU, CUDA and TPU.",
    "training": "What the training loop calls.",
    "speech": "Speech decoding: the task, its recipes, training, new recording days, evaluation.",
    "decode": "From phoneme logits to sentences, and to a submission.",
    "adapt": "A wing: decoders that change while they decode.",
    "simulate": "A wing: recordings without a participant, and the demo.",
    "importers": "A wing: recordings to download, and in other layouts, yours among them.",
    "live": "A wing: words while somebody speaks.",
    "rescore": "A wing: large language models.",
    "publish": "A wing: reports, lists of runs, votes, what others can use, kernels.",
    "plan": "A wing: whether a step fits and how fast it can be, without the device; and why a run failed.",
    "tasks": "A wing: other tasks on the same training loop.",
}
HIDDEN = re.compile(r"^#\s*\|\s*(hide\b|include:\s*false|default_exp\b)", re.M)
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)
LOCAL_LINK = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


SHOWN = {  # what the tests of a reported failure show
    "happens": {"en": "the failure happens in the test", "zh": "测试中真实发生"},
    "with more installed": {
        "en": "the failure happens in the test, if an older Accelerate or the TPU compiler is installed",
        "zh": "测试中真实发生，但须另装旧版 Accelerate 或 TPU 编译器"},
    "imitated": {"en": "imitated: its message needs a TPU or a GPU", "zh": "模拟其成因：原消息需要 TPU 或 GPU"},
    "cure only": {"en": "only the cure", "zh": "只测试解决办法"},
}
COLUMNS = {
    "en": ("number", "message or symptom", "true cause", "cure", "what the kit does", "what the test shows", "test",
           "message", "seen with", "thread", "checked"),
    "zh": ("编号", "报错或现象", "真正的原因", "解决办法", "本工具的做法", "测试内容", "测试", "报错", "出现的版本", "讨论帖", "验证"),
}


def failures_table(language: str, reported: bool) -> str:
    "The failures that were reported to the kit, by number, or those of public threads, as a Markdown table."
    titles = COLUMNS[language]
    columns = titles[:7] if reported else (titles[7], *titles[2:4], *titles[8:])
    rows = []
    for failure in (one for one in known_failures() if bool(one.number) == reported):
        symptom = failure.symptom if isinstance(failure.symptom, str) else failure.symptom[language]
        symptom = f"`` {symptom} ``" if isinstance(failure.symptom, str) else symptom
        tests = "<br>".join(f"[{test.rpartition(':')[2]}](../../{test.partition('::')[0]})" for test in failure.tests)
        tests = tests or (failure.checked or {"en": "not checked here", "zh": "未在本地验证"})[language]
        middle = [failure.cause[language], failure.cure[language]]
        thread = f"[{'/'.join(failure.link.split('/')[3:])}]({failure.link})"
        if failure.kit:
            shown = SHOWN[failure.shown][language]
            rows.append([failure.number, symptom, *middle, failure.kit[language], shown, tests])
        else:
            rows.append([symptom, *middle, failure.versions, thread, tests])
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *escaped))


def options_table() -> str:
    "What `b2t` answers to the options of other programs, as a Markdown table."
    rows = [("your option", "here")]
    for answers in (ELSEWHERE, NOT_HERE):
        rows += [(", ".join(f"`{name}`" for name in names.split()), answer.replace("|", "\\|"))
                 for answer, names in answers.items()]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "| --- | --- |", *lines[1:]])


BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {value}">
<rect width="{width}" height="20" rx="3" fill="#24292f"/>
<path d="M{at} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{at}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14">{name}</text><text x="{text}" y="14">{value}</text></g></svg>
"""


def badge(name: str, value: str, colour: str = "#1f5fa8") -> str:
    "Return a badge as SVG; letters are seven pixels wide."
    at = 12 + 7 * len(name)
    width = at + 12 + 7 * len(value)
    return BADGE.format(
        name=name, value=value, colour=colour, at=at, width=width, rest=width - at - 3, text=at + 6
    )


def badges() -> dict[str, str]:  # file name -> SVG
    "Return the badges of the front page."
    settings = ConfigParser(delimiters=["="])
    settings.read(ROOT / "settings.ini", encoding="utf-8")
    licence, oldest = (settings["DEFAULT"][name] for name in ("license", "min_python"))
    ci = runpy.run_path(str(ROOT / "tools/ci.py"))
    newest = max({**ci["PYTHONS"], **ci["IMAGES"]}.values())
    tests = badge("tests", "run .ci/run")
    if LAST.exists():  # of a clone that ran it
        last = json.loads(LAST.read_text(encoding="utf-8"))
        colour = "#b3261e" if last["failed"] else "#1a7f37"
        tests = badge("tests", f"{last['passed']} passed, {last['failed']} failed", colour)
    return {
        "badge_licence.svg": badge("licence", licence),
        "badge_python.svg": badge("Python", f"{oldest} to {newest}"),
        "badge_tests.svg": tests,
    }


def cells_of(notebook: Path) -> list[dict]:
    "The cells of a notebook, each source as one string."
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def in_reading_order(notebooks: list[Path]) -> list[Path]:
    "Notebooks of a folder, each after the ones that it imports from."
    names = {path.stem: path for path in sorted(notebooks)}
    uses = {}
    for name, path in names.items():
        code = "\n".join(cell["source"] for cell in cells_of(path) if cell["source"].startswith("#| export"))
        modules = re.findall(rf"^from b2t_kit\.{path.parent.name}\.(\w+) import", code, re.M)
        uses[name] = sorted({one for one in modules if one in names and one != name})
    return [names[name] for name in TopologicalSorter(uses).static_order()]


def line_of_notebook(notebook: Path) -> str:
    "A list item: title, link, and what the notebook is about."
    text = "\n".join(cell["source"] for cell in cells_of(notebook)[:3])
    title, about = re.search(r"^# (.*)", text, re.M)[1], re.search(r"^> (.*)", text, re.M)
    link = notebook.relative_to(NOTEBOOKS).as_posix()
    return f"- [{title}]({link})" + (f": {about[1].rstrip('.')}" if about else "")


def list_of_notebooks() -> str:
    "nbs/README.md."
    lines = ["# The notebooks", "", "The kit is written as notebooks; `nbdev_export` turns each into the module of its "
             "name. Start with the front page and the four things that the kit is about:", ""]
    lines += [line_of_notebook(path) for path in (NOTEBOOKS / "index.ipynb", *sorted(NOTEBOOKS.glob("0*.ipynb")))]
    lines += ["", "Then the programs:", ""]
    lines += [line_of_notebook(path) for path in sorted(NOTEBOOKS.glob("[a-hj-z]*.ipynb"))]
    for folder, about in FOLDERS.items():
        lines += ["", f"## {folder}", "", about, ""]
        lines += map(line_of_notebook, in_reading_order(list((NOTEBOOKS / folder).glob("*.ipynb"))))
    return "\n".join([NOTE.format("**/*.ipynb").replace("the notebook", "the notebooks"), "", *lines]) + "\n"


def with_table(text: str, table: str) -> str:
    "A page with this table in the place of the one with the same header."
    header = table.partition("\n")[0]
    return re.sub(rf"^{re.escape(header)}\n(?:\|.*\n?)*", lambda _: f"{table}\n", text, count=1, flags=re.M)


def from_root(link: re.Match) -> str:
    "A link relative to nbs/ as one relative to the root, where README.md lies."
    target = READMES.get(link[1]) or posixpath.normpath(posixpath.join("nbs", link[1]))
    return f"]({target})"


def text_of(output: dict) -> str:
    "The plain-text form of one cell output."
    data = output.get("data", {})
    return "".join(output.get("text") or data.get("text/markdown") or data.get("text/plain") or "")


def sections(cells: list[dict]) -> Iterator[str]:
    "The Markdown of each visible cell, and of each output below it."
    for cell in cells:
        if cell["cell_type"] == "markdown":
            yield LOCAL_LINK.sub(from_root, cell["source"].strip())
        elif cell["cell_type"] == "code" and not HIDDEN.search(cell["source"]):
            yield f"```python\n{DIRECTIVE.sub('', cell['source']).strip()}\n```"
            for output in cell["outputs"]:
                yield f"```text\n{text_of(output).strip()}\n```"


def main() -> None:
    for name, language in FAILURES.items():
        text = (NOTEBOOKS / name).read_text(encoding="utf-8")
        for reported in (True, False):
            text = with_table(text, failures_table(language, reported))
        (NOTEBOOKS / name).write_text(text, encoding="utf-8")
    if REPORTS.exists():  # a copy of the notebooks and the package alone has no benchmarks
        text = with_table(REPORTS.read_text(encoding="utf-8"), options_table())
        REPORTS.write_text(text, encoding="utf-8")
    for name, picture in badges().items():
        (NOTEBOOKS / "images" / name).write_text(picture, encoding="utf-8")
    (NOTEBOOKS / "README.md").write_text(list_of_notebooks(), encoding="utf-8")
    for name, readme in READMES.items():
        text = "\n\n".join([NOTE.format(name), *sections(cells_of(NOTEBOOKS / name))]) + "\n"
        (ROOT / readme).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
