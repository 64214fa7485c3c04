"""Build the documentation site from the notebooks: `python tools/docs.py`, then open _docs/index.html.

Needs the extra `docs` and no network: `pip install ".[docs]"`. Notebooks are not run; the pages show their saved
outputs. Pages keep their paths in the repository, so links between them work; other links lead
to the repository. The order of the pages is that of nbs/README.md, which tools/readme.py writes.

Sphinx with MyST-NB, because both are maintained and read notebooks directly. MkDocs has had no release since 1.6.1
(August 2024), and nbdev's own command needs Quarto, which pip cannot install offline.
"""
import argparse
import ast
import json
import posixpath
import re
import shutil
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HIDDEN = re.compile(r"^#\s*\|\s*(hide\b|include:\s*false|default_exp\b)", re.M)
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]*)(#[^)]*)?\)")
PAGES = {  # of the repository, besides the notebooks, by the heading they stand under
    "Measurements": ["LEADERBOARD.md", "benchmarks/README.md", "benchmarks/*.md"],
    "Work on it": ["CONTRIBUTING.md", "CHANGELOG.md"],
}
PICTURES = ("nbs/**/*.png", "nbs/images/*.gif", "nbs/images/*.svg", "benchmarks/results/*.png")
CHINESE = "```{toctree}\n:hidden:\n\n中文 <zh>\n```\n\n"
MAIN = {"index.md": "README.md", "zh.md": "README.zh.md"}
RENAMED = {"README.md": "index.md", "nbs/index.ipynb": "index.md",
           "README.zh.md": "zh.md", "nbs/index_zh.ipynb": "zh.md"}
HTML = {
    "project": "b2t_kit", "html_title": "b2t_kit", "extensions": ["myst_nb"], "nb_execution_mode": "off",
    "html_theme": "furo", "html_static_path": ["_static"], "html_css_files": ["wide.css"],
    "myst_enable_extensions": ["dollarmath"], "myst_heading_anchors": 3, "nb_render_markdown_format": "myst",
    "nb_code_prompt_show": "imports", "nb_code_prompt_hide": "imports",
    "html_show_sphinx": False, "html_copy_source": False, "html_show_sourcelink": False,
    "source_suffix": {".md": "myst-nb", ".ipynb": "myst-nb"}, "nb_merge_streams": True,
    "suppress_warnings": ["mystnb.unknown_mime_type", "myst.header", "myst.xref_missing"],
}

STYLE = """
.content { width: 56em; max-width: 100%; }  /* a line of code has up to 120 characters */
div.cell details.hide { border: none; box-shadow: none; }
div.cell details.hide .admonition-title { background: none; font-weight: normal; opacity: 0.7; }
"""

settings = ConfigParser(delimiters=["="])
settings.read(ROOT / "settings.ini", encoding="utf-8")


def sections() -> dict[str, list[str]]:
    "The pages of the site by heading, in the order of nbs/README.md; paths in the repository."
    found: dict[str, list[str]] = {"Start": []}
    heading = "Start"
    for line in (ROOT / "nbs/README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
            found[heading] = []
        link = re.match(r"- \[.*?\]\((\S+\.ipynb)\)", line)
        if link and not link[1].startswith("index"):  # README.md is nbs/index.ipynb
            found[heading].append(f"nbs/{link[1]}")
    for heading, patterns in PAGES.items():
        paths = [path.relative_to(ROOT).as_posix() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        found[heading] = list(dict.fromkeys(paths))
    return {heading: pages for heading, pages in found.items() if pages}


def with_links(text: str, page: str, pages: set[str]) -> str:
    "Markdown whose links to files outside the site lead to the repository, and whose anchors are Sphinx's."
    def target(link: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        anchor = re.sub(r"[^\w#-]", "", (link[3] or "").lower())  # in notebooks, anchors have capitals and marks
        if not link[2]:
            return f"{link[1]}{anchor})"
        if path in RENAMED or path in pages or (ROOT / path).suffix == ".png":
            return f"{link[1]}{posixpath.relpath(RENAMED.get(path, path), posixpath.dirname(page) or '.')}{anchor})"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        address = f"{settings['DEFAULT']['git_url']}/{kind}/{settings['DEFAULT']['branch']}/{path}"
        return f"{link[1]}{address}{link[3] or ''})"
    return LINK.sub(target, text)


def is_imports(source: str) -> bool:
    "Whether a cell only imports, also under `if TYPE_CHECKING`."
    try:
        found = ast.parse(source).body
    except SyntaxError:  # a magic command
        return False
    found = [inner for node in found for inner in (node.body if isinstance(node, ast.If) else [node])]
    return bool(found) and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in found)


def notebook_page(text: str, page: str, pages: set[str]) -> str:
    "A notebook without hidden cells and directives, with working links; cells that only import are folded."
    notebook = json.loads(text)
    cells = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and HIDDEN.search(source):
            continue
        changed = with_links(source, page, pages) if cell["cell_type"] == "markdown" else DIRECTIVE.sub("", source)
        if cell["cell_type"] == "code" and is_imports(source):
            cell["metadata"] = {**cell["metadata"], "tags": ["hide-input"]}
        if changed.strip():
            cells.append({**cell, "source": changed.splitlines(keepends=True)})
    notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    return json.dumps({**notebook, "cells": cells})


def contents(groups: dict[str, list[str]]) -> str:
    "The table of contents, which the sidebar shows."
    parts = []
    for heading, pages in groups.items():
        names = "\n".join(page.rpartition(".")[0] for page in pages)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{names}\n```")
    return "\n\n".join(parts)


def write_sources(folder: Path) -> None:
    "Write every page of the site into an empty folder."
    groups = sections()
    pages = {page for found in groups.values() for page in found} | {"nbs/README.md"}
    for page in sorted(pages):
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / page).read_text(encoding="utf-8")
        make = notebook_page if page.endswith(".ipynb") else with_links
        target.write_text(make(text, page, pages), encoding="utf-8")
    for picture in (path for pattern in PICTURES for path in ROOT.glob(pattern)):
        target = folder / picture.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    (folder / "nbs/README.md").write_text(
        "---\norphan: true\n---\n" + (folder / "nbs/README.md").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "_static").mkdir()
    (folder / "_static/wide.css").write_text(STYLE, encoding="utf-8")
    for name, source in MAIN.items():
        text = with_links((ROOT / source).read_text(encoding="utf-8"), source, pages)
        end = CHINESE + contents(groups) if name == "index.md" else ""
        (folder / name).write_text(f"{text}\n{end}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "_docs", help="folder of the site; made anew")
    options = parser.parse_args()
    try:
        from sphinx.application import Sphinx
    except ModuleNotFoundError:
        raise SystemExit('error: the site needs Sphinx; pip install ".[docs]"') from None
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "pages"
        sources.mkdir()
        write_sources(sources)
        shutil.rmtree(options.out, ignore_errors=True)
        made = Path(folder) / "made/html"  # MyST-NB leaves a folder beside it
        site = Sphinx(sources, None, made, Path(folder) / "kept", "html", HTML, parallel=2, status=None,
                      warning=sys.stderr)
        site.build()
        shutil.move(made, options.out)
    print(f"{len(list(options.out.rglob('*.html')))} pages in {options.out}")
    return min(site.statuscode, 1)


if __name__ == "__main__":
    sys.exit(main())
