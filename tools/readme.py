"""Write README.md, README.zh.md and nbs/README.md from the notebooks: `python tools/readme.py`.

README.md and README.zh.md are nbs/index.ipynb and nbs/index_zh.ipynb as Markdown. nbs/README.md lists all
notebooks in reading order. The tables of failures, in two languages, are written into their pages. Run it where
the package is installed. nbdev's own `nbdev_readme` needs Quarto, a program of 100 MB that pip cannot install
offline.
"""
import json
import posixpath
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from b2t_kit.doctor import failures_table

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "nbs"
READMES = {"index.ipynb": "README.md", "index_zh.ipynb": "README.zh.md"}
FAILURES = {"tutorials/failures.md": "en", "tutorials/failures_zh.md": "zh"}
NOTE = "<!-- Written by tools/readme.py from nbs/{}: edit the notebook. -->"
FOLDERS = {  # in reading order
    "tutorials": "Tutorials: notebooks to run from top to bottom. They export no code.",
    "speech": "Speech decoding: the task, its recipes, new recording days, evaluation.",
    "data": "From files to batches.",
    "importers": "Recordings in other layouts, yours among them; the core does without this folder.",
    "text": "Phonemes, pronunciations and error rates.",
    "models": "What the decoders are made of.",
    "training": "What the training loop calls.",
    "lm": "Words, and n-gram models of sentences.",
    "decode": "From phoneme logits to sentences.",
    "llm": "Large language models, after the search.",
    "live": "Words while somebody speaks.",
    "output": "Competition files, scores and reports.",
    "devices": "One interface over CPU, CUDA and TPU.",
    "memory": "Whether a step fits, by arithmetic.",
    "tpu": "Whether a step fits and how fast it can be, by the TPU compiler, without a TPU.",
    "tasks": "Other tasks on the same training loop.",
}
HIDDEN = re.compile(r"^#\s*\|\s*(hide\b|include:\s*false|default_exp\b)", re.M)
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)
LOCAL_LINK = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


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
    (NOTEBOOKS / "README.md").write_text(list_of_notebooks(), encoding="utf-8")
    for name, readme in READMES.items():
        text = "\n\n".join([NOTE.format(name), *sections(cells_of(NOTEBOOKS / name))]) + "\n"
        (ROOT / readme).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
