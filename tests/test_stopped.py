"""A command that a signal stops says so by its status, and by the command that goes on, which needs nothing else."""
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.files import load_json
from b2t_kit.training.log import read_metrics, series
from commands import bits, newest, start, tree

pytestmark = [pytest.mark.usefixtures("dots"), pytest.mark.second_tier]
STEPS = 200
SETTINGS = f"""--config linear --steps {STEPS} --checkpoint-every 20 --keep-checkpoints 1000 --eval-every 0 --log-every 1
--warmup-steps 2 --batch-size 4 --lr 0.002 --device cpu --precision float32"""
PATIENCE = 240  # seconds


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """In this process too, for the same bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def b2t(capsys: pytest.CaptureFixture) -> Callable[[str], tuple[int, str, str]]:
    """Status, output and errors of a command in this process: torch is imported already."""
    def run(words: str) -> tuple[int, str, str]:
        return main(shlex.split(words)), *capsys.readouterr()
    return run


def stopped_early(words: str, run: Path, number: signal.Signals) -> str:
    """Start a command, stop it once the run has trained, and check its status; return the command that goes on."""
    deadline = time.monotonic() + PATIENCE
    process = start("-m", "b2t_kit.cli", *shlex.split(words))
    try:
        while newest(run) <= 0:
            assert process.poll() is None and time.monotonic() < deadline, words
            time.sleep(0.005)
        process.send_signal(number)
        said, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + number, said + errors
    assert errors == ("interrupted\n" if number == signal.SIGINT else "interrupted by SIGTERM\n")
    (line,) = [line for line in said.splitlines() if "b2t train" in line]
    return line.partition("b2t ")[2]


@pytest.mark.first_tier
def test_a_stopped_run_goes_on_by_the_printed_command(data: Path, tmp_path: Path, b2t: Callable) -> None:
    """With the same bits as a run that was not stopped, and on the device as before."""
    run, alone = tmp_path / "a run", tmp_path / "alone"
    again = stopped_early(f"train --data {data} --out '{run}' {SETTINGS}", run, signal.SIGINT)
    assert again == f"train --resume --out '{run}'"
    assert newest(run) < STEPS and b2t(again)[0] == 0 and newest(run) == STEPS
    assert b2t(f"train --data {data} --out {alone} {SETTINGS}")[0] == 0
    assert bits(run) == bits(alone)


SLOW = """
import sys, time
from b2t_kit.core.program import run_program
from b2t_kit.train import train
from b2t_kit.training.toy import ToyTask, toy_config

class Slow(ToyTask):
    def batches(self, config, device, position):
        print("reading", flush=True)
        time.sleep(10_000)
        yield from super().batches(config, device, position)

sys.exit(run_program(lambda: train(Slow(), toy_config(), sys.argv[1], quiet=True).step))
"""


def test_a_signal_before_the_first_step_ends_the_command(tmp_path: Path) -> None:
    """At once, while it waits for the first batch; nothing stays."""
    process = start("-c", SLOW, tmp_path / "new/run")
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == "interrupted by SIGTERM\n" and not any(tmp_path.iterdir())


def test_what_may_be_given_again(data: Path, tmp_path: Path, b2t: Callable) -> None:
    """A setting that the run did not have is refused by name; what changes nothing, and the folder, may be others."""
    data, run = shutil.copytree(data, tmp_path / "data"), tmp_path / "run"
    resume = f"train --resume --out {run}"
    run.mkdir()
    status, _, errors = b2t(resume)
    assert status == 2 and errors.count("\n") == 1 and "config.json" in errors and "without --resume" in errors
    assert b2t(f"train --data {data} --out {run} {SETTINGS} --hours 1e-6")[0] == 0
    at = newest(run)
    assert at < STEPS
    for words, message in (("--lr 0.003", "train.lr was 0.002 and is 0.003"),
                           ("--batch-size 5", "batches.batch_size was 4 and is 5"),
                           ("--config tiny", "task.config.model."), ("--seed 4", "train.seed was 1 and is 4")):
        status, said, errors = b2t(f"{resume} {words}")
        assert status == 2 and errors.startswith("error: ") and errors.count("\n") == 1 and message in errors, errors
    moved = data.rename(tmp_path / "elsewhere")
    status, said, errors = b2t(resume)
    assert status == 2 and errors.count("\n") == 1 and str(data) in errors and "--data" in errors
    status, said, errors = b2t(f"{resume} --data {moved} --lr 0.002 --log-every 7 --hours 1e-6")
    assert status == 0 and newest(run) > at and f"b2t {resume}\n" in said, said + errors
    assert b2t(f"{resume} --hours 1e-6 ")[0] == 0  # where it was last time


def test_a_longer_schedule_is_asked_for(data: Path, tmp_path: Path, b2t: Callable) -> None:
    """More steps would raise the learning rate of a finished run from its floor; that must be wanted."""
    run, steps = tmp_path / "run", 20
    assert b2t(f"train --data {data} --out {run} {SETTINGS} --steps {steps}".replace(f"--steps {STEPS}", ""))[0] == 0
    before = tree(run)
    status, said, errors = b2t(f"train --resume --out {run} --steps 40")
    assert status == 2 and errors.count("\n") == 1, said + errors
    assert "from 4e-05 to 0.0011" in errors and "--new-schedule" in errors and str(run) in errors
    assert tree(run) == before
    status, said, errors = b2t(f"train --resume --out {run} --steps 40 --new-schedule")
    assert status == 0 and newest(run) == 40 and "from 4e-05 to 0.0011" in said, said + errors
    _, rates = series(read_metrics(run), "train", "lr")
    assert rates[steps - 1] < 0.0001 < 0.001 < rates[steps]
    status, _, errors = b2t(f"train --resume --out {run} --steps 60")  # permitted once is not permitted for ever
    assert status == 2 and "--new-schedule" in errors
    status, said, errors = b2t(f"train --resume --out {run} --steps 30")  # both schedules are at their floor there
    assert status == 2 and errors == f"error: {run}: is at step 40, which is beyond 30; leave out --steps\n", said + errors


def test_stopped_seeds_go_on_by_the_printed_command(data: Path, tmp_path: Path, b2t: Callable) -> None:
    """Also those that had not begun; side by side: test_seeds.py."""
    out = tmp_path / "seeds"
    runs = [out / f"seed_{seed}" for seed in (5, 6)]
    again = stopped_early(f"train --data {data} --out {out} {SETTINGS} --seeds 5 6", runs[0], signal.SIGTERM)
    assert again == f"train --resume --out {out}" and max(map(newest, runs)) < STEPS
    row = read_metrics(runs[0])[-1]
    assert row["text"].startswith("stopped (SIGTERM)") and row["step"] == newest(runs[0])
    status, said, errors = b2t(again)
    assert status == 0 and [newest(run) for run in runs] == [STEPS, STEPS], said + errors
    assert "side by side" not in said and set(load_json(out / "seeds.json")["values"]) == {"5", "6"}
    records = [load_json(run / "config.json") for run in runs]
    assert [one["train"].pop("seed") for one in records] == [5, 6] and records[0] == records[1]
