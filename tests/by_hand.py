"""Hostile inputs made by hand, each given to a real command with limits of memory and time.

    python -m tests.campaign --by-hand                    # a table of outcomes; about ten minutes
    python -m tests.campaign --by-hand --only runs,arpa   # of these kinds of input

A case is a small function that makes files in an empty folder, and a command that is run there. What can happen:
refused (status 1 or 2, and an error of one line or a list of faults), accepted (status 0, where the input is right or may
be read), silent (status 0, although it must be refused), traceback (of Python, or an error of several lines), crash (a
signal), hang (no end in a minute).
"""
import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from tests.campaign import OUTCOMES, prepare

ROOT = Path(__file__).resolve().parents[1]
MEMORY, SECONDS = 6 << 30, 60.0  # of data, and until a command must have ended
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
Make = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One input and what reads it."""
    kind: str  # of input, such as "runs"
    name: str
    make: Make
    words: str  # after b2t; @RUN and @DATA are copies of a good run and its recordings
    want: str = "refused"  # or "either", where it may be read


def file(name: str, content: str | bytes) -> Make:
    """Write a file."""
    def make(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return make


def several(*makes: Make) -> Make:
    """One after the other."""
    return lambda folder: [make(folder) for make in makes]


def link(name: str, target: str) -> Make:
    """A link, such as one to itself."""
    return lambda folder: os.symlink(target, folder / name)


# Arrays

HEAD = "session,split,block,trial,file,start,stop,sentence\n"


def npy(header: str, data: bytes = b"", length: int | None = None) -> bytes:
    """A .npy file with any header."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) if length is None else length) + text + data


def array(folder: Path, name: str = "rows.npy", rows: object = None) -> None:
    """Good rows."""
    found = np.random.default_rng(0).random((200, 4), np.float32) if rows is None else rows
    with open(folder / name, "wb") as place:
        np.save(place, found)


def table(*lines: str, head: str = HEAD) -> Make:
    """A table of trials over good rows."""
    return several(array, file("trials.csv", head + "".join(f"{line}\n" for line in lines)))


def rows(content: object) -> Make:
    """A good table over other rows."""
    def make(folder: Path) -> None:
        if isinstance(content, bytes):
            (folder / "rows.npy").write_bytes(content)
        else:
            array(folder, rows=content)
        file("trials.csv", HEAD + "m1.2026.03.01,train,1,0,rows.npy,0,100,We can.\n")(folder)
    return make


def zipped(folder: Path) -> None:
    """An archive of arrays that is named like an array."""
    with open(folder / "rows.npy", "wb") as place:
        np.savez(place, rows=np.ones((200, 4), np.float32))
    file("trials.csv", HEAD + "m1.2026.03.01,train,1,0,rows.npy,0,100,We can.\n")(folder)


ARRAYS = "convert arrays . --out new"
GOOD = "m1.2026.03.01,train,1,0,rows.npy,0,100,We can."
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (200, 4), }"
CASES = [
    Case("arrays", "an archive (.npz) named .npy", zipped, ARRAYS),
    Case("arrays", "a header without an end", rows(npy("{'descr': '<f4', " + "(" * 200_000)), ARRAYS),
    Case("arrays", "a header of 4 GB that is not there", rows(npy(HEADER, length=2**32 - 1)), ARRAYS),
    Case("arrays", "a shape of 10^18", rows(npy(HEADER.replace("200", "1000000000000000000"))), ARRAYS),
    Case("arrays", "a negative shape", rows(npy(HEADER.replace("200", "-200"))), ARRAYS),
    Case("arrays", "objects in pickle", rows(np.array([[{}, 1]] * 200, object)), ARRAYS),
    Case("arrays", "complex numbers", rows(np.ones((200, 4), complex)), ARRAYS),
    Case("arrays", "truth values", rows(np.ones((200, 4), bool)), ARRAYS),
    Case("arrays", "float128", rows(np.ones((200, 4), np.longdouble)), ARRAYS, "either"),
    Case("arrays", "float16 with infinity", rows(np.full((200, 4), np.inf, np.float16)), ARRAYS),
    Case("arrays", "doubles too large for float32", rows(np.full((200, 4), 1e300)), ARRAYS),
    Case("arrays", "uint64 near its end", rows(np.full((200, 4), 2**64 - 1, np.uint64)), ARRAYS, "either"),
    Case("arrays", "no features", rows(np.ones((200, 0), np.float32)), ARRAYS),
    Case("arrays", "no rows", rows(np.ones((0, 4), np.float32)), ARRAYS),
    Case("arrays", "three dimensions", rows(np.ones((20, 4, 2), np.float32)), ARRAYS),
    Case("arrays", "Arabic-Indic digits in block", table(GOOD.replace(",1,0,", f",{'1'.translate(ARABIC)},0,")), ARRAYS),
    Case("arrays", "Arabic-Indic digits in trial", table(GOOD.replace(",1,0,", f",1,{'7'.translate(ARABIC)},")), ARRAYS),
    Case("arrays", "Arabic-Indic digits in stop", table(GOOD.replace("100", "100".translate(ARABIC))), ARRAYS),
    Case("arrays", "a column twice", table(GOOD + ",5", head=HEAD.replace("sentence", "sentence,trial")), ARRAYS),
    Case("arrays", "a trial number twice", table(GOOD, GOOD.replace("0,100", "100,200")), ARRAYS),
    Case("arrays", "a trial number twice, as 0 and 00", table(GOOD, GOOD.replace(",1,0,", ",01,00,")), ARRAYS),
    Case("arrays", "bins backwards", table(GOOD.replace("0,100", "100,50")), ARRAYS),
    Case("arrays", "bins beyond the end", table(GOOD.replace("0,100", "0,100000")), ARRAYS),
    Case("arrays", "a session that leaves the folder", table(GOOD.replace("m1.2026.03.01", "../m1")), ARRAYS),
    Case("arrays", "a file that leaves the folder", table(GOOD.replace("rows.npy", "../rows.npy")), ARRAYS),
    Case("arrays", "a session of two dots", table(GOOD.replace("m1.2026.03.01", "m..1")), ARRAYS, "either"),
    Case("arrays", "more cells than columns", table(GOOD + ",1,2,3"), ARRAYS),
    Case("arrays", "less cells than columns", table("m1.2026.03.01,train"), ARRAYS),
    Case("arrays", "a quote without an end", table(GOOD.replace("We can.", '"We can.')), ARRAYS, "either"),
    Case("arrays", "a cell of 10 MB", table(GOOD.replace("We can.", "We " * 3_000_000)), ARRAYS),
    Case("arrays", "a zero byte", table(GOOD.replace("We", "W\0e")), ARRAYS),
    Case("arrays", "a right-to-left mark in the sentence", table(GOOD.replace("We", "W\u202ee")), ARRAYS, "either"),
    Case("arrays", "trials.csv is a folder", several(array, lambda folder: (folder / "trials.csv").mkdir()), ARRAYS),
    Case("arrays", "trials.csv is a link to itself", several(array, link("trials.csv", "trials.csv")), ARRAYS),
    Case("arrays", "rows.npy is a folder", several(file("trials.csv", HEAD + GOOD + "\n"),
                                                   lambda folder: (folder / "rows.npy").mkdir()), ARRAYS),
]

# Runs


def run(change: Callable[[Path], object]) -> Make:
    """A copy of a good run, changed."""
    def make(folder: Path) -> None:
        shutil.copytree(os.environ["BY_HAND_RUN"], folder / "run")
        change(folder / "run")
    return make


def record(change: Callable[[dict], object]) -> Make:
    """The settings of a run, changed."""
    def make(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))
    return run(make)


def twice(folder: Path) -> None:
    """A key of config.json twice, the second with another value."""
    text = (folder / "config.json").read_text().rstrip()
    (folder / "config.json").write_text(text[:-1] + ', "train": {"steps": 7}}')


def measured(line: str) -> Make:
    """One more row before the last."""
    def make(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:-1], line, lines[-1]]) + "\n")
    return run(make)


def instead(name: str, put: Callable[[Path], object]) -> Make:
    """Something else in place of a file of a run."""
    def make(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)
    return run(make)


def itself(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path.name)


TRAIN_ROW = '{"kind": "train", "step": 1, "loss": %s}'
for verb, words in (("show", "show run"), ("runs", "runs .")):
    want = "either" if verb == "runs" else "refused"  # the list says which run cannot be read
    CASES += [
        Case("runs", f"{verb}: a trial count that is text", record(lambda one: one["data"]["train"].update(trials="many")), words, want),
        Case("runs", f"{verb}: a number of days that is null", record(lambda one: one["data"]["train"].update(sessions=None)), words, want),
        Case("runs", f"{verb}: steps of 400 digits", record(lambda one: one["train"].update(steps=10**400)), words, want),
        Case("runs", f"{verb}: a model that is a list", record(lambda one: one["task"]["config"].update(model=[1])), words, want),
        Case("runs", f"{verb}: a model's name that is a number", record(lambda one: one["task"]["config"]["model"].update(name=3)), words, want),
        Case("runs", f"{verb}: batches that are text", record(lambda one: one["task"]["config"].update(batches="many")), words, "either"),
        Case("runs", f"{verb}: a key of config.json twice", run(twice), words, want),
        Case("runs", f"{verb}: a loss of 1e400", measured(TRAIN_ROW % "1e400"), words, want),
        Case("runs", f"{verb}: a loss of NaN", measured(TRAIN_ROW % "NaN"), words, want),
        Case("runs", f"{verb}: a loss of 400 digits", measured(TRAIN_ROW % ("9" * 400)), words, want),
        Case("runs", f"{verb}: a step of 400 digits", measured('{"kind": "train", "step": %s, "loss": 1}' % ("9" * 400)), words, want),
        Case("runs", f"{verb}: a step of 5,000 digits", measured('{"kind": "train", "step": %s, "loss": 1}' % ("9" * 5000)), words, want),
        Case("runs", f"{verb}: a step below zero", measured('{"kind": "train", "step": -5, "loss": 1}'), words, want),
        Case("runs", f"{verb}: a step that is true", measured('{"kind": "train", "step": true, "loss": 1}'), words, want),
        Case("runs", f"{verb}: a value that is an object", measured('{"kind": "train", "step": 1, "loss": {"a": 1}}'), words, want),
        Case("runs", f"{verb}: such a value in another kind of row", measured('{"kind": "day", "step": 1, "seconds_left": {"a": 1}}'), words, want),
        Case("runs", f"{verb}: seconds left of 1e400", measured('{"kind": "train", "step": 1, "seconds_left": 1e400}'), words, want),
        Case("runs", f"{verb}: metrics.jsonl is a folder", instead("metrics.jsonl", Path.mkdir), words, want),
        Case("runs", f"{verb}: metrics.jsonl is a link to itself", instead("metrics.jsonl", itself), words, want),
        Case("runs", f"{verb}: config.json is a link to itself", instead("config.json", itself), words, "either"),
        Case("runs", f"{verb}: best is a folder", instead("best", Path.mkdir), words, want),
        Case("runs", f"{verb}: a terminal's commands in the model's name",
             record(lambda one: one["task"]["config"]["model"].update(name="\x1b[2Jgru")), words, "either"),
    ]

# Kept sessions


def kept(*events: object, features: int = 100, **changes: object) -> Make:
    """A kept session with these events."""
    def make(folder: Path) -> None:
        session = {"began": "2026-03-01T10:00:00+00:00", "features": True, "num_features": 4, "options": {}} | changes
        file("kept/session.json", json.dumps(session))(folder)
        lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
        file("kept/events.jsonl", "".join(f"{line}\n" for line in lines))(folder)
        file("kept/features.bin", np.random.default_rng(0).random((features, 4), np.float32).tobytes())(folder)
    return make


FINAL = {"seconds": 1.0, "event": "final", "number": 1, "words": [["we", 0.9], ["can", 0.8]], "others": [],
         "reason": "silence", "said": "We can.", "frames": 9, "bins": [0, 100], "came": None}
MARK = {"seconds": 2.0, "event": "mark", "number": 1, "verdict": "right", "text": ""}
CAME = {"began": 0.0, "changes": [[0.5, ["we"]], [0.9, ["we", "can"]]], "final": ["we", "can"], "ended": 1.2, "ends": [0.4, 0.8]}
EVENTS = {
    "a final without a number": ({name: one for name, one in FINAL.items() if name != "number"},),
    "a number that is a list": (FINAL | {"number": [1]},),
    "words that are a number": (FINAL | {"words": 3},),
    "a word that is a number": (FINAL | {"words": [[1, 2]]},),
    "words of three parts": (FINAL | {"words": [["we", 1, 2]]},),
    "a sentence that is an object": (FINAL | {"said": {"a": 1}},),
    "no reason": ({name: one for name, one in FINAL.items() if name != "reason"},),
    "a time that is text": (FINAL | {"seconds": "soon"},),
    "a time of 1e400": (json.dumps(FINAL).replace("1.0", "1e400"),),
    "a mark without a verdict": (FINAL, {name: one for name, one in MARK.items() if name != "verdict"}),
    "a mark whose text is a list": (FINAL, MARK | {"verdict": "changed", "text": ["we"]}),
    "bins that are text": (FINAL | {"bins": ["a", "b"]},),
    "bins that are fractions": (FINAL | {"bins": [0.5, 99.5]},),
    "bins of 400 digits": (FINAL | {"bins": [0, 10**400]},),
    "times that nobody knows": (FINAL | {"came": {"soon": 1}},),
    "times that are a list": (FINAL | {"came": [1, 2]},),
    "a line that is a list": (FINAL, "[1, 2]"),
    "a line that is not JSON": (FINAL, "{"),
    "two sentences with one number": (FINAL, FINAL | {"bins": [50, 100]}),
}
for name, events in EVENTS.items():
    CASES += [Case("kept", f"report: {name}", kept(*events), "report --run kept"),
              Case("kept", f"convert: {name}", kept(*events), "convert kept kept --out new",
                   "either" if name in ("no reason", "times that nobody knows", "times that are a list", "words of three parts") else "refused")]
CASES += [
    Case("kept", "convert: features that are a fraction", kept(FINAL, num_features=4.5), "convert kept kept --out new"),
    Case("kept", "convert: features that are true", kept(FINAL, num_features=True), "convert kept kept --out new"),
    Case("kept", "convert: options that are text", kept(FINAL, options="none"), "convert kept kept --out new"),
    Case("kept", "convert: the day 2026-13-45", kept(FINAL, began="2026-13-45T10:00:00"), "convert kept kept --out new"),
    Case("kept", "convert: a day of Arabic-Indic digits", kept(FINAL, began="2026-03-01T".translate(ARABIC)), "convert kept kept --out new"),
    Case("kept", "convert: bins that are not there", kept(FINAL, features=10), "convert kept kept --out new"),
    Case("kept", "convert: features.bin cut inside a bin", several(kept(FINAL | {"bins": [0, 99]}),
         lambda folder: os.truncate(folder / "kept/features.bin", 1591)), "convert kept kept --out new", "either"),
    Case("kept", "report: session.json is a list", several(kept(FINAL), file("kept/session.json", "[]")), "report --run kept"),
    Case("kept", "report: events.jsonl is a folder", several(kept(FINAL), lambda folder: ((folder / "kept/events.jsonl").unlink(),
         (folder / "kept/events.jsonl").mkdir())), "report --run kept"),
    Case("kept", "report: events.jsonl is a link to itself", several(kept(FINAL), lambda folder: ((folder / "kept/events.jsonl").unlink(),
         itself(folder / "kept/events.jsonl"))), "report --run kept"),
    Case("kept", "report: times as a session writes them", kept(FINAL | {"came": CAME}), "report --run kept", "either"),
    Case("kept", "report: times of other words than were shown", kept(FINAL | {"came": CAME | {"final": ["no", "more"]}}), "report --run kept", "either"),
    Case("kept", "report: times that are infinite", kept(FINAL | {"came": CAME | {"ended": float("inf")}}), "report --run kept"),
    Case("kept", "report: a page in the sentence", kept(FINAL | {"words": [["<script>", 1.0]]}), "report --run kept", "either"),
]

# Other formats of recordings


def h2(change: Callable[[h5py.File], object]) -> Make:
    """The held-in day of H2, changed."""
    def make(folder: Path) -> None:
        from tests.published_files import tiny_nwb_files
        root = tiny_nwb_files(folder)
        shutil.rmtree(root / "sub-T5-held-out-calib")
        with h5py.File(next(root.rglob("*.nwb")), "r+") as found:
            change(found)
    return make


def put(place: str, value: object) -> Callable[[h5py.File], object]:
    """Another dataset."""
    def change(found: h5py.File) -> None:
        old = found[place][()]
        del found[place]
        found[place] = value(old) if callable(value) else value
    return change


def mat(maker: str, change: Callable[[dict], object]) -> Make:
    """A day of MATLAB files, changed."""
    def make(folder: Path) -> None:
        from scipy.io import loadmat, savemat
        if maker == "corp":
            from tests.published_files import tiny_corp_files
            root = tiny_corp_files(folder, days=("t5.2023.12.01",))
        else:
            from tests.published_files import tiny_voice_files
            root = tiny_voice_files(folder, days=(67,))
        path = next(root.rglob("*.mat"))
        content = {name: one for name, one in loadmat(path).items() if not name.startswith("__")}
        change(content)
        savemat(path, content)
    return make


def cell(name: str, index: int, value: object) -> Callable[[dict], object]:
    """Another value in a cell."""
    def change(content: dict) -> None:
        content[name].reshape(-1)[index] = np.array(value)
    return change


TIMES, SPIKES, TRIALS = "acquisition/binned_spikes/timestamps", "acquisition/binned_spikes/data", "intervals/trials"
H2, CORP, VOICE = "convert h2 000950 --out new", "convert corp online_recalibration_data --out new", "convert brain-to-voice t15_neural_data --out new"


def at(index: int, value: object) -> Callable[[np.ndarray], np.ndarray]:
    """The array with another value at a place."""
    def change(old: np.ndarray) -> np.ndarray:
        new = old.astype(object if isinstance(value, str) else np.float64)
        new[index] = value.encode() if isinstance(value, str) else value
        return np.array(new, h5py.string_dtype()) if isinstance(value, str) else new
    return change


CASES += [
    Case("h2", "times that go backwards", h2(put(TIMES, lambda old: old[::-1])), H2),
    Case("h2", "times that are all the same", h2(put(TIMES, lambda old: old * 0)), H2),
    Case("h2", "a time that is NaN", h2(put(TIMES, at(3, np.nan))), H2),
    Case("h2", "a time that is infinite", h2(put(TIMES, at(3, np.inf))), H2),
    Case("h2", "counts below zero", h2(put(SPIKES, lambda old: -1.0 - old)), H2),
    Case("h2", "counts of 1e30", h2(put(SPIKES, lambda old: old * 1e30)), H2),
    Case("h2", "counts of 0.5", h2(put(SPIKES, lambda old: old * 0.5 + 0.5)), H2),
    Case("h2", "counts of zero everywhere", h2(put(SPIKES, lambda old: old * 0)), H2),
    Case("h2", "a block that is NaN", h2(put(f"{TRIALS}/block_num", at(0, np.nan))), H2),
    Case("h2", "a block of 1.5", h2(put(f"{TRIALS}/block_num", at(0, 1.5))), H2),
    Case("h2", "a cue of other letters", h2(put(f"{TRIALS}/cue", at(0, "привет"))), H2),
    Case("h2", "a cue of 10,000 letters", h2(put(f"{TRIALS}/cue", at(0, "a" * 10_000))), H2),
    Case("h2", "cues that are numbers", h2(put(f"{TRIALS}/cue", np.arange(6))), H2),
    Case("h2", "one trial more than cues", h2(put(f"{TRIALS}/start_time", lambda old: np.append(old, 1e6))), H2),
    Case("h2", "a group that is a link to itself", h2(lambda found: (found.pop(TRIALS), found.__setitem__(TRIALS, h5py.SoftLink(f"/{TRIALS}")))), H2),
    Case("h2", "the date 2022-13-45", several(h2(lambda found: None),
         lambda folder: next(folder.rglob("*.nwb")).rename(next(folder.rglob("*.nwb")).with_name("sub-T5-held-in-calib_ses-20221345.nwb"))), H2),
    Case("corp", "a block of Arabic-Indic digits", mat("corp", cell("blocks", 0, ["٣"])), CORP),
    Case("corp", "a block of 1e5", mat("corp", cell("blocks", 0, [[1e5]])), CORP, "either"),
    Case("corp", "a block that is NaN", mat("corp", cell("blocks", 0, [[np.nan]])), CORP),
    Case("corp", "an empty cell of counts", mat("corp", cell("tx_feats", 0, np.zeros((0, 192)))), CORP),
    Case("corp", "a cell with NaN", mat("corp", cell("tx_feats", 0, np.full((120, 192), np.nan))), CORP),
    Case("corp", "a cell of 191 channels", mat("corp", cell("tx_feats", 0, np.ones((120, 191)))), CORP),
    Case("corp", "counts below zero", mat("corp", cell("tx_feats", 0, -np.ones((120, 192)))), CORP),
    Case("corp", "counts of 0.5", mat("corp", cell("tx_feats", 0, np.full((120, 192), 0.5))), CORP),
    Case("corp", "a trial twice", mat("corp", lambda one: one["tx_feats"].reshape(-1).__setitem__(1, one["tx_feats"].reshape(-1)[0])), CORP),
    Case("corp", "a sentence that is a number", mat("corp", cell("sentences", 0, [[5]])), CORP),
    Case("corp", "the same day in two folders", several(mat("corp", lambda one: None),
         lambda folder: shutil.copytree(folder / "online_recalibration_data", folder / "online_recalibration_data/again")), CORP),
    Case("corp", "the date 2023.13.45", several(mat("corp", lambda one: None),
         lambda folder: next(folder.rglob("*.mat")).rename(folder / "online_recalibration_data/t5.2023.13.45.mat")), CORP),
    Case("brain-to-voice", "a cell with NaN", mat("voice", cell("spikepow_trials", 0, np.full((160, 256), np.nan))), VOICE),
    Case("brain-to-voice", "power of zero everywhere", mat("voice", lambda one: [one["spikepow_trials"].reshape(-1).__setitem__(index,
         np.zeros_like(trial)) for index, trial in enumerate(one["spikepow_trials"].reshape(-1))]), VOICE, "either"),
    Case("brain-to-voice", "power of 1e38", mat("voice", cell("spikepow_trials", 0, np.full((160, 256), 1e38, np.float32))), VOICE),
    Case("brain-to-voice", "crossings and power of different lengths", mat("voice", cell("spikepow_trials", 0, np.ones((7, 256), np.float32))), VOICE),
    Case("brain-to-voice", "a cue too few", mat("voice", lambda one: one.update(cues=one["cues"][:-1])), VOICE),
    Case("brain-to-voice", "no cue at all", mat("voice", lambda one: one.pop("cues")), VOICE),
    Case("brain-to-voice", "a trial twice", mat("voice", lambda one: [one[name].reshape(-1).__setitem__(1,
         one[name].reshape(-1)[0]) for name in ("threshcross_trials", "spikepow_trials")]), VOICE),
    Case("brain-to-voice", "day ٠67 in Arabic-Indic digits", several(mat("voice", lambda one: None),
         lambda folder: next(folder.rglob("*.mat")).rename(
             next(folder.rglob("*.mat")).with_name("t15_day" + "067".translate(ARABIC) + "_neural_data.mat"))), VOICE),
    Case("brain-to-voice", "day 9999", several(mat("voice", lambda one: None),
         lambda folder: next(folder.rglob("*.mat")).rename(next(folder.rglob("*.mat")).with_name("t15_day9999_neural_data.mat"))), VOICE, "either"),
    Case("brain-to-voice", "a day twice, as 67 and 067", several(mat("voice", lambda one: None),
         lambda folder: shutil.copy(next(folder.rglob("*.mat")), folder / "t15_neural_data/t15_day67_neural_data.mat")), VOICE),
]

# Texts: ARPA, lexicon, hotwords, n-best lists, submissions, scores

ARPA = ("\\data\\\nngram 1=4\nngram 2=2\n\n\\1-grams:\n-1.0\t<s>\t-0.3\n-0.6\t</s>\n-0.6\twe\t-0.3\n-0.6\tcan\t-0.3\n\n"
        "\\2-grams:\n-0.3\t<s> we\n-0.3\twe can\n\n\\end\\\n")


def changes(kind: str, path: str, text: str, words: str) -> Callable[..., Case]:
    """What makes cases of a text file with one change."""
    def case(name: str, old: str, new: str, want: str = "refused") -> Case:
        assert old in text
        return Case(kind, name, file(path, text.replace(old, new, 1)), words, want)
    return case


arpa = changes("arpa", "model.arpa", ARPA, "lm info model.arpa")
CASES += [
    arpa("a count of Arabic-Indic digits", "ngram 1=4", f"ngram 1={'4'.translate(ARABIC)}"),
    arpa("a count of 4e0", "ngram 1=4", "ngram 1=4e0"),
    arpa("a count with a sign", "ngram 1=4", "ngram 1=+4"),
    arpa("a count of 10^18", "ngram 1=4", "ngram 1=1000000000000000000"),
    arpa("a count twice", "ngram 2=2", "ngram 1=4\nngram 2=2"),
    arpa("an order left out", "ngram 2=2", "ngram 3=2"),
    arpa("a probability of Arabic-Indic digits", "-1.0", f"-{'1'.translate(ARABIC)}.0"),
    arpa("a probability of -1_0", "-1.0", "-1_0"),
    arpa("a probability of 0x1p-1", "-0.6\twe", "-0x1p-1\twe"),
    arpa("a positive probability", "-0.6\twe", "0.6\twe"),
    arpa("a probability of NaN", "-0.6\twe", "nan\twe"),
    arpa("a backoff of infinity", "we\t-0.3", "we\tinf"),
    arpa("a backoff of 1e30", "we\t-0.3", "we\t1e30"),
    arpa("a word twice", "-0.6\tcan\t-0.3", "-0.6\twe\t-0.3"),
    arpa("a pair of unknown words", "we can", "we hear"),
    arpa("a pair twice", "-0.3\twe can", "-0.3\t<s> we"),
    arpa("no </s>", "-0.6\t</s>", "-0.6\tyou\t-0.3", "either"),
    arpa("no end", "\\end\\\n", ""),
    arpa("text after the end", "\\end\\\n", "\\end\\\n-0.1\tmore\n", "either"),
    arpa("a zero byte in a word", "\twe\t", "\tw\0e\t", "either"),
    arpa("a blank of another kind in a pair", "we can", "we\u00a0can"),
    Case("arpa", "a word of 5 MB", file("model.arpa", ARPA.replace("can", "c" * 5_000_000)), "lm info model.arpa", "either"),
    Case("arpa", "a folder", lambda folder: (folder / "model.arpa").mkdir(), "lm info model.arpa"),
    Case("arpa", "a link to itself", link("model.arpa", "model.arpa"), "lm info model.arpa"),
]


def logits(folder: Path) -> None:
    """Two trials of another program."""
    with h5py.File(folder / "logits.hdf5", "w") as found:
        for number in range(2):
            group = found.create_group(f"trial_{number}")
            group["logits"] = np.random.default_rng(number).standard_normal((12, 41), np.float32)
            group.attrs.update(session="t15.2023.08.01", block_num=1, trial_num=number, sentence_label="We can.")


def words_for(kind: str, name: str, content: str, want: str = "refused") -> Case:
    """A file of words beside logits."""
    return Case(kind, name, several(logits, file("words.txt", content)), f"decode --logits logits.hdf5 --out new --{kind} words.txt", want)


CASES += [
    words_for("lexicon", "an unknown phoneme", "blorp B L QQ\n"),
    words_for("lexicon", "a word without phonemes", "blorp\n"),
    words_for("lexicon", "the blank as a phoneme", "blorp BLANK\n"),
    words_for("lexicon", "500 phonemes", "blorp " + "B " * 500 + "\n", "either"),
    words_for("lexicon", "a word of 1 MB", "b" * 1_000_000 + " B\n", "either"),
    words_for("lexicon", "a zero byte", "blo\0rp B\n"),
    words_for("lexicon", "phonemes in full-width letters", "blorp Ｂ Ｌ\n"),
    words_for("lexicon", "a right-to-left mark", "bl\u202eorp B\n"),
    words_for("lexicon", "UTF-16", "blorp B\n".encode("utf-16").decode("latin1")),
    words_for("hotwords", "a weight of 1e400", "blorp B L AO R P 1e400\n"),
    words_for("hotwords", "a weight of NaN", "blorp B L AO R P nan\n"),
    words_for("hotwords", "a weight of Arabic-Indic digits", "now " + "2.5".translate(ARABIC) + "\n"),
    words_for("hotwords", "a weight below zero", "now -2.5\n", "either"),
    words_for("hotwords", "a weight of 1_0", "now 1_0\n"),
    words_for("hotwords", "a weight of 1e9", "now 1e9\n"),
    words_for("hotwords", "a word twice with two weights", "now 1\nnow 2\n"),
    words_for("hotwords", "nothing but blanks", " \n\t\n"),
    words_for("hotwords", "an unknown phoneme", "blorp B L QQ\n", "either"),
]
LIST = {"session": "t15.2023.08.01", "block_num": 1, "trial_num": 0}


def nbest(change: Callable[[list[str]], object]) -> Make:
    """Good n-best lists, changed line by line."""
    def make(folder: Path) -> None:
        from b2t_kit.decode.files import DecodedTrial, Hypothesis, write_nbest
        found = (Hypothesis(("we", "can"), -3.0, -2.0, -5.0), Hypothesis(("we",), -4.0, -1.5, -5.5))
        write_nbest(folder / "nbest.jsonl", [DecodedTrial("t15.2023.08.01", 1, number, found, "We can.") for number in range(3)])
        lines = (folder / "nbest.jsonl").read_text().splitlines()
        change(lines)
        (folder / "nbest.jsonl").write_text("\n".join(lines) + "\n")
        shutil.copytree(os.environ["BY_HAND_CAUSAL"], folder / "llm")
    return make


def in_list(old: str, new: str) -> Make:
    """A change in the first list."""
    def change(lines: list[str]) -> None:
        assert old in lines[0], lines[0]
        lines[0] = lines[0].replace(old, new, 1)
    return nbest(change)


RESCORE = "rescore nbest.jsonl --llm llm --out new.jsonl --device cpu"
CASES += [
    Case("nbest", "a trial twice", nbest(lambda lines: lines.append(lines[0])), RESCORE),
    Case("nbest", "a score of 1e400", in_list("-3.0", "-1e400"), RESCORE),
    Case("nbest", "a score of NaN", in_list("-3.0", "NaN"), RESCORE),
    Case("nbest", "a score that is text", in_list("-3.0", '"-3.0"'), RESCORE),
    Case("nbest", "a score of 400 digits", in_list("-3.0", "-" + "9" * 400), RESCORE),
    Case("nbest", "a score that is true", in_list("-3.0", "true"), RESCORE),
    Case("nbest", "a key twice", in_list('"t15.2023.08.01"', '"t15.2023.08.01", "session": "t15.2023.08.02"'), RESCORE),
    Case("nbest", "a trial of 400 digits", in_list('"trial_num": 0', '"trial_num": ' + "9" * 400), RESCORE),
    Case("nbest", "a trial of true", in_list('"trial_num": 0', '"trial_num": true'), RESCORE),
    Case("nbest", "words with a line break", in_list('"we', '"w\\ne'), RESCORE, "either"),
    Case("nbest", "half a surrogate", in_list('"we', '"\\ud800we'), RESCORE),
    Case("nbest", "an empty file", nbest(lambda lines: lines.clear()), RESCORE),
]
SUBMISSION = "id,text\n" + "".join(f"{number},we can hear you\n" for number in range(1450))


submission = changes("submission", "sub.csv", SUBMISSION, "check-submission sub.csv")
CASES += [
    submission("an id of Arabic-Indic digits", "\n7,", f"\n{'7'.translate(ARABIC)},"),
    submission("an id of 7.0", "\n7,", "\n7.0,"),
    submission("an id of 07", "\n7,", "\n07,"),
    submission("an id of +7", "\n7,", "\n+7,"),
    submission("an id of 400 digits", "\n7,", "\n" + "7" * 400 + ","),
    submission("an id twice", "\n8,", "\n7,"),
    submission("a column twice", "id,text", "id,text,text"),
    submission("a formula", "7,we", "7,=we"),
    submission("a zero byte", "7,we", "7,w\0e"),
    submission("half a quote", "7,we", '7,"we'),
    submission("letters of another script that look the same", "7,we", "7,wе"),
    submission("a sentence of 1 MB", "7,we", "7," + "we " * 400_000, "either"),
    submission("line ends of 2028", "can hear you\n7,", "can hear you\u20287,"),
    submission("no text", "7,we can hear you", "7,"),
    Case("submission", "a folder", lambda folder: (folder / "sub.csv").mkdir(), "check-submission sub.csv"),
    Case("submission", "score: an id twice", several(file("r.csv", "id,text\n0,we\n0,can\n"), file("h.csv", "id,text\n0,we\n0,can\n")),
         "score --reference r.csv --hypothesis h.csv"),
    Case("submission", "score: ids of other digits", several(file("r.csv", "id,text\n1,we\n"), file("h.csv",
         "id,text\n" + "1".translate(ARABIC) + ",we\n")), "score --reference r.csv --hypothesis h.csv"),
    Case("submission", "score: nothing was said", several(file("r.csv", "id,text\n0,\n"), file("h.csv", "id,text\n0,we\n")),
         "score --reference r.csv --hypothesis h.csv"),
]

# Words of the command line


def nothing(folder: Path) -> None:
    """No file."""


SMALL = "--hidden 8 --steps 2 --batch-size 8 --buckets 1 --eval-every 0 --device cpu"
CASES += [Case("words", words if len(words) < 70 else words[:60] + " ...", nothing, words, want) for words, want in (
    (f"train --data @DATA --out new {SMALL} --lr {'3'.translate(ARABIC)}", "refused"),
    (f"train --data @DATA --out new {SMALL.replace('--steps 2', '--steps ' + '2'.translate(ARABIC))}", "refused"),
    (f"train --data @DATA --out new {SMALL} --lr 1_0", "refused"),
    (f"train --data @DATA --out new {SMALL} --lr 1e-400", "refused"),
    (f"train --data @DATA --out new {SMALL} --seed {'9' * 400}", "refused"),
    (f"train --data @DATA --out new {SMALL} --seed -1", "refused"),
    (f"train --data @DATA --out {'o' * 300} {SMALL}", "refused"),
    (f"train --data @DATA --out /dev/null {SMALL}", "refused"),
    (f"train --data @DATA --out /proc/self/new {SMALL}", "refused"),
    (f"train --data @DATA --out @DATA {SMALL}", "either"),
    (f"train --data {'d/' * 3000} --out new {SMALL}", "refused"),
    ("live --source stream --address localhost:٥٥٥٥ --run @RUN", "refused"),
    ("live --source localhost:٥٥٥٥ --run @RUN", "refused"),
    ("live --source localhost:99999 --run @RUN", "refused"),
    ("live --source localhost:-1 --run @RUN", "refused"),
    ("live --port ٨٠٨٠ --run @RUN", "refused"),
    ("decode --run @RUN --data @DATA --out new --beam 1e400", "refused"),
    ("decode --run @RUN --data @DATA --out new --beam 999999999999999999", "refused"),
    ("decode --run @RUN --data @DATA --out new --acoustic-scale nan", "refused"),
    ("decode --run @RUN --data @DATA --out new --temperature 0", "refused"),
    ("decode --run @RUN --data @DATA --out new --n-best 0", "refused"),
    ("decode --run @RUN --runs @RUN @RUN --data @DATA", "refused"),
    ("report --run @RUN --data @DATA --pictures -1", "refused"),
    ("report --run @RUN --data @DATA --pictures 10**9", "refused"),
    ("simulate --out new --sessions 1000000000", "refused"),
    ("simulate --out new --trials 0", "refused"),
    ("convert arrays", "refused"),
    ("convert arrays /dev/null --out new", "refused"),
    ("convert arrays . --out .", "refused"),
    ("lm build /dev/zero --out new.b2tlm", "refused"),
    ("lm build /dev/null --out new.b2tlm", "refused"),
    ("lm info /dev/zero", "refused"),
    ("score --reference /dev/zero --hypothesis /dev/zero", "refused"),
    ("doctor --log /dev/zero", "refused"),
    ("show \udc80run", "refused"),
    ("runs \udcff", "refused"),
    ("eval --run @RUN --data @DATA --split ../train", "refused"),
    ("kernel build --slug ../../etc", "refused"),
    ("plan --hidden 1e30", "refused"),
)]
KINDS = tuple(dict.fromkeys(case.kind for case in CASES))


# Running them

def outcome_of(status: int, out: str, err: str, want: str) -> str:
    """What happened, by what the command said."""
    if status < 0:
        return "crash"
    if "Traceback (most recent call last)" in err + out:
        return "traceback"
    if status == 0:
        return "accepted" if want == "either" else "silent"
    lines = [line for line in err.splitlines() if not line.startswith(("usage:", "note:", "warning:"))]
    named = [line for line in lines if line.startswith("error: ")]
    if status == 1 and (out.strip() or named):
        return "refused"
    return "refused" if status == 2 and len(named) >= 1 and lines[-1] == named[-1] else "traceback"


def child(words: list[str], folder: Path) -> None:
    """The command, in a process of its own that has imported the kit already."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((0, os.devnull), (1, "../out"), (2, "../err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="replace")
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        from b2t_kit.cli import main
        status = main(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def run_case(case: Case, folder: Path) -> tuple[str, str]:  # outcome, and the last line that was said
    """One case in an empty folder."""
    folder.mkdir()
    case.make(folder)
    words = [word.replace("@RUN", os.environ["BY_HAND_RUN"]).replace("@DATA", os.environ["BY_HAND_DATA"]) for word in case.words.split(" ") if word]
    number, until = os.fork(), time.monotonic() + SECONDS
    if not number:
        child(words, folder)
    done, status = 0, 0
    while not done and time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)  # what it may have started, too
    if not done:
        os.waitpid(number, 0)
        return "hang", ""
    out, err = ((folder.parent / name).read_text(errors="replace") for name in ("out", "err"))
    said = (err.strip() or out.strip()).splitlines()
    return outcome_of(os.waitstatus_to_exitcode(status), out, err, case.want), said[-1] if said else ""


def by_hand(only: list[str]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Outcomes by kind of input, and a line for each bad one."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a process that has threads may not fork
    import transformers  # noqa: F401  once, for all children

    from b2t_kit.cli import HasSettings, all_verbs, main
    for verb in all_verbs().values():
        if issubclass(verb, HasSettings):
            verb.initial(())
    found: dict[str, Counter[str]] = {}
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="by_hand_") as name:
        home = Path(name)
        prepare(home)
        with contextlib.suppress(SystemExit):
            main(["--help"])
        for variable, source in (("RUN", "run"), ("DATA", "data"), ("CAUSAL", "causal")):
            os.environ[f"BY_HAND_{variable}"] = str(home / source)
        gc.freeze()  # what is imported need not be looked through again in every child
        for case in CASES:
            if only and case.kind not in only:
                continue
            outcome, said = run_case(case, home / "case")
            found.setdefault(case.kind, Counter())[outcome] += 1
            if outcome not in ("refused", "accepted"):
                bad.append(f"{case.kind}: {case.name}: {outcome}: {said[:160]}")
                print(bad[-1], file=sys.stderr, flush=True)
            shutil.rmtree(home / "case")
    return found, bad


def page(found: dict[str, Counter[str]], bad: list[str]) -> str:
    """The outcomes as Markdown."""
    lines = ["| input | cases | " + " | ".join(OUTCOMES) + " |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    for name, counts in [*found.items(), ("**all**", sum(found.values(), Counter()))]:
        lines.append(f"| {name} | {counts.total()} | " + " | ".join(str(counts[one] or "") for one in OUTCOMES) + " |")
    return "\n".join([*lines, "", *(f"- {line}" for line in bad)]) + "\n"
