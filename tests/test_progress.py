"""Whatever may take longer than two seconds says how much is done."""
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.core import program
from b2t_kit.lm import arpa, build, mix, model
from b2t_kit.lm.arpa import read_arpa, write_arpa
from b2t_kit.lm.build import train_language_model
from b2t_kit.lm.mix import mixed
from b2t_kit.cli import main
from b2t_kit.rescore.llm import kept_scores, load_scorer
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.text.english import phrases
from tiny_models import write_causal


def test_time_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, dots: None) -> None:
    """Here after each piece, and without waiting."""
    def told(*names: str) -> None:
        said = capsys.readouterr().err
        assert [name for name in names if not re.search(rf"{name}: +\d+%", said)] == [], said

    for module, name, size in ((program, "LOG_EVERY", 0.0), (model, "BLOCK", 50), (build, "BLOCK", 50), (arpa, "BATCH", 50),
                               (mix, "BATCH", 50), (arpa, "BLOCK_BYTES", 1000)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.chdir(tmp_path)
    lines = phrases()["fixed"][:80]
    models = [train_language_model([part]) for part in (lines[::2], lines[1::2])]
    mixed(models, [0.5, 0.5])
    read_arpa(write_arpa(models[0], Path("model.arpa")))
    told("counting n-grams of 2 words", "linking n-grams", "listing n-grams of 2 words", "mixing n-grams of 3 words",
         "weighing contexts", "writing n-grams of 2 words", "reading model.arpa")

    with h5py.File("theirs.h5", "w") as file:
        for number, said in enumerate(lines[:5]):
            file[f"{number}/logits"] = noisy_sentence(said, np.random.default_rng(number))
            file[str(number)].attrs["sentence_label"] = said
    assert main("decode --logits theirs.h5 --lm model.arpa --beam 30 --n-best 8 --out plain --tune".split()) == 0
    told("searching")
    write_causal(Path("causal"))
    assert main("rescore plain/nbest.jsonl --llm causal --device cpu --out out.jsonl --tune".split()) == 0
    told("choosing how sentences are written", "tuning")
    kept_scores(load_scorer("causal"), [["we can"], ["we see"]], Path("scores.json"), "", at_once=1)
    told("scoring sentences")
