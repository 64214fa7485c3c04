"""A converted T12 folder goes through every verb, and T12 and T15 are never mixed."""
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from b2t_kit.cli import main
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.importers.t12 import T12
from b2t_kit.speech.evaluate import load_decoder
from published_files import tiny_mat_files

TRAIN = "train --steps 2 --batch-size 4 --buckets 1 --eval-every 2 --device cpu --data "
TINY = "--config tiny --hidden 8"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Recordings of both participants, a language model, and a run of T15; also the working directory."""
    folder, before = tmp_path_factory.mktemp("t12"), Path.cwd()
    os.chdir(folder)
    tiny_mat_files(folder, trials=4)
    tiny_recordings(folder / "t15", sessions=2, trials=4)
    (folder / "words.txt").write_text("we can hear you\nyou can hear\nhear we can\n")
    assert main("convert t12 . --out t12".split()) == 0
    assert main("lm build words.txt --out m.arpa".split()) == 0
    assert main(f"{TRAIN} t15 --out other {TINY}".split()) == 0
    yield folder
    os.chdir(before)


def test_verbs(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Training, scores, sentences, and a submission of the hold-out in the order of days, blocks and trials."""
    for words in (f"{TRAIN} t12 --out tiny {TINY}", "eval --run tiny --data t12 --device cpu",
                  "decode --run tiny --data t12 --device cpu --lm m.arpa --beam 4",
                  "submit --run tiny --data t12 --device cpu --lm m.arpa --out tiny.csv",
                  "check-submission tiny.csv --data t12", "report --run tiny --data t12 --device cpu",
                  "export --run tiny --out exported_tiny", "eval --run exported_tiny --data t12 --device cpu"):
        assert main(words.split()) == 0, (words, capsys.readouterr().err)
    decoder = load_decoder(here / "tiny")
    assert decoder.signal == T12 == load_decoder(here / "exported_tiny").signal
    assert decoder.config.model.num_features == 256
    assert len((here / "tiny.csv").read_text().splitlines()) == 1 + len(Recordings(here / "t12", "test"))
    assert "area 6v" in (here / "tiny" / "report/val.html").read_text()


@pytest.mark.parametrize("words", [
    "eval --run other --data t12", "eval --run tiny --data t15", "eval --run exported_tiny --data t15",
    "decode --run other --data t12 --lm m.arpa", "submit --run tiny --data t15 --lm m.arpa --out no.csv",
    "report --run other --data t12", "eval --runs other tiny --data t12",
    f"{TRAIN} t15 --out tiny --resume {TINY}",
])
def test_refused(words: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A run of one participant refuses recordings of the other in one line."""
    capsys.readouterr()
    assert main([*words.split(), *(() if "--device" in words else ("--device", "cpu"))]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1, said
    assert ("cannot be mixed" in said[0] and "T12" in said[0] and "T15" in said[0]) or "cannot be resumed" in said[0], said
    assert not (here / "no.csv").exists()


def test_mixed_folder(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Whatever reads a folder with days of both names two files and says what to do."""
    mixed = tiny_recordings(tmp_path, sessions=1, trials=4)
    day = next(here.glob("t12/hdf5_data_final/t12*"))
    os.symlink(day, mixed / day.name)
    for words in (f"validate {mixed}", f"{TRAIN} {mixed} --out no {TINY}", f"plan tiny --data {mixed}",
                  f"eval --run other --data {mixed} --device cpu"):
        capsys.readouterr()
        assert main(words.split()) in (1, 2), words
        said = "".join(capsys.readouterr())
        assert "T12 recordings of 256 features" in said and "T15 recordings of 512 features" in said, said
        assert "folders of their own" in said and said.count(".hdf5") >= 2 and "Traceback" not in said, said
    assert not (here / "no").exists()
