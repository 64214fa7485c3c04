"""`b2t merge` in processes of its own: killed and resumed, and what it refuses in one line."""
import signal
from pathlib import Path

import pytest

from commands import python
from tiny_models import write_causal

pytestmark = pytest.mark.second_tier

# Small steps, each followed by a checkpoint, and a signal at one of them. The model has dropout.
PROGRAM = """
import os, signal, sys
from functools import partial
from b2t_kit.cli import main
from b2t_kit.rescore import merge, writer

merge.WriterSettings = partial(
    merge.WriterSettings, epochs=2, batch=4, new_tokens=6, tokens=600
)
writer.learn.__defaults__ = (0.0,)
place, last = sys.argv[1], int(sys.argv[2])
calls = []
real = getattr(writer, place)

def counted(*arguments):
    calls.append(1)
    if len(calls) > last:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(writer, place, counted)
status = main(sys.argv[3:])
print(len(calls), "calls")
sys.exit(status)
"""
ALWAYS = 10**6


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    write_causal(folder / "causal", positions=512)
    write_causal(folder / "short")
    said = [f"we can hear {one} now" for one in "abcdefghijkl"]
    heard = {
        "said": said,
        "a": [text.replace("hear", "here") for text in said],
        "b": [text.replace("now", "know") if "a" in text else text for text in said],
    }
    for name, texts in heard.items():
        rows = [f"day{number // 3},1,{number},{text}\n" for number, text in enumerate(texts)]
        table = "session,block_num,trial_num,text\n" + "".join(rows)
        (folder / f"{name}.csv").write_text(table)
    return folder


def words(folder: Path, out: Path, *more: object) -> list[str]:
    "The command line of a merge."
    files = (folder / "a.csv", folder / "b.csv")
    options = ("--llm", folder / "causal", "--out", out, "--device", "cpu", *more)
    return ["merge", *map(str, (*files, *options))]


def learned(out: Path) -> dict[str, bytes]:
    "What a merge leaves: sentences, answers, the gate, and the tensors of all adapters."
    folder = out.with_suffix(".merge")
    kinds = ("*.json", "adapter_*/checkpoints/*/*.safetensors")
    paths = [path for kind in kinds for path in folder.glob(kind)]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return files | {"out": out.read_bytes()}


def run(place: str, last: int, command: list[str], status: int = 0) -> str:
    "What a merge prints that is killed after so many calls of a function."
    return python("-c", PROGRAM, place, last, *command, status=status).stdout


def test_killed_and_resumed_gives_the_same_bits(lists, tmp_path):
    "Killed while it learns and while it writes, and resumed: the same bytes as in one go."
    options = ("--references", lists / "said.csv", "--cross-fit", 2)
    whole = words(lists, tmp_path / "whole.csv", *options)
    killed = words(lists, tmp_path / "killed.csv", *options)
    printed = run("take_step", ALWAYS, whole)
    assert "gated, other days" in printed and "12 sentences" in printed
    run("take_step", 5, killed, status=-signal.SIGKILL)
    run("write_sentences", 2, killed, status=-signal.SIGKILL)
    assert not (tmp_path / "killed.csv").exists()
    run("take_step", ALWAYS, killed)
    left = learned(tmp_path / "whole.csv")
    assert learned(tmp_path / "killed.csv") == left and len(left) > 10
    assert "\n0 calls" in run("take_step", ALWAYS, killed)  # it only reads


def refused(*command: str) -> str:
    "The last line of a command that must end with status 2."
    return python("-m", "b2t_kit", *command, status=2).stderr.strip().splitlines()[-1]


def test_refusals_are_one_line(lists, tmp_path):
    out = tmp_path / "new.csv"
    references = ("--references", lists / "said.csv")
    assert "--cross-fit: needs --references" in refused(*words(lists, out, "--cross-fit", 2))
    line = refused(*words(lists, out, *references, "--cross-fit", 5))
    assert "too few for 5 groups of days" in line
    command = words(lists, out, *references)
    command[command.index(str(lists / "causal"))] = str(lists / "short")
    assert "short: reads 64 tokens, and the prompt of day0 1 0" in refused(*command)
    code = (
        "import sys; sys.modules['peft'] = None; from b2t_kit.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = python("-c", code, *words(lists, out, *references), status=2)
    assert "peft is not installed; " in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
