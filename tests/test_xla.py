"""Training on XLA in separate processes: results, compilations, transfers, and resuming.

XLA's CPU backend simulates the chips. Compiling the programs of a run takes half a minute or
more on two cores, so there are few runs and each serves several tests.
"""
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.training.checkpoint import checkpoint_path, checkpoint_steps, read_part
from commands import TESTS, python, start

PATIENCE = 1500  # seconds
pytestmark = pytest.mark.torch_xla


def command(out: Path, verb: str = "train", **settings: object) -> list[object]:
    """The child that trains, or evaluates, with these settings."""
    return [TESTS / "xla_runs.py", verb, out, json.dumps(settings)]


def trained(out: Path, chips: int = 8, verb: str = "train", **settings: object) -> dict:
    """What a child process reports of a run."""
    done = python(*command(out, verb, **settings), chips=chips, timeout=PATIENCE)
    (report,) = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
    return {**json.loads(report.removeprefix("REPORT")), "said": done.stdout}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs and their recordings."""
    return tmp_path_factory.mktemp("xla")


@pytest.fixture(scope="module")
def data(folder: Path) -> str:
    """The recordings' folder; the first run makes them."""
    return str(folder / "recordings")


@pytest.fixture(scope="module")
def on_cpu(folder: Path, data: str) -> dict:
    """Twenty steps without XLA."""
    return trained(folder / "cpu", data=data, device="cpu")


@pytest.fixture(scope="module")
def on_eight(folder: Path, data: str, on_cpu: dict) -> dict:
    """The same on eight chips, with one row of every batch each, and all weights divided."""
    return trained(folder / "eight", data=data, device="xla", shard="all")


def assert_same_curve(found: dict, expected: dict, steps: int = 20) -> None:
    """Equal losses and gradient norms at every step, and equal validation."""
    for name in ("train", "norm"):
        assert found[name][0][:steps] == expected[name][0][:steps]
        np.testing.assert_allclose(found[name][1][:steps], expected[name][1][:steps], rtol=1e-4)
    validated = [step for step in expected["eval"][0] if step <= steps]
    assert found["eval"][0][:len(validated)] == validated
    for name in ("eval", "per"):
        np.testing.assert_allclose(found[name][1][:len(validated)], expected[name][1][:len(validated)],
                                   rtol=1e-4)


def test_eight_chips_train_like_a_cpu(on_cpu: dict, on_eight: dict) -> None:
    """float32, no dropout, noise on: seven trials padded to eight rows, one on each chip."""
    assert len(on_cpu["train"][1]) == 20 and on_cpu["train"][1][-1] < on_cpu["train"][1][0]
    assert_same_curve(on_eight, on_cpu)


def test_divided_weights_train_alike(on_eight: dict) -> None:
    """The run above: weights, moments and average divided over eight chips by the rule."""
    assert "weights, moments and average divided" in on_eight["said"]


def test_one_transfer_per_row_of_metrics(on_eight: dict, accumulated: dict) -> None:
    """A row after each step and after every fifth; validation at step 10 fetches its own values."""
    between = np.diff(on_eight["fetched"]).tolist()
    assert between[:9] + between[10:] == [1] * 18 and between[9] > 1
    assert np.diff(accumulated["fetched"]).tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_programs_of_a_run(on_eight: dict) -> None:
    """Two lengths: two programs of training and one of validation, all before the first step."""
    kinds = [name.partition(" of ")[0] for name in on_eight["warm_up"]]
    assert kinds.count("a training step") == 2 and kinds.count("validation") == 1
    assert set(on_eight["warm_up"].values()) == {1}, on_eight["warm_up"]
    assert on_eight["programs"] == on_eight["warm_up"]
    assert on_eight["since"]["compiled"] == 0 and on_eight["fallbacks"] == []


@pytest.fixture(scope="module")
def accumulated(folder: Path, data: str) -> dict:
    """Three micro-batches a step, a row of metrics every fifth, moments divided over the chips."""
    return trained(folder / "accumulated", data=data, device="xla", accumulation=3, log_every=5,
                   eval_every=0, steps=15, shard="moments")


def test_accumulation_has_two_programs_per_length(accumulated: dict, on_cpu: dict) -> None:
    """Three epochs: nothing is compiled after the first step has begun."""
    kinds = [name.partition(" of ")[0] for name in accumulated["warm_up"]]
    assert [kinds.count(kind) for kind in ("a micro-batch", "a training step", "validation")] == [2, 2, 1]
    named = {name: count for name, count in accumulated["warm_up"].items() if name != "between steps"}
    assert set(named.values()) == {1}, accumulated["warm_up"]
    assert accumulated["programs"] == accumulated["warm_up"]
    assert accumulated["since"]["compiled"] == 0 and accumulated["fallbacks"] == []
    means = np.mean(np.reshape(on_cpu["train"][1][:15], (3, 5)), axis=1)
    np.testing.assert_allclose(accumulated["train"][1], means, rtol=1e-4)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Weights, average and moments of a run's newest checkpoint."""
    newest = checkpoint_path(run, checkpoint_steps(run)[-1])
    return {f"{part}/{name}": value for part in ("model", "ema", "optimizer")
            for name, value in read_part(newest, part).items()}


def test_a_run_may_change_devices(folder: Path, data: str, on_cpu: dict) -> None:
    """Seven steps on the CPU, seven on eight chips, six on the CPU: the straight run's weights."""
    out, parts = folder / "moving", (("cpu", 7), ("xla", 14), ("cpu", 20))
    for number, (device, steps) in enumerate(parts):
        found = trained(out, data=data, device=device, steps=steps, resume=number > 0)
    straight = weights(folder / "cpu")
    for name, value in weights(out).items():
        assert value.dtype == torch.float32
        np.testing.assert_allclose(value, straight[name], rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found["train"][1], on_cpu["train"][1], rtol=1e-4)


def test_evaluated_on_eight_chips_like_on_a_cpu(folder: Path, data: str, on_eight: dict) -> None:
    """Trials that do not divide by eight: empty rows fill the batch and appear in no result."""
    there, here = (trained(folder / "eight", verb="evaluate", data=data, device=device,
                           precision="float32") for device in ("xla", "cpu"))
    assert len(here["decoded"]) % 8 and there["decoded"] == here["decoded"]
    np.testing.assert_allclose(there["losses"], here["losses"], rtol=1e-4)


def test_killed_and_resumed_to_the_same_bits(folder: Path, data: str) -> None:
    """A small noise model with dropout, divided by units; one run is killed in the middle of its steps.

    All three processes share a folder of compiled programs, as versions of a Kaggle kernel do.
    """
    steps, enough = 25, 15
    settings = dict(data=data, device="xla", model="wide", shard="units", steps=steps, log_every=4, eval_every=10,
                    checkpoint_every=5, buckets=1, decay_steps=steps, compile_cache=str(folder / "programs"))
    straight = trained(folder / "straight", chips=2, **settings)
    killed = folder / "killed"
    with open(folder / "killed.log", "wb") as log:
        child = start(*command(killed, **settings), chips=2, stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE
    while not (killed / "checkpoints").is_dir() or max(checkpoint_steps(killed), default=0) < enough:
        assert child.poll() is None and time.monotonic() < deadline, (folder / "killed.log").read_text()
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert enough <= checkpoint_steps(killed)[-1] < steps
    resumed = trained(killed, chips=2, resume=True, **settings)
    assert resumed["train"] == straight["train"] and resumed["eval"] == straight["eval"]
    expected, found = weights(folder / "straight"), weights(killed)
    assert expected.keys() == found.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def report_of_units(folder: Path, chips: int, *more: str) -> dict:
    """What tests/xla_units.py reports."""
    done = python(TESTS / "xla_units.py", folder, *more, chips=chips, timeout=PATIENCE)
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
    return json.loads(reports[0].removeprefix("REPORT"))


@pytest.fixture(scope="module")
def by_units(folder: Path) -> dict:
    """20 steps of a small noise model, its wide layers divided over two groups of four chips, or in other ways."""
    return report_of_units(folder, 8)


@pytest.mark.parametrize("other", ["rows", "one device", "eight", "recomputed", "dropout"])
def test_dividing_units_changes_no_result(other: str, by_units: dict) -> None:
    """Losses, norms, weights, moments and average in float32: rows divided, a CPU, eight chips, gates recomputed."""
    assert by_units[other] < 1e-5
    assert by_units["loss"][-1] < 0.9 * by_units["loss"][0]


def test_dividing_units_in_bfloat16(by_units: dict) -> None:
    """The two ways differ less from each other than bfloat16 does from float32."""
    assert 0 < by_units["bfloat16"] < by_units["rounding"]


def test_a_run_may_change_its_division(by_units: dict) -> None:
    """Ten steps by groups, ten by rows; or five by eight chips and five with moments divided. What is loaded was saved."""
    assert by_units["same bits"] and by_units["resumed"] < 1e-5 and by_units["resumed twice"] < 1e-5


def test_a_run_may_change_its_number_of_chips(folder: Path, by_units: dict) -> None:
    """Ten steps on eight chips, ten on two."""
    found = report_of_units(folder, 2, "continue")
    assert "noise.gru: 1 x 2 chips" in found["described"] and found["resumed"] < 1e-5


def test_only_wide_layers_are_divided_by_units(by_units: dict) -> None:
    """Announced; their parameters have three rows on the device, and there is one program of a step."""
    assert "units      noise.gru: 2 x 4 chips, by rows and by units; other layers by rows only" in by_units["described"]
    shapes = by_units["shapes"]
    assert shapes["noise.gru.weight_hh_l1"] == [3, 256, 256] and shapes["noise.gru.bias_ih_l0"] == [3, 256]
    assert by_units["programs"]["a step"] == 1


def launched(words: list[str], out: Path, data: str, **added: str) -> subprocess.CompletedProcess:
    """Two steps of the linear readout, started with the usual commands."""
    options = ["--data", data, "--out", str(out), "--config", "linear", "--device", "xla", "--steps", "2",
               "--buckets", "1", "--batch-size", "8", "--eval-every", "0", "--compile-cache", "none"]
    return python(*words, *options, chips=2, status=None, timeout=PATIENCE, **added)


@pytest.mark.parametrize("words", [["-m", "b2t_kit.train"],
                                   ["-m", "accelerate.commands.launch", "-m", "b2t_kit.train"]])
def test_one_process_is_started(words: list[str], folder: Path, data: str, on_cpu: dict) -> None:
    """Plain Python, and Accelerate's launcher with what its flags and file say about precision."""
    out = folder / f"launched_{len(words)}"
    done = launched(words, out, data, ACCELERATE_MIXED_PRECISION="bf16")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert checkpoint_steps(out)[-1] == 2
    assert "2 x simulated chip" in done.stdout and "precision  bfloat16" in done.stdout
    assert "processes  1, this is number 0" in done.stdout
    assert done.stdout.count("mesh       2 chips in a row") == 1
    for value in weights(out).values():
        assert value.dtype == torch.float32


def test_a_process_per_chip_is_refused(folder: Path, data: str) -> None:
    """`accelerate launch --tpu` needs the name of a function; given one, the kit refuses it once."""
    tpu = ["-m", "accelerate.commands.launch", "--tpu"]
    unnamed = launched([*tpu, "-m", "b2t_kit.train"], folder / "unnamed", data)
    assert "TypeError: attribute name must be string, not 'NoneType'" in unnamed.stderr or (
        "error: accelerate launch --tpu starts one process per chip" in unnamed.stderr)
    named = launched([*tpu, "--main_training_function", "main", "-m", "b2t_kit.train"], folder / "named", data)
    assert named.returncode == 1
    said = [line for line in named.stderr.splitlines() if line.startswith("error:")]
    assert len(said) == 1 and "start with: accelerate launch -m b2t_kit.train" in said[0], named.stderr
    assert not (folder / "named").exists()
