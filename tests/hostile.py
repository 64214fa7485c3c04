"""Hostile input: every file that the kit reads × every fault, and edits made by hand, each in a process of its own.

    python -m tests.hostile                                      # each pair once: minutes
    python -m tests.hostile --cases 20 --seed 7 --only arpa,logits --keep DIR

Outcomes: refused (status 1 or 2 with one error line or a list of faults), accepted (where the fault may be harmless),
silent (accepted although it must be found), traceback (or an error of several lines), crash (a signal), hang.
"""
import argparse
import contextlib
import gc
import gzip
import importlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import socket
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from tests.commands import dot
from tests.published_files import tiny_corp_files, tiny_mat_files, tiny_nwb_files, tiny_voice_files
from tests.tiny_models import write_causal, write_published

ROOT = Path(__file__).resolve().parents[1]
MEMORY, SECONDS = 6 << 30, 60.0  # of data, and until a command must have ended
OUTCOMES = ("refused", "accepted", "silent", "traceback", "crash", "hang")
DIGITS = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
HUGE = 10**12


@dataclass(frozen=True)
class Source:
    """A kind of input: what makes a good one, the files that are spoiled, and the command or function that reads it."""
    make: Callable[[Path], object]
    files: str  # separated by spaces, relative to the folder
    read: str | Callable[[Path], object]  # words after b2t; @DATA is a folder of recordings
    kind: str = "text"  # "hdf5", "json", "text", "npz", "zip", "torch", or "bytes" for anything else
    free: str = ""  # faults that may be accepted, or "text": all that leave another text


def call(name: str, *paths: str) -> Callable[[Path], object]:
    """Call a function of the kit, named module:function, with paths of the folder."""
    module, function = name.split(":")
    return lambda folder: getattr(importlib.import_module(f"b2t_kit.{module}"), function)(*[folder / path for path in paths])


def text(**files: str | bytes) -> Callable[[Path], object]:
    """Write files; in a name, _ stands for a dot."""
    return lambda folder: [(folder / name.replace("_", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
                           for name, content in files.items()]


def copies(*names: str) -> Callable[[Path], object]:
    return lambda folder: [shutil.copytree(Path(os.environ["HOSTILE"]) / name, folder / name) for name in names]


def several(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [make(folder) for make in makes]


def recordings(folder: Path) -> None:
    from b2t_kit.data.write import tiny_recordings
    tiny_recordings(folder, sessions=2, trials=3, max_bins=50)


def logits(folder: Path) -> None:
    with h5py.File(folder / "logits.hdf5", "w") as file:
        for number in range(3):
            group = file.create_group(f"trial_{number:04d}")
            group.create_dataset("logits", data=np.random.default_rng(number).standard_normal((12, 41), np.float32))
            group.attrs.update(session="t15.2023.08.01", block_num=1, trial_num=number, sentence_label="Hello.")


def nbest(folder: Path) -> None:
    from b2t_kit.decode.lists import DecodedTrial, Hypothesis, write_nbest
    lists = (Hypothesis(("we", "can"), -3.0, -2.0, -5.0), Hypothesis(("we",), -4.0, -1.5, -5.5))
    write_nbest(folder / "nbest.jsonl", [DecodedTrial("t15.2023.08.01", 1, number, lists, "We can.") for number in range(3)])


def tuned(folder: Path) -> None:
    from b2t_kit.core.files import save_json
    from b2t_kit.core.settings import to_dict
    from b2t_kit.decode.search import SearchConfig
    save_json(folder / "decoding.json", {"search": to_dict(SearchConfig()), "tuned_for": {"language_model": "a" * 32},
                                         "lm": "default", "chose": [], "temperature": None, "held_out": None, "logits": ""})


def scratch(folder: Path) -> None:
    from b2t_kit.training.checkpoint import use_scratch
    copies("run")(folder)
    use_scratch(folder / "run", folder / "large")


def exported(folder: Path) -> None:
    from b2t_kit.publish.export import export
    copies("run")(folder)
    export(folder / "run", folder / "decoder")


def kept(folder: Path) -> None:
    final = {"seconds": 1.0, "event": "final", "number": 1, "words": [["we", 0.9], ["can", 0.8]], "others": [], "reason": "silence",
             "said": "We can.", "bins": [0, 100]}
    mark = {"seconds": 2.0, "event": "mark", "number": 1, "verdict": "right", "text": ""}
    session = {"began": "2026-03-01T10:00:00+00:00", "features": True, "num_features": 4, "options": {}}
    (folder / "kept").mkdir()
    text(session_json=json.dumps(session), events_jsonl=f"{json.dumps(final)}\n{json.dumps(mark)}\n",
         features_bin=np.random.default_rng(0).random((100, 4), np.float32).tobytes())(folder / "kept")


def arrays(folder: Path) -> None:
    np.save(folder / "rows.npy", np.random.default_rng(0).random((200, 4), np.float32))
    text(trials_csv="session,split,block,trial,file,start,stop,sentence\nm1.2026.03.01,train,1,0,rows.npy,0,100,We can.\n"
         "m1.2026.03.01,train,1,1,rows.npy,100,200,You hear.\n")(folder)


def measurements(folder: Path) -> None:
    numbers = np.random.default_rng(1)
    for number in range(2):
        np.savez(folder / f"{number}.npz", xs=numbers.standard_normal((128, 128)), ys=numbers.standard_normal((208, 1)))


def read_measurements(folder: Path) -> None:
    from b2t_kit.tasks.eit import Measurements
    found = Measurements(folder)
    assert all(found[number][1].shape == (16, 13) for number in range(len(found)))


def scores(folder: Path) -> None:
    from b2t_kit.core.cache import content_hash
    from b2t_kit.core.files import save_json
    kept = {"model": "model", "writing": {"start": "\n", "capitals": True, "ends": ["."]}, "scores": {"we can": -1.5}}
    save_json(folder / "scores.json", {**kept, "check": content_hash(kept)})


def read_scores(folder: Path) -> None:
    from b2t_kit.rescore.llm import read_scores
    assert read_scores(folder / "scores.json", "model")[1]


def statistics(folder: Path) -> None:
    import torch
    for name in ("mean", "std"):
        torch.save(torch.ones(1, 16, 13), folder / f"{name}.pth")


def archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(3):
            packed.writestr(f"hdf5_data_final/t15.2023.08.0{number + 1}/data_train.hdf5", bytes(range(256)) * 40)


def one_file(make: Callable, pattern: str, name: str) -> Callable[[Path], object]:
    """The first file of a layout, under a name of its own for `Source.files`."""
    def made(folder: Path) -> None:
        paths = sorted(make(folder).rglob(pattern))
        for path in paths[1:]:
            path.unlink()
        (folder / name).symlink_to(paths[0])
    return made


SAID = "We can hear you now.\nYou hear we can.\nNow we can.\n" * 3
ARPA = ("\\data\\\nngram 1=5\nngram 2=2\n\n\\1-grams:\n-1.0\t<s>\t-0.3\n-0.6\t</s>\n-0.6\twe\t-0.3\n-0.6\tcan\t-0.3\n-0.7\tyou\t-0.3\n\n"
        "\\2-grams:\n-0.3\t<s> we\n-0.3\twe can\n\n\\end\\\n")
SUBMISSION = "id,text\n" + "".join(f"{number},we can hear you\n" for number in range(1450))
LOG = "".join(f"step {n}: loss {n / 7:.3f}\n" for n in range(200)) + "RuntimeError: Attempted to allocate 12.00G.\n"
STEP, EVAL = "run/checkpoints/00000002/", "eval --run run --data @DATA --device cpu"
SMALL = "--hidden 8 --steps 2 --batch-size 8 --buckets 1 --eval-every 2 --device cpu"
DECODE = "decode --logits logits.hdf5 --out new"
RESCORE = "rescore nbest.jsonl --llm causal --tune --out new.jsonl --device cpu"
WEIGHTS = text(weights_json='{"weights": {"acoustic_scale": 0.5, "alpha": 0.3, "word_bonus": 1.0}, "chose": []}\n')
ANY_JSON = "wrong shape, huge, non-finite, Unicode, repeated"
SOURCES: dict[str, Source] = {
    "recordings": Source(recordings, "hdf5_data_final/t15.2023.08.02/data_train.hdf5", "validate .", "hdf5"),
    "training": Source(recordings, "hdf5_data_final/t15.2023.08.02/data_train.hdf5", f"train --data . --out new {SMALL}", "hdf5"),
    "t12": Source(lambda folder: tiny_mat_files(folder, days=1, trials=3), "competitionData/train/t12.2022.04.01.mat",
                  "convert t12 . --out new", "bytes"),
    "t12 packed": Source(lambda folder: tiny_mat_files(folder, days=1, trials=3, packed=True),
                         "competitionData/train/t12.2022.04.01.mat", "convert t12 . --out new", "bytes"),
    "h2": Source(one_file(tiny_nwb_files, "*.nwb", "day"), "day", "convert h2 000950 --out new", "bytes", "file links, no file"),
    "corp": Source(one_file(tiny_corp_files, "*2023.12.01.mat", "day"), "day", "convert corp online_recalibration_data --out new", "bytes",
                   "file links, no file"),
    "brain-to-voice": Source(one_file(lambda folder: tiny_voice_files(folder, days=(67,)), "*.mat", "day"), "day",
                             "convert brain-to-voice t15_neural_data --out new", "bytes", "file links, no file"),
    "arrays": Source(arrays, "trials.csv", "convert arrays . --out new", free="text"),
    "npy": Source(arrays, "rows.npy", "convert arrays . --out new", "bytes"),
    "kept": Source(kept, "kept/session.json kept/events.jsonl", "convert kept kept --out new", "json", "text"),
    "logits": Source(logits, "logits.hdf5", call("decode.files:read_trials", "logits.hdf5"), "hdf5", "non-finite, Unicode"),
    "config.json": Source(copies("run"), "run/config.json", "show run", "json", ANY_JSON),
    "decoder": Source(copies("run"), f"run/config.json {STEP}.complete run/best", EVAL, "json", ANY_JSON),
    "weights": Source(copies("run"), f"{STEP}model.safetensors", EVAL, "bytes"),
    "exported": Source(exported, "decoder/config.json", EVAL.replace("run run", "run decoder"), "json", ANY_JSON),
    "exported weights": Source(exported, "decoder/model.safetensors", EVAL.replace("run run", "run decoder"), "bytes"),
    "metrics.jsonl": Source(copies("run"), "run/metrics.jsonl", "show run", "json", "text"),
    "resumed run": Source(copies("run"), f"run/config.json {STEP}state.json {STEP}.complete",
                          f"train --data @DATA --out run --resume {SMALL}", "json", ANY_JSON),
    "rolling.json": Source(scratch, "run/rolling.json", EVAL, "json", ANY_JSON),
    "bundled run": Source(copies("run"), f"run/config.json run/metrics.jsonl run/best {STEP}state.json",
                          "doctor --bundle run --out report.zip", "json", "everything"),
    "copied run": Source(copies("run"), f"run/config.json {STEP}.complete run/best",
                         lambda folder: importlib.import_module("b2t_kit.publish.kaggle").bring_run(folder / "new", roots=(folder,)),
                         "json", "everything"),
    "tuned weights": Source(tuned, "decoding.json", call("decode.tune:read_tuning", "decoding.json"), "json", ANY_JSON),
    "b2tlm": Source(several(text(words_txt=SAID), copies("lm")), "lm/model.b2tlm", "lm perplexity lm/model.b2tlm words.txt", "bytes"),
    "arpa": Source(text(model_arpa=ARPA), "model.arpa", "lm info model.arpa", free="wrong shape, non-finite, Unicode"),
    "arpa.gz": Source(text(model_arpa_gz=gzip.compress(ARPA.encode())), "model.arpa.gz", "lm info model.arpa.gz", "bytes"),
    **{f"kenlm {name}": Source(lambda folder, name=name: shutil.copy(ROOT / f"tests/kenlm/{name}.bin", folder / "model.bin"),
                               "model.bin", "lm info model.bin", "bytes") for name in ("probing", "trie", "both")},
    "text": Source(text(words_txt=SAID), "words.txt", "lm build words.txt --out new.b2tlm", free="text"),
    "text.gz": Source(text(words_txt_gz=gzip.compress(SAID.encode())), "words.txt.gz", "lm build words.txt.gz --out new.b2tlm", "bytes",
                      "wrong type"),
    "vocabulary": Source(text(words_txt=SAID, more_txt="we\ncan\nhear\n"), "more.txt",
                         "lm build words.txt --vocabulary more.txt --out new.b2tlm", free="text"),
    "excluded": Source(text(words_txt=SAID, more_txt="Nothing of this.\nNor this.\n"), "more.txt",
                       "lm build words.txt --exclude more.txt --out new.b2tlm", free="text"),
    "lexicon": Source(several(logits, text(words_txt="tea T IY\nmore M AO R\nnow N AW\n")), "words.txt", f"{DECODE} --lexicon words.txt",
                      free="text"),
    "hotwords": Source(several(logits, text(words_txt="wojciechowski V OY CH 2.5\nmore M AO R\nnow\n")), "words.txt",
                       f"{DECODE} --hotwords words.txt", free="text"),
    "nbest": Source(several(nbest, copies("causal")), "nbest.jsonl", RESCORE, "json", "text"),
    "causal model": Source(several(nbest, copies("causal")), "causal/config.json causal/tokenizer.json", RESCORE, "json", "text"),
    "causal weights": Source(several(nbest, copies("causal")), "causal/model.safetensors", RESCORE, "bytes"),
    "kept scores": Source(scores, "scores.json", read_scores, "json"),
    "rescoring weights": Source(WEIGHTS, "weights.json", call("rescore.reorder:load_weights", "weights.json"), "json", ANY_JSON),
    "submission": Source(text(sub_csv=SUBMISSION), "sub.csv", "check-submission sub.csv", free="Unicode, non-finite"),
    "score": Source(text(r_csv="id,text\n0,we can\n1,you\n", h_csv="id,text\n0,we can\n1,you\n"), "r.csv h.csv",
                    "score --reference r.csv --hypothesis h.csv", free="Unicode, non-finite"),
    "prompts": Source(text(t_csv="sentence\nHello you.\nWe can hear.\n"), "t.csv", call("simulate.recordings:read_prompts", "t.csv"), free="text"),
    "published": Source(copies("base"), "base/best_checkpoint base/args.yaml", call("models.gru:load_pretrained", "base"), "torch", "text"),
    "measurements": Source(measurements, "0.npz 1.npz", read_measurements, "npz", "repeated"),
    "statistics": Source(statistics, "mean.pth std.pth", call("tasks.eit:read_statistics", "."), "torch", "repeated, Unicode"),
    "archive": Source(archive, "data.zip", lambda folder: importlib.import_module("b2t_kit.importers.download").unpack_archive(
        folder / "data.zip", folder / "hdf5_data_final", progress=False), "zip", "huge, Unicode, wrong shape"),
    "corpora": Source(text(days_csv="Date,Block number,Corpus\n2023-08-11,1,Switchboard\n2023-08-11,2,Random\n"), "days.csv",
                      call("publish.report:read_description", "days.csv"), free="text"),
    "token": Source(text(token_txt="abcdef0123456789\n"), "token.txt", call("importers.download:read_token", "token.txt"), free="text"),
    "doctor's log": Source(text(log_txt=LOG), "log.txt", "doctor --log log.txt", free="text"),
}


# Faults: what each does to a file, by the end of its name or by its kind; "*" is any file, "text" JSON too

Spoil = Callable[[random.Random, Path], object]  # False where it does not apply
ANOTHER_TEXT = ("truncated", "empty", "wrong type", "wrong shape", "huge", "non-finite", "Unicode", "nested", "repeated")
FREE = ("other bytes", "other value", "other lines")  # may be accepted wherever they are
LINES = ("\\data\\", "ngram 1=3", "\\1-grams:", "\\end\\", "-1.0\t<s>\t-0.3", "-0.5\t</s>", "id,text", "sentence", "0,we can", "tea T IY",
         "tea T XX", '"', ",,,", "", "#", "Date,Block number,Corpus", "2023-08-11,1,X", "a" * 200_000, "9" * 5000, "{}", '{"step": 1}', "[",
         "---", "a: *a", "NaN", "null", "\udcff", "\0")
NUMBER = r"(?<![\w.])-?\d+(\.\d+)?"
VALUES = ("null", "true", "-5", "2.5", '"two"', "[1]", '{"a": 1}', "[]", "1e400", "NaN", "9" * 44, '"\\u001b[2J"')
SHAPES = ((HUGE, 512), (60, HUGE), (1 << 24, 512), (HUGE,), (2**31, 2**31))
ODD = ("\u202eabc", "\x00", "\x1b[2J", "\ufeff", "\U0001f600", "e\u0301", "\u2028", "\r", "\x85", "ß", "\udcff")


def in_trial(rng: random.Random, path: Path, change: Callable[[h5py.Group, str], object]) -> None:
    with h5py.File(path, "r+") as file:
        group = file[rng.choice(sorted(file))]
        change(group, rng.choice(sorted(set(group) - {"transcription"})))


def put(rng: random.Random, path: Path, **options: object) -> None:
    """Another dataset in the place of one of a trial."""
    def change(group: h5py.Group, name: str) -> None:
        del group[name]
        group.create_dataset(name, **options)
    in_trial(rng, path, change)


def in_npz(rng: random.Random, path: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.load(path) as file:
        found = dict(file)
    name = rng.choice(sorted(found))
    np.savez(path, **found | {name: change(found[name])})


def in_zip(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path) as source:
        parts = [change(name, source.read(name)) for name in source.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target, warnings.catch_warnings(action="ignore"):
        for part in parts:
            target.writestr(*part)


def in_text(path: Path, change: Callable[[list[str]], list[str]]) -> object:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    return bool(lines) and change(lines) != lines and path.write_text("\n".join(change(lines)) + "\n")


def replaced(rng: random.Random, path: Path, pattern: str, new: str) -> object:
    """Another text in the place of one that matches; there may be none."""
    content = path.read_text()
    if not (found := list(re.finditer(pattern, content))[:40]):
        return False
    spot = rng.choice(found)
    return path.write_text(content[:spot.start()] + new + content[spot.end():])


def other_bytes(rng: random.Random, path: Path) -> None:
    data, block = bytearray(path.read_bytes()), rng.choice([4, 8, 64, 512])
    start = rng.randrange(len(data))
    if rng.random() < 0.4:
        for _ in range(rng.choice([1, 2, 8, 64])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:  # overwritten, removed or added
        data[start:start + rng.choice([0, 1, block])] = rng.choice([b"", bytes(block), b"\xff" * block, rng.randbytes(block), data[:400]])
    path.write_bytes(data)


def other_value(rng: random.Random, path: Path) -> None:
    """A value of JSON, or of one of its lines, that has another type or none of its sense, or is not there."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    part = whole = {"": json.loads(lines[number])}
    while True:
        name = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if not (isinstance(part[name], (dict, list)) and part[name] and rng.random() < 0.9):
            break
        part = part[name]
    part[name] = "@"
    if rng.random() < 0.2:
        del part[name]
    lines[number] = json.dumps(whole.get("", "@")).replace('"@"', rng.choice(VALUES))
    path.write_text("\n".join(lines) + "\n")


def bomb(rng: random.Random, path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("hdf5_data_final/bomb", bytes(1 << 26))


def non_finite(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(20):
        spot = rng.randrange(len(data) // 2, len(data) - 8, 4)
        data[spot:spot + 4] = np.float32(rng.choice([np.nan, np.inf, -np.inf])).tobytes()
    path.write_bytes(data)


def non_finite_bin(group: h5py.Group, name: str) -> None:
    group["logits" if "logits" in group else "input_features"][3, 7] = np.nan


def odd_text(rng: random.Random, path: Path) -> None:
    data, more = path.read_bytes(), rng.choice(ODD).encode("utf-8", "surrogateescape")
    spot = rng.randrange(len(data))
    path.write_bytes(rng.choice([data[:spot] + more + data[spot:], data.decode().encode("utf-16")]))


def other_lines(rng: random.Random, path: Path) -> None:
    """Lines that nearly belong there, of this and of other files."""
    own = path.read_text(errors="surrogateescape").splitlines()[:20]
    path.write_text("\n".join(rng.choices((*own, *LINES), k=rng.randrange(1, 30))), errors="surrogateescape")


def nested(rng: random.Random, path: Path) -> None:
    depth = rng.choice([1000, 100_000, 1_000_000])
    path.write_text(rng.choice(["[" * depth, '{"a":' * depth, "[" * depth + "]" * depth]) + "\n")


def nested_yaml(rng: random.Random, path: Path) -> None:
    lists = (f"c{n}: &c{n} [{','.join([f'*c{n - 1}' if n else '*b'] * 9)}]\n" for n in range(30))
    path.write_text("a: &a [1]\nb: &b [*a,*a]\n" + "".join(lists))


def repeated_trial(rng: random.Random, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        first, second = rng.sample(sorted(file), 2)
        file[second].attrs.update({name: file[first].attrs[name] for name in ("session", "block_num", "trial_num")})


def repeated_member(rng: random.Random, path: Path) -> None:
    with zipfile.ZipFile(path, "a") as packed, warnings.catch_warnings(action="ignore"):
        name = rng.choice(packed.namelist())
        packed.writestr(name, packed.read(name)[::-1])


def linked(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(rng.choice(["nowhere", path.name, "/dev/full", "/dev/zero", ".", "/nowhere/at/all"]))


def no_file(rng: random.Random, path: Path) -> None:
    path.unlink()
    if made := rng.choice([os.mkfifo, Path.mkdir, None]):
        return made(path)
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


def links_inside(rng: random.Random, path: Path) -> None:
    def change(group: h5py.Group, name: str) -> None:
        link = rng.choice([h5py.SoftLink("/nowhere"), h5py.SoftLink(f"{group.name}/{name}"), h5py.SoftLink("/trial_0000"),
                           h5py.ExternalLink("nowhere.hdf5", "/"), h5py.ExternalLink(path.name, "/trial_0000")])
        holder, spot = (group.file, group.name) if rng.random() < 0.3 else (group, name)
        del holder[spot]
        holder[spot] = link
    in_trial(rng, path, change)


def storage(rng: random.Random, path: Path) -> None:
    def change(group: h5py.Group, name: str) -> None:
        name = "logits" if "logits" in group else "input_features"
        shape = group[name].shape
        virtual = h5py.VirtualLayout(shape, "f4")
        virtual[:] = h5py.VirtualSource("nowhere.hdf5", "x", shape)
        del group[name]
        options = rng.choice([None, {}, {"external": [("/etc/passwd", 0, 4 * shape[0] * shape[1])]}, {"chunks": (5, shape[1])}])
        if options is None:
            group.create_virtual_dataset(name, virtual)
        else:
            group.create_dataset(name, shape=shape, dtype="f4", **options)
    in_trial(rng, path, change)


FAULTS: dict[str, dict[str, Spoil]] = {
    "truncated": {"*": lambda rng, path: os.truncate(path, rng.randrange(1, max(2, path.stat().st_size - 4)))},
    "empty": {"*": lambda rng, path: path.write_bytes(rng.choice([b"", b"\n", b"  \n\n"]))},
    "other bytes": {"*": other_bytes},
    "other value": {"json": other_value},
    "other lines": {"text": other_lines},
    "wrong type": {"*": lambda rng, path: path.write_bytes(rng.choice([
        b"\x89PNG\r\n\x1a\n" + rng.randbytes(300), b"\x7fELF" + rng.randbytes(500), b"\x1f\x8b\x08\x00" + bytes(40),
        pickle.dumps(["a", 3]), b"PK\x03\x04" + rng.randbytes(200), b"\x89HDF\r\n\x1a\n" + bytes(99)]))},
    "wrong shape": {
        "hdf5": lambda rng, path: put(rng, path, data=rng.choice([np.float32(1), np.ones((3, 5, 7)), np.ones((0, 512)), np.array(b"text")])),
        "npz": lambda rng, path: in_npz(rng, path, lambda one: rng.choice([one.T[:3], one[None], np.zeros((0, 1)), np.array("text")])),
        "zip": lambda rng, path: in_zip(path, lambda name, data: (rng.choice(["..", "/", "a/", "hdf5_data_final"]) + name[-3:], data)),
        "text": lambda rng, path: in_text(path, lambda lines: [*lines[:-1], lines[-1] + ",x, y z"])},
    "huge": {
        "hdf5": lambda rng, path: put(rng, path, dtype="f4", shape=(shape := rng.choice(SHAPES)), chunks=(10,) * len(shape)),
        "npz": lambda rng, path: in_zip(path, lambda name, data: (
            name, data.replace(b"(128, 128)", b"(999999999999, 128)").replace(b"(208, 1)", b"(99999999999, 1)"))),
        "zip": bomb,
        ".safetensors": lambda rng, path: path.write_bytes(rng.choice([2**40, 2**63 - 1, 2**31]).to_bytes(8, "little") + path.read_bytes()[8:]),
        "text": lambda rng, path: replaced(rng, path, r"(?<=ngram \d=)\d+|(?<![\w.])\d+(?![\w.])",
                                           str(rng.choice([HUGE, 2**63, 10**30, "9" * 5000])))},
    "non-finite": {
        "hdf5": lambda rng, path: in_trial(rng, path, non_finite_bin), ".safetensors": non_finite, ".b2tlm": non_finite,
        "npz": lambda rng, path: in_npz(rng, path, lambda one: np.where(np.arange(one.size).reshape(one.shape) == 5, np.nan, one)),
        "text": lambda rng, path: replaced(rng, path, NUMBER, rng.choice(["NaN", "Infinity", "-Infinity", "1e400", "nan", "inf"]))},
    "Unicode": {
        "hdf5": lambda rng, path: in_trial(rng, path, lambda group, name: group.attrs.update(
            session="ß", block_num=rng.choice(["²", "١", "one"]))),
        "text": odd_text},
    "open bracket": {  # in the header of an array
        "npz": lambda rng, path: in_zip(path, lambda name, data: (name, data.replace(b"'shape': (", b"'shape': (("))),
        ".npy": lambda rng, path: path.write_bytes(path.read_bytes().replace(b"'shape': (", b"'shape': (("))},
    "nested": {".yaml": nested_yaml, "json": nested},
    "repeated": {"hdf5": repeated_trial, "npz": repeated_member, "zip": repeated_member,
                 "text": lambda rng, path: in_text(path, lambda lines: lines[:-1] + lines[-2:])},
    "file links": {"*": linked}, "no file": {"*": no_file},
    "HDF5 links": {"hdf5": links_inside}, "HDF5 storage": {"hdf5": storage},
}


# Edits made by hand: a text in a file, and what it becomes; the word "free" where it may be accepted

EDITS: dict[str, str] = {  # a line each: pattern → new text; @ turns the digits of what was there into Arabic-Indic ones
    "arrays trials.csv": r"""
,1,0, → @
sentence\n → sentence,trial\n
,1,0,rows.npy,0,100 → ,1,1,rows.npy,0,100
0,100 → 100,50
0,100 → 0,100000
m1.2026 → ../m1.2026
rows.npy → ../rows.npy
We can. → We can.,1,2,3
,rows.npy.* →
We → W\0e
We → W\u202ee free
We can. → "We can. free""",
    "config.json run/config.json": r"""
"model": \{ → "model": [1], "other": {
"name": "gru" → "name": "\u001b[2Jgru" free""",
    "decoder run/config.json": r"""
"hidden" → "hiddden"
"hidden": 8 → "hidden": 9
"name": "speech" → "name": "toy"
"name": "gru", →  """,
    "decoder run/checkpoints/00000002/.complete": r"""
"step": 2 → "step": 3
model.safetensors → ../../../x
"bytes": \d+ → "bytes": 1""",
    "metrics.jsonl run/metrics.jsonl": r"""
"loss": [\d.]+ → "loss": 1e400
"step": \d+ → "step": -5
^ → garbage\n""",
    "kept kept/events.jsonl": r"""
"bins": \[0, 100\] → "bins": [0.5, 99.5]
"bins": \[0, 100\] → "bins": [0, 10000]
, "verdict": "right" →
^ → [1, 2]\n""",
    "kept kept/session.json": r"""
"num_features": 4 → "num_features": 4.5
2026-03-01 → 2026-13-45
2026-03-01 → @""",
    "lexicon words.txt": r"""
tea T IY → tea T QQ
tea T IY → tea
tea T IY → tea BLANK
tea → te\0a
T IY → Ｔ IY
tea → te\u202ea""",
    "hotwords words.txt": r"""
2.5 → 1e400
2.5 → nan
2.5 → @
2.5 → 1_0
2.5 → -2.5 free
now → more 1\nmore 2 free""",
    "nbest nbest.jsonl": r"""
-3.0 → -1e400
"t15.2023.08.01" → "t15.2023.08.01", "session": "t15.2023.08.02"
"trial_num": 0 → "trial_num": 1
"we → "\\ud800we""",
    "prompts t.csv": r"""
sentence\nHello you. → session,block_num,sentence\nt15.2023.08.11,1,Hello.
sentence\nHello you. → session,block_num,trial_num,sentence\nmonday,1,0,Hello.
sentence\nHello you. → session,block_num,trial_num,sentence\nt15.2023.08.11,one,0,Hello.
sentence\nHello you. → sentence,phonemes\nHello.,HH QQ |
Hello you.\nWe can hear. → """,
}
WORDS = """
--steps \u0663; --steps 2.5; --lr fast; --lr nan; --lr \u0663; --lr 1_0; --lr 1e-400; --clip-norm inf; --lr; --config huge;
--hidden 8 --task.model.hidden 16; --lurning-rate 3; --step 3; --padding full; --accumulation 9; --buckets 7; --max-bins 5;
--smooth 1e9; --task.model.patch 500; --num-features 256; --num-classes 40; --holdout t15.1999.01.01; --seeds 1 two; --seeds 1 1;
--seeds \u0663 4; --processes 2; --device abacus; --device cuda; --device xla; --precision float8; --precision float16; --tracker diary
"""  # after `train`; bounds of numbers are in test_bounds
VERBS = """
train --data @DATA --out /dev/null
train --data @DATA --out /proc/self/new
live --source localhost:99999 --run run
live --port \u0668\u0660 --run run
decode --run run --data @DATA --out new --beam 1e400
decode --run run --data @DATA --out new --acoustic-scale nan
decode --run run --data @DATA --out new --temperature 0
eval --run run --data @DATA --split ../train
eval --run run --data @DATA --json run
simulate --out new --bins-per-phoneme 2
simulate --out new --sessions 1 --labels /dev/zero
demo --out run
convert arrays
convert arrays /dev/null --out new
lm build /dev/zero --out new.b2tlm
lm build /dev/null --out new.b2tlm
lm info /dev/zero
lm build run/config.json --out x.b2tlm --order \u0663
score --reference /dev/zero --hypothesis /dev/zero
doctor --log /dev/zero
show \udc80run
kernel build --slug ../../etc
plan baseline --chips nan
fetch --out new --source ftp
fetch --out new --token-file /dev/zero
submit --run gone --data @DATA --out new.csv
"""


@dataclass(frozen=True)
class Case:
    group: str  # name of the source, or "words"
    name: str
    make: Callable[[Path], object]  # fills an empty folder; False if the fault does not apply
    read: str | Callable[[Path], object]
    may_pass: bool = False


def edited(source: Source, file: str, pattern: str, new: str) -> Callable[[Path], object]:
    """Good input with one text replaced."""
    def make(folder: Path) -> None:
        source.make(folder)
        content = (folder / file).read_text()
        found = re.search(pattern, content, re.M)
        assert found, f"{file}: has no {pattern}"
        text = found[0].translate(DIGITS) if new == "@" else new.encode("raw_unicode_escape").decode("unicode_escape")
        (folder / file).write_text(content[:found.start()] + text + content[found.end():])
    return make


def spoiled(source: Source, fault: str, seed: str) -> Callable[[Path], object]:
    """Good input with one fault; False where it does not apply."""
    def make(folder: Path) -> object:
        rng = random.Random(seed)
        source.make(folder)
        path = folder / rng.choice(source.files.split())
        kinds = (path.suffix, source.kind, "text" if source.kind == "json" else "", "*")
        return next((FAULTS[fault][kind](rng, path) for kind in kinds if kind in FAULTS[fault]), False)
    return make


def all_cases(cases: int = 1, seed: int = 1) -> list[Case]:
    """What is tried; `cases` of each file and fault."""
    found = []
    for group, source in SOURCES.items():
        for name in FAULTS:
            free = name in FREE or name in source.free or source.free == "everything" or source.free == "text" and name in ANOTHER_TEXT
            found += [Case(group, f"{name} {number}", spoiled(source, name, f"{seed} {group} {name} {number}"), source.read, free)
                      for number in range(cases * (6 if name == "other value" else 1))]
    for key, lines in EDITS.items():
        group, _, file = key.rpartition(" ")
        for line in lines.strip("\n").splitlines():
            free, (pattern, _, new) = line.endswith(" free"), line.removesuffix(" free").partition(" →")
            found.append(Case(group, line, edited(SOURCES[group], file, pattern, new.removeprefix(" ")), SOURCES[group].read, free))
    start, small = "train --data @DATA --out new ", SMALL.split()
    for words in re.split(";\\s+", WORDS.strip()):
        more = [pair for pair in zip(small[::2], small[1::2]) if pair[0] not in words.split()]
        found.append(Case("words", words, copies("run"), f"{start}{words} {' '.join(map(' '.join, more))}"))
    return found + [Case("words", words, copies("run"), words) for words in VERBS.strip().splitlines()]


# Running them

def outcome_of(status: int, out: str, err: str, may_pass: bool) -> str:
    """What happened, by what the command said."""
    if status < 0:
        return "crash"
    if "Traceback (most recent call last)" in err + out:
        return "traceback"
    if status in (0, 3):  # 3: a log that doctor does not know
        return "accepted" if may_pass else "silent"
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    return "refused" if len(errors) == 1 or status == 1 and out.strip() else "traceback"


def child(case: Case, folder: Path) -> None:
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
        from b2t_kit.core.errors import KitError
        if isinstance(case.read, str):
            data = os.environ["HOSTILE"] + "/data"
            status = main([word.replace("@DATA", data) for word in case.read.split(" ")])
        else:
            try:
                status = 0 if case.read(Path(".")) is not False else 1
            except KitError as error:
                print(f"error: {error}", file=sys.stderr)
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
    if case.make(folder) is False:
        return "", ""
    number, until = os.fork(), time.monotonic() + SECONDS
    if not number:
        child(case, folder)
    done, status = 0, 0
    while not done and time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)  # what it may have started, too
    if not done:
        os.waitpid(number, 0)
        return "hang", ""
    out, err = ((folder.parent / name).read_text(errors="replace") for name in ("out", "err"))
    said = (err.strip() or out.strip()).splitlines()
    return outcome_of(os.waitstatus_to_exitcode(status), out, err, case.may_pass), said[-1] if said else ""


def prepare(folder: Path) -> None:
    """What takes long to make: recordings, a run, models; and imports and compiled loops, once for all children."""
    import transformers  # noqa: F401

    from b2t_kit.cli import all_verbs, main
    from b2t_kit.verb import HasSettings
    for verb in all_verbs().values():
        if issubclass(verb, HasSettings):
            verb.initial(())
    from b2t_kit.data.write import tiny_recordings
    os.environ["HOSTILE"] = str(folder)
    tiny_recordings(folder / "data", sessions=2, trials=4, max_bins=60)
    write_causal(folder / "causal")
    write_published(folder / "base")
    (folder / "lm").mkdir()
    text(words_txt=SAID)(folder)
    logits(folder)
    # not in this process: where torch knows other devices than a CPU, it refuses gradients after a fork that follows one
    subprocess.run([sys.executable, "-m", "b2t_kit", "train", "--data", "data", "--out", "run", *SMALL.split(), "--quiet"],
                   cwd=folder, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        for words in ("lm build words.txt --out lm/model.b2tlm", DECODE):
            with contextlib.chdir(folder):
                assert main(words.split()) == 0, words
    gc.freeze()  # what is imported need not be looked through again in every child


def try_all(cases: list[Case], keep: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Outcomes, and a line for each bad one; good input first, which must be accepted."""
    found, bad = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="hostile_") as name:
        home = Path(name)
        prepare(home)
        good = [Case(group, "good", SOURCES[group].make, SOURCES[group].read, True) for group in dict.fromkeys(one.group for one in cases)
                if group in SOURCES]
        for case in good + cases:
            outcome, said = run_case(case, home / "case")
            found[outcome] += bool(outcome)
            if outcome not in ("", "refused", "accepted") or case.name == "good" and outcome != "accepted":
                bad.append(f"{case.group}: {case.name}: {outcome}: {said[:160]}")
                print(bad[-1], file=sys.stderr, flush=True)
                if keep:
                    with contextlib.suppress(shutil.Error):  # pipes are not copied
                        shutil.copytree(home / "case", keep / f"{len(bad):04d}", symlinks=True)
            shutil.rmtree(home / "case")
    return found, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1, help="of each file and fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="try only every so many")
    parser.add_argument("--keep", type=Path, help="folder for the inputs of bad outcomes")
    parser.add_argument("--dots", action="store_true", help="draw no figures, which take most of the time of b2t eval")
    options = parser.parse_args()
    if options.dots:
        from matplotlib.figure import Figure
        Figure.savefig = dot
    os.environ["OMP_NUM_THREADS"] = "1"  # a process that has threads may not fork
    only, start = [name for name in options.only.split(",") if name], time.monotonic()
    cases = [one for one in all_cases(options.cases, options.seed) if not only or one.group in only]
    found, bad = try_all(cases[::options.every], options.keep)
    print(", ".join(f"{found[name]} {name}" for name in OUTCOMES) + f"; {time.monotonic() - start:.0f} seconds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
