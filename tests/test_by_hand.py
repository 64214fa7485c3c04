"""The quick part of the hostile cases made by hand: arrays, run folders and kept sessions (tests/by_hand.py)."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("kind", ["arrays", "runs", "kept"])
def test_hostile_input_is_refused(kind: str) -> None:
    """In one line, or accepted where it may be read; in a process of its own, which forks one for each case."""
    words = [sys.executable, "-m", "tests.campaign", "--by-hand", "--only", kind]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    table = done.stdout[done.stdout.find("| input |"):]
    assert done.returncode == 0 and f"| {kind} |" in table, table + done.stderr
