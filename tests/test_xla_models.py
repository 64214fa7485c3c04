"""The GRU and the CTC loss on eight simulated XLA devices: the numbers of the CPU, in one program."""
import json

import pytest

from commands import TESTS, python

pytestmark = pytest.mark.torch_xla


@pytest.fixture(scope="module")
def report() -> dict:
    """All measurements, from a process of its own."""
    return json.loads(python(TESTS / "xla_models.py", chips=8).stdout.splitlines()[-1])


def test_gru_equals_torchs(report: dict) -> None:
    """Forward and all gradients in float32; with autocast close, but not equal, and float32."""
    gru = report["gru"]
    assert report["devices"] == 8 and len(gru["float32"]) == 4
    assert max(gru["float32"].values()) < 5e-6
    assert all(1e-4 < error < 0.02 for error in gru["autocast"])
    assert gru["types"] == ["torch.float32"]


def test_gru_forgets_autocast(report: dict) -> None:
    """Traced under autocast first, then used without it (failures C4, C6, C7)."""
    assert max(report["gru"]["after autocast"]) < 5e-6


def test_gru_is_one_program_whatever_its_length(report: dict) -> None:
    """Two loops a layer, no host, nothing compiled twice, no more lines for more steps."""
    gru = report["gru"]
    assert gru["again"] == {"new": 0, "programs": 1, "sent": 0, "on_host": []}
    assert gru["loops"] == [6, 6] and gru["lines"][0] == gru["lines"][1]


def test_gru_drops_between_layers(report: dict) -> None:
    """Dropout in training, after every layer but the last."""
    dropout = report["gru"]["dropout"]
    assert dropout["draws differ"] and not dropout["dropped after the last layer"]
    assert dropout["kept in evaluation"] < 1e-6


def test_ctc_has_torchs_semantics(report: dict) -> None:
    """Repeats, no labels, no frames, labels that do not fit: infinite losses and NaN gradients where torch has them."""
    assert report["ctc"]["awkward"] < 1e-6


def test_ctc_is_exact(report: dict) -> None:
    """At 250 frames and 60 labels, against float64, also under autocast."""
    ctc = report["ctc"]
    assert ctc["loss"] < 1e-6
    assert ctc["gradient"] < 2e-5 and ctc["under autocast"] < 2e-5


def test_ctc_is_one_program(report: dict) -> None:
    """torch's own loss runs on the host; the loops do not, and their program does not grow with the frames."""
    ctc = report["ctc"]
    assert "aten::_ctc_loss.Tensor" in ctc["torch's own"]["on_host"]
    assert ctc["torch's own"]["sent"] > 0 and ctc["torch's own"]["programs"] > 1
    assert ctc["counts"] == {"new": 0, "programs": 1, "sent": 0, "on_host": []}
    assert ctc["lines"][0] == ctc["lines"][1]


@pytest.mark.parametrize("decoder", ["decoder", "both ways"])
def test_decoder_equals_the_cpu(report: dict, decoder: str) -> None:
    """Day layer, patches, GRU (`--no-causal` too) and CTC with an empty row: loss and gradients, in one program."""
    decoder = report[decoder]
    assert decoder["difference"] < 5e-5
    assert decoder["again"] == {"new": 0, "programs": 1, "sent": 0, "on_host": []}


def test_noise_model_equals_the_cpu(report: dict) -> None:
    """Both losses and all gradients, the reversed one included; inference runs two of the three parts."""
    assert report["noise"]["difference"] < 5e-5
    assert report["noise"]["loops of inference"] == 3


def test_transformer_equals_the_cpu(report: dict) -> None:
    """Losses and gradients, the bias's included; another window and other masks are the same program."""
    transformer = report["transformer"]
    assert transformer["difference"] < 5e-5 < transformer["between steps"]
    assert transformer["again"] == {"new": 0, "programs": 1, "sent": 0, "on_host": []}
