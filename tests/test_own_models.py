"""A model of one's own whose file is edited after training: a comment locks nothing, and nothing stale is returned."""
import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest

from b2t_kit.cli import main
from b2t_kit.core.files import load_json
from b2t_kit.core.program import say_once
from b2t_kit.data.write import tiny_recordings
from b2t_kit.models import model

pytestmark = pytest.mark.usefixtures("dots")
OWN = """from dataclasses import dataclass

from torch import nn

import own_layers
from b2t_kit.models.layers import patches
from b2t_kit.models.model import ModelConfig


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


OUTPUTS = {  # what a network of one's own does -> the status of b2t train, and what is said
    ".softmax(-1)": (0, "the network returns probabilities; leave the softmax out"),
    ", None": (2, "its network returned a tuple; expected the logits alone"),
    "[:, 1:]": (2, "pad convolutions"),
}


@pytest.mark.parametrize("ending", OUTPUTS)
def test_what_a_network_returns(ending: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    status, told = OUTPUTS[ending]
    (here / "own.py").write_text(f"{OWN.rstrip()}{ending}\n")
    fresh(monkeypatch)
    command = "train --data data --out other --model own.py:Own --steps 2 --eval-every 0 --batch-size 4 --device cpu"
    assert main(command.split()) == status
    said = capsys.readouterr()
    assert told in said.out + said.err


def test_settings_that_cannot_be_recorded_are_refused_before_training(here: Path, monkeypatch: pytest.MonkeyPatch, refused) -> None:
    (here / "own.py").write_text(OWN.replace("num_classes: int = 41", "num_classes: int = 41\n    sizes: list = None"))
    fresh(monkeypatch)
    said = refused("train --data data --out other --model own.py:Own --steps 2 --eval-every 0 --batch-size 4 --device cpu")
    assert "cannot be recorded: model.sizes" in said and not (here / "other/config.json").exists()


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
            ("wide", "nn.Linear(config.patch *", "nn.Linear(1 + config.patch *", "wide.py, line 27, in forward: RuntimeError: mat1"),
            ("bare", "    patch: int = 8\n", "", "bare.py: AttributeError: 'Own' object has no attribute 'patch'"),
            ("deep", "own_layers.shaped(", "own_layers.reshaped(", "deep.py, line 27, in forward: AttributeError: module 'own_layers'"),
            ("dayless", "def forward(self, features, day)", "def forward(self, features)", "dayless.py: TypeError: "),
            ("idle", "def build(", "def make(", "Own: defines no build()"),
            ("short", "self.config.stride)))", "self.config.stride)))[:, 2:]", "Own: its network returned "),
            ("half", "self.config.stride)))", "self.config.stride))).bfloat16()", "Own: its network returned torch.bfloat16")):
        (here / f"{name}.py").write_text(OWN.replace(old, new))
        assert main(f"{train} {name}.py:Own".split()) == 2 and not (here / "new").exists()
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and told.startswith(f"error: {expected}"), told


NET = """from dataclasses import dataclass
from b2t_kit.models.model import ModelConfig
{imports}

@dataclass(frozen=True)
class Net(ModelConfig):
    patch: int = 8
    stride: int = 8
    num_features: int | None = None
    num_classes: int = 41

    def build(self):
        {late}
        raise NotImplementedError
"""
IMPORTS = {  # statement at the top, or in a method -> the file that is edited
    "from part import FACTOR": "part.py",
    "from part import *": "part.py",
    "import part as other": "part.py",
    "late: from part import FACTOR": "part.py",
    "late: import importlib; importlib.import_module('part')": "part.py",
    "import importlib; other = importlib.import_module('pa' + 'rt')": "part.py",
    "from package.inner import FACTOR": "package/inner.py",
    "from package import inner": "package/inner.py",
    "import package.inner": "package/__init__.py",
    "from package.relative import FACTOR": "package/inner.py",
    "from through import FACTOR": "part.py",
    "from far import FACTOR": "elsewhere/far.py",
    "try:\n    from part import FACTOR\nexcept ImportError:\n    FACTOR = 1": "part.py",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_every_file_that_a_model_imports_is_in_its_name(
        statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """However it imports it. Edited and named again in one process, it is run again; not named, it is said."""
    late = statement.startswith("late: ")
    source = NET.format(imports="" if late else statement, late=statement.removeprefix("late: ") if late else "")
    for name, text in {"own.py": source, "part.py": "FACTOR = 1.0\n", "through.py": "from part import FACTOR\n",
                       "package/__init__.py": "", "package/inner.py": "FACTOR = 1.0\n", "elsewhere/far.py": "FACTOR = 1.0\n",
                       "package/relative.py": "from .inner import FACTOR\n", "unrelated.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in (tmp_path / "elsewhere", tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    say_once.cache_clear()
    monkeypatch.setattr(model, "_FILES", {})
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    which, edited = f"{tmp_path / 'own.py'}:Net", tmp_path / IMPORTS[statement]
    before = model.model_class(which)
    name = model.model_name(before)
    assert "unrelated.py" not in model.model_sources(before) and not capsys.readouterr().err
    assert model.model_class(which) is before
    edited.write_text("FACTOR = -3.0\n")
    assert model.model_name(before) == name, "it is still what was run"
    assert f"{edited.name}: has changed since this process imported it" in capsys.readouterr().err
    after = model.model_class(which)
    assert after is not before and model.model_name(after) != name
    assert getattr(sys.modules["own"], "FACTOR", -3.0) == -3.0


def test_a_model_of_a_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Is named by its class, and by what that uses of the notebook: the network's class, functions, constants."""
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    main_module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main_module)

    def cells(**changes: str) -> str:
        parts = {"config": NET.format(imports="", late="return Network(self)"), "network": "class Network:\n    factor = half(FACTOR)\n",
                 "half": "def half(x):\n    return x / 2\n", "constant": "FACTOR = 3.0\n", "other": "OTHER = 3.0\n"} | changes
        for name in ("constant", "other", "half", "network", "config"):
            file = f"<cell {name} {len(linecache.cache)}>"
            linecache.cache[file] = len(parts[name]), None, parts[name].splitlines(keepends=True), file
            exec(compile(parts[name], file, "exec"), vars(main_module))
        return model.model_name(main_module.Net)["sha256"]

    first = cells()
    assert cells() == first == cells(other="OTHER = 4.0\n")
    changes = {"constant": "FACTOR = 4.0\n", "half": "def half(x):\n    return x / 3\n",
               "network": "class Network:\n    factor = 1 + half(FACTOR)\n"}
    assert len({first, *(cells(**{part: text}) for part, text in changes.items())}) == 4
