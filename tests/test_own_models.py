"""A model of one's own whose file is edited after training: a comment locks nothing, and nothing stale is returned."""
from pathlib import Path

import pytest

from b2t_kit.cli import main
from b2t_kit.core import load_json
from b2t_kit.data.convert import tiny_recordings

pytestmark = pytest.mark.usefixtures("dots")
OWN = """from dataclasses import dataclass

from torch import nn

import own_layers
from b2t_kit.models.model import ModelConfig, patches


@dataclass(frozen=True)
class Own(ModelConfig):
    patch: int = 8
    stride: int = 8
    num_features: int | None = None
    num_classes: int = 41

    def build(self):
        return Network(self)


class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.out = config, nn.Linear(config.patch * config.num_features, config.num_classes)

    def forward(self, features, day):
        return self.out(own_layers.shaped(patches(features, self.config.patch, self.config.stride)))
"""
LAYERS = "def shaped(values):\n    return values\n"


@pytest.fixture()
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny_recordings(tmp_path / "data", sessions=2, trials=8, max_bins=60)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own_layers.py").write_text(LAYERS)
    fresh(monkeypatch)
    assert main("train --data data --out run --model own.py:Own --steps 4 --eval-every 4 --batch-size 4 --device cpu".split()) == 0
    return tmp_path


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    import sys

    from b2t_kit.models import model

    monkeypatch.setattr(model, "_FILES", {})
    for name in ("own", "own_layers"):
        sys.modules.pop(name, None)


def per(capsys: pytest.CaptureFixture) -> tuple[int, str, str]:
    status = main("eval --run run --data data --model own.py:Own --device cpu --json found.json".split())
    told = capsys.readouterr()
    return status, told.out, told.err


def test_an_edited_file(here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment locks nothing: the run is scored with a note, and resumed. Nothing decoded with another network is returned."""
    decode = "decode --run run --data data --model own.py:Own --device cpu --lm default".split()
    assert (here / "run/source/own.py").read_text() == OWN and (here / "run/source/own_layers.py").read_text() == LAYERS
    assert per(capsys)[0] == 0
    before = load_json("found.json")
    (here / "own.py").write_text(OWN + "# a comment\n")
    fresh(monkeypatch)
    status, _, errors = per(capsys)
    assert status == 0 and "'+# a comment'; run/source/own.py); its weights" in errors, errors
    assert load_json("found.json")["summary"] == before["summary"]
    assert main("train --resume --out run --model own.py:Own --steps 8 --new-schedule".split()) == 0
    assert "own.py: has changed since the run began" in capsys.readouterr().out
    assert (here / "run/source/own.py").read_text() == (here / "own.py").read_text() != (here / "run/source/until_4/own.py").read_text()
    status, _, errors = per(capsys)
    assert status == 0 and "its weights" not in errors and main(decode) == 0, errors
    before, lists = load_json("found.json"), (here / "run/decode/val/nbest.jsonl").read_bytes()
    (here / "own_layers.py").write_text("def shaped(values):\n    return -values\n")
    fresh(monkeypatch)
    status, _, errors = per(capsys)
    assert status == 0 and "run/source/own_layers.py); its weights" in errors and load_json("found.json")["summary"] != before["summary"]
    assert main(decode) == 0 and (here / "run/decode/val/nbest.jsonl").read_bytes() != lists


def test_show_names_what_can_be_typed(here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe that it began with, and commands with the model's file; other shapes are refused in one line."""
    assert main("show run".split()) == 0
    shown = capsys.readouterr().out
    assert any(line.split()[:2] == ["recipe", "tiny"] for line in shown.splitlines()), shown
    steps = shown[shown.index("next:"):].splitlines()[1:]
    assert steps and all("--model own.py:Own" in step for step in steps if step.strip()), shown
    (here / "own.py").write_text(OWN.replace("self.out = config, nn.Linear", "self.head = config, nn.Linear").replace("self.out(", "self.head("))
    fresh(monkeypatch)
    status, _, errors = per(capsys)
    assert status == 2 and "its weights do not fit config.json" in errors.splitlines()[-1], errors


def test_what_a_model_of_ones_own_gets_wrong(here: Path, capsys: pytest.CaptureFixture) -> None:
    """A name that its file has not, or classes before frames: one line that says which."""
    (here / "own_layers.py").write_text("def shaped(values):\n    return values\n")
    train = "train --data data --out new --steps 2 --batch-size 4 --device cpu --model"
    assert main(f"{train} own.py:Owm".split()) == 2
    assert "'Owm' is not a dataclass that derives from" in (told := capsys.readouterr().err) and "it has Own" in told, told
    (here / "turned.py").write_text(OWN.replace("self.config.stride)))", "self.config.stride))).transpose(1, 2)"))
    assert main(f"{train} turned.py:Own".split()) == 2 and not (here / "new").exists()
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "its network returned logits of shape (4, 41, " in told, told
    for name, old, new, expected in (
            ("wide", "nn.Linear(config.patch *", "nn.Linear(1 + config.patch *", "wide.py, line 26, in forward: RuntimeError: mat1"),
            ("bare", "    patch: int = 8\n", "", "bare.py: AttributeError: 'Own' object has no attribute 'patch'"),
            ("deep", "own_layers.shaped(", "own_layers.reshaped(", "deep.py, line 26, in forward: AttributeError: module 'own_layers'"),
            ("dayless", "def forward(self, features, day)", "def forward(self, features)", "dayless.py: TypeError: "),
            ("idle", "def build(", "def make(", "Own: defines no build()"),
            ("short", "self.config.stride)))", "self.config.stride)))[:, 2:]", "Own: its network returned "),
            ("half", "self.config.stride)))", "self.config.stride))).bfloat16()", "Own: its network returned torch.bfloat16")):
        (here / f"{name}.py").write_text(OWN.replace(old, new))
        assert main(f"{train} {name}.py:Own".split()) == 2 and not (here / "new").exists()
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and told.startswith(f"error: {expected}"), told
