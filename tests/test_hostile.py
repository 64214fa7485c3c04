"""A part of the hostile cases (tests/hostile.py): refused in one line, or accepted where they may be read."""
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.second_tier


def test_hostile_input_is_refused() -> None:
    """In a process of its own, which forks one for each case."""
    words = [sys.executable, "-m", "tests.hostile", "--every", "3", "--dots"]
    done = subprocess.run(words, cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and " refused" in done.stdout, done.stdout + done.stderr
