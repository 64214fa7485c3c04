"""The speech task gives the same decoder for any number of processes and micro-batches."""
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.training.checkpoint import checkpoint_path, read_part
from b2t_kit.data.batches import BatchConfig
from b2t_kit.data.dataset import tiny_recordings
from b2t_kit.models.gru import GRUConfig
from b2t_kit.core.distributed import launch
from b2t_kit.training.task import TrainConfig
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import Result, train

STEPS = 4


def train_small(data: str, out: str, accumulation: str = "1") -> Result:
    """Train a small decoder without dropout; the steps hold 5 to 7 trials of three days."""
    model = GRUConfig(hidden=12, num_layers=2, dropout=0.0, day_dropout=0.0)
    task = SpeechTask(data, SpeechConfig(model, batches=BatchConfig(batch_size=7, buckets=2)))
    settings = TrainConfig(
        steps=STEPS, lr=0.01, warmup_steps=1, eps=0.01, device="cpu", log_every=2, eval_every=0,
        checkpoint_every=0, ema_decay=0.9, accumulation=int(accumulation),
    )
    result = train(task, settings, out, quiet=True)
    task.close()
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Recordings of three short days."""
    return str(tiny_recordings(tmp_path_factory.mktemp("data"), sessions=3, trials=7))


@pytest.fixture(scope="module")
def whole(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One process, one batch per step."""
    return train_small(data, str(tmp_path_factory.mktemp("whole") / "run"))


def assert_same_run(out: Path, whole: Result, values: dict | None = None) -> None:
    """Equal weights, averages and validation, to float32 tolerance."""
    for part in ("model", "ema"):
        expected = read_part(checkpoint_path(whole.folder, STEPS), part)
        found = read_part(checkpoint_path(out, STEPS), part)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=3e-6, err_msg=name)
    if values is not None:
        assert values["per"] == whole.values["per"]
        assert values["loss"] == pytest.approx(whole.values["loss"], rel=1e-5)


def test_accumulation_equals_the_large_batch(data: str, whole: Result, tmp_path: Path) -> None:
    """Three micro-batches of different sizes per step."""
    result = train_small(data, str(tmp_path / "run"), "3")
    assert_same_run(result.folder, whole, result.values)


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_two_processes_equal_one(
    data: str, whole: Result, tmp_path: Path, accumulation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same global batches in two processes, with and without accumulation."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    out = tmp_path / "run"
    launch("test_speech:train_small", [data, str(out), accumulation], 2, "cpu", timeout=600, quiet=True)
    assert_same_run(out, whole)
