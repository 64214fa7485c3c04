"""Bad inputs on the command line: one line that names what is wrong, and nothing half-written.

Each test works in its own folder with `data`, a folder of recordings, and `run`, a finished run.
It damages something, calls `b2t` there, and checks that the folder did not change.
"""
import functools
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from collections.abc import Callable, Iterator

import h5py
import numpy as np
import psutil
import pytest

from b2t_kit import __version__
from b2t_kit.cli import main
from b2t_kit.data.convert import tiny_recordings

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = ("t15.2023.08.01", "t15.2023.08.02")
DAY = Path("data/hdf5_data_final") / SESSIONS[1]
FILE = DAY / "data_train.hdf5"
TRIAL = f"{FILE}: trial_0001"
SMALL = {"--hidden": 8, "--steps": 2, "--batch-size": 8, "--buckets": 1, "--eval-every": 0, "--device": "cpu"}
EVAL = "eval --run run --data data"
Spoil = Callable[[], object]


def train(words: str = "", out: str = "new") -> str:
    """The command that trains a small decoder, with changed settings."""
    small = " ".join(f"{name} {value}" for name, value in SMALL.items() if f"{name} " not in f"{words} ")
    return f"train --data data --out {out} {small} {words}"


TRAIN, RESUME = train(), train("--resume", "run")


def tree(folder: Path) -> dict[str, int]:
    """Every file, folder and link below a folder, with its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else str(path.lstat().st_mode).encode()
        found[str(path.relative_to(folder))] = hash(content)
    return found


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of two short days, and a run that was trained with them."""
    folder = tmp_path_factory.mktemp("good")
    tiny_recordings(folder / "data", sessions=2, trials=4, max_bins=60)
    places = {"data": folder / "data", "new": folder / "run"}
    assert main([str(places.get(word, word)) for word in TRAIN.split()]) == 0
    return folder


def refused(words: str, here: Path, capsys: pytest.CaptureFixture) -> str:
    """The error line of a command that must fail and change nothing."""
    before = tree(here)
    capsys.readouterr()
    status = main(shlex.split(words))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:7] for line in lines] == ["error: "], lines
    assert status == 2
    after = tree(here)
    assert dict.fromkeys(after.keys() - before.keys(), "new") == {}
    assert {name: "changed" for name in before if after.get(name) != before[name]} == {}
    return lines[0]


def faulted(words: str, here: Path, capsys: pytest.CaptureFixture) -> list[str]:
    """The faults that `b2t validate` lists."""
    before = tree(here)
    capsys.readouterr()
    status = main(shlex.split(words))
    said = capsys.readouterr()
    assert (status, said.err) == (1, "") and tree(here) == before
    *faults, total = [line for line in said.out.splitlines() if not line.startswith("warning: ")]
    count = sum(int(line.split()[0]) if " more like this: " in line else 1 for line in faults)
    assert total.endswith(f": {count} fault{'s' if count > 1 else ''}")
    return faults


# Recordings: what is done to a file of the second day, what training says of it, and what `validate` lists

def in_file(change: Callable[[h5py.Group, h5py.File], object], path: Path = FILE) -> Spoil:
    """Change the second trial of a file."""
    def spoil() -> None:
        with h5py.File(path, "r+") as file:
            change(file["trial_0001"], file)
    return spoil


def attribute(name: str, value: object) -> Spoil:
    """Give an attribute of the trial another value."""
    return in_file(lambda trial, _: trial.attrs.__setitem__(name, value))


def without_attribute(name: str) -> Spoil:
    """Drop an attribute of the trial."""
    return in_file(lambda trial, _: trial.attrs.__delitem__(name))


def without(name: str) -> Spoil:
    """Drop a dataset of the trial."""
    return in_file(lambda trial, _: trial.__delitem__(name))


def dataset(name: str, change: Callable[[np.ndarray], np.ndarray], **options: object) -> Spoil:
    """Replace a dataset."""
    def replace(trial: h5py.Group, _: h5py.File) -> None:
        content = change(trial[name][:])
        del trial[name]
        trial.create_dataset(name, data=content, **options)
    return in_file(replace)


def with_value(place: object, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """An array with one value changed."""
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array
    return change


def too_many_labels(trial: h5py.Group, _: h5py.File) -> None:
    """200 labels for at most 60 bins."""
    trial["seq_class_ids"][:200] = np.tile([1, 2], 100)
    trial.attrs["seq_len"] = 200


def empty_day() -> None:
    """A file without any trial."""
    h5py.File(FILE, "w").close()


def folder_for_file() -> None:
    """A folder that has the name of a file."""
    FILE.unlink()
    FILE.mkdir()


def twice(trial: h5py.Group, file: h5py.File) -> None:
    """The same block and trial number as another group's."""
    trial.attrs.update({name: file["trial_0000"].attrs[name] for name in ("block_num", "trial_num")})


def scrambled(trial: h5py.Group, file: h5py.File) -> None:
    """Compressed features with some bytes overwritten on the disk."""
    features = trial["input_features"][:]
    del trial["input_features"]
    packed = trial.create_dataset("input_features", data=features, chunks=features.shape, compression="gzip")
    file.flush()
    place = packed.id.get_chunk_info(0)
    file.close()
    with open(FILE, "r+b") as raw:
        raw.seek(place.byte_offset + 100)
        raw.write(bytes(200))


def elsewhere(trial: h5py.Group, file: h5py.File) -> None:
    """Features that are a link into another file."""
    file.move("trial_0001/input_features", "trial_0001/moved")
    trial["input_features"] = h5py.ExternalLink("data_val.hdf5", "/trial_0000/input_features")
    del trial["moved"]


RECORDINGS: dict[str, tuple[Spoil, str, str]] = {
    "truncated": (lambda: os.truncate(FILE, 3000), f"{FILE}: is damaged", f"{FILE}: is damaged"),
    "one byte short": (lambda: os.truncate(FILE, FILE.stat().st_size - 1), f"{FILE}: is damaged",
                       f"{FILE}: is damaged"),
    "not HDF5": (lambda: FILE.write_text("trial,label\n1,2\n"), f"{FILE}: is damaged or not an HDF5 file",
                 f"{FILE}: is damaged or not an HDF5 file"),
    "empty file": (lambda: os.truncate(FILE, 0), f"{FILE}: is damaged", f"{FILE}: is damaged"),
    "folder for a file": (folder_for_file, f"{FILE}: is a folder", f"{FILE}: is a folder"),
    "empty day": (empty_day, f"{FILE}: holds no trials", f"{FILE}: holds no trials"),
    "group missing": (in_file(lambda _, file: file.__delitem__("trial_0001")), f"{TRIAL}: group is missing",
                      f"{TRIAL}: group is missing"),
    "foreign group": (in_file(lambda _, file: file.create_group("notes")), "notes", "group is missing, although there is notes"),
    "group is a dataset": (in_file(lambda _, file: (file.__delitem__("trial_0001"),
                                                    file.create_dataset("trial_0001", data=1))),
                           TRIAL, f"{TRIAL}: is not a group"),
    "no features": (without("input_features"), f"{TRIAL}/input_features", f"{TRIAL}/input_features: dataset is"),
    "no labels": (without("seq_class_ids"), f"{TRIAL}/seq_class_ids", f"{TRIAL}/seq_class_ids: dataset is"),
    **{f"no {name}": (without_attribute(name), f"{TRIAL}/{name}: attribute is missing",
                      f"{TRIAL}/{name}: attribute is missing")
       for name in ("n_time_steps", "seq_len", "session", "block_num", "trial_num", "sentence_label")},
    "text for a length": (attribute("n_time_steps", "long"), f"{TRIAL}/n_time_steps", f"{TRIAL}/n_time_steps"),
    "wrong length": (attribute("n_time_steps", 61), f"{TRIAL}/input_features", f"{TRIAL}/input_features: has shape"),
    "negative length": (attribute("n_time_steps", -5), f"{TRIAL}/n_time_steps: is -5",
                        f"{TRIAL}/n_time_steps: is -5"),
    "no labels counted": (attribute("seq_len", 0), f"{TRIAL}/seq_len: is 0", f"{TRIAL}/seq_len: is 0"),
    "501 labels counted": (attribute("seq_len", 501), f"{TRIAL}/seq_len: is 501", f"{TRIAL}/seq_len: is 501"),
    "another session's": (attribute("session", SESSIONS[0]), f"{TRIAL}/session: is '{SESSIONS[0]}'",
                          f"{TRIAL}/session: is '{SESSIONS[0]}'"),
    "half the features": (dataset("input_features", lambda array: array[:, :256]), f"{TRIAL}/input_features",
                          f"{TRIAL}/input_features: has shape"),
    "integer features": (dataset("input_features", lambda array: array.astype(np.int16)),
                         f"{TRIAL}/input_features", f"{TRIAL}/input_features: holds int16"),
    "double precision": (dataset("input_features", lambda array: array.astype("f8")),
            f"{TRIAL}/input_features: holds float64, expected float32", f"{TRIAL}/input_features: holds float64, expected float32"),
    "half precision": (dataset("input_features", lambda array: array.astype("f2")),
            f"{TRIAL}/input_features: holds float16, expected float32", f"{TRIAL}/input_features: holds float16, expected float32"),
    "big-endian features": (dataset("input_features", lambda array: array.astype(">f4")),
            f"{TRIAL}/input_features: holds >f4, expected float32", f"{TRIAL}/input_features: holds >f4, expected float32"),
    "NaN": (dataset("input_features", with_value((7, 99), np.nan)),
            f"{TRIAL}/input_features: nan at bin 7, feature 99", f"{TRIAL}/input_features: nan at bin 7"),
    "Inf": (dataset("input_features", with_value((7, 99), -np.inf)),
            f"{TRIAL}/input_features: -inf at bin 7, feature 99", f"{TRIAL}/input_features: -inf at bin 7"),
    "scrambled": (in_file(scrambled), f"{TRIAL}/input_features: cannot be read",
                  f"{TRIAL}/input_features: cannot be read"),
    "features elsewhere": (in_file(elsewhere), f"{TRIAL}/input_features", f"{TRIAL}/input_features"),
    "label 41": (dataset("seq_class_ids", with_value(1, 41)), f"{TRIAL}/seq_class_ids",
                 f"{TRIAL}/seq_class_ids: id 41 at position 1"),
    "label 0": (dataset("seq_class_ids", with_value(0, 0)), f"{TRIAL}/seq_class_ids",
                f"{TRIAL}/seq_class_ids: id 0 at position 0"),
    "labels of floats": (dataset("seq_class_ids", lambda array: array / 2), f"{TRIAL}/seq_class_ids",
                         f"{TRIAL}/seq_class_ids: holds float64"),
    "narrow labels": (dataset("seq_class_ids", lambda array: array[:2]), f"{TRIAL}/seq_class_ids",
                      f"{TRIAL}/seq_class_ids: has shape (2,)"),
    "labels in a square": (dataset("seq_class_ids", lambda array: array.reshape(20, 25)),
                           f"{TRIAL}/seq_class_ids", f"{TRIAL}/seq_class_ids: has shape (20, 25)"),
    "padding": (dataset("seq_class_ids", with_value(499, 3)), f"{TRIAL}/seq_class_ids: is not 0 after",
                f"{TRIAL}/seq_class_ids: is not 0 after"),
    "too many labels": (in_file(too_many_labels), f"{TRIAL}/seq_class_ids", f"{TRIAL}/seq_class_ids"),
    "twice": (in_file(twice), f"{TRIAL}/trial_num: repeats trial_0000", f"{TRIAL}/trial_num: block"),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_training_names_the_fault(name: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """Training stops before its first step."""
    spoil, named, _ = RECORDINGS[name]
    spoil()
    assert named in refused(TRAIN, here, capsys)


@pytest.mark.parametrize("name", RECORDINGS)
def test_validate_lists_the_fault(name: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """The check of a folder lists the fault, and nothing about the other trials."""
    spoil, _, named = RECORDINGS[name]
    spoil()
    faults = faulted("validate data", here, capsys)
    assert any(named in fault for fault in faults)
    assert all(str(FILE) in fault for fault in faults)


# Hostile recordings: links, storage that is not in the file or was never written, and declared sizes without end

def linked(name: str, link: object) -> Spoil:
    """Put a link into the place of something in the trial, or of the trial itself ("")."""
    def replace(trial: h5py.Group, file: h5py.File) -> None:
        path = f"trial_0001/{name}".rstrip("/")
        del trial
        del file[path]
        file[path] = link
    return in_file(replace)


def instead(target: str | Path, path: Path = FILE) -> Spoil:
    """Put a symbolic link into the place of a file or folder."""
    def replace() -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(target)
    return replace


def declared(name: str, shape: tuple[int, ...], **options: object) -> Spoil:
    """Put a dataset that was never written into the place of one."""
    def replace(trial: h5py.Group, _: h5py.File) -> None:
        dtype = trial[name].dtype
        del trial[name]
        trial.create_dataset(name, shape or (trial.attrs["n_time_steps"], 512), dtype, **options)
    return in_file(replace)


def half_written(trial: h5py.Group, _: h5py.File) -> None:
    """Features of which only the first chunk was written."""
    features = trial["input_features"][:]
    del trial["input_features"]
    trial.create_dataset("input_features", features.shape, "f4", chunks=(10, 512))[:10] = features[:10]


def outside(trial: h5py.Group, _: h5py.File) -> None:
    """Features that are stored in another file."""
    features = trial["input_features"][:]
    del trial["input_features"]
    Path("secret.bin").write_bytes(features.tobytes())
    place = [(str(Path("secret.bin").absolute()), 0, features.nbytes)]
    trial.create_dataset("input_features", features.shape, "f4", external=place)


def virtual(trial: h5py.Group, file: h5py.File) -> None:
    """Features that are put together from another file, which is not there."""
    layout = h5py.VirtualLayout(trial["input_features"].shape, "f4")
    layout[:] = h5py.VirtualSource("nowhere.hdf5", "features", trial["input_features"].shape)
    del trial["input_features"]
    trial.create_virtual_dataset("input_features", layout)


@functools.cache
def packed_gigabyte() -> bytes:
    """A gigabyte of zeros, compressed."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # may be repeated
    checksum = (1 << 30) % 65521 << 16 | 1
    return b"\x78\xda" + 1024 * block + packer.flush() + checksum.to_bytes(4, "big")


def chunk_bomb(trial: h5py.Group, _: h5py.File) -> None:
    """A chunk of a few kilobytes that unpacks to a gigabyte."""
    bins = trial.attrs["n_time_steps"]
    del trial["input_features"]
    packed = trial.create_dataset("input_features", (bins, 512), "f4", chunks=(bins, 512), compression="gzip")
    packed.id.write_direct_chunk((0, 0), packed_gigabyte())


def shared(trial: h5py.Group, file: h5py.File) -> None:
    """The features of another trial, under a second name."""
    del trial["input_features"]
    trial["input_features"] = file["trial_0000/input_features"]
    trial.attrs["n_time_steps"] = len(trial["input_features"])


def broken_header(name: str) -> Spoil:
    """Overwrite the beginning of an object's header."""
    def spoil() -> None:
        with h5py.File(FILE) as file:
            address = h5py.h5o.get_info(file[f"trial_0001/{name}"].id).addr
        with open(FILE, "r+b") as raw:
            raw.seek(address)
            raw.write(b"\xff" * 16)
    return spoil


def text_attribute(name: str, value: bytes, charset: int = h5py.h5t.CSET_UTF8) -> Spoil:
    """A variable-length text of any bytes."""
    def replace(trial: h5py.Group, _: h5py.File) -> None:
        kind = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
        kind.set_cset(charset)
        del trial.attrs[name]
        made = h5py.h5a.create(trial.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
        made.write(np.array(value, dtype=object))
    return in_file(replace)


HUGE = 10**12
FEATURES, LABELS = f"{TRIAL}/input_features", f"{TRIAL}/seq_class_ids"
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "file is a link to nothing": (instead("nowhere.hdf5"), f"{FILE}: is a link to a missing file"),
    "file is a link to itself": (instead(FILE.name), f"{FILE}: is a link to a missing file"),
    "file is a pipe": (lambda: (FILE.unlink(), os.mkfifo(FILE)), f"{FILE}: is not a regular file"),
    "file is a device": (instead("/dev/zero"), f"{FILE}: is not a regular file"),
    **{f"{name or 'trial'} is {what}": (linked(name, link), f"{TRIAL}{name and '/'}{name}: is a link")
       for name in ("", "input_features", "seq_class_ids")
       for what, link in {"a dangling link": h5py.SoftLink("/nowhere"),
                          "a link to itself": h5py.SoftLink(f"/trial_0001/{name}".rstrip("/")),
                          "a link to another": h5py.SoftLink(f"/trial_0000/{name}".rstrip("/")),
                          "a link into a missing file": h5py.ExternalLink("nowhere.hdf5", "/"),
                          "a link into its own file": h5py.ExternalLink(FILE.name, "/trial_0000"),
                          "a link into another file": h5py.ExternalLink("data_val.hdf5", "/trial_0000")}.items()},
    "shared features": (in_file(shared), "/input_features: is shared"),  # either of the two trials
    "features outside": (in_file(outside), f"{FEATURES}: is stored in another file"),
    "virtual features": (in_file(virtual), f"{FEATURES}: is stored in another file"),
    "features never written": (declared("input_features", ()), f"{FEATURES}: has only 0 of"),
    "chunks never written": (declared("input_features", (), chunks=(10, 512)), f"{FEATURES}: has only 0 of"),
    "labels never written": (declared("seq_class_ids", (500,)), f"{LABELS}: has only 0 of"),
    "features half written": (in_file(half_written), f"{FEATURES}: has only 1 of"),
    "all zero": (dataset("input_features", lambda array: array * 0), f"{FEATURES}: is 0 everywhere"),
    "enormous": (dataset("input_features", with_value((7, 99), 3e38)), f"{FEATURES}: 3e+38 at bin 7, feature 99"),
    "enormous and negative": (dataset("input_features", with_value((0, 0), -2e11)), f"{FEATURES}: -2e+11 at bin 0"),
    "endless features": (declared("input_features", (HUGE, 512), chunks=(10, 512)), f"{FEATURES}: has shape ({HUGE}"),
    "wide features": (declared("input_features", (60, HUGE), chunks=(10, 512)), f"{FEATURES}: has shape (60, {HUGE}"),
    "endless labels": (declared("seq_class_ids", (HUGE,), chunks=(10,)), f"{LABELS}: has shape ({HUGE}"),
    "huge chunks": (declared("input_features", (), chunks=(1 << 20, 512), maxshape=(None, 512)),
                    f"{FEATURES}: has 1 chunks of"),
    "a chunk that unpacks to a gigabyte": (in_file(chunk_bomb), f"{FEATURES}: unpacks to more than"),
    "labels of another kind": (linked("seq_class_ids", np.dtype("i4")), f"{LABELS}: dataset is missing"),
    "endless trial": (attribute("n_time_steps", HUGE), f"{TRIAL}/n_time_steps: is {HUGE}, more than"),
    "endless labels counted": (attribute("seq_len", HUGE), f"{TRIAL}/seq_len: is {HUGE}"),
    "negative block": (attribute("block_num", -1), f"{TRIAL}/block_num: is -1"),
    "enormous trial number": (attribute("trial_num", HUGE), f"{TRIAL}/trial_num: is {HUGE}"),
    "true for a length": (attribute("n_time_steps", True), f"{TRIAL}/n_time_steps: attribute is not a single int"),
    "an array for a length": (attribute("n_time_steps", np.zeros(5000)), f"{TRIAL}/n_time_steps: attribute is not"),
    "nothing for a length": (attribute("n_time_steps", h5py.Empty("i4")), f"{TRIAL}/n_time_steps: attribute is not"),
    "sentence not UTF-8": (text_attribute("sentence_label", b"a\xff"), f"{TRIAL}/sentence_label: has the character"),
    "sentence not ASCII": (text_attribute("sentence_label", b"a\xff", h5py.h5t.CSET_ASCII),
                           f"{TRIAL}/sentence_label: has the character"),
    "sentence without end": (attribute("sentence_label", "a" * 50_000), f"{TRIAL}/sentence_label: has 50000"),
    "sentence with an escape": (attribute("sentence_label", "a\x1b[2Jb"), f"{TRIAL}/sentence_label: has the character"),
    "foreign name with an escape": (in_file(lambda _, file: file.create_group("a\x1b\n[2J")), "a\\x1b\\n[2J"),
    "foreign name not UTF-8": (in_file(lambda _, file: h5py.h5g.create(file.id, b"a\xff")), "a\\udcff"),
    **{f"broken header of {name or 'trial'}": (broken_header(name), f"{TRIAL}{name and '/'}{name}: cannot be read")
       for name in ("", "input_features", "seq_class_ids")},
    "far trial": (in_file(lambda _, file: file.create_group("trial_9999999999")), "trial_9999999999"),
    "a thousand missing": (in_file(lambda _, file: file.move("trial_0003", "trial_9999")),
                           f"{FILE}: trial_0003: group is missing"),
}


@pytest.mark.parametrize("verb", ["train", "validate"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_recording_is_refused(name: str, verb: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """Training and the check say the same of it, in little time and memory."""
    spoil, named = HOSTILE[name]
    spoil()
    with memory_limit():
        lines = [refused(TRAIN, here, capsys)] if verb == "train" else faulted("validate data", here, capsys)
    assert any(named in line for line in lines) and len(lines) < 120
    assert all(str(FILE) in line and line.isprintable() for line in lines)


@contextmanager
def memory_limit(spare: int = 600 << 20) -> Iterator[None]:
    """Let this process take only so many bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("target", ["nowhere", DAY.name, "/dev/null"], ids=["dangling", "loop", "device"])
@pytest.mark.parametrize("words", [TRAIN, EVAL, "validate data"], ids=lambda words: words.split()[0])
def test_lost_day_is_named(words: str, target: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A recording day that is a link to nothing is not passed over."""
    instead(target, DAY)()
    if words.startswith("validate"):
        line, = faulted(words, here, capsys)
    else:
        line = refused(words, here, capsys)
    assert f"{DAY}: is " in line


def test_one_line_per_kind_of_fault(here: Path, capsys: pytest.CaptureFixture) -> None:
    """After a hundred faults, only the first of each kind is written out."""
    with h5py.File(FILE, "r+") as file:
        for number in range(4, 300):
            file.copy("trial_0000", f"trial_{number:04d}")
            file[f"trial_{number:04d}"].attrs["trial_num"] = number
            file[f"trial_{number:04d}/input_features"][number % 30, 5] = np.nan
        file["trial_0299/seq_class_ids"][0] = 41
    assert main(["validate", "data"]) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    assert total.endswith(": 297 faults") and len(lines) == 102
    assert all(str(FILE) in line for line in lines[:101]) and "trial_0299/seq_class_ids: id 41" in lines[100]
    assert lines[101].startswith("196 more like this: ") and "input_features: nan at bin" in lines[101]


ONLY_LISTED: dict[str, tuple[Spoil, str]] = {
    "no transcription": (without("transcription"), f"{TRIAL}/transcription: dataset is missing"),
    "another transcription": (dataset("transcription", with_value(0, ord("%"))),
                              f"{TRIAL}/transcription: differs from sentence_label at position 0"),
    "empty sentence": (attribute("sentence_label", ""), f"{TRIAL}/sentence_label: is empty"),
    "the same in all bins": (dataset("input_features", np.ones_like), f"{TRIAL}/input_features: is the same in all bins"),
    "in two splits": (lambda: shutil.copy(FILE, FILE.with_name("data_test.hdf5")), "occurs also as data_train"),
    "session without files": (lambda: (DAY.parent / "t15.2023.09.01").mkdir(), "t15.2023.09.01: session folder"),
    "unfinished file": (lambda: FILE.with_name(f".{FILE.name}.partial").touch(), f"{FILE}: an unfinished file"),
}


@pytest.mark.parametrize("name", ONLY_LISTED)
def test_validate_lists_what_training_may_pass_over(
    name: str, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """Faults that training does not read."""
    spoil, named = ONLY_LISTED[name]
    spoil()
    assert any(named in fault for fault in faulted("validate data", here, capsys))


# Words: what is asked for cannot be had

def text(path: str, content: str | bytes) -> Spoil:
    """Write a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(path).write_bytes(data)


def moved(source: str, target: str) -> Spoil:
    """Move a file or a folder."""
    return lambda: shutil.move(source, target)


FOLDERS: dict[str, tuple[str, str, Spoil | None]] = {
    "no folder": ("train --data nowhere --out new", "nowhere", None),
    "file for a folder": ("train --data list.txt --out new", "list.txt", text("list.txt", "")),
    "no recordings": ("train --data empty --out new", "empty", lambda: Path("empty").mkdir()),
    "single session": (f"train --data {DAY} --out new", f"{DAY}: is a single session", None),
    "two recordings": ("train --data . --out new", "other/hdf5_data_final",
                       lambda: shutil.copytree("data", "other")),
    "nothing to find": ("train --out new", "no recordings", lambda: shutil.rmtree("data")),
    "validate nothing": ("validate nowhere", "nowhere", None),
    "validate a file": ("validate list.txt", "list.txt", text("list.txt", "")),
    "no validation split": (TRAIN, "data_val.hdf5",
                            lambda: [path.unlink() for path in Path("data").rglob("data_val.hdf5")]),
    "no training split": (TRAIN, "data_train.hdf5",
                          lambda: [path.unlink() for path in Path("data").rglob("data_train.hdf5")]),
    "short validation trial": (TRAIN, f"{DAY}/data_val.hdf5: trial_0000",
                               lambda: shorten(DAY / "data_val.hdf5")),
}


def shorten(path: Path) -> None:
    """Leave ten bins and one label of a file's first trial."""
    with h5py.File(path, "r+") as file:
        trial = file["trial_0000"]
        features = trial["input_features"][:10]
        del trial["input_features"]
        trial["input_features"] = features
        trial["seq_class_ids"][1:] = 0
        trial.attrs.update(n_time_steps=10, seq_len=1)


SETTINGS = {
    "unknown": ("--lurning-rate 3", "lurning-rate"),
    "abbreviated": ("--step 3", "--step"),
    "not a number": ("--lr fast", "--lr: 'fast' is not a number"),
    "not whole": ("--steps 2.5", "--steps: '2.5' is not a whole number"),
    "not finite": ("--lr nan", "--lr: 'nan' is not a number"),
    "infinite": ("--clip-norm inf", "--clip-norm: 'inf' is not a number"),
    "no value": ("--lr", "--lr"),
    "twice": ("--hidden 8 --task.model.hidden 16", "--hidden: is given twice"),
    "not a choice": ("--padding full", "'full' for argument '--padding'"),
    "unknown recipe": ("--config huge", "'huge'"),
    "line break": ("--config 'a\nb'", "a b"),
    "no steps": ("--steps 0", "steps: must be"),
    "negative hours": ("--hours -1", "hours: must be"),
    "negative rate": ("--lr -0.1", "lr: must be"),
    "average of 1": ("--ema-decay 1", "ema_decay: 1"),
    "one beta": ("--betas 0.9", "betas"),
    "no clipping": ("--clip-norm 0", "--clip-norm: must be"),
    "log never": ("--log-every 0", "--log-every: must be"),
    "no accumulation": ("--accumulation 0", "accumulation: must be"),
    "accumulation beyond the batch": ("--accumulation 9", "batch_size"),
    "empty batches": ("--batch-size 0", "--batch-size"),
    "negative batches": ("--batch-size -4", "--batch-size"),
    "no buckets": ("--buckets 0", "buckets"),
    "seven buckets": ("--buckets 7", "buckets"),
    "day balance": ("--day-balance 1.5", "--day-balance"),
    "negative cut": ("--cut -1", "cut"),
    "negative prefetch": ("--prefetch -1", "prefetch"),
    "enormous prefetch": ("--prefetch 1000000000", "prefetch"),
    "enormous batch": ("--batch-size 1000000000", "--batch-size"),
    "enormous smoothing": ("--smooth 1e9", "smooth"),
    "a rate that is zero": ("--lr 1e-400", "lr"),
    "a rate of minus zero": ("--lr -0", "lr"),
    "fewer than no readers": ("--readers -1", "readers"),
    "no trial short enough": ("--max-bins 5", "max_bins"),
    "negative dropout": ("--dropout -0.1", "dropout: -0.1"),
    "too much dropout": ("--day-dropout 1.5", "--day-dropout: 1.5"),
    "no units": ("--hidden 0", "hidden: 0"),
    "negative layers": ("--num-layers -1", "--num-layers: -1"),
    "no patch": ("--task.model.patch 0", "patch: 0"),
    "no stride": ("--task.model.stride 0", "stride: 0"),
    "patch beyond the trials": ("--task.model.patch 500", "data_val.hdf5: trial_0000/n_time_steps"),
    "256 features": ("--num-features 256", "num_features"),
    "40 classes": ("--num-classes 40", "num_classes"),
    "negative noise": ("--white-noise -1", "--white-noise"),
    "negative smoothing": ("--smooth -2", "smooth"),
    "negative day rate": ("--day-lr -1", "--day-lr"),
    "unknown session held out": ("--holdout t15.1999.01.01", "t15.1999.01.01"),
    "all held out": (f"--holdout {' '.join(SESSIONS)}", "holdout"),
    "no seed": ("--seed x", "--seed: 'x' is not a whole number"),
    "words for seeds": ("--seeds 1 two", "--seeds: "),
    "seed twice": ("--seeds 1 1", "seeds: 1 1"),
    "empty seeds": ("--seeds ''", "seeds"),
    "side by side without seeds": ("--side-by-side", "side-by-side: needs --seeds"),
    "seed twice side by side": ("--seeds 1 1 --side-by-side", "seeds: 1 1"),
    "side by side without GPUs": ("--seeds 1 2 --side-by-side --device cuda", "device cuda"),
    "processes of our own": ("--processes 2", "torchrun"),
    "unknown device": ("--device abacus", "'abacus'"),
    "no GPU": ("--device cuda", "device cuda"),
    "no torch_xla": ("--device xla", "device xla"),
    "float16 on a CPU": ("--precision float16", "float16"),
    "unknown precision": ("--precision float8", "float8"),
    "unknown tracker": ("--tracker diary", "'diary'"),
    "tracker not installed": ("--tracker dvclive", "dvclive"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_named(name: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """An impossible setting is rejected before a run folder is made."""
    words, named = SETTINGS[name]
    assert named in refused(train(words), here, capsys)


RUNS: dict[str, tuple[str, str, Spoil | None]] = {
    "exists": (train(out="run"), "run: holds a run already", None),
    "exists, with a tracker": (train("--tracker tensorboard", "run"), "run: holds a run already", None),
    "of a later seed exists": (train("--seeds 1 2"), "new/seed_2",
                               lambda: shutil.copytree("run", "new/seed_2")),
    "seeds in a run": (train("--seeds 1 2", "run"), "run: holds a run already; choose another folder", None),
    "seeds side by side in a run": (train("--seeds 1 2 --side-by-side", "run"), "run: holds a run already; choose", None),
    "seeds side by side exist": (train("--seeds 1 2 --side-by-side"), "new/seed_2: holds a run already",
                                 lambda: shutil.copytree("run", "new/seed_2")),
    "nothing to resume": (train("--resume"), "new", None),
    "other settings": (train("--resume --lr 0.5", "run"), "train.lr", None),
    "another model": (train("--resume --hidden 9", "run"), "task.config.model.hidden", None),
    "other data": (RESUME, "data.train", lambda: FILE.unlink()),
    "resume: config.json cut short": (RESUME, "run/config.json", lambda: os.truncate("run/config.json", 100)),
    "resume: config.json a list": (RESUME, "run/config.json", text("run/config.json", "[1, 2]")),
    "resume: metrics cut": (train("--resume --steps 3", "run"), "run/metrics.jsonl",
                            lambda: Path("run/metrics.jsonl").write_text("{\n{}\n{}\n")),
    "resume: resume.json a list": (RESUME, "run/resume.json", text("run/resume.json", "[1, 2]")),
    "resume: resume.json with a number for a folder": (RESUME, "run/resume.json: cache_dir", text(
        "run/resume.json", '{"cache_dir": 5}')),
    "resume: resume.json with another's option": (RESUME, "run/resume.json", text(
        "run/resume.json", '{"data_path": "x"}')),
    "resume: all checkpoints cut short": (RESUME, "run: every checkpoint is damaged", lambda: [
        os.truncate(path, 200) for path in Path("run").rglob("model.safetensors")]),
    "resume: best is no JSON": (RESUME, "run/best", text("run/best", "2")),
    "eval: one run together": ("eval --runs run --data data", "runs: 'run'", None),
    "eval: a run twice": ("eval --runs run ./run --data data", "runs: 'run ./run'", None),
    "eval: runs and no run": ("eval --runs run nowhere --data data", "nowhere", None),
    "decode: runs and no run": ("decode --runs nowhere run --data data", "nowhere", None),
    "decode: tune for pooled lists": ("decode --runs run other --data data --combine pool --tune", "tune: is for one decoder", None),
    "decode: pooled lists of one run": ("decode --run run --data data --combine pool", "combine: needs --runs", None),
    "submit: pooled lists of one run": ("submit --run run --data data --combine pool --out s.csv", "combine: needs --runs", None),
    "eval: no run": ("eval --run nowhere --data data", "nowhere", None),
    "eval: a file": ("eval --run list.txt --data data", "list.txt", text("list.txt", "")),
    "eval: not a run": ("eval --run data --data data", "data: is not a run folder", None),
    "eval: config.json cut short": (EVAL, "run/config.json", lambda: os.truncate("run/config.json", 100)),
    "eval: config.json a list": (EVAL, "run/config.json", text("run/config.json", "[1, 2]")),
    "eval: another task": (EVAL, "'toy'", text("run/config.json", '{"task": {"name": "toy"}}')),
    "eval: config without settings": (EVAL, "run/config.json", text("run/config.json", '{"task": {"name": "speech"}}')),
    "eval: unknown setting": (EVAL, "hiddden", lambda: Path("run/config.json").write_text(
        Path("run/config.json").read_text().replace('"hidden"', '"hiddden"'))),
    "eval: settings that do not fit": (EVAL, "checkpoints", lambda: Path("run/config.json").write_text(
        Path("run/config.json").read_text().replace('"hidden": 8', '"hidden": 9'))),
    "eval: no checkpoint": (EVAL, "run: holds no sound checkpoint", lambda: shutil.rmtree("run/checkpoints")),
    "eval: checkpoints cut short": (EVAL, "run: holds no sound checkpoint", lambda: [
        os.truncate(path, 200) for path in Path("run").rglob("*.safetensors")]),
    "eval: best is no JSON": (EVAL, "run/best", text("run/best", "step 2")),
    "eval: best is something else": (EVAL, "run/best", text("run/best", '{"step": "two"}')),
    "eval: no such baseline": ("eval --run base --data data", "base/best_checkpoint", lambda: (
        Path("base").mkdir(), Path("base/best_checkpoint").write_text("no weights"))),
    "eval: unknown split": (f"{EVAL} --split dev", "'dev'", None),
    "eval: split without labels": (f"{EVAL} --split test", "test", None),
    "eval: split that is not there": (EVAL, "data_val.hdf5", lambda: [
        path.unlink() for path in Path("data").rglob("data_val.hdf5")]),
    "eval: NaN": (EVAL, f"{DAY}/data_val.hdf5: trial_0000/input_features: nan", lambda: spoil_val()),
    "eval: NaN, with logits": (f"{EVAL} --logits", f"{DAY}/data_val.hdf5: trial_0000/input_features: nan",
                               lambda: spoil_val()),
    "eval: session without a date": (f"{EVAL} --unseen nearest", "'monday'", lambda: rename_session("monday")),
    "eval: unknown device": (f"{EVAL} --device abacus", "'abacus'", None),
    "eval: no GPU": (f"{EVAL} --device cuda", "device cuda", None),
    "eval: float16 on a CPU": (f"{EVAL} --device cpu --precision float16", "float16", None),
    "eval: unknown day layer": (f"{EVAL} --unseen newest", "newest", None),
    "eval: JSON into a file": (f"{EVAL} --json list.txt/per.json", "list.txt", text("list.txt", "")),
    "eval: JSON is a folder": (f"{EVAL} --json data", "data", None),
    "eval: JSON is a pipe": (f"{EVAL} --json pipe", "pipe", lambda: os.mkfifo("pipe")),
    "eval: file in the way": (EVAL, "run/eval", text("run/eval", "")),
}


def spoil_val() -> None:
    """A NaN in a validation trial."""
    with h5py.File(DAY / "data_val.hdf5", "r+") as file:
        file["trial_0000/input_features"][3, 4] = np.nan


def rename_session(name: str) -> None:
    """Give the second day another name, in folder and files."""
    for path in DAY.glob("*.hdf5"):
        with h5py.File(path, "r+") as file:
            for trial in file.values():
                trial.attrs["session"] = name
    DAY.rename(DAY.with_name(name))


SIMULATE = "simulate --out sim --sessions 1 --trials 3"
TABLE = "session,block_num,trial_num,sentence_label,phonemes\n"
ROW = "t15.2023.08.11,1,0,Hello.,HH AH L OW |\n"

OTHERS: dict[str, tuple[str, str, Spoil | None]] = {
    "unknown verb": ("trian", "'trian'", None),
    "unknown option": ("--loud", "--loud", None),
    "train: no out": ("train --data data", "--out", None),
    "train: out is a file": (train(out="list.txt"), "list.txt", text("list.txt", "")),
    "train: out in a file": (train(out="list.txt/run"), "list.txt", text("list.txt", "")),
    "train: out in a file, resumed": (train("--resume", "list.txt/run"), "list.txt", text("list.txt", "")),
    "simulate: no sessions": ("simulate --out sim --sessions 0", "sessions", None),
    "simulate: negative trials": ("simulate --out sim --trials -5", "trials", None),
    "simulate: negative seed": (f"{SIMULATE} --seed -1", "seed", None),
    "simulate: difficulty": (f"{SIMULATE} --difficulty -1", "difficulty", None),
    "simulate: too fast": (f"{SIMULATE} --bins-per-phoneme 2", "--bins-per-phoneme", None),
    "simulate: held out": (f"{SIMULATE} --held-out 3", "--held-out", None),
    "simulate: normalisation": (f"{SIMULATE} --normalise never", "'never'", None),
    "simulate: unknown setting": (f"{SIMULATE} --speakers 2", "--speakers", None),
    "simulate: not empty": (SIMULATE.replace("sim ", "data "), "data: is not empty", None),
    "simulate: out is a file": (SIMULATE.replace("sim ", "list.txt "), "list.txt", text("list.txt", "")),
    "simulate: out in a file": (SIMULATE.replace("sim ", "list.txt/sim "), "list.txt", text("list.txt", "")),
    "simulate: too much for any disk": ("simulate --out sim --sessions 1000 --trials 10000", "sim: about", None),
    "simulate: beyond the calendar": ("simulate --out sim --sessions 999999999 --trials 1", "sessions", None),
    "simulate: no labels file": (f"{SIMULATE} --labels no.csv", "no.csv", None),
    "simulate: labels are a folder": (f"{SIMULATE} --labels data", "data", None),
    "simulate: labels empty": (f"{SIMULATE} --labels t.csv", "t.csv", text("t.csv", "")),
    "simulate: labels only a header": (f"{SIMULATE} --labels t.csv", "t.csv: holds no sentence", text("t.csv", TABLE)),
    "simulate: labels not UTF-8": (f"{SIMULATE} --labels t.csv", "t.csv", text("t.csv", b"sentence\n\xff\xfe\n")),
    "simulate: no sentence column": (f"{SIMULATE} --labels t.csv", "'sentence'", text("t.csv", "a,b\n1,2\n")),
    "simulate: no trial column": (f"{SIMULATE} --labels t.csv", "'trial_num'",
                                  text("t.csv", "session,block_num,sentence\nt15.2023.08.11,1,Hello.\n")),
    "simulate: unknown phoneme": (f"{SIMULATE} --labels t.csv", "t.csv: line 2: ",
                                  text("t.csv", TABLE + ROW.replace("OW", "QQ"))),
    "simulate: session without a date": (f"{SIMULATE} --labels t.csv", "'monday'",
                                         text("t.csv", TABLE + ROW.replace("t15.2023.08.11", "monday"))),
    "simulate: impossible date": (f"{SIMULATE} --labels t.csv", "t15.2023.13.99",
                                  text("t.csv", TABLE + ROW.replace("t15.2023.08.11", "t15.2023.13.99"))),
    "simulate: block in words": (f"{SIMULATE} --labels t.csv", "t.csv: line 2: ",
                                 text("t.csv", TABLE + ROW.replace(",1,", ",one,"))),
    "simulate: trial twice": (f"{SIMULATE} --labels t.csv", "t.csv: line 3: ", text("t.csv", TABLE + ROW + ROW)),
    "simulate: short row": (f"{SIMULATE} --labels t.csv", "t.csv: line 3: ", text("t.csv", TABLE + ROW + "t15\n")),
    "simulate: more than 500 labels": (f"{SIMULATE} --labels t.csv", "t.csv: line 2: ",
                                       text("t.csv", TABLE + ROW.replace("HH", "HH " * 600))),
    "simulate: more sessions than the table": (f"{SIMULATE.replace('1', '2', 1)} --labels t.csv", "t.csv",
                                               text("t.csv", TABLE + ROW)),
    "simulate: nothing to say": (f"{SIMULATE} --labels t.txt", "t.txt", text("t.txt", "...\n\n!!\n")),
    "demo: not empty": ("demo --out data", "data: is not empty", None),
    "demo: out is a file": ("demo --out list.txt", "list.txt", text("list.txt", "")),
    "demo: seed in words": ("demo --out new --seed one", "--seed", None),
    "demo: negative seed": ("demo --out new --seed -1", "seed", None),
    "fetch: unknown source": ("fetch --out new --source ftp", "'ftp'", None),
    "fetch: baseline from Kaggle": ("fetch --out new --source kaggle --baseline", "baseline", None),
    "fetch: no Kaggle client": ("fetch --out new --source kaggle", "pip install kagglehub", None),
    "fetch: no token file": ("fetch --out new --token-file no.txt", "no.txt", None),
    "fetch: empty token": ("fetch --out new --token-file t.txt", "t.txt", text("t.txt", "\n")),
    "fetch: token of two words": ("fetch --out new --token-file t.txt", "t.txt", text("t.txt", "my token\n")),
    "fetch: token not ASCII": ("fetch --out new --token-file t.txt", "t.txt", text("t.txt", b"\xff\xfe")),
    "fetch: out is a file": ("fetch --out list.txt", "list.txt", text("list.txt", "")),
    "fetch: nobody answers": ("fetch --out new", "no answer", None),
}


@pytest.mark.parametrize("name, case", [*FOLDERS.items(), *RUNS.items(), *OTHERS.items()],
                         ids=[*FOLDERS, *RUNS, *OTHERS])
def test_wish_is_refused(
    name: str, case: tuple, here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impossible request is rejected at once, in one line."""
    words, named, spoil = case
    monkeypatch.setitem(sys.modules, "kagglehub", None)  # not installed
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the port where nobody answers
    if spoil:
        spoil()
    assert named in refused(words, here, capsys)


@contextmanager
def read_only(folder: Path) -> Iterator[bool]:
    """Make a read-only folder; False if the system does not permit that."""
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield True
        folder.chmod(0o755)
        return
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True)
    try:
        yield mount.returncode == 0
    finally:
        if mount.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("words", [
    train(out="locked/new"), "simulate --out locked/new --sessions 1 --trials 3", "demo --out locked/new",
    "fetch --out locked/new", f"{EVAL} --json locked/new.json",
], ids=lambda words: words.split()[0])
def test_read_only_folder_is_named(words: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """A read-only folder is reported before any work is done."""
    with read_only(here / "locked") as locked:
        if locked:
            assert "locked/new" in refused(words, here, capsys)


def test_every_process_stops(here: Path) -> None:
    """A fault found by two processes ends both, each with one line."""
    RECORDINGS["NaN"][0]()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "b2t_kit"]
    done = subprocess.run([*launcher, *train("--device cpu").split()], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"})
    assert done.returncode != 0 and f"{TRIAL}/input_features: nan at bin 7, feature 99" in done.stderr
    assert not list(Path("new").glob("checkpoints/*"))


@pytest.mark.parametrize("words, named, status", [
    (TRAIN, f"error: {FILE}: is damaged or not an HDF5 file", 2), ("validate data", f"{FILE}: is damaged", 1),
], ids=["train", "validate"])
def test_program_has_the_same_status(words: str, named: str, status: int, here: Path) -> None:
    """The same as a separate process, with the streams that a shell sees."""
    os.truncate(FILE, 3000)
    before, command = tree(here), [sys.executable, "-m", "b2t_kit.cli", *words.split()]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == status and tree(here) == before
    lines = (done.stderr if status == 2 else done.stdout).splitlines()
    assert lines[0].startswith(named) and len(lines) == 3 - status
    assert status == 2 or done.stderr == ""


def test_help_and_version(capsys: pytest.CaptureFixture) -> None:
    """Without a verb: the help, and an exit status that means failure."""
    assert main([]) == 2
    assert "validate" in capsys.readouterr().out
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"b2t_kit {__version__}\n"


# Signals, and a machine that is full: one line, and nothing half-written

LONG = {
    "train": train("--steps 1000000"),
    "simulate": "simulate --out sim --sessions 30 --trials 10",
    "validate": "validate data",
    "eval": f"{EVAL} --json new.json",
    "demo": "demo --out demo",
    "eit": "eit simulate --out tanks --count 100000",
}
STARTS = "import sys; from b2t_kit import cli; print('ready', flush=True); sys.exit(cli.main(sys.argv[1:]))"


def started(words: str, **options: object) -> subprocess.Popen:
    """A command as a process of its own, when its modules are imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen([sys.executable, "-c", STARTS, *words.split()], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    assert process.stdout.readline() == "ready\n"
    return process


STOPS = [  # each verb once: they share one mechanism, which core.ipynb tries at odd moments
    ("train", signal.SIGINT, 0.5), ("train", signal.SIGTERM, 3), ("train", signal.SIGHUP, 5),
    ("eval", signal.SIGHUP, 0.5), ("simulate", signal.SIGTERM, 1.5), ("validate", signal.SIGTERM, 0.2),
    ("demo", signal.SIGINT, 6), ("eit", signal.SIGINT, 4)]


@pytest.mark.parametrize("verb, number, seconds", STOPS, ids=lambda one: getattr(one, "name", one))
def test_signal_ends_a_verb(verb: str, number: signal.Signals, seconds: float, here: Path) -> None:
    """A signal at any time gives one line; what is there is whole, or absent."""
    if verb == "eit":
        pytest.importorskip("b2t_kit.tasks")  # a wing
    if verb == "validate":
        tiny_recordings(here / "more", sessions=10, trials=40)
    before, process = tree(here), started(LONG[verb].replace("validate data", "validate more"))
    try:
        time.sleep(seconds)
        process.send_signal(number)
        _, said = process.communicate(timeout=300)  # a busy machine's numba compiles for a minute
    finally:
        process.kill()
    assert "Traceback" not in said
    if verb == "train" and process.returncode == 0:
        assert (here / "new/checkpoints").is_dir()  # training stops cleanly, with a checkpoint
        return
    name = "" if number == signal.SIGINT else f" by {number.name}"
    assert f"interrupted{name}" in said.splitlines() and process.returncode == 128 + number, said
    left = [name for name in tree(here).keys() - before.keys() if name.endswith((".partial", ".tmp"))]
    assert not left and (verb == "train" or not (here / "sim").exists() and not (here / "new.json").exists())


@pytest.mark.parametrize("words", ["validate data", EVAL], ids=["validate", "eval"])
def test_full_output_is_named(words: str, here: Path) -> None:
    """A result that cannot be printed is no success."""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "b2t_kit.cli", *words.split()], stdout=full, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == "error: cannot write: No space left on device"
    assert "Traceback" not in done.stderr


def test_name_that_cannot_be_printed(here: Path) -> None:
    """A folder whose name is not UTF-8, in a terminal that knows ASCII."""
    folder = os.fsencode(here) + b"/data/hdf5_data_final/t15.\xff"
    os.mkdir(folder)
    done = subprocess.run([sys.executable, "-m", "b2t_kit.cli", "validate", "data"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1 and done.stderr == "" and "t15.\\udcff: session folder holds no" in done.stdout


@pytest.mark.parametrize("words", ["validate data", EVAL, TRAIN, "report --run run --data data", "decode --run run --data data"])
def test_no_control_character_of_a_session_reaches_the_terminal(
    words: str, here: Path, capfd: pytest.CaptureFixture
) -> None:
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


@pytest.mark.parametrize("size", ["8k", "64k"])
def test_full_disk_does_not_lose_words(size: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A model that does not fit on the disk is refused, and leaves nothing."""
    words = ("".join(chr(97 + number // 26**place % 26) for place in range(4)) for number in range(3000))
    (tmp_path / "words.txt").write_text("".join(f"we can hear {word}\n" for word in words))
    (tmp_path / "disk").mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tmp_path / "disk"], capture_output=True)
    if mount.returncode:
        return  # mounting is not permitted
    try:
        assert main(["lm", "build", str(tmp_path / "words.txt"), "--out", str(tmp_path / "disk/model.b2tlm")]) == 2
        assert list((tmp_path / "disk").iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", tmp_path / "disk"], check=True)
    assert "model.b2tlm: could not be written (No space left" in capsys.readouterr().err.splitlines()[-1]
