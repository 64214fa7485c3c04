"""The page of the field reports: commands that it names can be read by the parser."""
import re
import shlex
from pathlib import Path

from b2t_kit.cli import parse

PAGE = (Path(__file__).parents[1] / "benchmarks/field_reports.md").read_text(encoding="utf-8")


def test_your_command_ours() -> None:
    """Every command in the last column."""
    commands = [shlex.split(row) for row in re.findall(r"\| `(?:b2t|torchrun [^`]*-m b2t_kit) ([^`]*)` \|$", PAGE, re.M)]
    assert len(commands) >= 10 and PAGE.count("| `torchrun ") == 1
    for words in commands:
        assert parse(words) is not None, words
    assert all(named in PAGE for named in ("--results-dir", "mean.pth", "--use_tpu"))
