"""Training in two processes, in micro-batches and after a stop: the decoder of one process that was never stopped.

    test_processes.py FOLDER RECORDINGS      the program of two processes that torchrun starts once for all
"""
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from b2t_kit.core.errors import KitError
from b2t_kit.core.processes import leave
from b2t_kit.data.batches import BatchConfig
from b2t_kit.data.write import tiny_recordings
from b2t_kit.decode.sources import RunLogits
from b2t_kit.devices.select import open_device
from b2t_kit.devices.torch import Device
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.transformer import TransformerConfig
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import Result, train
from b2t_kit.training.checkpoint import checkpoint_steps
from b2t_kit.training.log import read_metrics, series
from b2t_kit.training.task import TrainConfig
from commands import ACCELERATE, bits, python, tensors, torchrun
from toy import disturbed
from b2t_kit.training.toy import ToyTask, toy_config

pytestmark = pytest.mark.second_tier

STILL, CLIPPED = ToyTask(dropout=0.0), toy_config(clip_norm=0.5)
TRIALS = [(1.0, 10), (0.0, 5), (8.0, 8), (2.0, 20), (0.0, 4), (3.0, 3), (5.0, 100)]  # edits and length


def spoiled(step: int, micro_batches: list, device: Device) -> None:
    """Process 1 gets a NaN."""
    if step == 15 and device.rank == 1:
        micro_batches[0].features[0, 0, 0] = float("nan")


def full(step: int, micro_batches: list, device: Device) -> None:
    """Process 0, which writes, reaches a quota."""
    if step == 15 and device.rank == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def signalled(step: int, micro_batches: list, device: Device) -> None:
    """Process 1 gets a stop signal."""
    if step == 24 and device.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def refusal(action: Callable, out: Path) -> str:
    """The message of the KitError that ends a run."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        train(disturbed(action, dropout=0.0), toy_config(log_every=100), out, quiet=True)
    except KitError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return ""


def without_reduction(device: Device) -> tuple[float, str]:
    """The recipe of failure C21, by which every process clips and steps on its own gradients: how far apart they are after
    five steps, and what the check says."""
    torch.manual_seed(0)
    model, named = STILL.build_model(), ""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _, (batch,) in zip(range(5), STILL.batches(toy_config(), device, 0)):
        (STILL.compute_loss(model, batch).sum / len(batch.trial)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    try:
        device.check_replicas(model)
    except KitError as error:
        named = str(error)
    first, second = device.gather_objects(nn.utils.parameters_to_vector(model.parameters()).detach())
    return (first - second).abs().max().item(), named


def rates(device: Device) -> tuple[list[float], float]:
    """The error rates of unevenly divided trials: of each process, and of all."""
    mine = torch.tensor(TRIALS[:-1] if device.is_main else TRIALS[-1:], dtype=torch.float64).sum(0)
    edits, length = device.sum_over_processes(mine)
    return device.gather_objects((mine[0] / mine[1]).item()), (edits / length).item()


def everything(folder: str, data: str) -> None:
    """All runs, one after the other; each process writes its results."""
    out = Path(folder)
    with open_device("cpu") as device:
        rank, found = device.rank, {"drift": without_reduction(device), "rates": rates(device)}
        print("printed by everyone")
        device.say("said once")
    for accumulation in (1, 3):
        train(STILL, replace(CLIPPED, accumulation=accumulation), out / f"accumulation_{accumulation}", quiet=True)
    found |= {"spoiled": refusal(spoiled, out / "spoiled"), "full": refusal(full, out / "full")}
    result = train(disturbed(signalled, dropout=0.0), CLIPPED, out / "signalled", quiet=True)
    found["signalled"] = [result.step, result.stopped]
    found["dropout"] = train(ToyTask(), toy_config(steps=20), out / "dropout", quiet=True).values
    for accumulation in (1, 2):
        train_small(data, out / f"speech_{accumulation}", accumulation)
    leave()
    found["left"] = [name for task in Path("/proc/self/task").iterdir() if "gloo" in (name := (task / "comm").read_text())]
    (out / f"process_{rank}.json").write_text(json.dumps(found))


def assert_same_training(run: Path, other: Path) -> None:
    """Equal weights, losses and norms of gradients, to float32 tolerance."""
    torch.testing.assert_close(tensors(run, "model"), tensors(other, "model"), rtol=1e-4, atol=1e-5)
    for kind, name in (("train", "loss"), ("train", "norm"), ("eval", "loss")):
        found, expected = (series(read_metrics(one), kind, name) for one in (run, other))
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    train(STILL, CLIPPED, run, quiet=True)
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_recordings(tmp_path_factory.mktemp("data"), sessions=3, trials=7))


@pytest.fixture(scope="module")
def pair(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    (folder / "said").write_text("".join(torchrun("test_processes.py", folder, data)))
    return folder


def found_by(pair: Path, what: str) -> list:
    return [json.loads((pair / f"process_{rank}.json").read_text())[what] for rank in (0, 1)]


@pytest.mark.first_tier
@pytest.mark.parametrize("accumulation", [1, 3])
def test_two_processes_equal_one(accumulation: int, pair: Path, alone: Path) -> None:
    """Eight rows a step: 4 and 4, or micro-batches of 2, 2, 1 and 1, 1, 1."""
    assert max(series(read_metrics(alone), "train", "norm")[1]) > CLIPPED.clip_norm, "clipping was at work"
    assert_same_training(pair / f"accumulation_{accumulation}", alone)


def test_c21_c22_c23_what_reports_did_in_several_processes(pair: Path) -> None:
    """Local gradients let replicas drift, a mean of local rates is not the rate, and `print` prints on every process."""
    (apart, named), (local, rate) = found_by(pair, "drift")[1], found_by(pair, "rates")[1]
    assert apart > 0.01 and named.startswith("process 1 has other values than process 0 in 0.")
    assert rate == 19 / 150 and abs(sum(local) / 2 - rate) > 0.01
    said = (pair / "said").read_text()
    assert said.count("printed by everyone") == 2 and said.count("said once") == 1


def test_a_signal_to_one_process_stops_both_at_the_same_step(pair: Path, alone: Path) -> None:
    """Processes agree at every tenth step. One process resumes the run and ends like a run of one process."""
    assert found_by(pair, "signalled") == 2 * [[30, "SIGTERM"]] and checkpoint_steps(pair / "signalled")[-1] == 30
    train(STILL, CLIPPED, pair / "signalled", resume=True, quiet=True)
    assert_same_training(pair / "signalled", alone)


def test_a_bad_number_in_one_process_stops_both(pair: Path) -> None:
    """Both name the step and the trial, and each saves its own batch; a failed write is every process's error too."""
    trial = np.load(pair / "spoiled" / "bad_step_15_process_1.npz")["0.trial"][0]
    assert (pair / "spoiled" / "bad_step_15_process_0.npz").exists()
    for message in found_by(pair, "spoiled"):
        assert message.startswith("step 15: the loss is nan") and f"features of trial {trial} are not finite" in message
        assert message.endswith("the last good checkpoint is of step 0")
    for message in found_by(pair, "full"):
        assert "00000020: the checkpoint could not be written" in message or "cannot be written" in message


def test_processes_draw_different_dropout(pair: Path, tmp_path: Path) -> None:
    """With dropout the runs differ, as they should: each process drops units of its own rows."""
    alone = train(ToyTask(), toy_config(steps=20), tmp_path / "run", quiet=True)
    first, second = found_by(pair, "dropout")
    assert first == second and first["loss"] != pytest.approx(alone.values["loss"], rel=1e-4)


def test_the_threads_of_a_group_end_with_it(pair: Path) -> None:
    """One that still holds a tensor when Python ends would abort a training that had succeeded."""
    assert found_by(pair, "left") == [[], []]


LAUNCHED = """
import sys, torch
from b2t_kit.train import train
from b2t_kit.training.toy import ToyTask, toy_config
torch.set_num_threads(1)
train(ToyTask(dropout=0.0), toy_config(clip_norm=0.5), sys.argv[1])
"""


def test_accelerate_launch(tmp_path: Path, alone: Path) -> None:
    """Accelerate's launcher with two processes on a CPU."""
    (tmp_path / "program.py").write_text(LAUNCHED)
    done = python(*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", tmp_path / "program.py",
                  tmp_path / "run", USE_TORCH_XLA="0", ACCELERATE_USE_CPU="true")
    assert done.stdout.count("step 60/60  validation") == 1
    assert_same_training(tmp_path / "run", alone)


# Decoders of speech

def train_small(data: str, out: Path, accumulation: int = 1, resume: bool = False) -> Result:
    """Train a small decoder without dropout; the steps hold 5 to 7 trials of three days."""
    model = GRUConfig(hidden=12, num_layers=2, dropout=0.0, day_dropout=0.0)
    settings = TrainConfig(steps=4, lr=0.01, warmup_steps=1, eps=0.01, device="cpu", log_every=2, eval_every=0,
                           checkpoint_every=0, ema_decay=0.9, accumulation=accumulation)
    with closing(SpeechTask(data, SpeechConfig(model, batches=BatchConfig(batch_size=7, buckets=2)))) as task:
        return train(task, settings, out, resume, quiet=True)


def train_transformer(data: str, out: Path, dropout: float, accumulation: int = 1, resume: bool = False, steps: int = 4,
                      **more: object) -> Result:
    """Train a small Transformer; each step has its own window, and each trial its own masks."""
    model = TransformerConfig(
        blocks=2, width=16, heads=2, head_width=8, inner=32, reach=6, patch_dropout=dropout, block_dropout=dropout,
        window_least=0.3, window_most=2.0, mask_share=0.2)
    settings = TrainConfig(
        steps=steps, decay_start=3, decay_steps=3, lr_floor=0.1, lr_every=2, lr=0.01, warmup_steps=1, eps=1e-8,
        device="cpu", log_every=2, eval_every=0, checkpoint_every=0, ema_decay=0.9, accumulation=accumulation)
    config = SpeechConfig(model, batches=BatchConfig(batch_size=7, buckets=2, cut=0), per_label=True, **more)
    with closing(SpeechTask(data, config)) as task:
        return train(task, settings, out, resume, quiet=True)


@pytest.fixture(scope="module")
def whole(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One process, one batch per step."""
    return train_small(data, tmp_path_factory.mktemp("whole") / "run")


def assert_same_decoder(run: Path, whole: Result) -> None:
    """Equal weights, averages and validation, to float32 tolerance."""
    found, expected = (tensors(one, "model", "ema") for one in (run, whole.folder))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=3e-6)
    ours, theirs = ([row for row in read_metrics(one) if row["kind"] == "eval"][-1] for one in (run, whole.folder))
    assert ours["per"] == theirs["per"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_micro_batches_equal_the_large_batch(data: str, whole: Result, pair: Path, tmp_path: Path) -> None:
    """Three micro-batches of different sizes per step; two processes with one or two each. All micro-batches of a step of a
    Transformer have the step's window."""
    assert_same_decoder(train_small(data, tmp_path / "run", 3).folder, whole)
    for accumulation in (1, 2):
        assert_same_decoder(pair / f"speech_{accumulation}", whole)
    straight, parts = (train_transformer(data, tmp_path / str(parts), 0.0, parts) for parts in (1, 3))
    assert_same_decoder(parts.folder, straight)


def test_a_transformer_resumes_to_the_same_bits(data: str, tmp_path: Path) -> None:
    """Dropout, masks and windows on, a day held out; the run is then evaluated, and its test split decoded."""
    with closing(SpeechTask(data)) as task:
        day = {"holdout": (task.sessions[2],)}
    straight = train_transformer(data, tmp_path / "straight", 0.2, **day)
    for steps in (2, 4):
        found = train_transformer(data, tmp_path / "resumed", 0.2, 1, steps > 2, steps, **day)
    assert bits(found.folder) == bits(straight.folder)
    assert found.values == straight.values and "unseen_per" in found.values
    evaluated = evaluate_run(found.folder, data, device="cpu")
    assert evaluated.per.rate > 0 and RunLogits(found.folder, data, "test", "cpu").read(tmp_path).trials


CHANGES = {  # split, and what changes in a trial
    "features": ("train", lambda trial: trial["input_features"].__setitem__((3, 5), 9)),
    "labels": ("val", lambda trial: trial["seq_class_ids"].__setitem__(0, 1 + (trial["seq_class_ids"][0] == 1))),
    "a sentence": ("train", lambda trial: trial.attrs.update(sentence_label=trial.attrs["sentence_label"][::-1]))}


def test_changed_recordings_are_refused(data: str, whole: Result, tmp_path: Path) -> None:
    """A run does not go on with other content under the same names, lengths and times; one trial is enough."""
    run, other = shutil.copytree(whole.folder, tmp_path / "run"), shutil.copytree(data, tmp_path / "hdf5_data_final")
    assert train_small(str(other), run, resume=True).step == 4  # a copy has the same content
    for split, change in CHANGES.values():
        changed = sorted(other.iterdir())[1] / f"data_{split}.hdf5"
        before, content = changed.stat(), changed.read_bytes()
        with h5py.File(changed, "r+") as file:
            change(file["trial_0000"])
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(KitError) as caught:
            train_small(str(other), run, resume=True)
        message = str(caught.value)
        assert f"data.{split}.content.{changed.parent.name} was" in message and str(run) in message and "\n" not in message
        assert message.count("t15.") == 1  # no other day
        changed.write_bytes(content)


if __name__ == "__main__":
    everything(*sys.argv[1:])
