"conftest.py: which cells become tests, and their results."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CASES = {  # notebooks, words of pytest, passed and failed and skipped, what is said
    "a broken cell stops its notebook": ({
        "broken": ("# A `heading`", "value = 1", "assert value == 1", "1 / 0", "assert value", "assert 1"),
        "whole": ("# Heading", "assert True", "import os; os.environ['IN_TEST']")}, "", (3, 1, 1),
        ("broken.ipynb::A heading [3] PASSED", "broken.ipynb::A heading [5] FAILED", "ZeroDivisionError",
         "broken.ipynb::A heading [6] SKIPPED", "whole.ipynb::Heading [2] PASSED", "whole.ipynb::to the end [3] PASSED")),
    "cells above a selected one are run": ({
        "a": ("# First", "value = 1", "assert value", "# Second", "assert value == 1")}, "-k Second", (1, 0, 0), ()),
    "flagged cells are left out": ({
        "a": ("#| eval: false\nassert False", "#| notest\nassert False", "#| slow\nassert True",
              "#| export\ndef check(x):\n    assert x > 0", "assert check(1) is None",
              "#| hide\nimport nbdev; nbdev.nbdev_export()")}, "", (1, 0, 0), ()),
    "flagged cells are asked for": ({"a": ("#| slow\nassert True", "assert True")}, "--flags slow", (2, 0, 0), ()),
    "a library that is missing skips": ({
        "a": ("value = 1", "#| absent_library\nassert value", "assert value == 1")}, "", (1, 0, 1),
        ("needs absent_library, which is not installed",)),
    "only notebooks with a cell that needs a library": ({
        "a": ("#| absent_library\nassert True", "assert True"), "b": ("assert True",)}, "--library absent_library", (1, 0, 1), ()),
    "no skip is allowed": ({
        "a": ("value = 1", "#| absent_library\nassert value", "assert value == 1")}, "--no-skips", (1, 1, 0), ()),
    "a notebook that changes the process is named": ({
        "a": ("import os", "os.environ['LEFT'] = 'behind'", "assert True")}, "", (1, 1, 0), ("a.ipynb leaves changed: LEFT",)),
}


@pytest.mark.parametrize("case", CASES)
def test_cells_become_tests(case: str, tmp_path: Path) -> None:
    """A checkout with only these notebooks; a source that starts with a heading is a Markdown cell."""
    notebooks, words, counts, said = CASES[case]
    (tmp_path / "nbs").mkdir()
    for name in ("conftest.py", "settings.ini", "pyproject.toml"):  # this library is never installed
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8").replace("torch_xla", "absent_library"))
    for name, sources in notebooks.items():
        cells = [{"cell_type": "markdown" if source.startswith("# ") else "code", "source": [source], "metadata": {}, "outputs": []}
                 for source in sources]
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / f"nbs/{name}.ipynb").write_text(json.dumps(notebook))
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words.split()], capture_output=True,
                          text=True, cwd=tmp_path, env={key: value for key, value in os.environ.items() if "PYTEST" not in key})
    assert done.stdout.splitlines()[-1] == "{} passed, {} failed, {} skipped".format(*counts)
    assert done.returncode == bool(counts[1]) and [line for line in said if line not in done.stdout] == []
