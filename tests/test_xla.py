"""Training on simulated chips in separate processes: results, compilations, transfers, and resuming.

Compiling takes most of the time, so there are three trainings: one changes devices, one is killed, one divides units."""
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import TESTS, newest, python, start, tensors

PATIENCE = 1500  # seconds
MICRO_BATCHES = 3
pytestmark = [pytest.mark.torch_xla, pytest.mark.second_tier]


def command(folder: Path, *jobs: tuple[str, str, dict]) -> list[object]:
    return [TESTS / "xla_runs.py", folder, json.dumps(jobs)]


def reports(said: str) -> list[dict]:
    """What a child printed of each of its jobs, and all that it printed until then."""
    parts = said.split("REPORT")
    return [{**json.loads(part.splitlines()[0]), "said": before} for before, part in zip(parts, parts[1:])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xla")


@pytest.fixture(scope="module")
def moving(folder: Path) -> dict[str, dict]:
    """Twenty steps on a CPU; and seven there, seven on eight chips that divide all weights, six on a CPU, in micro-batches."""
    data = {"data": str(folder / "recordings")}
    same = data | {"accumulation": MICRO_BATCHES}
    found = python(*command(
        folder, ("cpu", "train", data | {"device": "cpu"}), ("moving", "train", same | {"device": "cpu", "steps": 7}),
        ("moving", "train", same | {"device": "xla", "steps": 14, "resume": True, "shard": "all"}),
        ("moving", "train", same | {"device": "cpu", "resume": True}),
        *(("moving", "evaluate", data | {"device": device, "precision": "float32"}) for device in ("xla", "cpu")),
    ), chips=8, timeout=PATIENCE).stdout
    return dict(zip(("cpu", "before", "chips", "after", "scored there", "scored here"), reports(found)))


def assert_same_training(folder: Path, moved: dict, straight: dict, run: str, other: str) -> None:
    """Losses, gradient norms and validations of all steps, and everything in the last checkpoint."""
    assert moved["train"][0] == straight["train"][0] and len(straight["train"][1]) == 20
    for name in ("train", "norm", "eval", "per"):  # each part of a run ends with a validation of its own
        found = dict(zip(*moved[name]))
        np.testing.assert_allclose([found[step] for step in straight[name][0]], straight[name][1], rtol=1e-4)
    expected, found = tensors(folder / other), tensors(folder / run)
    assert found.keys() == expected.keys() and {value.dtype for value in found.values()} == {torch.float32}
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_run_may_change_devices(folder: Path, moving: dict[str, dict]) -> None:
    first, last = moving["cpu"]["eval"][1]
    assert last < first and "weights, moments and average divided" in moving["chips"]["said"]
    assert_same_training(folder, moving["after"], moving["cpu"], "moving", "cpu")


def test_programs_of_a_run(moving: dict[str, dict]) -> None:
    """Two lengths: two programs each and one of validation, all before the first step."""
    found = moving["chips"]
    kinds = [name.partition(" of ")[0] for name in found["warm_up"]]
    assert [kinds.count(kind) for kind in ("a micro-batch", "a training step", "validation")] == [2, 2, 1]
    assert {count for name, count in found["warm_up"].items() if name != "between steps"} == {1}, found["warm_up"]
    assert found["programs"] == found["warm_up"] and found["since"]["compiled"] == 0 and found["fallbacks"] == []


def test_one_transfer_per_row_of_metrics(moving: dict[str, dict]) -> None:
    """A row after each step; validation at step 10 fetches its own values."""
    between = np.diff(moving["chips"]["fetched"]).tolist()
    assert between[:2] + between[3:] == [1] * 5 and between[2] > 1


def test_evaluated_on_eight_chips_like_on_a_cpu(moving: dict[str, dict]) -> None:
    """Trials that do not divide by eight: empty rows fill the batch and appear in no result."""
    there, here = moving["scored there"], moving["scored here"]
    assert len(here["decoded"]) % 8 and there["decoded"] == here["decoded"]
    np.testing.assert_allclose(there["losses"], here["losses"], rtol=1e-4)


@pytest.fixture(scope="module")
def wide(folder: Path) -> dict:
    """A noise model with dropout, divided by units, whose processes share a folder of compiled programs."""
    return dict(data=str(folder / "recordings"), device="xla", model="wide", shard="units", buckets=1,
                compile_cache=str(folder / "programs"))


def test_killed_and_resumed_to_the_same_bits(folder: Path, wide: dict) -> None:
    """In three processes; between rows of metrics, which are every fourth step, nothing is fetched."""
    steps, enough = 15, 10
    settings = wide | dict(steps=steps, log_every=4, eval_every=10, checkpoint_every=5, decay_steps=steps)
    (straight,) = reports(python(*command(folder, ("straight", "train", settings)), chips=2, timeout=PATIENCE).stdout)
    assert np.diff(straight["fetched"]).tolist()[:4] == [0, 0, 0, 1]
    killed = folder / "killed"
    with open(folder / "killed.log", "wb") as log:
        child = start(*command(folder, ("killed", "train", settings)), chips=2, stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE
    while not (killed / "checkpoints").is_dir() or newest(killed) < enough:
        assert child.poll() is None and time.monotonic() < deadline, (folder / "killed.log").read_text()
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert enough <= newest(killed) < steps
    done = python(*command(folder, ("killed", "train", settings | {"resume": True})), chips=2, timeout=PATIENCE)
    (resumed,) = reports(done.stdout)
    assert resumed["train"] == straight["train"] and resumed["eval"] == straight["eval"]
    expected, found = tensors(folder / "straight"), tensors(killed)
    assert expected.keys() == found.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_dividing_units_changes_no_result(folder: Path, wide: dict) -> None:
    """The training is that of rows divided, also if units are divided over other chips at eight steps, and from the 14th on
    over two chips instead of eight."""
    rows, units, over = reports(python(*command(
        folder, ("by_rows", "train", wide | {"shard": "none"}), ("by_units", "train", wide | {"steps": 8}),
        ("by_units", "train", wide | {"steps": 14, "units_over": 8, "resume": True})), chips=8, timeout=PATIENCE).stdout)
    (moved,) = reports(python(*command(folder, ("by_units", "train", wide | {"resume": True})), chips=2, timeout=PATIENCE).stdout)
    assert_same_training(folder, moved, rows, "by_units", "by_rows")
    for report, division in ((units, "2 x 4"), (over, "1 x 8"), (moved, "1 x 2")):
        assert f"units      noise.gru: {division} chips, by rows and by units" in report["said"], report["said"]
    assert [count for name, count in units["programs"].items() if name.startswith("a training step")] == [1]


def launched(launcher: str, out: Path, data: Path, **added: str) -> subprocess.CompletedProcess:
    options = ["--data", data, "--out", out, "--config", "linear", "--device", "xla", "--steps", "2", "--buckets", "1",
               "--batch-size", "8", "--eval-every", "0", "--compile-cache", "none"]
    words = ["-m", "accelerate.commands.launch", *launcher.split(), "-m", "b2t_kit.train", *options]
    return python(*words, chips=2, status=None, timeout=PATIENCE, **added)


def test_one_process_is_started(folder: Path, moving: dict[str, dict]) -> None:
    """Whatever its flags and its file say about precision."""
    done = launched("", folder / "launched", folder / "recordings", ACCELERATE_MIXED_PRECISION="bf16")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "2 x simulated chip" in done.stdout and "precision  bfloat16" in done.stdout
    assert "processes  1, this is number 0" in done.stdout and done.stdout.count("mesh       2 chips in a row") == 1
    assert {value.dtype for value in tensors(folder / "launched").values()} == {torch.float32}


def test_a_process_per_chip_is_refused(folder: Path, moving: dict[str, dict]) -> None:
    """`accelerate launch --tpu`, in one line."""
    done = launched("--tpu --main_training_function main", folder / "named", folder / "recordings")
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 1 and len(said) == 1, done.stderr
    assert "start with: accelerate launch -m b2t_kit.train" in said[0] and not (folder / "named").exists()
