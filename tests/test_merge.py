"""Merged sentences by `b2t merge` in processes of its own: killed and resumed, and what it refuses in one line."""
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
from b2t_kit.rescore import merge

merge.MergeSettings = partial(merge.MergeSettings, epochs=2, batch=4, new_tokens=6, tokens=600)
merge.learn.__defaults__ = (0.0,)
merge.ask.__defaults__ = (0.0,)
place, last = sys.argv[1], int(sys.argv[2])
calls = []
real = getattr(merge, place)

def counted(*arguments):
    calls.append(1)
    if len(calls) > last:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(merge, place, counted)
status = main(sys.argv[3:])
print(len(calls), "calls")
sys.exit(status)
"""
ALWAYS = "1000000"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    write_causal(folder / "causal", positions=512)
    write_causal(folder / "short")
    said = [f"we can hear {one} now" for one in "abcdefghijkl"]
    heard = {"said": said, "a": [text.replace("hear", "here") for text in said],
             "b": [text.replace("now", "know") if number % 2 else text for number, text in enumerate(said)]}
    for name, texts in heard.items():
        rows = "".join(f"day{number // 3},1,{number},{text}\n" for number, text in enumerate(texts))
        (folder / f"{name}.csv").write_text("session,block_num,trial_num,text\n" + rows)
    return folder


def words(folder: Path, out: Path, *more: object) -> list[str]:
    return ["merge", *map(str, (folder / "a.csv", folder / "b.csv", "--llm", folder / "causal", "--out", out,
                                "--device", "cpu", *more))]


def learned(out: Path) -> dict[str, bytes]:
    "What a merge leaves: sentences, answers, the gate, and the tensors of all adapters."
    folder = out.with_suffix(".merge")
    files = [path for kind in ("*.json", "adapter_*/checkpoints/*/*.safetensors") for path in folder.glob(kind)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files} | {"out": out.read_bytes()}


def test_killed_and_resumed_gives_the_same_bits(lists, tmp_path):
    "Killed while it learns, killed while it writes, and resumed: the same bytes as in one go; the fourth call only reads."
    options = ("--references", lists / "said.csv", "--cross-fit", 2)
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    printed = python("-c", PROGRAM, "take_step", ALWAYS, *words(lists, whole, *options)).stdout
    assert "gated, other days" in printed and "12 sentences" in printed
    python("-c", PROGRAM, "take_step", 5, *words(lists, killed, *options), status=-signal.SIGKILL)
    python("-c", PROGRAM, "write_sentences", 2, *words(lists, killed, *options), status=-signal.SIGKILL)
    assert not killed.exists()
    python("-c", PROGRAM, "take_step", ALWAYS, *words(lists, killed, *options))
    assert learned(killed) == learned(whole) and len(learned(whole)) > 10
    assert "\n0 calls" in python("-c", PROGRAM, "take_step", ALWAYS, *words(lists, killed, *options)).stdout


def refused(*command: str) -> str:
    "The last line of a command that must end with status 2."
    return python("-m", "b2t_kit", *command, status=2).stderr.strip().splitlines()[-1]


def test_refusals_are_one_line(lists, tmp_path):
    out = tmp_path / "new.csv"
    assert "--cross-fit: needs --references" in refused(*words(lists, out, "--cross-fit", 2))
    assert "too few for 5 groups of days" in refused(*words(lists, out, "--references", lists / "said.csv", "--cross-fit", 5))
    command = words(lists, out, "--references", lists / "said.csv")
    command[command.index(str(lists / "causal"))] = str(lists / "short")
    assert "short: reads 64 tokens, and the prompt of day0 1 0 and its answer need" in refused(*command)
    code = "import sys; sys.modules['peft'] = None; from b2t_kit.cli import main; sys.exit(main(sys.argv[1:]))"
    done = python("-c", code, *words(lists, out, "--references", lists / "said.csv"), status=2)
    assert "peft is not installed; " in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
