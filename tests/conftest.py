"""What several files of tests share."""
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from commands import dot, tree

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """No test sees the variables that another one's commands have set: an interface of gloo's, a backend."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is a dot: drawing one takes as long as all else of a small command. Notebooks draw them."""
    monkeypatch.setattr(Figure, "savefig", dot)


@pytest.fixture
def here(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dots: None) -> Path:
    """A copy of a file's good input (its fixture `good`) in the current folder, without GPUs and torch_xla."""
    shutil.copytree(good, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    return tmp_path / "here"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of two short days, which no test changes."""
    from b2t_kit.data.write import tiny_recordings

    return tiny_recordings(tmp_path_factory.mktemp("data"), sessions=2, trials=8, max_bins=60)


@pytest.fixture(scope="session")
def legible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A legible day, a run whose step was not chosen, two language models, and a large one.

    No test changes them."""
    from b2t_kit.cli import main
    from test_words import SAID, legible_day, train_legible
    from tiny_models import write_causal

    folder = tmp_path_factory.mktemp("legible")
    data = legible_day(folder / "data", train=8, val=4, test=4)
    train_legible(data, folder / "run", "--eval-every 0")
    said = [*SAID, "we can hear you now"] * 3
    for name, more in {"model": 1, "other": 40}.items():
        text = folder / f"{name}.txt"
        text.write_text("\n".join(said + ["bring me the family now"] * more))
        assert main(["lm", "build", str(text), "--out", str(folder / f"{name}.b2tlm")]) == 0
    write_causal(folder / "causal")
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A command that must fail: its one error line. The status is 2, and nothing in the current folder changes."""
    if Path.cwd() == Path(__file__).parent.parent:  # where others may write
        monkeypatch.chdir(tmp_path)

    def run(words: str | list[str], same: bool = True) -> str:
        from b2t_kit.cli import main

        before = tree()
        capsys.readouterr()
        status = main(shlex.split(words) if isinstance(words, str) else words)
        lines = capsys.readouterr().err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert status == 2 and errors == lines[-1:] and errors[0].isprintable() and len(errors[0]) < 1010, (words, lines)
        assert not same or tree() == before, words
        return errors[0]
    return run
