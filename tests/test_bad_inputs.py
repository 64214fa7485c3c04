"""Bad recordings and requests: one line that names what is wrong, and a folder that did not change.

Every other file × every fault: tests/hostile.py."""
import os
import resource
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.data.batches import BatchConfig, Frames, trainable
from b2t_kit.data.write import tiny_recordings
from b2t_kit.data.dataset import Recordings
from commands import interrupted, python, start, tree

SESSIONS = ("t15.2023.08.01", "t15.2023.08.02")
DAY = Path("data/hdf5_data_final") / SESSIONS[1]
FILE = DAY / "data_train.hdf5"
SMALL = {"--hidden": 8, "--steps": 2, "--batch-size": 8, "--buckets": 1, "--eval-every": 0, "--device": "cpu"}
EVAL = "eval --run run --data data"
Spoil = Callable[[], object]


def train(words: str = "", out: str = "new") -> str:
    small = " ".join(f"{name} {value}" for name, value in SMALL.items() if f"{name} " not in f"{words} ")
    return f"train --data data --out {out} {small} {words}"


TRAIN, RESUME = train(), train("--resume", "run")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    tiny_recordings(folder / "data", sessions=2, trials=4, max_bins=60)
    places = {"data": folder / "data", "new": folder / "run"}
    assert main([str(places.get(word, word)) for word in TRAIN.split()]) == 0
    return folder


@pytest.fixture
def faulted(capsys: pytest.CaptureFixture) -> Callable[[], list[str]]:
    """The faults that `b2t validate data` lists."""
    def run() -> list[str]:
        before = tree()
        capsys.readouterr()
        status, said = main(["validate", "data"]), capsys.readouterr()
        assert (status, said.err) == (1, "") and tree() == before
        *faults, total = [line for line in said.out.splitlines() if not line.startswith("warning: ")]
        assert " fault" in total
        return faults
    return run


# Recordings: what is done to the second trial of a file of the second day, and what the fault names

def in_file(change: Callable[[h5py.Group, h5py.File], object]) -> Spoil:
    """Change the trial, or something else in its file."""
    def spoil() -> None:
        with h5py.File(FILE, "r+") as file:
            change(file["trial_0001"], file)
    return spoil


def attribute(name: str, *value: object) -> Spoil:
    return in_file(lambda trial, _: trial.attrs.__setitem__(name, *value) if value else trial.attrs.__delitem__(name))


def value(name: str, place: object, new: float) -> Spoil:
    return in_file(lambda trial, _: trial[name].__setitem__(place, new))


def taken(trial: h5py.Group, name: str = "input_features") -> np.ndarray:
    data = trial[name][:]
    del trial[name]
    return data


def content(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    return in_file(lambda trial, _: trial.create_dataset(name, data=change(taken(trial, name))))


def declared(name: str, shape: tuple[int, ...] = (), written: int = 0, **options: object) -> Spoil:
    """A dataset of which only some rows were written in the place of one; () keeps its shape."""
    def replace(trial: h5py.Group, _: h5py.File) -> None:
        old = taken(trial, name)
        data = trial.create_dataset(name, shape or old.shape, old.dtype, **options)
        if written:
            data[:written] = old[:written]
    return in_file(replace)


def linked(name: str, link: object) -> Spoil:
    """A link in the place of something in the trial, or of the trial itself ("")."""
    def replace(trial: h5py.Group, file: h5py.File) -> None:
        path = f"trial_0001/{name}".rstrip("/")
        del trial, file[path]
        file[path] = link
    return in_file(replace)


def too_many_labels(trial: h5py.Group, _: h5py.File) -> None:
    trial["seq_class_ids"][:200] = np.tile([1, 2], 100)
    trial.attrs["seq_len"] = 200


def twice(trial: h5py.Group, file: h5py.File) -> None:
    trial.attrs.update({name: file["trial_0000"].attrs[name] for name in ("block_num", "trial_num")})


def overwrite(place: int, data: bytes) -> None:
    with open(FILE, "r+b") as raw:
        raw.seek(place)
        raw.write(data)


def scrambled(trial: h5py.Group, file: h5py.File) -> None:
    """Compressed features with some bytes overwritten on the disk."""
    features = taken(trial)
    packed = trial.create_dataset("input_features", data=features, chunks=features.shape, compression="gzip")
    file.flush()
    place = packed.id.get_chunk_info(0).byte_offset
    file.close()
    overwrite(place + 100, bytes(200))


def broken_header() -> None:
    with h5py.File(FILE) as file:
        place = h5py.h5o.get_info(file["trial_0001/input_features"].id).addr
    overwrite(place, b"\xff" * 16)


def outside(trial: h5py.Group, _: h5py.File) -> None:
    """Features that are stored in another file."""
    features, path = taken(trial), Path("secret.bin").absolute()
    path.write_bytes(features.tobytes())
    trial.create_dataset("input_features", features.shape, "f4", external=[(str(path), 0, features.nbytes)])


def virtual(trial: h5py.Group, file: h5py.File) -> None:
    """Features that are put together from another file, which is not there."""
    layout = h5py.VirtualLayout(taken(trial).shape, "f4")
    layout[:] = h5py.VirtualSource("nowhere.hdf5", "features", layout.shape)
    trial.create_virtual_dataset("input_features", layout)


def chunk_bomb(trial: h5py.Group, _: h5py.File) -> None:
    """A chunk of a few kilobytes that unpacks to a gigabyte."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # may be repeated
    checksum = (1 << 30) % 65521 << 16 | 1
    shape = taken(trial).shape
    packed = trial.create_dataset("input_features", shape, "f4", chunks=shape, compression="gzip")
    packed.id.write_direct_chunk((0, 0), b"\x78\xda" + 1024 * block + packer.flush() + checksum.to_bytes(4, "big"))


def shared(trial: h5py.Group, file: h5py.File) -> None:
    """The features of another trial, under a second name."""
    del trial["input_features"]
    trial["input_features"] = file["trial_0000/input_features"]
    trial.attrs["n_time_steps"] = len(trial["input_features"])


def not_text(trial: h5py.Group, _: h5py.File) -> None:
    """A sentence whose bytes are no UTF-8."""
    kind = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
    del trial.attrs["sentence_label"]
    h5py.h5a.create(trial.id, b"sentence_label", kind, h5py.h5s.create(h5py.h5s.SCALAR)).write(np.array(b"a\xff", dtype=object))


def instead(target: str) -> Spoil:
    """A symbolic link in the place of the file."""
    return lambda: (FILE.unlink(), FILE.symlink_to(target))


HUGE, F, L = 10**12, "input_features", "seq_class_ids"
RECORDINGS: dict[str, tuple[Spoil, str]] = {  # place: "" for the file, else of the trial
    "truncated": (lambda: os.truncate(FILE, 3000), ""),
    "one byte short": (lambda: os.truncate(FILE, FILE.stat().st_size - 1), ""),
    "not HDF5": (lambda: FILE.write_text("trial,label\n1,2\n"), ""),
    "empty file": (lambda: os.truncate(FILE, 0), ""),
    "folder for a file": (lambda: (FILE.unlink(), FILE.mkdir()), ""),
    "empty day": (lambda: h5py.File(FILE, "w").close(), ""),
    "link to nothing": (instead("nowhere.hdf5"), ""),
    "link to itself": (instead(FILE.name), ""),
    "pipe": (lambda: (FILE.unlink(), os.mkfifo(FILE)), ""),
    "device": (instead("/dev/zero"), ""),
    "foreign group": (in_file(lambda _, file: file.create_group("notes")), ""),
    "foreign name with an escape": (in_file(lambda _, file: file.create_group("a\x1b\n[2J")), ""),
    "foreign name not UTF-8": (in_file(lambda _, file: h5py.h5g.create(file.id, b"a\xff")), ""),
    "group missing": (in_file(lambda _, file: file.__delitem__("trial_0001")), "trial_0001"),
    "group is a dataset": (in_file(lambda _, file: (file.pop("trial_0001"), file.create_dataset("trial_0001", data=1))), "trial_0001"),
    **{f"no {name}": (attribute(name), f"trial_0001/{name}")
       for name in ("n_time_steps", "seq_len", "session", "block_num", "trial_num", "sentence_label")},
    **{f"no {name}": (in_file(lambda trial, _, name=name: trial.__delitem__(name)), f"trial_0001/{name}") for name in (F, L)},
    **{f"{name} is {new!r}": (attribute(name, new), f"trial_0001/{name}") for name, new in (
        ("n_time_steps", "long"), ("n_time_steps", -5), ("n_time_steps", HUGE), ("n_time_steps", True), ("n_time_steps", h5py.Empty("i4")),
        ("seq_len", 0), ("seq_len", 501), ("session", SESSIONS[0]), ("block_num", -1), ("trial_num", HUGE),
        ("sentence_label", "a\x1b[2Jb"))},
    "an array for a length": (attribute("n_time_steps", np.zeros(5000)), "trial_0001/n_time_steps"),
    "sentence without end": (attribute("sentence_label", "a" * 50_000), "trial_0001/sentence_label"),
    "sentence not UTF-8": (in_file(not_text), "trial_0001/sentence_label"),
    "twice": (in_file(twice), "trial_0001/trial_num"),
    **{f"features: {name}": (spoil, f"trial_0001/{F}") for name, spoil in {
        "wrong length": attribute("n_time_steps", 59), "half of them": content(F, lambda array: array[:, :256]),
        **{dtype: content(F, lambda array, dtype=dtype: array.astype(dtype)) for dtype in ("i2", "f8", ">f4")},
        "NaN": value(F, (7, 99), np.nan), "infinite": value(F, (7, 99), -np.inf), "enormous": value(F, (7, 99), 3e38),
        "all zero": content(F, lambda array: array * 0), "scrambled": in_file(scrambled), "outside": in_file(outside),
        "virtual": in_file(virtual), "never written": declared(F), "chunks never written": declared(F, chunks=(10, 512)),
        "half written": declared(F, written=10, chunks=(10, 512)), "endless": declared(F, (HUGE, 512), chunks=(10, 512)),
        "wide": declared(F, (60, HUGE), chunks=(10, 512)), "a bomb": in_file(chunk_bomb),
        "huge chunks": declared(F, chunks=(1 << 20, 512), maxshape=(None, 512)), "broken header": broken_header}.items()},
    "features shared": (in_file(shared), ""),  # either of the two trials
    **{f"labels: {name}": (spoil, f"trial_0001/{L}") for name, spoil in {
        "41": value(L, 1, 41), "0": value(L, 0, 0), "floats": content(L, lambda array: array / 2), "few": content(L, lambda array: array[:2]),
        "in a square": content(L, lambda array: array.reshape(20, 25)), "padding": value(L, 499, 3), "too many": in_file(too_many_labels),
        "never written": declared(L), "endless": declared(L, (HUGE,), chunks=(10,)), "a type": linked(L, np.dtype("i4"))}.items()},
    "trial is a link": (linked("", h5py.SoftLink("/trial_0000")), "trial_0001"),
    **{f"features are {what}": (linked(F, link), f"trial_0001/{F}") for what, link in {
        "a dangling link": h5py.SoftLink("/nowhere"), "a link to itself": h5py.SoftLink(f"/trial_0001/{F}"),
        "a link to another": h5py.SoftLink(f"/trial_0000/{F}"), "a link into a missing file": h5py.ExternalLink("nowhere.hdf5", "/"),
        "a link into another file": h5py.ExternalLink("data_val.hdf5", "/trial_0000")}.items()},
}


@contextmanager
def memory_limit(spare: int = 600 << 20) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


TRAINED = [*list(RECORDINGS)[::9], "features: a bomb", "features: NaN", "pipe"]  # the index and the reader are the same


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_faulty_recording(name: str, here: Path, refused: Callable, faulted: Callable) -> None:
    """The check lists it, the reader stops at it, and training before its first step; in little time and memory."""
    spoil, place = RECORDINGS[name]
    spoil()
    with memory_limit():
        faults = faulted()
        with pytest.raises(KitError) as stopped, Recordings("data") as recordings:
            train_on = [(recordings.labels(index), recordings.features(index)) for index in range(len(recordings))]
            trainable(recordings, BatchConfig(), Frames())
            assert not train_on, "read to the end"
        line = refused(TRAIN) if name in TRAINED else str(stopped.value)
    assert f"{FILE}: {place}" in line and any(f"{FILE}: {place}" in fault for fault in faults), (line, faults)
    assert all(str(FILE) in fault and fault.isprintable() for fault in faults)


def test_lost_day_is_named(here: Path, refused: Callable, faulted: Callable) -> None:
    """A recording day that is a link to nothing is not passed over."""
    for target in ("nowhere", DAY.name, "/dev/null"):
        (DAY.unlink if DAY.is_symlink() else lambda: shutil.rmtree(DAY))()
        DAY.symlink_to(target)
        lines = [refused(TRAIN), refused(EVAL), *faulted()]
        assert len(lines) == 3 and all(f"{DAY}: is " in line for line in lines)


def test_one_line_per_kind_of_fault(here: Path, faulted: Callable) -> None:
    """Three faults of a kind in a file are written out, and how many more there are."""
    with h5py.File(FILE, "r+") as file:
        for number in range(4, 300):
            file.copy("trial_0000", f"trial_{number:04d}")
            file[f"trial_{number:04d}"].attrs["trial_num"] = number
            file[f"trial_{number:04d}/input_features"][number % 30, 5] = np.nan
        file["trial_0299/seq_class_ids"][0] = 41
    lines = faulted()
    assert len(lines) == 5 and all(str(FILE) in line for line in lines), lines
    assert sum("nan at bin" in line for line in lines[:3]) == 3 and "trial_0299/seq_class_ids: id 41" in lines[3]
    assert lines[4].startswith("293 more like this in ") and "nan at bin" in lines[4]


def test_a_silent_electrode_is_said_once_a_command(here: Path, capsys: pytest.CaptureFixture) -> None:
    for path in Path("data").rglob("*.hdf5"):
        with h5py.File(path, "r+") as file:
            for trial in file.values():
                trial[F][:, 3] = 0.0
    for words in (train("--eval-every 1"), "eval --runs new run --data data"):
        capsys.readouterr()
        assert main([*words.split()]) == 0
        assert "".join(capsys.readouterr()).count("never change") == 1, words


ONLY_LISTED: dict[str, tuple[Spoil, str]] = {  # what training does not read
    "no transcription": (in_file(lambda trial, _: trial.__delitem__("transcription")), "trial_0001/transcription"),
    "another transcription": (value("transcription", 0, ord("%")), "trial_0001/transcription"),
    "empty sentence": (attribute("sentence_label", ""), "trial_0001/sentence_label"),
    "the same in all bins": (content(F, np.ones_like), f"trial_0001/{F}"),
    "in two splits": (lambda: shutil.copy(FILE, FILE.with_name("data_test.hdf5")), "data_train.hdf5"),
    "session without files": (lambda: (DAY.parent / "t15.2023.09.01").mkdir(), "t15.2023.09.01: session folder"),
    "unfinished file": (lambda: FILE.with_name(f".{FILE.name}.partial").touch(), f"{FILE}: an unfinished file"),
}


@pytest.mark.parametrize("name", ONLY_LISTED)
def test_validate_lists_what_training_may_pass_over(name: str, here: Path, faulted: Callable) -> None:
    spoil, named = ONLY_LISTED[name]
    spoil()
    assert any(named in fault for fault in faulted())


# What is asked for cannot be had: one line that names it, before anything is written

def text(path: str, new: str | bytes) -> Spoil:
    return lambda: Path(path).write_bytes(new.encode() if isinstance(new, str) else new)


def shorten() -> None:
    with h5py.File(DAY / "data_val.hdf5", "r+") as file:
        trial = file["trial_0000"]
        trial["input_features"] = taken(trial)[:10]
        trial["seq_class_ids"][1:] = 0
        trial.attrs.update(n_time_steps=10, seq_len=1)


def spoil_val() -> None:
    with h5py.File(DAY / "data_val.hdf5", "r+") as file:
        file["trial_0000/input_features"][3, 4] = np.nan


def without(split: str) -> Spoil:
    return lambda: [path.unlink() for path in Path("data").rglob(f"data_{split}.hdf5")]


SIMULATE, TABLE = "simulate --out sim --sessions 1 --trials 3", "session,block_num,trial_num,sentence_label,phonemes\n"
REQUESTS: dict[str, tuple[str, str, Spoil | None]] = {
    "train: file for a folder": ("train --data list.txt --out new", "list.txt", text("list.txt", "")),
    "train: no recordings": ("train --data empty --out new", "empty", lambda: Path("empty").mkdir()),
    "train: two recordings": ("train --data . --out new", "other/hdf5_data_final", lambda: shutil.copytree("data", "other")),
    "train: nothing to find": ("train --out new", "no recordings", lambda: shutil.rmtree("data")),
    "train: no validation split": (TRAIN, "data_val.hdf5", without("val")),
    "train: short validation trial": (TRAIN, f"{DAY}/data_val.hdf5: trial_0000", shorten),
    "train: all held out": (train(f"--holdout {' '.join(SESSIONS)}"), "holdout", None),
    "train: out in a file": (train(out="list.txt/run"), "list.txt", text("list.txt", "")),
    "train: exists": (train(out="run"), "run: holds a run already", None),
    "train: a later seed exists": (train("--seeds 1 2"), "new/seed_2", lambda: shutil.copytree("run", "new/seed_2")),
    "train: no torch_xla": (train("--device xla"), "device xla", None),
    "resume: nothing": (train("--resume"), "new", None),
    "resume: other settings": (train("--resume --lr 0.5", "run"), "train.lr", None),
    "resume: other data": (RESUME, "data.train", lambda: FILE.unlink()),
    "resume: metrics cut": (train("--resume --steps 3", "run"), "run/metrics.jsonl", text("run/metrics.jsonl", "{\n{}\n{}\n")),
    "resume: resume.json of others": (RESUME, "run/resume.json", text("run/resume.json", '{"data_path": "x"}')),
    "resume: all checkpoints cut": (RESUME, "run: every checkpoint is damaged", lambda: [
        os.truncate(path, 200) for path in Path("run").rglob("model.safetensors")]),
    "eval: a run twice": ("eval --runs run ./run --data data", "runs: 'run ./run'", None),
    "eval: no run": ("eval --run nowhere --data data", "nowhere", None),
    "eval: not a run": ("eval --run data --data data", "data: is not a run folder", None),
    "eval: another task": (EVAL, "'toy'", text("run/config.json", '{"task": {"name": "toy"}}')),
    "eval: no checkpoint": (EVAL, "run: has no intact checkpoint", lambda: shutil.rmtree("run/checkpoints")),
    "eval: no such baseline": ("eval --run base --data data", "base/best_checkpoint", lambda: (
        Path("base").mkdir(), Path("base/best_checkpoint").write_text("no weights"))),
    "eval: split that is not there": (EVAL, "data_val.hdf5", without("val")),
    "eval: NaN": (EVAL, f"{DAY}/data_val.hdf5: trial_0000/input_features: nan", spoil_val),
    "eval: JSON is a pipe": (f"{EVAL} --json pipe", "pipe", lambda: os.mkfifo("pipe")),
    "eval: file in the way": (EVAL, "run/eval", text("run/eval", "")),
    "decode: tune for pooled lists": ("decode --runs run other --data data --tune", "tune: is for one decoder", None),
    "submit: the average of one run": ("submit --run run --data data --combine average --out s.csv", "combine: ", None),
    "simulate: not empty": (SIMULATE.replace("sim ", "data "), "data: is not empty", None),
    "simulate: too much for any disk": ("simulate --out sim --sessions 1000 --trials 10000", "sim: about", None),
    "simulate: trial twice": (f"{SIMULATE} --labels t.csv", "t.csv: line 3: ", text("t.csv", TABLE + 2 * "t15.2023.08.11,1,0,Hello.,HH AH L OW |\n")),
    "simulate: nothing to say": (f"{SIMULATE} --labels t.txt", "t.txt", text("t.txt", "...\n\n!!\n")),
    "fetch: no Kaggle client": ("fetch --out new --source kaggle", "pip install kagglehub", None),
    "fetch: token of two words": ("fetch --out new --token-file t.txt", "t.txt", text("t.txt", "my token\n")),
    "fetch: nobody answers": ("fetch --out new", "no answer", None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_refused(name: str, here: Path, refused: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be done is said in one line that names it."""
    words, named, spoil = REQUESTS[name]
    monkeypatch.setitem(sys.modules, "kagglehub", None)  # not installed
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the port where nobody answers
    if spoil:
        spoil()
    assert named in refused(words)


def test_program_has_the_same_status(here: Path) -> None:
    """The same as a separate process, with the streams that a shell sees; and a result that cannot be printed is no success."""
    with open("/dev/full", "w") as full:
        done = start("-m", "b2t_kit.cli", "validate", "data", stdout=full)
        assert done.communicate()[1] == "error: cannot write: No space left on device\n" and done.returncode == 2
    os.truncate(FILE, 3000)
    (here / "data/hdf5_data_final" / os.fsdecode(b"t15.\xff")).mkdir()  # printed in a terminal that knows ASCII
    done = python("-m", "b2t_kit.cli", "validate", "data", status=1, PYTHONIOENCODING="ascii")
    assert done.stderr == "" and f"{FILE}: is damaged" in done.stdout and "t15.\\udcff: session folder holds no" in done.stdout


STOPS = {  # verbs that test_bad_machine.py and test_stopped.py do not stop: a signal, and seconds after which it comes
    "validate more": (signal.SIGTERM, 0.2), "demo --out demo": (signal.SIGINT, 4)}


@pytest.mark.parametrize("words", STOPS)
def test_signal_ends_a_verb(words: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A signal gives one line and its status; nothing half-written is left."""
    if "more" in words:
        tiny_recordings(here / "more", sessions=10, trials=40)
    (number, seconds), before = STOPS[words], tree()
    assert interrupted(words, number, seconds) == 128 + number
    name, said = "" if number == signal.SIGINT else f" by {number.name}", capsys.readouterr().err
    assert f"interrupted{name}" in said.splitlines() and "Traceback" not in said, said
    assert not [name for name in tree().keys() - before.keys() if name.endswith((".partial", ".tmp"))]


@pytest.mark.parametrize("words", ["validate data", TRAIN, "decode --run run --data data"])
def test_no_control_character_of_a_session_reaches_the_terminal(words: str, here: Path, capfd: pytest.CaptureFixture) -> None:
    """Neither on standard output nor in an error, whether the recordings are accepted or not."""
    new = DAY.with_name("t15.\x1b[2J\u202e.02")
    DAY.rename(new)
    for path in new.iterdir():
        with h5py.File(path, "r+") as file:
            for group in file.values():
                group.attrs["session"] = new.name
    assert main(words.split()) in (0, 1, 2)
    said, errors = capfd.readouterr()
    assert not {"\x1b", "\u202e"} & set(said + errors) and "Traceback" not in errors
