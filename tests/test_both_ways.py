"""Decoders that read in both directions (`--no-causal`): planned and trained, not streamed. On XLA: xla_models.py."""

import pytest

from b2t_kit.cli import main
from b2t_kit.core.files import load_json

pytestmark = pytest.mark.usefixtures("dots")
MODELS = {"gru": "--model gru --hidden 8 --num-layers 2 --dropout 0 --day-dropout 0",
          "transformer": "--model transformer --width 16 --heads 2 --head-width 8 --inner 16 --blocks 2 --patch-dropout 0 "
                         "--block-dropout 0"}
SHORT = "--no-causal --batch-size 8 --steps 4 --eval-every 4 --checkpoint-every 4 --precision float32"


@pytest.mark.parametrize("model", MODELS)
def test_whole_trials_are_decoded_and_none_is_streamed(data, tmp_path, capsys, model) -> None:
    """Training, scores and words as of any decoder; the live page says in one line that it cannot be."""
    run = f"--run {tmp_path / 'run'} --data {data}"
    assert main(f"train --data {data} --out {tmp_path / 'run'} {MODELS[model]} {SHORT} --device cpu".split()) == 0
    plan = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("plan "))
    assert "GiB: fits, " in plan, plan
    assert load_json(tmp_path / "run/config.json")["task"]["config"]["model"]["causal"] is False
    assert main(f"decode {run} --device cpu --lm default".split()) == 0
    assert main(f"live {run} --no-page".split()) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: ") and "cannot stream" in told, told
