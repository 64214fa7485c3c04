"""Give a kernel's translations the code of its English notebook: `python tools/translate.py`.

A translation, `kaggle/<kernel>/<kernel>-<language>.ipynb`, translates the Markdown cells of
`<kernel>.ipynb` one by one. This program writes its code and outputs, so they are always current.
"""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_prose(original: dict, translation: dict) -> dict:
    "The original notebook, its Markdown cells replaced by the translation's."
    ours = [cell for cell in translation["cells"] if cell["cell_type"] == "markdown"]
    theirs = [cell for cell in original["cells"] if cell["cell_type"] == "markdown"]
    if len(ours) != len(theirs):
        raise SystemExit(f"error: {len(ours)} translated pieces of prose, but {len(theirs)} to translate")
    prose = iter(ours)
    cells = [next(prose) if cell["cell_type"] == "markdown" else cell for cell in original["cells"]]
    return {**original, "cells": cells}


def main() -> None:
    for path in sorted(ROOT.glob("kaggle/*/*-??.ipynb")):
        english = path.parent / f"{path.parent.name}.ipynb"
        notebooks = [json.loads(one.read_text(encoding="utf-8")) for one in (english, path)]
        text = json.dumps(with_prose(*notebooks), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
