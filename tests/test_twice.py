"""A command is given again while the first still works: one goes on to the end, the other waits or is refused in a line."""
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import atomic_folder, locked, write_atomically
from b2t_kit.core.cache import cache_file
from b2t_kit.data.write import tiny_recordings
from commands import environment, start
from published_files import tiny_mat_files
from tiny_models import write_causal

RUN = "--run run --data data --device cpu"
TRAIN = "train --data data --hidden 8 --steps 3 --batch-size 8 --buckets 1 --eval-every 0 --device cpu"
WRITES = {  # what is locked -> the command that writes it; with "/" at its end, a folder that is there then
    "new/hdf5_data_final": "simulate --out new --sessions 1 --trials 4 --bins-per-phoneme 8",
    "run copy": "export --run run --out 'run copy'",
    "kernel": "kernel build --out kernel --user somebody",
    "trained/": f"{TRAIN} --out trained",
    "seeds/": f"{TRAIN} --out seeds --seeds 1 2",
    "run/eval/val/": f"eval {RUN}",
    "run/decode/val/": f"decode {RUN} --lm model.arpa",
    "words/": f"decode {RUN} --lm model.arpa --out words",
    "logits/": "decode --logits run/decode/val/logits.hdf5 --lm model.arpa --out logits",
    "run/decode/test/": f"submit {RUN} --lm model.arpa --out x.csv",
    "x.jsonl": "rescore run/decode/val/nbest.jsonl --llm causal --tune --out x.jsonl --device cpu",
}
if find_spec("b2t_kit.importers"):  # a wing
    WRITES["t12/"] = "convert t12 willett --out t12"
if find_spec("b2t_kit.tasks"):
    WRITES["tanks/train/"] = "eit simulate --out tanks --count 2"
WAITS = {  # the others use what the first makes, or replace it whole
    "x.b2tlm": "lm build words.txt --out x.b2tlm",
    "x.arpa": "lm convert model.arpa --out x.arpa",
    "run/decode/val/logits.hdf5": f"eval {RUN}",
}
HOLDER = """
import os, sys
from b2t_kit.core.files import locked
os.makedirs(sys.argv[1] if sys.argv[1].endswith("/") else os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
with locked(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def another(output: str) -> Iterator[subprocess.Popen]:
    "Another process that writes an output."
    process = start("-c", HOLDER, output, stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "has it\n"
    try:
        yield process
    finally:
        process.communicate("\n", timeout=60)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("twice"), Path.cwd()
    os.chdir(folder)
    try:
        tiny_recordings(folder / "data", sessions=2, trials=6, max_bins=60)
        tiny_mat_files(folder / "willett")
        write_causal(folder / "causal")
        Path("words.txt").write_text("we can hear you now\n" * 9)
        for command in ("lm build words.txt --out model.arpa", f"{TRAIN} --out run", f"decode {RUN} --lm model.arpa"):
            assert main(command.split()) == 0, command
    finally:
        os.chdir(before)
    return folder


def left(folder: Path) -> list[Path]:
    "Locks and what is unfinished."
    return [path for path in folder.rglob(".*") if path.name not in (".complete", ".run")]


@pytest.mark.parametrize("output", WRITES)
def test_the_second_is_refused(output: str, here: Path, refused: Callable[..., str]) -> None:
    """In a line that names the process, and nothing changes."""
    with another(output) as process:
        said = refused(WRITES[output])
        assert output.rstrip("/") in said and f": process {process.pid} on " in said and "is writing it; wait" in said
    assert not left(here)


@pytest.mark.parametrize("output", WAITS)
def test_the_second_waits(output: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """And says for whom."""
    Path(output).unlink(missing_ok=True)
    with another(output) as process:
        threading.Timer(1.0, lambda: process.stdin.write("\n") and process.stdin.flush()).start()
        assert main(WAITS[output].split()) == 0
        assert f"waiting for process {process.pid} on " in capsys.readouterr().err
    assert Path(output).is_file() and not left(here)


LISTS = "run/decode/val/nbest.jsonl"
LOGITS = "run/decode/val/logits.hdf5"
OVER_INPUT = {  # what is read -> commands that would write over it
    "model.arpa": [
        "lm build model.arpa --out model.arpa",
        "lm build words.txt --exclude model.arpa --out model.arpa",
        "lm convert model.arpa --out model.arpa",
        "lm mix model.arpa model.arpa --text words.txt --out model.arpa",
    ],
    LISTS: [
        f"submit --nbest {LISTS} --data data --out {LISTS}",
        f"rescore {LISTS} --llm causal --tune --out {LISTS} --device cpu",
    ],
    LOGITS: [f"combine {LOGITS} other.hdf5 --out {LOGITS}"],
}


@pytest.mark.parametrize(
    "name, command", [(name, one) for name, commands in OVER_INPUT.items() for one in commands]
)
def test_an_input_is_not_written_over(
    name: str, command: str, here: Path, refused: Callable[..., str]
) -> None:
    """One line, and the input is as it was."""
    shutil.copy(LOGITS, "other.hdf5")
    assert f"{name}: is also read, and would be overwritten" in refused(command)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_lock_ends_with_its_process(number: signal.Signals, tmp_path: Path) -> None:
    """However that ends."""
    with another(str(tmp_path / "x")) as process:
        with pytest.raises(KitError, match=f"process {process.pid} on "), locked(tmp_path / "x"):
            pass
        process.send_signal(number)
        process.wait(60)
        with locked(tmp_path / "x"):
            assert list(tmp_path.iterdir()) == [tmp_path / ".x.lock"]
    assert not left(tmp_path)


def test_what_killed_processes_leave(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """It is removed, and said; what is of other outputs, or only looks so, stays."""
    dead = [".x.0123abcd", ".x.0123abcd.partial"]
    others = [".x", ".x.txt", ".x.y.0123abcd", ".xx.0123abcd", ".x.0123ABCD", "x.0123abcd", ".x.0123abcd.lock"]
    for name in [*dead, *others]:
        (tmp_path / name).mkdir() if name.endswith("partial") else (tmp_path / name).write_text("ha")
    with atomic_folder(tmp_path / "x"):
        assert not [name for name in dead if (tmp_path / name).exists()]
    assert all((tmp_path / name).exists() for name in others)
    assert capsys.readouterr().err.count("left behind by a killed process, removed") == 2


def test_two_threads_and_two_spellings(tmp_path: Path) -> None:
    """A thread may lock again what it has; another one, or another spelling of the path, is another writer."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    said: list[str] = []

    def intrude() -> None:
        try:
            with locked(tmp_path / "link/x"):
                said.append("two at once")
        except KitError as error:
            said.append(str(error))

    with locked(tmp_path / "x"), locked(tmp_path / "link/x"):
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
    assert len(said) == 1 and "is writing it" in said[0]
    intrude()
    assert said[1:] == ["two at once"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_a_drive_without_locks(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes on there; of two that make one folder at once, the later one is refused, and leaves nothing."""
    import fcntl

    def without(handle: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(KitError, match="already exists"), atomic_folder(tmp_path / "x") as second:
        with atomic_folder(tmp_path / "x") as first:
            (first / "one").touch()
        (second / "two").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["x", "one"]
    assert cache_file(tmp_path / "y", {}, lambda path: write_atomically(path, "y")).read_text() == "y"


def test_a_cache_is_computed_once(tmp_path: Path) -> None:
    """By whoever comes first; the others take it."""
    made: list[int] = []

    def make(path: Path) -> None:
        made.append(1)
        write_atomically(path, "thirty hours")

    threads = [threading.Thread(target=cache_file, args=(tmp_path / "x", {"a": 1}, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] and not left(tmp_path)


@pytest.mark.parametrize("mask, mode", [(0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_modes_of_the_umask(mask: int, mode: int, here: Path) -> None:
    before = set(here.rglob("*"))
    old = os.umask(mask)
    try:
        Path("x.csv").write_text("id,text\n0,we can\n")
        for command in (f"{TRAIN} --out trained", f"decode {RUN} --lm model.arpa --out words", "export --run run --out copy",
                        "lm build words.txt --out x.b2tlm", f"eval {RUN} --json x.json", "doctor --bundle run --out b.zip",
                        "score --reference x.csv --hypothesis x.csv --json s.json"):
            assert main(command.split()) == 0, command
    finally:
        os.umask(old)
    new = [path for path in here.rglob("*") if path not in before and path.is_file()]
    wrong = {str(path.relative_to(here)): oct(path.stat().st_mode) for path in new if path.stat().st_mode & 0o777 != mode}
    assert len(new) > 20 and not wrong


@pytest.mark.parametrize("backend", ["nonsense", "module://nowhere"])
def test_a_backend_of_windows(backend: str, here: Path) -> None:
    """Figures go to files, so none is needed."""
    words = [sys.executable, "-m", "b2t_kit", *f"eval {RUN}".split()]
    done = subprocess.run(words, env=environment(MPLBACKEND=backend), capture_output=True, text=True)
    assert done.returncode == 0 and (here / "run/eval/val/days.png").is_file(), done.stderr[-2000:]

