"conftest.py: which cells become tests, and their results."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = {  # a source that starts with a heading is a Markdown cell
    "broken": ("# A `heading`", "value = 1", "assert value == 1", "1 / 0", "assert value", "assert 1"),
    "whole": ("# Heading", "assert True", "import os; os.environ['IN_TEST']"),
    "two": ("# First", "value = 1", "assert value", "# Second", "assert value == 1"),
    "flagged": ("#| eval: false\nassert False", "#| notest\nassert False", "#| slow\nassert True",
                "#| export\ndef check(x):\n    assert x > 0", "assert check(1) is None", "#| hide\nimport nbdev; nbdev.nbdev_export()"),
    "lacking": ("value = 1", "#| absent_library\nassert value", "assert value == 1"),
    "untidy": ("import os", "os.environ['LEFT'] = 'behind'", "assert True"),
    "long": ("assert True",)}
SECOND_TIER = {"long"}
RUNS = {  # words of pytest: passed and failed and skipped, and what is said
    "": ((8, 2, 2), ("broken.ipynb::A heading [3] PASSED", "broken.ipynb::A heading [5] FAILED", "ZeroDivisionError",
                     "broken.ipynb::A heading [6] SKIPPED", "whole.ipynb::to the end [3] PASSED",
                     "needs absent_library, which is not installed", "untidy.ipynb leaves changed: LEFT")),
    "-k Second": ((1, 0, 0), ()),  # the cells above it are run
    "--tier second": ((1, 0, 0), ("long.ipynb",)),
    "--tier all": ((9, 2, 2), ("long.ipynb",)),
    "nbs/long.ipynb": ((1, 0, 0), ("long.ipynb",)),
    "--flags slow --no-skips": ((9, 4, 0), ()),
    "--library absent_library": ((1, 0, 1), ())}


@pytest.mark.parametrize("words", RUNS)
def test_cells_become_tests(words: str, tmp_path: Path) -> None:
    """In a checkout with only these notebooks."""
    (tmp_path / "nbs").mkdir()
    for name in ("conftest.py", "settings.ini", "pyproject.toml"):  # this library is never installed
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8").replace("torch_xla", "absent_library"))
    for name, sources in NOTEBOOKS.items():
        cells = [{"cell_type": "markdown" if source.startswith("# ") else "code", "source": [source], "metadata": {}, "outputs": []}
                 for source in sources]
        metadata = {"second_tier": True} if name in SECOND_TIER else {}
        notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / f"nbs/{name}.ipynb").write_text(json.dumps(notebook))
    done = subprocess.run([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words.split()], capture_output=True,
                          text=True, cwd=tmp_path, env={key: value for key, value in os.environ.items() if "PYTEST" not in key})
    counts, said = RUNS[words]
    assert done.stdout.splitlines()[-1] == "{} passed, {} failed, {} skipped".format(*counts), done.stdout
    assert done.returncode == bool(counts[1]) and [line for line in said if line not in done.stdout] == []
