"""Verbs that write, on a machine that stops them: one line, a status, and what they were to write is whole or absent."""
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.program import run_program
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.write import tiny_recordings
from b2t_kit.decode.lists import DecodedTrial, Hypothesis, write_nbest
from commands import interrupted, python, tree
from tiny_models import write_causal
from published_files import tiny_mat_files

pytestmark = pytest.mark.second_tier

VERBS = {
    "lm build": "lm build words.txt --out new/x.b2tlm --memory 50",
    "lm build to ARPA": "lm build words.txt --out new/x.arpa.gz",
    "lm convert": "lm convert model.arpa --out new/x.b2tlm",
    "lm mix": "lm mix model.arpa model.arpa --text train.txt --out new/x.b2tlm",
    "simulate": "simulate --out new --sessions 1 --trials 4 --bins-per-phoneme 8",
    "decode": "decode --run run --data data --out new --lm model.arpa --device cpu",
    "decode logits": "decode --logits run/decode/val/logits.hdf5 --lm model.arpa --out new",
    "rescore": "rescore run/decode/val/nbest.jsonl --llm causal --tune --out new/x.jsonl --device cpu",
    "submit": "submit --run run --data data --lm model.arpa --out new/x.csv --device cpu",
    "submit lists": "submit --nbest nbest.jsonl --data data --out new/x.csv",
    "eval": "eval --run run --data data --device cpu --json new/x.json",
    "report": "report --run run --data data --out new/x.html --device cpu",
    "kernel build": "kernel build --out new --user somebody",
    "export": "export --run run --out new",
    "doctor --bundle": "doctor --bundle run --out new/x.zip",
    "score": "score --reference said.csv --hypothesis said.csv --json new/x.json",
    "plan": "plan linear --json new/x.json",
    "train": "train --data data --out new --hidden 8 --steps 3 --batch-size 8 --buckets 1 --eval-every 0 --device cpu",
}
if find_spec("b2t_kit.importers"):  # a wing
    VERBS["convert t12"] = "convert t12 willett --out new"
HALF = (".partial", ".part", ".tmp", ".removed")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    tiny_recordings(folder / "data", sessions=2, trials=6, max_bins=60)
    tiny_mat_files(folder / "willett")
    write_causal(folder / "causal")
    (folder / "train.txt").write_text("".join(f"we can hear {one} and {other}\n" for one in "abcdefgh" for other in "abcdefgh"))
    (folder / "words.txt").write_text("".join(f"we can hear number{number} now\n" for number in range(400)))
    (folder / "said.csv").write_text("id,text\n0,we can\n1,you\n")
    with Recordings(folder / "data", "test") as recordings:
        places = [info.key for info in recordings.infos]
    best = (Hypothesis(("we", "hear"), -1.0, -2.0, -3.0),)
    write_nbest(folder / "nbest.jsonl", [DecodedTrial(*place, best) for place in places])
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main("lm build words.txt --out model.arpa".split()) == 0
        assert main(VERBS["train"].replace("--out new", "--out run").split()) == 0
        assert main("decode --run run --data data --device cpu --lm model.arpa".split()) == 0
    finally:
        os.chdir(before)
    return folder


def files(folder: Path) -> dict[str, int]:
    return {name: content for name, content in tree(folder).items() if (folder / name).is_file()}


def whole_or_absent(before: dict[str, int], here: Path, complete: set[str]) -> None:
    """Nothing that was there is damaged, nothing has a temporary name, and no new file is cut short."""
    now = files(here)
    assert {name for name in before if now.get(name) != before[name]} <= {"run/metrics.jsonl"}
    new = now.keys() - before.keys()
    assert not [name for name in new if any(part.startswith(".") and part.endswith(HALF) for part in name.split("/"))], new
    assert new <= complete, new - complete
    shutil.rmtree(here / "new", ignore_errors=True)


@pytest.mark.first_tier
def test_a_mode_of_torch_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives while gradients are switched off does not leave them off."""
    switch = torch.set_grad_enabled

    def switched(on: bool) -> None:
        switch(on)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)

    def action() -> int:
        with torch.no_grad():
            time.sleep(5)
        return 0

    monkeypatch.setattr(torch, "set_grad_enabled", switched)
    try:
        assert run_program(action) == 128 + signal.SIGTERM
        assert torch.is_grad_enabled()
    finally:
        switch(True)


INTERRUPTED_TRACES = """
import os, random, signal, sys
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
from b2t_kit.core.program import run_program
from b2t_kit.plan.memory import trace_step
from b2t_kit.training.toy import ToyTask, toy_batch

def action():
    while True:
        trace_step(ToyTask(), batch)

batch, chance = toy_batch([0, 1], 2), random.Random(0)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
for number in range(60):
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.005, 0.04))
    assert run_program(action) == 128 + signal.SIGTERM
    assert not modes() and torch.is_grad_enabled() and not torch._C._only_lift_cpu_tensors(), number
"""


@pytest.mark.first_tier
def test_fake_tensors_are_left() -> None:
    """Signals while a step is traced end in a status: no mode of torch stays on, torch's C++ does not abort."""
    python("-c", INTERRUPTED_TRACES, timeout=300)


INTERRUPTED_LOCKS = """
import io, os, random, shutil, signal, sys, time
from pathlib import Path
from b2t_kit.core.files import atomic_folder, locked, new_folders, written_aside
from b2t_kit.core.program import run_program

here, chance = Path("here"), random.Random(0)

def action():
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0002, 0.006))
    while True:
        with new_folders(here / "new"), locked(here / "new/x", wait=True), written_aside(here / "new/x") as file:
            file.write(b"1")
            time.sleep(0.002)
        with atomic_folder(here / "z") as folder:
            (folder / "y").write_text("2")
            time.sleep(0.002)
        shutil.rmtree(here / "z")

signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
sys.stderr = io.StringIO()
for number in range(400):
    here.mkdir()
    assert run_program(action) == 128 + signal.SIGTERM
    assert not list(here.rglob(".*")), (number, list(here.rglob(".*")))
    shutil.rmtree(here)
"""


def test_locks_are_left(tmp_path: Path) -> None:
    """Signals while a file is locked, written and unlocked leave no file of the lock and nothing half-written."""
    python("-c", INTERRUPTED_LOCKS, timeout=300, cwd=tmp_path)


def failed_on(words: str, capsys: pytest.CaptureFixture) -> int:
    """The status of a command that a disk may stop; it says so in one line."""
    capsys.readouterr()
    status = main(words.split())
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert status == 0 or status == 2 and len(errors) == 1 and errors[0].startswith("error: "), (status, errors)
    return status


@pytest.mark.parametrize("verb", VERBS)
def test_signals_and_a_full_disk(verb: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """SIGINT, SIGTERM and SIGHUP, early, in the middle and late; then no byte, the first hundred, and nearly everything is written."""
    before, start = files(here), time.monotonic()
    assert main(VERBS[verb].split()) == 0
    seconds, made = time.monotonic() - start, files(here).keys() - before.keys()
    shutil.rmtree(here / "new", ignore_errors=True)
    for name in made:
        (here / name).unlink(missing_ok=True)
    before = files(here)
    for number, share in ((signal.SIGINT, 0.5), (signal.SIGTERM, 0.7), (signal.SIGHUP, 0.3)):
        capsys.readouterr()
        status = interrupted(VERBS[verb], number, max(share * seconds, 0.001))
        said = capsys.readouterr().err.splitlines()
        if status == 0:  # training ends with a checkpoint; others were faster than before
            assert verb != "train" or (here / "new/checkpoints").is_dir()
        else:
            name = "" if number == signal.SIGINT else f" by {number.name}"
            assert status == 128 + number and said[-1] == f"interrupted{name}", said
        allowed = made if verb != "train" else made | {name for name in files(here) if name.startswith("new/checkpoints/")}
        whole_or_absent(before, here, allowed)
    before, limits = files(here), resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 100, 1000, 10_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))  # no file of this process may have more bytes
        try:
            status = failed_on(VERBS[verb], capsys)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert status or made <= files(here).keys()
        whole_or_absent(before, here, made)


@pytest.mark.parametrize("options", ["ro", "size=64k,nr_inodes=3"])
@pytest.mark.parametrize("verb", VERBS)
def test_small_disk(verb: str, options: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A disk that is read-only, or has space for two files."""
    (here / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", here / "disk"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    try:
        before = files(here)
        status = failed_on(VERBS[verb].replace("new", "disk/new"), capsys)
        assert status or options != "ro"
        if status:
            whole_or_absent(before, here, set(files(here)))  # what was written before the disk was full may stay, whole
    finally:
        subprocess.run(["umount", "--lazy", here / "disk"], check=True)


@pytest.mark.first_tier
def test_other_programs_that_want_the_cores_are_noticed() -> None:
    """Threads that wait for each other then sleep at once, whatever imports the kit; what the user set stands (core)."""
    code = "import os, b2t_kit.train; print(os.environ['GOMP_SPINCOUNT'])"
    unset = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    busy = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(0.5)
        found = subprocess.run([sys.executable, "-c", code], env=unset, capture_output=True, text=True, check=True)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert found.stdout.split() == ["0"]
