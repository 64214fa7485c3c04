"""Write README.md and README.zh.md from nbs/index.ipynb and nbs/index_zh.ipynb.

The table of the notebooks, in the index, and that of the failures, in two languages, are written into
their notebooks first. Run it as `python tools/readme.py` where the package is installed. nbdev's own
`nbdev_readme` needs Quarto, a program of 100 MB that pip cannot install offline.
"""
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from b2t_kit.preflight import failures

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "nbs"
READMES = {"index.ipynb": "README.md", "index_zh.ipynb": "README.zh.md"}
FAILURES = {"64_failures.ipynb": "en", "64_failures_zh.ipynb": "zh"}
NOTE = "<!-- Written by tools/readme.py from nbs/{}: edit the notebook. -->"
TABLE = "| notebook | module | what it is about |\n|---|---|---|\n"
HIDDEN = re.compile(r"^#\s*\|\s*(hide\b|include:\s*false|default_exp\b)", re.M)
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)
LOCAL_LINK = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


def cells_of(notebook: Path) -> list[dict]:
    "The cells of a notebook, each source as one string."
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def table_of_notebooks() -> str:
    "One row a notebook, in the order in which they build on each other."
    rows = []
    for notebook in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        text = "\n".join(cell["source"] for cell in cells_of(notebook)[:3])
        module = re.search(r"^#\s*\|\s*default_exp (\S+)", text, re.M)
        about = re.search(r"^> (.*)", text, re.M)
        name, line = f"`{module[1]}`" if module else "", about[1] if about else ""
        rows.append(f"| [{notebook.stem}]({notebook.name}) | {name} | {line.rstrip('.')} |")
    return TABLE + "\n".join(rows)


def with_table(text: str, table: str) -> str:
    "A notebook's text with the cell of this table brought up to date; all else stays as it is."
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if "".join(cell["source"]).startswith(table.splitlines()[0]):
            cell["source"] = table.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


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
    tables = {"index.ipynb": table_of_notebooks()}
    tables |= {name: failures.table(language) for name, language in FAILURES.items()}
    for name, written in tables.items():
        path = NOTEBOOKS / name
        path.write_text(with_table(path.read_text(encoding="utf-8"), written), encoding="utf-8")
    for name, readme in READMES.items():
        text = "\n\n".join([NOTE.format(name), *sections(cells_of(NOTEBOOKS / name))]) + "\n"
        (ROOT / readme).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
