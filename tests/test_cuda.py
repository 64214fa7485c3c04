"""What a GPU must do as a CPU does it. Collected only where there is one."""
from pathlib import Path
from statistics import median

import pytest
import torch

from b2t_kit.core.random import normals, uniforms
from b2t_kit.core.settings import override
from b2t_kit.devices.graphs import Graphed
from b2t_kit.plan.memory import check_memory
from b2t_kit.simulate.recordings import SimulateConfig, simulate
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import recipe
from b2t_kit.speech.task import SpeechTask
from b2t_kit.train import train
from b2t_kit.training.log import read_metrics, series

from commands import tensors

pytestmark = pytest.mark.filterwarnings("error:RNN module weights")  # lie apart, and are joined in every call
KEYS = torch.tensor([3, 2**62 + 5, 77])
DROPOUT = {  # what the device's own generator draws
    "tiny": ["dropout", "day_dropout"], "linear": ["day_dropout"], "noise_gru_tiny": ["dropout", "day_dropout"],
    "transformer_tiny": ["patch_dropout", "block_dropout", "mask_spans"]}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings") / "data"
    simulate(folder, SimulateConfig(sessions=2, trials=60, difficulty=0.5, bins_per_phoneme=18), progress=False)
    return folder


def trained(data: Path, out: Path, name: str = "tiny", resume: bool = False, **changes: object) -> list[float]:
    train_only = {"steps": 12, "warmup_steps": 2, "log_every": 1, "eval_every": 0, "checkpoint_every": 6, "device": "cuda"}
    run = override(recipe(name), {f"train.{key}": value for key, value in train_only.items()} | changes)
    task = SpeechTask(data, run.task)
    train(task, run.train, out, resume, quiet=True, check_memory=check_memory)
    task.close()
    return series(read_metrics(out), "train", "loss")[1]


def test_drawn_numbers_are_those_of_the_cpu() -> None:
    there = KEYS.cuda()
    assert torch.equal(uniforms(there, 1, 300, 512).cpu(), uniforms(KEYS, 1, 300, 512))
    torch.testing.assert_close(normals(there, 1, 300, 512).cpu(), normals(KEYS, 1, 300, 512), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DROPOUT)
def test_losses_are_those_of_the_cpu(recordings: Path, tmp_path: Path, name: str) -> None:
    still = {"train.precision": "float32"} | {f"task.model.{key}": 0 for key in DROPOUT[name]}
    there = trained(recordings, tmp_path / "gpu", name, **still)
    here = trained(recordings, tmp_path / "cpu", name, **still, **{"train.device": "cpu"})
    assert there[0] == pytest.approx(here[0], rel=0.02)  # the first loss: the same weights, noise and trials
    assert there[-1] == pytest.approx(here[-1], rel=0.2)


def test_bfloat16_follows_float32(recordings: Path, tmp_path: Path) -> None:
    exact, half = (trained(recordings, tmp_path / kind, **{"train.precision": kind}) for kind in ("float32", "bfloat16"))
    assert half[0] == pytest.approx(exact[0], rel=0.02) and half[-1] == pytest.approx(exact[-1], rel=0.1)


def test_float16_follows_float32(recordings: Path, tmp_path: Path) -> None:
    """Its first steps overflow until the scale fits; they are skipped, and not logged."""
    exact, half = (trained(recordings, tmp_path / kind, **{"train.precision": kind, "train.steps": 80})
                   for kind in ("float32", "float16"))
    assert 60 < len(half) <= len(exact) and median(half[-20:]) < median(exact[-40:-20])  # a few updates behind


@pytest.mark.parametrize("name, layers", [
    ("tiny", {"task.model.num_layers": 3}), ("noise_gru_tiny", {}), ("transformer_tiny", {})])
def test_recorded_passes_have_the_losses_of_the_model_itself(recordings: Path, tmp_path: Path, name: str,
                                                            layers: dict[str, int]) -> None:
    recorded, plain = (trained(recordings, tmp_path / str(graphs), name, **{"train.graphs": graphs, **layers})
                       for graphs in (True, False))
    assert recorded[0] == plain[0] and recorded == pytest.approx(plain, rel=1e-3)


class Asks(torch.nn.Linear):
    """A model whose path depends on a number that the host reads."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values) * (1 if values.sum().item() > 0 else 2)


def test_a_model_that_cannot_be_recorded_runs_as_it_is(recordings: Path, tmp_path: Path) -> None:
    said: list[str] = []
    model, values = Asks(4, 4).cuda(), torch.randn(8, 4).cuda()
    graphed = Graphed(model, said.append)
    for _ in range(2):
        found = torch.autograd.grad(graphed(values).sum(), model.weight)[0]
        assert torch.equal(found, torch.autograd.grad(model(values).sum(), model.weight)[0])
    assert said == [said[0]] and said[0].startswith("Asks: cannot be recorded as a CUDA graph")
    other = Graphed(torch.nn.Linear(4, 4).cuda(), said.append)
    other(values).sum().backward()
    assert len(said) == 1 and len(other._passes) == 1  # this one was
    assert trained(recordings, tmp_path / "next")  # recording works again


def test_a_resumed_run_goes_on_as_if_never_stopped(recordings: Path, tmp_path: Path) -> None:
    whole = trained(recordings, tmp_path / "whole", **{"train.precision": "float32"})
    half = {"train.precision": "float32", "train.decay_steps": 12}
    trained(recordings, tmp_path / "half", **half, **{"train.steps": 6, "train.new_schedule": True})
    again = trained(recordings, tmp_path / "half", resume=True, **half, **{"train.new_schedule": True})
    assert again[6:] == pytest.approx(whole[6:], rel=0.02)
    ours, theirs = tensors(tmp_path / "half"), tensors(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
    print("the same bits:", all(torch.equal(ours[name], theirs[name]) for name in ours))  # not on every GPU


def test_scores_are_those_of_the_cpu(recordings: Path, tmp_path: Path) -> None:
    trained(recordings, tmp_path / "run", **{"train.steps": 60})
    found = {device: evaluate_run(tmp_path / "run", recordings, device=device, precision="float32")
             for device in ("cuda", "cpu")}
    assert found["cuda"].per.rate == pytest.approx(found["cpu"].per.rate, abs=0.005)


def test_fused_attention_is_attention() -> None:
    eit_model = pytest.importorskip("b2t_kit.tasks.eit_model")  # a wing
    query, key, value = (torch.randn(2, 4, 3, 64, 16, requires_grad=True) for _ in range(3))
    bias = torch.randn(3, 64, 64, requires_grad=True)
    here = eit_model.attend(query, key, value, bias)
    there = eit_model.fused(query.cuda(), key.cuda(), value.cuda(), bias.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-3)

