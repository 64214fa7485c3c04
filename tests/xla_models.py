"""The tests of models on eight simulated XLA devices that test_xla_models.py runs.

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python -m pytest tests/xla_models.py
"""
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime
from torch import nn

from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.ctc import AlignmentLoss, ctc_losses
from b2t_kit.models.layers import GRU
from b2t_kit.models.model import ModelConfig
from b2t_kit.models.noise_gru import NoiseGRUConfig
from b2t_kit.models.transformer import TransformerConfig

torch_xla.runtime.use_spmd()
torch_xla.device()
DEVICES = torch_xla.runtime.global_runtime_device_count()  # before any backward: autograd counts devices at its first
ONE_PROGRAM = {"new": 0, "programs": 1, "sent": 0, "on_host": []}  # of a step that was compiled before


@pytest.fixture(scope="module")
def mesh() -> spmd.Mesh:
    assert DEVICES == 8
    return spmd.Mesh(np.arange(DEVICES), (DEVICES,), ("trials",))


@pytest.fixture(scope="module")
def layers() -> tuple[GRU, GRU]:
    """The same GRU on the CPU and on the devices."""
    torch.manual_seed(0)
    here, there = GRU(6, 5, num_layers=3), GRU(6, 5, num_layers=3)
    there.load_state_dict(here.state_dict())
    return here, there.to("xla")


CLASSES = 41
GIVEN = torch.Generator().manual_seed(0)


def spread(tensor: torch.Tensor, mesh: spmd.Mesh, axis: int = 0) -> torch.Tensor:
    "The tensor on the devices, a share of its trials on each."
    there = tensor.detach().to("xla")
    spec = [None] * there.dim()
    spec[axis] = "trials"
    spmd.mark_sharding(there, mesh, tuple(spec))
    return there


def counted(action: Callable[[], object]) -> dict[str, object]:
    "Counts of an action's compilations, runs, transfers and host operations, after it has finished."
    torch_xla.sync(wait=True)
    metrics.clear_all()
    kept = action()
    torch_xla.sync(wait=True)
    new, known = (metrics.counter_value(name) or 0 for name in ("UncachedCompile", "CachedCompile"))
    sent = metrics.metric_data("TransferFromDeviceTime")
    left = [name for name in metrics.counter_names() if name.startswith("aten::")]
    del kept
    return {"new": new, "programs": new + known, "sent": sent[0] if sent else 0, "on_host": left}


def largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    "Relative to the size of each tensor; NaN is equal to NaN."
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.isnan(), other.isnan()) and torch.equal(one.isinf(), other.isinf())
    pairs = [(a[b.isfinite()].double(), b[b.isfinite()].double()) for a, b in zip(ours, theirs)]
    return max(float((a - b).norm() / b.norm().clamp(min=1e-9)) for a, b in pairs)


def gru_results(layer: GRU, device: str, state: bool, autocast: bool, steps: int = 21) -> list[torch.Tensor]:
    "Outputs, last states and all gradients, still on the device."
    source = torch.Generator().manual_seed(1)
    inputs, first = (torch.randn(*shape, generator=source) for shape in ((8, steps, 6), (3, 8, 5)))
    given = inputs.to(device).requires_grad_(), first.to(device).requires_grad_()
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        outputs, last = layer(given[0], given[1] if state else None)
    ramp = torch.linspace(-1, 1, steps * 5).reshape(steps, 5).to(device)
    loss = (outputs.float() * ramp).sum() + last.float().square().sum()
    wanted = [given[0], *([given[1]] if state else []), *layer.parameters()]
    return [outputs.detach(), last.detach(), *torch.autograd.grad(loss, wanted)]


def on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    torch_xla.sync()
    return [tensor.cpu() for tensor in tensors]


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_gru_equals_torchs(layers: tuple[GRU, GRU], recompute: bool, state: bool) -> None:
    """Forward and all gradients in float32; with autocast close, but not equal, and float32."""
    here, there = layers
    there.recompute = recompute
    exact = gru_results(here, "cpu", state, False)
    assert largest_difference(on_host(gru_results(there, "xla", state, False)), exact) < 5e-6
    rounded = on_host(gru_results(there, "xla", state, True))
    assert 1e-4 < largest_difference(rounded, exact) < 0.02 and {one.dtype for one in rounded} == {torch.float32}


def test_gru_forgets_autocast(layers: tuple[GRU, GRU]) -> None:
    """Traced under autocast first, then used without it (failures C4, C6, C7)."""
    here, there = layers
    on_host(gru_results(there, "xla", True, True, 13))
    found = on_host(gru_results(there, "xla", True, False, 13))
    assert largest_difference(found, gru_results(here, "cpu", True, False, 13)) < 5e-6


def test_gru_is_one_program_whatever_its_length(layers: tuple[GRU, GRU]) -> None:
    """Two loops a layer, no host, nothing compiled twice, no more lines for more steps."""
    _, there = layers
    there.recompute = False
    assert [counted(lambda: gru_results(there, "xla", True, True)) for _ in range(2)][1] == ONE_PROGRAM
    short, long = (torch_xla._XLAC._get_xla_tensors_hlo(gru_results(there, "xla", True, True, steps)) for steps in (21, 84))
    assert short.count(" while(") == long.count(" while(") == 6 and len(short.splitlines()) == len(long.splitlines())


def test_gru_drops_between_layers(layers: tuple[GRU, GRU]) -> None:
    """Dropout in training, after every layer but the last."""
    here, dropping = layers[0], GRU(6, 5, num_layers=3, dropout=0.5)
    dropping.load_state_dict(here.state_dict())
    dropping.to("xla")
    inputs = torch.randn(8, 9, 6, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        first, second = (dropping(inputs.to("xla"))[0].cpu() for _ in range(2))
        still = dropping.eval()(inputs.to("xla"))[0].cpu()
        assert not torch.equal(first, second) and not (first == 0).any()
        assert largest_difference([still], [here(inputs)[0]]) < 1e-6


def awkward_trials() -> tuple[torch.Tensor, ...]:
    "Repeats, no labels, no frames, labels that do not fit: logits, labels, frames, counts."
    trials = [[1, 1, 1], [1, 2], [], [], [1], [3, 3], [2, 1, 2], [2]]
    frames = torch.tensor([5, 3, 2, 0, 0, 3, 2, 5], dtype=torch.int32)
    counts = torch.tensor([len(trial) for trial in trials], dtype=torch.int32)
    labels = torch.zeros(8, 3, dtype=torch.int32)
    for row, trial in enumerate(trials):
        labels[row, : len(trial)] = torch.tensor(trial)
    return torch.randn(5, 8, 4, generator=GIVEN), labels, frames, counts


def real_trials(batch: int = 8) -> tuple[torch.Tensor, ...]:
    "As they are in training: 250 frames, up to 60 labels."
    labels = torch.randint(1, CLASSES, (batch, 60), generator=GIVEN)
    labels[:, 7] = labels[:, 6]
    counts = torch.randint(20, 61, (batch,), generator=GIVEN)
    frames = torch.randint(160, 251, (batch,), generator=GIVEN)
    logits = 3 * torch.randn(250, batch, CLASSES, generator=GIVEN)
    return logits, labels.int(), frames.int(), counts.int()


def loss_and_gradient(function: Callable, logits: torch.Tensor, *options) -> list[torch.Tensor]:
    logits = logits.detach().requires_grad_()
    loss = function(logits.log_softmax(dim=-1), *options)
    return [loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]]


def torch_loss(log_probs, labels, frames, counts) -> torch.Tensor:
    return F.ctc_loss(log_probs, labels.long(), frames.long(), counts.long(), reduction="none")


def test_ctc_has_torchs_semantics() -> None:
    """Repeats, no labels, no frames, labels that do not fit: infinite losses and NaN gradients where torch has them."""
    logits, *lengths = awkward_trials()
    ours = on_host(loss_and_gradient(AlignmentLoss.apply, logits.to("xla"), *[one.to("xla") for one in lengths]))
    assert largest_difference(ours, loss_and_gradient(torch_loss, logits.double(), *lengths)) < 1e-6


def test_ctc_is_exact(mesh: spmd.Mesh) -> None:
    """At 250 frames and 60 labels, against float64, also under autocast."""
    logits, *lengths = real_trials()
    there = [spread(one, mesh) for one in lengths]
    theirs = loss_and_gradient(torch_loss, logits.double(), *lengths)
    ours = on_host(loss_and_gradient(AlignmentLoss.apply, spread(logits, mesh, 1), *there))
    assert largest_difference(ours[:1], theirs[:1]) < 1e-6 and (ours[1] - theirs[1]).abs().max() < 2e-5
    coarse = logits.bfloat16()
    with torch.autocast("xla", torch.bfloat16):
        ours = on_host(loss_and_gradient(AlignmentLoss.apply, coarse.to("xla").float(), *there))
    assert (ours[1] - loss_and_gradient(torch_loss, coarse.double(), *lengths)[1]).abs().max() < 2e-5


def test_ctc_is_one_program(mesh: spmd.Mesh) -> None:
    """torch's own loss runs on the host; the loops do not, and their program does not grow with the frames."""
    logits, *lengths = real_trials()
    placed = spread(logits, mesh, 1), *(spread(one, mesh) for one in lengths)

    def second(loss: Callable) -> dict[str, object]:
        return [counted(lambda: loss_and_gradient(loss, *placed)) for _ in range(2)][1]

    assert second(AlignmentLoss.apply) == ONE_PROGRAM
    theirs = second(torch_loss)
    assert "aten::_ctc_loss.Tensor" in theirs["on_host"] and theirs["sent"] > 0 and theirs["programs"] > 1
    assert len({program_lines(logits[:frames], lengths) for frames in (100, 250)}) == 1


def program_lines(logits: torch.Tensor, lengths: list[torch.Tensor]) -> int:
    options = [one.to("xla") for one in lengths]
    results = loss_and_gradient(AlignmentLoss.apply, logits.contiguous().to("xla"), *options)
    return len(torch_xla._XLAC._get_xla_tensors_hlo(results).splitlines())


def compared(config: ModelConfig, results: Callable, mesh: spmd.Mesh, steps: tuple[int, ...] = (1,)) -> tuple[dict, nn.Module, list]:
    "A model's losses and gradients beside those of the CPU, and the counts of a step more; the model on the devices; the CPU's."
    torch.manual_seed(0)
    here, there = config.build(), config.build()
    there.load_state_dict(here.state_dict())
    there.to("xla")
    theirs = [results(here, step, lambda one: one) for step in steps]
    ours = [on_host(results(there, step, lambda one: spread(one, mesh))) for step in steps]
    again = counted(lambda: results(there, steps[-1] + 1, lambda one: spread(one, mesh)))
    return {"difference": max(map(largest_difference, ours, theirs)), "again": again}, there, theirs


def labelled(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(1, CLASSES, (8, count), generator=GIVEN).int(), torch.full((8,), count, dtype=torch.int32)


def test_decoder_equals_the_cpu(mesh: spmd.Mesh) -> None:
    """Day layer, patches, GRU in both directions and CTC with an empty row: loss and gradients, in one program."""
    config = GRUConfig(num_days=3, num_features=16, hidden=12, num_layers=2, dropout=0.0, day_dropout=0.0, causal=False)
    features = torch.randn(8, 90, 16, generator=GIVEN)
    day = torch.tensor([2, 0, 2, 0, 0, 2, 2, 0], dtype=torch.int32)
    patches = torch.tensor([20, 18, 0, 17, 20, 16, 19, 20], dtype=torch.int32)
    counts = torch.where(patches > 0, torch.tensor([6, 5, 4, 3, 2, 1, 0, 6]), 0).int()
    batch = (features, day, patches, labelled(6)[0], counts, (patches > 0).float())

    def results(model: nn.Module, step: int, place: Callable) -> list[torch.Tensor]:
        given = [place(one) for one in batch]
        losses = ctc_losses(model(*given[:2], frames=given[2]), *given[2:5]) * given[5]
        return [losses.detach(), *torch.autograd.grad(losses.sum(), list(model.parameters()))]

    report = compared(config, results, mesh)[0]
    assert report["difference"] < 5e-5 and report["again"] == ONE_PROGRAM


def test_noise_model_equals_the_cpu(mesh: spmd.Mesh) -> None:
    """Both losses and all gradients, the reversed one included; inference runs two of the three parts."""
    config = NoiseGRUConfig(num_days=3, num_features=8, hidden=10, num_layers=2, dropout=0.0, day_dropout=0.0,
                            noise_layers=1, noisy_layers=1, noisy_hidden=6, reversal=0.5, recompute=True)
    features = torch.randn(8, 60, 8, generator=GIVEN)
    day = torch.tensor([2, 0, 1, 0, 1, 2, 2, 0], dtype=torch.int32)
    batch = (features, day, torch.full((8,), 12, dtype=torch.int32), *labelled(3))

    def results(model: nn.Module, step: int, place: Callable) -> list[torch.Tensor]:
        given = [place(one) for one in batch]
        losses = [ctc_losses(one, *given[2:]) for one in model(*given[:2], mode="full")]
        total = losses[0].sum() + 0.3 * losses[1].sum()
        return [*(one.detach() for one in losses), *torch.autograd.grad(total, list(model.parameters()))]

    report, there, _ = compared(config, results, mesh)
    with torch.no_grad():
        alone = there(spread(features, mesh), spread(day, mesh))
    assert report["difference"] < 5e-5 and torch_xla._XLAC._get_xla_tensors_hlo([alone]).count(" while(") == 3


def test_transformer_equals_the_cpu(mesh: spmd.Mesh) -> None:
    """Losses and gradients, the bias's included; another window and other masks are the same program."""
    config = TransformerConfig(num_features=8, blocks=2, width=16, heads=2, head_width=8, inner=32, reach=6,
                               patch_dropout=0.0, block_dropout=0.0, window_least=0.2, window_most=1.0, mask_share=0.2)
    features = torch.randn(8, 58, 8, generator=GIVEN)
    bins = torch.tensor([58, 50, 41, 58, 33, 58, 57, 56], dtype=torch.int32)
    labels, counts = labelled(3)

    def results(model: nn.Module, step: int, place: Callable) -> list[torch.Tensor]:
        given = [place(one) for one in (features, bins, torch.arange(8) + 77, torch.full((8,), step), labels, counts)]
        drawn = config.draws(SimpleNamespace(features=given[0], num_bins=given[1], noise_key=given[2], step_key=given[3]))
        losses = ctc_losses(model(given[0], given[1], **drawn), (given[1] + 3) // 4, *given[4:])
        return [losses.detach(), *torch.autograd.grad(losses.sum(), list(model.parameters()))]

    report, _, theirs = compared(config, results, mesh, (1, 2))
    assert report["difference"] < 5e-5 < largest_difference(*theirs) and report["again"] == ONE_PROGRAM
