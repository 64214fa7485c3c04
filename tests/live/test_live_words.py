"A live session takes the words that `b2t decode` takes."
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.data.write import SessionWriter
from b2t_kit.data.dataset import NUM_FEATURES, Trial
from b2t_kit.decode import words
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.phonemes import to_ids

DAY = "t15.2023.08.11"
SAID = ("My family is closer than yours.", "They lived in Arlington.", "Nobody ever told me about taxes.")


def test_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(words, "installed_english", lambda: None)
    data, run, generator = tmp_path / "data", tmp_path / "run", np.random.default_rng(0)
    for split, sentences in {"train": SAID, "val": SAID[2:]}.items():
        with SessionWriter(data / DAY, split) as writer:
            for number, sentence in enumerate(sentences):
                labels = np.array(to_ids(sentence_to_phonemes(sentence)))
                features = generator.standard_normal((12 * len(labels), NUM_FEATURES), dtype=np.float32)
                writer.write(Trial(features, labels, DAY, len(split), number, sentence))
    assert main(f"train --data {data} --out {run} --config linear --steps 2 --warmup-steps 1 --eval-every 0 --device cpu "
                "--checkpoint-every 2".split()) == 0
    capsys.readouterr()
    for given in ("", f"--data {data}"):  # whether or not the recordings are named
        assert main(f"live --run {run} {given} --pace 0 --trials 1".split()) == 0, given
        assert "a language model of 2 training sentences" in capsys.readouterr().err, given
    assert len(list((run / "words").glob("*.b2tlm"))) == 1
    learned = tmp_path / "learned"
    learned.mkdir()
    assert main(f"live --run {run} --pace 0 --adapt --learned {learned}".split()) == 2
    told = capsys.readouterr().err
    assert f"error: {learned}: " in told and "preparing the decoder" not in told, told
