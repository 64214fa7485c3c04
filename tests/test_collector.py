"conftest.py: which cells become tests, and their results."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Project:
    "A checkout with only the notebooks under test."

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "nbs").mkdir()
        for name in ("conftest.py", "settings.ini", "pyproject.toml"):
            # Whether torch_xla is installed depends on the environment; this library never is.
            text = (ROOT / name).read_text(encoding="utf-8").replace("torch_xla", "absent_library")
            (folder / name).write_text(text, encoding="utf-8")

    def add(self, name: str, *sources: str) -> None:
        "Write a notebook; a source that starts with a heading is a markdown cell."
        kinds = ["markdown" if source.startswith("# ") else "code" for source in sources]
        cells = [
            {"cell_type": kind, "source": [source], "metadata": {}, "outputs": []}
            for kind, source in zip(kinds, sources)
        ]
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / "nbs" / name).write_text(json.dumps(notebook), encoding="utf-8")

    def test(self, *options: str) -> tuple[int, str, str]:
        "Exit status of pytest, its output, and the last line of the output."
        environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
        options = {"capture_output": True, "text": True, "cwd": self.folder, "env": environment}
        done = subprocess.run(command, **options)
        return done.returncode, done.stdout, done.stdout.splitlines()[-1]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_asserting_cells_are_tests_and_a_broken_notebook_stops(project):
    cells = ("# A `heading`", "value = 1", "assert value == 1", "1 / 0", "assert value", "assert 1")
    project.add("broken.ipynb", *cells)
    project.add("whole.ipynb", "# Heading", "assert True", "import os; os.environ['IN_TEST']")
    status, output, totals = project.test()
    assert "broken.ipynb::A heading [3] PASSED" in output
    assert "broken.ipynb::A heading [5] FAILED" in output and "ZeroDivisionError" in output
    assert "broken.ipynb::A heading [6] SKIPPED" in output
    assert "whole.ipynb::Heading [2] PASSED" in output
    assert "whole.ipynb::to the end [3] PASSED" in output
    assert (status, totals) == (1, "3 passed, 1 failed, 1 skipped")


def test_cells_above_a_selected_one_are_run(project):
    project.add("a.ipynb", "# First", "value = 1", "assert value", "# Second", "assert value == 1")
    status, _, totals = project.test("-k", "Second")
    assert (status, totals) == (0, "1 passed, 0 failed, 0 skipped")


def test_flagged_cells_are_left_out_unless_asked_for(project):
    project.add(
        "a.ipynb",
        "#| eval: false\nassert False",
        "#| notest\nassert False",
        "#| slow\nassert True",
        "#| export\ndef check(x):\n    assert x > 0",
        "assert check(1) is None",
        "#| hide\nimport nbdev; nbdev.nbdev_export()",
    )
    assert project.test()[-1] == "1 passed, 0 failed, 0 skipped"
    assert project.test("--flags", "slow")[-1] == "2 passed, 0 failed, 0 skipped"


def test_what_needs_a_library_skips_without_it(project):
    cells = ("value = 1", "#| absent_library\nassert value", "assert value == 1")
    project.add("a.ipynb", *cells)
    status, output, totals = project.test()
    assert "needs absent_library, which is not installed" in output
    assert (status, totals) == (0, "1 passed, 0 failed, 1 skipped")
    status, _, totals = project.test("--no-skips")
    assert (status, totals) == (1, "1 passed, 1 failed, 0 skipped")
    (project.folder / "absent_library.py").touch()
    status, _, totals = project.test("--no-skips")
    assert (status, totals) == (0, "2 passed, 0 failed, 0 skipped")
    project.add("b.ipynb", "assert True")
    assert project.test("--library", "absent_library")[-1] == "2 passed, 0 failed, 0 skipped"
    assert project.test()[-1] == "3 passed, 0 failed, 0 skipped"


def test_a_notebook_that_changes_the_process_is_named(project):
    project.add("a.ipynb", "import os", "os.environ['LEFT'] = 'behind'", "assert True")
    status, output, totals = project.test()
    assert "a.ipynb leaves changed: LEFT" in output
    assert (status, totals) == (1, "1 passed, 1 failed, 0 skipped")
