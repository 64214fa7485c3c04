"""The quick part of the hostile cases made by hand (tests/by_hand.py)."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("arrays", "corp", "h2", "kept", "nbest", "runs")


def test_hostile_input_is_refused() -> None:
    """In one line, or accepted where it may be read; in a process of its own, which forks one for each case."""
    words = [sys.executable, "-m", "tests.campaign", "--by-hand", "--only", ",".join(KINDS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900)
    table = done.stdout[done.stdout.find("| input |"):]
    assert done.returncode == 0 and all(f"| {kind} |" in table for kind in KINDS), table + done.stderr
