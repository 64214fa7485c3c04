"""The page of the field reports: commands that it names can be read, and its counts are those of the table of failures."""
import re
import shlex
from pathlib import Path

from b2t_kit.cli import parse
from b2t_kit.doctor import SHOWN, known_failures

PAGE = (Path(__file__).parents[1] / "benchmarks/field_reports.md").read_text(encoding="utf-8")


def test_your_command_ours() -> None:
    """Every command in the last column is read by the parser."""
    rows = re.findall(r"\| `(?:b2t|torchrun [^`]*-m b2t_kit) ([^`]*)` \|$", PAGE, re.M)
    commands = [shlex.split(row) for row in rows]
    assert len(commands) >= 10 and PAGE.count("| `torchrun ") == 1
    for words in commands:
        assert parse(words) is not None, words
    for named in ("--results-dir", "mean.pth", "--use_tpu"):
        assert named in PAGE


def test_counts_of_the_failures() -> None:
    """How many happen in their tests, happen with more installed, are imitated, or have only their cure tested."""
    reports = [one.shown for one in known_failures() if one.number]
    said = re.search(r"Of the (\d+) rows, (\d+) happen in their tests, (\d+) happen where .*?, (\d+) are imitated, and of (\d+) only",
                     PAGE, re.S)
    assert [int(number) for number in said.groups()] == [len(reports), *(reports.count(kind) for kind in SHOWN)]
