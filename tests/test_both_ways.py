"""Decoders that read in both directions (`--no-causal`): planned, compiled, trained, not streamed."""
from importlib.util import find_spec
from pathlib import Path

import pytest

from b2t_kit.cli import main
from b2t_kit.core import load_json

pytestmark = pytest.mark.usefixtures("dots")
MODELS = {"gru": "--model gru --hidden 8 --num-layers 2 --dropout 0 --day-dropout 0",
          "transformer": "--model transformer --width 16 --heads 2 --head-width 8 --inner 16 --blocks 2 --patch-dropout 0 "
                         "--block-dropout 0"}
SHORT = "--no-causal --batch-size 8 --steps 4 --eval-every 4 --checkpoint-every 4 --precision float32"
MISSING = [name for name in ("torch_xla", "jax", "libtpu") if find_spec(name) is None]


@pytest.mark.parametrize("model", MODELS)
def test_whole_trials_are_decoded_and_none_is_streamed(data, tmp_path, capsys, model) -> None:
    """Training, scores and words as of any decoder; the live page says in one line that it cannot be."""
    run = f"--run {tmp_path / 'run'} --data {data}"
    assert main(f"train --data {data} --out {tmp_path / 'run'} {MODELS[model]} {SHORT} --device cpu".split()) == 0
    assert load_json(tmp_path / "run/config.json")["task"]["config"]["model"]["causal"] is False
    assert main(f"decode {run} --device cpu --lm default".split()) == 0
    assert main(f"live {run} --no-page".split()) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: ") and "cannot stream" in told, told


@pytest.mark.parametrize("recipe", ["tiny", "transformer_tiny"])
def test_both_ways_are_planned(tmp_path: Path, recipe: str) -> None:
    """About as large as the causal one: as many units, a bias that already has both sides."""
    sizes = []
    for way in ("causal", "no-causal"):
        assert main(["plan", recipe, f"--{way}", "--device", "cpu", "--json", str(tmp_path / "plan.json")]) in (0, 1)
        sizes.append(load_json(tmp_path / "plan.json")["bytes_per_replica"]["total"])
    assert 0.6 < sizes[1] / sizes[0] < 2, sizes


@pytest.mark.torch_xla
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
def test_both_ways_compile_for_eight_chips(tmp_path: Path) -> None:
    """The largest step of a GRU; the Transformer differs by its bias alone."""
    path = tmp_path / "found.json"
    assert main(["preflight", "tiny", "--no-causal", "--slice", "v5e-8", "--global-batch", "16", "--json", str(path)]) == 0
    assert load_json(path)["fits"]
