"""Every reader of the kit against every class of fault, in child processes with limits of memory and time.

    python -m tests.campaign                     # a few minutes; writes benchmarks/robustness.md
    python -m tests.campaign --cases 100         # as many cases a cell; an hour or more
    python -m tests.campaign --only metrics,arpa --seed 7 --keep DIR      # keep the inputs of bad outcomes
    python -m tests.campaign --by-hand           # the cases made by hand, tests/by_hand.py; prints their table

A case is a copy of a reader's good input with one fault, made by a generator with a seed. A long-lived worker reads it.
What can happen: refused (one line, status not 0), accepted (the fault may be harmless), silent (accepted although
the fault must be found), traceback (an exception, or an error of several lines), crash (the worker died), hang.
"""
import argparse
import contextlib
import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MEMORY, SECONDS = 3 << 30, 30.0  # of a worker, above what its imports take; of a case
HUGE = 10**12


# Readers: how good input is made, which of its files are spoiled, and what reads it

@dataclass(frozen=True)
class Reader:
    """One reader of the kit."""
    make: Callable[[Path], object]  # writes good input into a folder
    targets: tuple[str, ...]  # files that are spoiled, relative to the folder
    kind: str  # "hdf5", "json", "text", "table", "tensors", "model", "torch", "npz", "zip", "log" or "packed"
    read: Callable[[Path], object]  # reads the folder, through the program where that is quick
    free: tuple[str, ...] = ()  # classes of faults that this reader may rightly accept
    without: dict[str, str] = field(default_factory=dict)  # classes that make no sense, and why


def recordings(folder: Path) -> None:
    from b2t_kit.data.convert import tiny_recordings
    tiny_recordings(folder, sessions=2, trials=3, max_bins=50)


def read_recordings(folder: Path) -> int:
    from b2t_kit.data.dataset import Recordings
    with Recordings(folder) as found:
        return sum(len(trial.features) for trial in found) and 0


def program(words: str) -> Callable[[Path], int]:
    """Call `b2t`; FOLDER stands for the input."""
    def read(folder: Path) -> int:
        from b2t_kit.cli import parse  # without main's own handler: the worker has one
        return parse([word.replace("FOLDER", str(folder)).replace("DATA", os.environ["CAMPAIGN_DATA"]) for word in words.split()]).act()
    return read


def mat_files(packed: bool) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        from tests.published_files import tiny_mat_files
        tiny_mat_files(folder, days=1, trials=3, packed=packed)
    return make


def logits(folder: Path) -> None:
    with h5py.File(folder / "logits.hdf5", "w") as file:
        for number in range(3):
            group = file.create_group(f"trial_{number:04d}")
            group.create_dataset("logits", data=np.random.default_rng(number).standard_normal((12, 41), np.float32))
            group.attrs.update(session="t15.2023.08.01", block_num=1, trial_num=number, sentence_label="Hello.")


def read_logits(folder: Path) -> None:
    from b2t_kit.decode.files import read_trials
    read_trials(folder / "logits.hdf5")


def run_folder(folder: Path) -> None:
    shutil.copytree(os.environ["CAMPAIGN_RUN"], folder / "run")


def read_decoder(folder: Path) -> None:
    from b2t_kit.speech.evaluate import load_decoder
    load_decoder(folder / "run")


def read_rows(folder: Path) -> None:
    from b2t_kit.training.log import read_metrics
    read_metrics(folder / "run")


def sentences(folder: Path) -> None:
    (folder / "words.txt").write_text("We can hear you now.\nYou hear we can.\nNow we can.\n" * 3)


def model(suffix: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        sentences(folder)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            program(f"lm build FOLDER/words.txt --out FOLDER/model{suffix}")(folder)
    return make


def kenlm(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(Path(__file__).parent / "kenlm" / f"{name}.bin", folder / "model.bin")


def read_model(suffix: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from b2t_kit.lm import read_language_model
        from b2t_kit.lm import perplexity
        perplexity(read_language_model(folder / f"model{suffix}"), ["we can hear you", "now"])
    return read


def text_file(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def read_words(folder: Path) -> None:
    from b2t_kit.text.g2p import read_lexicon
    read_lexicon(folder / "lexicon.txt")


def read_expected(folder: Path) -> None:
    from b2t_kit.decode.search import read_hotwords
    read_hotwords(folder / "names.txt")


def cached_recordings(folder: Path) -> None:
    from b2t_kit.data.batches import map_trials
    from b2t_kit.data.dataset import Recordings
    recordings(folder)
    with Recordings(folder, "val") as trials:
        map_trials(trials, "float32", folder / "cache")
        (folder / "cache/trials").write_bytes(map_trials(trials, "float32", folder / "cache").read_bytes())


def read_cache(folder: Path) -> None:
    """The cache's name is a hash of the recordings; a damaged one is written again."""
    from b2t_kit.data.batches import map_trials
    from b2t_kit.data.dataset import Recordings
    with Recordings(folder, "val") as trials:
        path = map_trials(trials, "float32", folder / "cache")
        path.write_bytes((folder / "cache/trials").read_bytes())
        map_trials(trials, "float32", folder / "cache")


def exported(folder: Path) -> None:
    from b2t_kit.output.runs import export
    run_folder(folder)
    export(folder / "run", folder / "decoder")


def read_exported(folder: Path) -> None:
    from b2t_kit.speech.evaluate import load_decoder
    load_decoder(folder / "decoder")


def read_prompts(folder: Path) -> None:
    from b2t_kit.simulate import read_prompts
    read_prompts(folder / "prompts.csv")


def read_corpora(folder: Path) -> None:
    from b2t_kit.output.report import read_description
    read_description(folder / "description.csv")


def nbest(folder: Path) -> None:
    from b2t_kit.decode.files import DecodedTrial, Hypothesis, write_nbest
    lists = (Hypothesis(("we", "can"), -3.0, -2.0, -5.0), Hypothesis(("we",), -4.0, -1.5, -5.5))
    write_nbest(folder / "nbest.jsonl", [DecodedTrial("t15.2023.08.01", 1, number, lists, "We can.") for number in range(3)])


def read_lists(folder: Path) -> None:
    from b2t_kit.decode.files import read_nbest
    list(read_nbest(folder / "nbest.jsonl"))


def published(folder: Path) -> None:
    shutil.copytree(os.environ["CAMPAIGN_BASELINE"], folder / "base")


def write_published(folder: Path) -> None:
    """A checkpoint like the published baseline's, but small."""
    import torch

    from b2t_kit.models.gru import GRUConfig
    state = GRUConfig(num_days=45, num_features=8, hidden=4, num_layers=1).build().state_dict()
    weights, biases = state.pop("day_layer.weight"), state.pop("day_layer.bias")
    state |= {f"day_weights.{day}": weight.clone() for day, weight in enumerate(weights)}
    state |= {f"day_biases.{day}": bias[None].clone() for day, bias in enumerate(biases)}
    folder.mkdir()
    torch.save({"model_state_dict": state, "val_PER": 0.1}, folder / "best_checkpoint")
    (folder / "args.yaml").write_text("model:\n  patch_size: 14\n  patch_stride: 4\n  rnn_dropout: 0.4\n")


def read_published(folder: Path) -> None:
    from b2t_kit.models.gru import load_pretrained
    load_pretrained(folder / "base")


def build_with(words: str) -> Callable[[Path], int]:
    """`b2t lm build` with one more file."""
    return program(f"lm build {words} --out FOLDER/new.b2tlm")


def zipped_text(folder: Path) -> None:
    (folder / "words.txt.gz").write_bytes(gzip.compress(b"We can hear you now.\nYou hear we can.\nNow we can.\n" * 3))


def with_vocabulary(folder: Path) -> None:
    sentences(folder)
    (folder / "vocabulary.txt").write_text("we\ncan\nhear\nyou\nnow\n")


def with_excluded(folder: Path) -> None:
    sentences(folder)
    (folder / "scored.txt").write_text("Nothing of this is in the text.\nNor is this one.\n")


def read_average(folder: Path) -> None:
    from b2t_kit.decode.combine import average_files
    average_files([folder / "logits.hdf5", folder / "other.hdf5"], folder / "new.hdf5")


def two_logits(folder: Path) -> None:
    logits(folder)
    shutil.copy(folder / "logits.hdf5", folder / "other.hdf5")


def tuned(folder: Path) -> None:
    from b2t_kit.core import save_json, to_dict
    from b2t_kit.decode.search import SearchConfig
    save_json(folder / "decoding.json", {"search": to_dict(SearchConfig()), "tuned_for": {"language_model": "a" * 32},
                                          "lm": "default", "chose": [], "temperature": None, "held_out": None, "logits": ""})


def read_tuned(folder: Path) -> None:
    from b2t_kit.decode.tune import read_tuning
    read_tuning(folder / "decoding.json").settings({"language_model": "a" * 32})


def read_rescoring_weights(folder: Path) -> None:
    from b2t_kit.llm import load_weights
    load_weights(folder / "weights.json")


def kept_scores(folder: Path) -> None:
    from b2t_kit.core import content_hash, save_json
    scores = {"model": {"we can": -3.5, "you": -2.0}, "other": {"a": -1.0}}
    save_json(folder / "scores.json", {"scores": scores, "check": content_hash(scores)})


def read_scores(folder: Path) -> None:
    from b2t_kit.llm import KeptScores
    KeptScores(SimpleNamespace(known={}, key="model"), folder / "scores.json")


def causal(folder: Path) -> None:
    shutil.copytree(os.environ["CAMPAIGN_CAUSAL"], folder / "model")


def write_causal(folder: Path) -> None:
    """A causal language model of a few thousand parameters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(["we can hear you now"] * 9, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(1)
    settings = GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=0)
    AutoModelForCausalLM.from_config(settings).save_pretrained(folder)


def read_causal(folder: Path) -> None:
    from b2t_kit.llm import load_scorer
    scores = load_scorer(folder / "model").score_lists([["we can hear"]])[0]
    assert len(scores) == 1


def rolling(folder: Path) -> None:
    from b2t_kit.training.checkpoint import use_scratch
    run_folder(folder)
    use_scratch(folder / "run", folder / "large")


def read_state_of(folder: Path) -> None:
    from b2t_kit.training.checkpoint import read_state
    read_state(folder / STEP)


def measurements(folder: Path) -> None:
    numbers = np.random.default_rng(1)
    for number in range(2):
        np.savez(folder / f"{number}.npz", xs=numbers.standard_normal((128, 128)), ys=numbers.standard_normal((208, 1)))


def read_measurements(folder: Path) -> None:
    from b2t_kit.tasks.eit import Measurements
    found = Measurements(folder)
    assert all(found[number][1].shape == (16, 13) for number in range(len(found)))


def eit_run(folder: Path) -> None:
    import b2t_kit.tasks
    from b2t_kit.core import load_json
    from b2t_kit.training.checkpoint import write_checkpoint
    from safetensors.torch import load_file
    shipped = Path(b2t_kit.tasks.__path__[0]) / "eit_weights"
    (folder / "run").mkdir()
    shutil.copy(shipped / "config.json", folder / "run")
    step = load_json(shipped / "state.json")["step"]
    (folder / "run/checkpoints").mkdir()
    made = write_checkpoint(folder / "run", step, {"ema": load_file(shipped / "ema.safetensors")}, {})
    made.rename(made.with_name("step"))
    (made.with_name("step")).rename(made)


def read_eit_run(folder: Path) -> None:
    from b2t_kit.tasks.eit import load_reconstructor
    load_reconstructor(folder / "run")


def statistics(folder: Path) -> None:
    import torch
    for name in ("mean", "std"):
        torch.save(torch.ones(1, 16, 13), folder / f"{name}.pth")


def read_statistics_of(folder: Path) -> None:
    from b2t_kit.tasks.eit import read_statistics
    read_statistics(folder)


def archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(3):
            packed.writestr(f"hdf5_data_final/t15.2023.08.0{number + 1}/data_train.hdf5", bytes(range(256)) * 40)


def read_archive(folder: Path) -> None:
    from b2t_kit.data.download import unpack_archive
    unpack_archive(folder / "data.zip", folder / "hdf5_data_final", progress=False)


def read_token_of(folder: Path) -> None:
    from b2t_kit.data.download import read_token
    read_token(folder / "token.txt")


def read_copied(folder: Path) -> None:
    from b2t_kit.kaggle import bring_run
    assert bring_run(folder / "new", roots=(folder,))


LOG = "".join(f"step {n}: loss {n / 7:.3f}\n" for n in range(200)) + (
    "Traceback (most recent call last):\n  File \"train.py\", line 3\n"
    "RuntimeError: Attempted to allocate 12.00G. That was not possible. There are 3.41G free.\n")
DAY = "hdf5_data_final/t15.2023.08.02/data_train.hdf5"
MAT = "competitionData/train/t12.2022.04.01.mat"
STEP = "run/checkpoints/00000002/"
LINKS = {"HDF5 links": "no links in this format", "unwritten, virtual, external": "only HDF5 has such storage"}
FLAT = {"nested": "nothing nests in this format"}
SETTINGS = "--hidden 8 --steps 2 --batch-size 8 --buckets 1 --eval-every 2 --device cpu"
BUNDLED = ("truncated", "wrong type", "non-finite", "Unicode", "empty", "wrong shape", "nested", "huge size", "repeated",
           "file links", "pipes, sockets, folders")  # a bug report says what is damaged, and leaves it out
ANY_TEXT = ("truncated", "wrong type", "non-finite", "Unicode", "empty", "wrong shape", "nested", "huge size", "repeated")
SUBMISSION = "id,text\n" + "".join(f"{number},we can hear you\n" for number in range(1450))

READERS: dict[str, Reader] = {
    "recordings": Reader(recordings, (DAY,), "hdf5", read_recordings, without=FLAT),
    "validate": Reader(recordings, (DAY,), "hdf5", program("validate FOLDER"), without=FLAT),
    **{name: Reader(mat_files(packed), (MAT,), "packed", program("convert t12 FOLDER --out FOLDER/new"), without=LINKS | FLAT)
       for name, packed in (("t12", False), ("t12 compressed", True))},
    "logits": Reader(logits, ("logits.hdf5",), "hdf5", read_logits, ("Unicode", "non-finite"), without=FLAT),
    "config.json": Reader(run_folder, ("run/config.json",), "json", read_decoder,
                          ("non-finite", "huge size", "repeated", "wrong shape", "Unicode"), without=LINKS),
    ".complete": Reader(run_folder, (STEP + ".complete",), "json", read_decoder,
                        ("repeated", "wrong shape", "non-finite"), without=LINKS),
    "best": Reader(run_folder, ("run/best",), "json", read_decoder,
                   ("non-finite", "huge size", "repeated", "wrong shape", "Unicode"), without=LINKS),
    "weights": Reader(run_folder, (STEP + "model.safetensors",), "tensors", read_decoder, without=LINKS | FLAT),
    "exported settings": Reader(exported, ("decoder/config.json",), "json", read_exported,
                                ("non-finite", "huge size", "repeated", "wrong shape", "Unicode"), without=LINKS),
    "exported weights": Reader(exported, ("decoder/model.safetensors",), "tensors", read_exported, without=LINKS | FLAT),
    "metrics.jsonl": Reader(run_folder, ("run/metrics.jsonl",), "json", read_rows, ANY_TEXT, without=LINKS),
    "b2tlm": Reader(model(".b2tlm"), ("model.b2tlm",), "model", read_model(".b2tlm"), ("repeated", "nested"), without=LINKS),
    "arpa": Reader(model(".arpa"), ("model.arpa",), "table", read_model(".arpa"),
                   ("Unicode", "wrong shape", "non-finite"), without=LINKS | FLAT),  # -inf is SRILM's probability of 0
    "arpa.gz": Reader(model(".arpa.gz"), ("model.arpa.gz",), "packed", read_model(".arpa.gz"),
                      without=LINKS | FLAT),
    **{f"kenlm {name}": Reader(kenlm(name), ("model.bin",), "packed", read_model(".bin"), without=LINKS | FLAT)
       for name in ("probing", "trie", "both")},
    "lexicon": Reader(text_file("lexicon.txt", "tea T IY\nmore M AO R\nnow N AW\n"), ("lexicon.txt",), "table", read_words,
                      ANY_TEXT, without=LINKS | FLAT),
    "hotwords": Reader(text_file("names.txt", "wojciechowski V OY CH 2.5\nmore M AO R\nnow\n"), ("names.txt",), "table",
                       read_expected, ANY_TEXT, without=LINKS | FLAT),
    "cache of recordings": Reader(cached_recordings, ("cache/trials",), "packed", read_cache, without=LINKS | FLAT),
    "prompts": Reader(text_file("prompts.csv", "sentence\nHello you.\nWe can hear.\n"), ("prompts.csv",), "table",
                      read_prompts, ANY_TEXT, without=LINKS | FLAT),
    "description": Reader(text_file("description.csv", "Date,Post-implant day,Block number,Number of sentences,Corpus,Split\n"
                                    "2023-08-11,25,1,50,50-Word,Train\n2023-08-11,25,2,50,50-Word,Train\n"),
                          ("description.csv",), "table", read_corpora, ANY_TEXT, without=LINKS | FLAT),
    "submission": Reader(text_file("sub.csv", SUBMISSION), ("sub.csv",), "table", program("check-submission FOLDER/sub.csv"),
                         ("Unicode", "non-finite"), without=LINKS | FLAT),
    "score": Reader(lambda folder: [(folder / name).write_text("id,text\n0,we can\n1,you\n") for name in ("r.csv", "h.csv")],
                    ("r.csv", "h.csv"), "table", program("score --reference FOLDER/r.csv --hypothesis FOLDER/h.csv"),
                    ("Unicode", "non-finite"), without=LINKS | FLAT),
    "nbest": Reader(nbest, ("nbest.jsonl",), "json", read_lists, ("repeated", "Unicode", "truncated", "wrong shape", "empty", "huge size"),
                    without=LINKS),
    "published": Reader(published, ("base/best_checkpoint", "base/args.yaml"), "torch", read_published,
                        ("truncated", "Unicode", "empty", "wrong type", "repeated", "non-finite", "nested"), without=LINKS),
    "state.json": Reader(run_folder, (STEP + "state.json",), "json", read_state_of,
                         ("repeated", "wrong shape", "non-finite", "huge size", "Unicode"), without=LINKS),
    "resumed run": Reader(run_folder, ("run/config.json", STEP + "state.json", STEP + ".complete"), "json",
                          program("train --data DATA --out FOLDER/run --resume " + SETTINGS),
                          ("repeated", "wrong shape", "non-finite", "huge size", "Unicode"), without=LINKS),
    "rolling.json": Reader(rolling, ("run/rolling.json",), "json", read_decoder, ("Unicode", "wrong shape", "huge size"),
                           without=LINKS),  # white space at the end is as good as none
    "bundled run": Reader(run_folder, ("run/config.json", "run/metrics.jsonl", "run/best", STEP + "state.json"), "json",
                          program("doctor --bundle FOLDER/run --out FOLDER/report.zip"), BUNDLED, without=LINKS),
    "tuned weights": Reader(tuned, ("decoding.json",), "json", read_tuned,
                            ("huge size", "repeated", "wrong shape", "Unicode"), without=LINKS),
    "logits averaged": Reader(two_logits, ("logits.hdf5", "other.hdf5"), "hdf5", read_average, ("Unicode", "repeated", "non-finite"),
                              without=FLAT),  # -inf is a logit
    "text": Reader(sentences, ("words.txt",), "text", build_with("FOLDER/words.txt"), ANY_TEXT, without=LINKS | FLAT),
    "text.gz": Reader(zipped_text, ("words.txt.gz",), "packed", build_with("FOLDER/words.txt.gz"), ("wrong type",),
                      without=LINKS | FLAT),
    "vocabulary": Reader(with_vocabulary, ("vocabulary.txt",), "text",
                         build_with("FOLDER/words.txt --vocabulary FOLDER/vocabulary.txt"), ANY_TEXT, without=LINKS | FLAT),
    "excluded": Reader(with_excluded, ("scored.txt",), "text", build_with("FOLDER/words.txt --exclude FOLDER/scored.txt"),
                       ANY_TEXT, without=LINKS | FLAT),
    "kept scores": Reader(kept_scores,
                          ("scores.json",), "json", read_scores, ("Unicode", "repeated", "huge size", "non-finite"),
                          without=LINKS),
    "rescoring weights": Reader(text_file("weights.json", '{"weights": {"acoustic_scale": 0.5, "alpha": 0.3, "word_bonus": 1.0}}\n'),
                                ("weights.json",), "json", read_rescoring_weights, ("repeated", "Unicode", "huge size"), without=LINKS),
    "causal model": Reader(causal, tuple(f"model/{name}.json" for name in ("config", "tokenizer", "tokenizer_config")),
                           "json", read_causal, ANY_TEXT, without=LINKS),
    "causal weights": Reader(causal, ("model/model.safetensors",), "tensors", read_causal, ("repeated",),
                             without=LINKS | FLAT),
    "measurements": Reader(measurements, ("0.npz", "1.npz"), "npz", read_measurements, ("repeated",), without=LINKS | FLAT),
    "tomography run": Reader(eit_run, ("run/config.json",), "json", read_eit_run,
                             ("non-finite", "huge size", "repeated", "Unicode", "wrong shape"), without=LINKS),
    "statistics": Reader(statistics, ("mean.pth", "std.pth"), "torch", read_statistics_of,
                                ("repeated", "Unicode"), without=LINKS | FLAT),
    "archive": Reader(archive, ("data.zip",), "zip", read_archive, ("huge size", "Unicode", "wrong shape"),
                      without=LINKS | FLAT | {"non-finite": "an archive of bytes has no numbers"}),
    "token": Reader(text_file("token.txt", "abcdef0123456789\n"), ("token.txt",), "text", read_token_of,
                    ("truncated", "non-finite", "huge size", "wrong shape"), without=LINKS | FLAT),
    "copied run": Reader(run_folder, ("run/config.json", STEP + ".complete", "run/best"), "json", read_copied,
                         (*ANY_TEXT, "pipes, sockets, folders"), without=LINKS),  # training that resumes names a folder
    "doctor's log": Reader(text_file("log.txt", LOG), ("log.txt",), "log", program("doctor --log FOLDER/log.txt"),
                           ANY_TEXT, without=LINKS | FLAT),
}

# Faults: each spoils a file, and returns False where it does not apply

LINES = ("table", "json", "log", "text")  # kinds of files that are lines of text
Spoil = Callable[[random.Random, Path, str], bool | None]
FAULTS: dict[str, tuple[Spoil, bool]] = {}  # name -> what it does, and whether it must be found


def fault(name: str, must: bool) -> Callable[[Spoil], Spoil]:
    def add(spoil: Spoil) -> Spoil:
        FAULTS[name] = (spoil, must)
        return spoil
    return add


@fault("truncated", True)
def truncated(rng: random.Random, path: Path, kind: str) -> None:
    os.truncate(path, rng.randrange(1, max(2, path.stat().st_size - 4)))


@fault("empty", True)
def empty(rng: random.Random, path: Path, kind: str) -> None:
    path.write_bytes(rng.choice([b"", b"\n", b"  \n\n"]))


@fault("bit flips", False)
def bit_flips(rng: random.Random, path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@fault("bytes overwritten", False)
def overwritten(rng: random.Random, path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    start, length = rng.randrange(len(data)), rng.choice([4, 8, 64, 512])
    block = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
    data[start:start + length] = block[:len(data) - start]
    path.write_bytes(data)


@fault("bytes removed or added", False)
def shifted(rng: random.Random, path: Path, kind: str) -> None:
    data = path.read_bytes()
    start = rng.randrange(len(data))
    more = rng.choice([b"", b"", rng.randbytes(40), data[:400]])
    path.write_bytes(data[:start] + more + data[start + rng.choice([0, 1, 100]):])


@fault("wrong type", True)
def wrong_type(rng: random.Random, path: Path, kind: str) -> None:
    others = [b"\x89PNG\r\n\x1a\n" + rng.randbytes(300), b"\x7fELF" + rng.randbytes(500), b"\x1f\x8b\x08\x00" + bytes(40),
              pickle.dumps(["a", 3]), b'{"a": [1, 2]}\n', b"PK\x03\x04" + rng.randbytes(200), b"\x89HDF\r\n\x1a\n" + bytes(99)]
    path.write_bytes(rng.choice([one for one in others if kind != "json" or b"{" not in one]))


@fault("wrong shape", True)
def wrong_shape(rng: random.Random, path: Path, kind: str) -> bool | None:
    if kind == "hdf5":
        return in_trial(rng, path, lambda group, name: replace(
            group, name, np.asarray(rng.choice([1, [[1.0]], np.ones((3, 5, 7)), np.ones((0, 512)), "text"]))))
    if kind in LINES:
        lines = path.read_text().splitlines(keepends=True)
        spot = rng.randrange(len(lines))
        before = "".join(lines).split()
        lines[spot] = rng.choice([lines[spot].rstrip("\n") + ",x, y z\n", lines[spot].split(",")[0].split("\t")[0] + "\n"])
        path.write_text("".join(lines))
        return None if "".join(lines).split() != before else False
    if kind == "torch":
        return change_tensor(rng, path)
    if kind == "npz":
        return change_array(path, rng, lambda array: rng.choice([array.T[:3], array[None], np.zeros((0, 1)), np.array("text")]))
    if kind == "zip":
        return rename_members(path, lambda name: rng.choice(["..", "/", "a/", "hdf5_data_final"]) + name[-3:])
    return change_header(path, kind, lambda text: re.sub(r"\[(\d+)", lambda m: f"[{int(m[1]) + rng.choice([-1, 1, 7])}", text))


@fault("huge size", True)
def huge(rng: random.Random, path: Path, kind: str) -> bool | None:
    if kind == "hdf5":
        shape = rng.choice([(HUGE, 512), (60, HUGE), (1 << 24, 512), (HUGE,), (2**31, 2**31)])
        return in_trial(rng, path, lambda group, name: replace(group, name, None, shape=shape, dtype="f4",
                                                               chunks=(10,) * len(shape)))
    sizes = [HUGE, 2**31, 2**63, 10**30, "9" * 5000]
    if kind in LINES:
        text = path.read_text()
        numbers = list(re.finditer(r"(?<=ngram \d=)\d+" if "ngram 1=" in text else r"(?<![\w.])\d+", text))
        if not numbers:
            path.write_text(text + rng.choice(["x" * (1 << 22), "a b " * (1 << 20), "\n" * (1 << 22)]))
            return None
        spot = rng.choice(numbers[:40])
        path.write_text(text[:spot.start()] + str(rng.choice(sizes)) + text[spot.end():])
        return None
    if kind == "npz":
        return change_member(path, rng, lambda data: data.replace(b"(128, 128)", b"(999999999999, 128)").replace(
            b"(208, 1)", b"(99999999999, 1)"))
    if kind == "zip":
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("hdf5_data_final/bomb", bytes(1 << 26))
        return None
    if kind == "tensors" and rng.random() < 0.5:
        path.write_bytes(rng.choice([2**40, 2**63, 2**31]).to_bytes(8, "little") + path.read_bytes()[8:])
        return None
    return change_header(path, kind, lambda text: re.sub(r"\d+", lambda m: str(rng.choice(sizes[:4])), text, count=3))


@fault("non-finite", True)
def non_finite(rng: random.Random, path: Path, kind: str) -> bool | None:
    words = ["NaN", "Infinity", "-Infinity", "1e400", "nan", "inf"]
    if kind == "hdf5":
        value = rng.choice([np.nan, np.inf, -np.inf, 3e38])
        def change(group: h5py.Group, name: str) -> None:
            name = "logits" if "logits" in group else "input_features"
            group[name][rng.randrange(5), rng.randrange(41)] = value
        return in_trial(rng, path, change)
    if kind in LINES:
        text = path.read_text()
        numbers = list(re.finditer(r"(?<![\w.])-?\d+(\.\d+)?", text))
        spot = rng.choice(numbers) if numbers else re.search("$", text)
        path.write_text(text[:spot.start()] + rng.choice(words) + text[spot.end():])
        return None
    if kind == "npz":
        return change_array(path, rng, lambda array: np.where(np.arange(array.size).reshape(array.shape) == 5, np.nan, array))
    if kind in ("tensors", "torch", "model"):
        data = bytearray(path.read_bytes())
        spots = range(len(data) // 2, len(data) - 8, 4)
        for _ in range(20):
            spot = rng.choice(spots)
            data[spot:spot + 4] = np.float32(rng.choice([np.nan, np.inf])).tobytes()
        path.write_bytes(data)
        return None
    return False


@fault("Unicode", True)
def unicode(rng: random.Random, path: Path, kind: str) -> bool | None:
    odd = ["\u202eabc", "\x00", "\x1b[2J", "\ufeff", "\U0001f600", "e\u0301", "\u2028", "\r", "\x85", "ß", "İ"]
    if kind == "hdf5":
        def change(group: h5py.Group, name: str) -> None:
            group.attrs["session"] = rng.choice(odd[3:])
            group.attrs["block_num"] = rng.choice(["²", "١", "one"])
        return in_trial(rng, path, change)
    if kind in LINES:
        data = path.read_bytes()
        spot = rng.randrange(len(data))
        more = rng.choice([b"\xff", b"\xed\xa0\x80", *(one.encode() for one in odd)])
        path.write_bytes(rng.choice([data[:spot] + more + data[spot:], data.decode().encode("utf-16"),
                                     data.decode().encode("utf-32-le")]))
        return None
    if kind in ("npz", "zip"):
        return rename_members(path, lambda name: name.replace("/", "/" + rng.choice(odd[4:]), 1) if "/" in name else
                              rng.choice(odd[4:]) + name)
    return change_header(path, kind, lambda text: text.replace('"', '"' + rng.choice(odd), 3))


@fault("nested", True)
def nested(rng: random.Random, path: Path, kind: str) -> bool | None:
    depth = rng.choice([1000, 100_000, 1_000_000])
    deep = rng.choice(["[" * depth, '{"a":' * depth, "[" * depth + "]" * depth])
    if kind == "torch":
        (path.parent / "args.yaml").write_text(rng.choice(["[" * 2000, "a: &a [1]\nb: &b [*a,*a]\n" + "".join(
            f"c{n}: &c{n} [{','.join([f'*c{n - 1}' if n else '*b'] * 9)}]\n" for n in range(30))]))
        return None
    if kind == "json":
        path.write_text(deep + "\n" + (path.read_text() if rng.random() < 0.5 else ""))
        return None
    return change_header(path, kind, lambda text: deep[:90_000])


@fault("repeated", True)
def repeated(rng: random.Random, path: Path, kind: str) -> bool | None:
    if kind == "hdf5":
        with h5py.File(path, "r+") as file:
            first, second = rng.sample(sorted(file), 2)
            for name in ("session", "block_num", "trial_num"):
                file[second].attrs[name] = file[first].attrs[name]
        return None
    if kind in LINES:
        lines = path.read_text().splitlines(keepends=True)
        again = rng.choice(lines[-max(1, len(lines) // 2):])
        lines.insert(rng.randrange(len(lines)), again)
        path.write_text("".join(lines))
        return None if again.strip() else False
    if kind in ("npz", "zip"):
        with zipfile.ZipFile(path, "a") as packed, warnings.catch_warnings(action="ignore"):
            name = rng.choice(packed.namelist())
            packed.writestr(name, packed.read(name)[::-1])
        return None
    return change_header(path, kind, lambda text: text.replace("{", '{"a": 1, "a": 2, ', 1))


@fault("file links", True)
def file_links(rng: random.Random, path: Path, kind: str) -> None:
    path.unlink()
    path.symlink_to(rng.choice(["nowhere", path.name, "/dev/full", "/dev/zero", ".", "/nowhere/at/all"]))


@fault("pipes, sockets, folders", True)
def no_file(rng: random.Random, path: Path, kind: str) -> None:
    path.unlink()
    made = rng.choice(["pipe", "socket", "folder"])
    if made == "pipe":
        os.mkfifo(path)
    elif made == "folder":
        path.mkdir()
    else:
        before = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(before)


@fault("HDF5 links", True)
def hdf5_links(rng: random.Random, path: Path, kind: str) -> bool | None:
    def change(group: h5py.Group, name: str) -> None:
        link = rng.choice([h5py.SoftLink("/nowhere"), h5py.SoftLink(f"{group.name}/{name}"), h5py.SoftLink("/trial_0000"),
                           h5py.ExternalLink("nowhere.hdf5", "/"), h5py.ExternalLink(path.name, "/trial_0000"),
                           h5py.SoftLink(f"/trial_0000/{name}")])
        file, spot = (group.file, group.name) if rng.random() < 0.3 else (group, name)
        del file[spot]
        file[spot] = link
    return in_trial(rng, path, change) if kind == "hdf5" else False


@fault("unwritten, virtual, external", True)
def storage(rng: random.Random, path: Path, kind: str) -> bool | None:
    def change(group: h5py.Group, name: str) -> None:
        name = "logits" if "logits" in group else "input_features"
        shape, options = group[name].shape, {}
        del group[name]
        made = rng.choice(["plain", "chunks", "half", "external", "virtual"])
        if made == "virtual":
            layout = h5py.VirtualLayout(shape, "f4")
            layout[:] = h5py.VirtualSource("nowhere.hdf5", "x", shape)
            group.create_virtual_dataset(name, layout)
            return
        if made != "plain":
            options = {"external": [("/etc/passwd", 0, 4 * shape[0] * shape[1])]} if made == "external" else {
                "chunks": (5, shape[1])}
        group.create_dataset(name, shape, "f4", **options)
        if made == "half":
            group[name][:5] = 1
    return in_trial(rng, path, change) if kind == "hdf5" else False


def in_trial(rng: random.Random, path: Path, change: Callable[[h5py.Group, str], object]) -> None:
    """Change something in a trial of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        group = file[rng.choice(sorted(file))]
        change(group, rng.choice(sorted(set(group) - {"transcription"})))


def replace(group: h5py.Group, name: str, data: np.ndarray | None, **options: object) -> None:
    """Put another dataset into the place of one."""
    del group[name]
    group.create_dataset(name, data=data, **options) if data is None else group.create_dataset(name, data=data.astype("S") if data.dtype.kind == "U" else data)


def rewrite_zip(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> bool | None:
    """Give members of an archive other names or contents; False if nothing changes."""
    with zipfile.ZipFile(path) as source:
        parts = [(name, source.read(name)) for name in source.namelist()]
    changed = [change(*part) for part in parts]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target, warnings.catch_warnings(action="ignore"):
        for part in changed:
            target.writestr(*part)
    return False if changed == parts else None


def rename_members(path: Path, change: Callable[[str], str]) -> bool | None:
    """Give the members of an archive other names."""
    return rewrite_zip(path, lambda name, data: (change(name), data))


def change_member(path: Path, rng: random.Random, change: Callable[[bytes], bytes]) -> bool | None:
    """Change the content of one member of an archive."""
    with zipfile.ZipFile(path) as packed:
        chosen = rng.choice(packed.namelist())
    return rewrite_zip(path, lambda name, data: (name, change(data) if name == chosen else data))


def change_tensor(rng: random.Random, path: Path) -> bool | None:
    """Give a tensor of a torch checkpoint another shape."""
    import torch
    if not zipfile.is_zipfile(path):
        return False
    saved = torch.load(path, weights_only=True)
    if isinstance(saved, dict):
        tensors = saved["model_state_dict"]
        name = rng.choice(sorted(tensors))
        tensors[name] = torch.cat([tensors[name], tensors[name]])
    torch.save(saved if isinstance(saved, dict) else rng.choice([saved[0], saved.mT, torch.cat([saved, saved]), [1, 2]]), path)
    return None


def change_array(path: Path, rng: random.Random, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change one array of an npz file."""
    with np.load(path) as file:
        arrays = dict(file)
    name = rng.choice(sorted(arrays))
    np.savez(path, **arrays | {name: change(arrays[name])})


def change_header(path: Path, kind: str, change: Callable[[str], str]) -> bool | None:
    """Change the text in front of safetensors or a .b2tlm, or the pickle of a torch checkpoint."""
    data = path.read_bytes()
    if kind == "tensors":
        length = int.from_bytes(data[:8], "little")
        head = change(data[8:8 + length].decode()).encode()
        path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length:])
    elif kind == "model":
        first = data.index(b"\n") + 1
        end = data.index(b"\n", first)
        path.write_bytes(data[:first] + change(data[first:end].decode()).encode() + data[end:])
    elif kind == "torch" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as source:
            parts = {name: source.read(name) for name in source.namelist()}
        with zipfile.ZipFile(path, "w") as target:
            for name, part in parts.items():
                if name.endswith("data.pkl"):
                    part = change(part.decode("latin-1")).encode("latin-1", "replace")
                target.writestr(name, part)
    elif kind == "torch":
        path.write_text(change(path.read_text()))
    else:
        return False
    return False if path.read_bytes() == data else None


# Workers

class Worker:
    """A child process that reads one folder after another, with limits."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.campaign", "--worker"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL)
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, name: str, folder: Path) -> tuple[str, str]:  # outcome before judgement, and what was said
        self.process.stdin.write(json.dumps([name, str(folder)]) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.end()
            return "hang", ""
        answer = self.process.stdout.readline()
        if not answer:
            return "crash", f"signal {-self.process.wait()}"
        return tuple(json.loads(answer))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def work() -> None:
    """Read the folders that are named on standard input, and tell what happened."""
    import torch

    from b2t_kit.core import KitError
    for name, reader in READERS.items():  # what imports and compiles takes its time now
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception, SystemExit):
            if name not in ("submission",):
                reader.make(Path(folder))
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    reader.read(Path(folder))
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    channel = os.fdopen(os.dup(1), "w")
    print("ready", file=channel, flush=True)
    for line in sys.stdin:
        name, folder = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = READERS[name].read(Path(folder)) or 0
            said = (out.getvalue() + err.getvalue())[-2000:]
            outcome = "accepted" if status == 0 or name == "doctor's log" and status == 3 else "refused"
            outcome = "traceback" if "Traceback" in err.getvalue() else outcome
        except KitError as error:
            said = " ".join(str(error).splitlines())  # as the program prints it
            outcome = "refused" if said else "traceback"
        except BaseException as error:
            outcome, said = "traceback", f"{type(error).__name__}: {error}"[:500]
            place = error.__traceback__
            while place and place.tb_next:
                place = place.tb_next
            said += f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place else ""
        os.chdir("/")
        print(json.dumps([outcome, said]), file=channel, flush=True)


# The campaign

def prepare(folder: Path) -> None:
    """A trained run and a small published checkpoint, made once."""
    from b2t_kit.data.convert import tiny_recordings
    tiny_recordings(folder / "data", sessions=2, trials=4, max_bins=60)
    run = [sys.executable, "-m", "b2t_kit.cli", "train", "--data", folder / "data", "--out", folder / "run", *SETTINGS.split()]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True)
    os.environ["CAMPAIGN_RUN"], os.environ["CAMPAIGN_BASELINE"] = str(folder / "run"), str(folder / "base")
    write_published(folder / "base")
    os.environ["CAMPAIGN_CAUSAL"], os.environ["CAMPAIGN_DATA"] = str(folder / "causal"), str(folder / "data")
    write_causal(folder / "causal")


def campaign(cases: int, seed: int, only: list[str], keep: Path | None) -> tuple[dict, list[str]]:
    """Outcomes by reader and fault, and a line for each bad one."""
    found: dict[tuple[str, str], Counter[str]] = {}
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="campaign_") as name:
        home = Path(name)
        prepare(home)
        worker = Worker()
        for reader_name in only or READERS:
            reader = READERS[reader_name]
            good = home / "good"
            good.mkdir()
            reader.make(good)
            shutil.copytree(good, home / "case")  # what a reader writes must not be there in the next case
            outcome, said = worker.ask(reader_name, home / "case")
            shutil.rmtree(home / "case")
            assert outcome == "accepted", (reader_name, outcome, said)
            for fault_name, (spoil, must) in FAULTS.items():
                if fault_name in reader.without:
                    continue
                cell = found[reader_name, fault_name] = Counter()
                for case in range(10 * cases):  # some draws do not apply to a file
                    if cell.total() == cases:
                        break
                    rng = random.Random(f"{seed} {reader_name} {fault_name} {case}")
                    folder = home / "case"
                    shutil.copytree(good, folder)
                    if spoil(rng, folder / rng.choice(reader.targets), reader.kind) is False:
                        shutil.rmtree(folder)
                        continue
                    outcome, said = worker.ask(reader_name, folder)
                    if outcome == "accepted" and must and fault_name not in reader.free:
                        outcome = "silent"
                    if outcome in ("hang", "crash"):
                        worker.end()
                        worker = Worker()
                    cell[outcome] += 1
                    if outcome not in ("refused", "accepted"):
                        words = re.sub(r"/\S*/(case|good)/", "", " ".join(said.split()))[:200]
                        bad.append(f"{reader_name}, {fault_name}, case {case}: {outcome}: {words}")
                        print(bad[-1], file=sys.stderr, flush=True)
                        if keep:
                            with contextlib.suppress(shutil.Error):  # pipes are not copied
                                shutil.copytree(folder, keep / f"{len(bad):04d}", symlinks=True)
                    shutil.rmtree(folder)
            shutil.rmtree(good)
        worker.end()
    return found, bad


OUTCOMES = ("refused", "accepted", "silent", "traceback", "crash", "hang")


def page(found: dict, bad: list[str], command: str, seconds: float) -> str:
    """The result as Markdown."""
    totals: dict[str, Counter[str]] = {}
    for (_, fault_name), cell in found.items():
        totals.setdefault(fault_name, Counter()).update(cell)
    lines = ["# Robustness: every reader against every class of fault", "", "```", command, "```", "",
             __doc__.split("\n\n")[2].strip(), "",
             f"{sum(cell.total() for cell in found.values())} cases in {seconds / 60:.1f} minutes; each at most "
             f"{SECONDS:.0f} s and {MEMORY >> 30} GiB.", "",
             "| fault | " + " | ".join(OUTCOMES) + " |", "|---|" + "---:|" * len(OUTCOMES)]
    for name, counts in totals.items():
        lines.append(f"| {name} | " + " | ".join(str(counts[one] or "") for one in OUTCOMES) + " |")
    whole = sum(totals.values(), Counter())
    lines.append("| **all** | " + " | ".join(f"**{whole[one]}**" for one in OUTCOMES) + " |")
    names = list(dict.fromkeys(name for name, _ in found))
    lines += ["", "## Cells", "", "Refused + accepted, and bad outcomes in bold. A dash: the fault does not exist in this "
              "format (see below).", "", "| reader | " + " | ".join(FAULTS) + " |", "|---|" + "---|" * len(FAULTS)]
    for name in names:
        cells = []
        for one in FAULTS:
            cell = found.get((name, one), Counter())
            wrong = sum(cell[kind] for kind in OUTCOMES[2:])
            text = f"{cell['refused']}+{cell['accepted']}" + (f" **{wrong}**" if wrong else "")
            cells.append(text if cell else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    reasons = {reason: fault_name for name in names for fault_name, reason in READERS[name].without.items()}
    lines += ["", *(f"- {fault_name}: {reason}." for reason, fault_name in reasons.items()),
              "- A packed ARPA file or text has no numbers or names that could be changed without unpacking; the plain one stands for it.",
              "- Missing permissions are not among the faults: the campaign may run as root, to whom nothing is forbidden.",
              "- Not in the table, because nobody else's file is read there: kernel-metadata.json (the package's own), plans and "
              "scores (`--json` only writes), seeds.json (only the bug report reads it), archives' lists from Dryad "
              "(tests/test_fetch.py has a hostile server).",
              "- A bug report and a log are accepted with every damage: that is what they are for. Pipes and devices are left out.",
              "", "Sizes that are large but right are in [LOG.md](LOG.md).",
              "", f"## Bad outcomes: {len(bad)}", "", *(f"- {line}" for line in bad[:60])]
    if len(bad) > 60:
        lines.append(f"- and {len(bad) - 60} more")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=4, help="cases per reader and fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="readers, separated by commas")
    parser.add_argument("--keep", type=Path, help="folder for the inputs of bad outcomes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/robustness.md")
    parser.add_argument("--by-hand", action="store_true", help="the cases of tests/by_hand.py instead")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work()
        return 0
    start, only = time.monotonic(), [name for name in options.only.split(",") if name]
    if options.by_hand:
        from tests import by_hand
        found, bad = by_hand.by_hand(only)
        print(by_hand.page(found, bad), f"{time.monotonic() - start:.0f} seconds", sep="\n")
        return 1 if bad else 0
    found, bad = campaign(options.cases, options.seed, only, options.keep)
    command = f"python -m tests.campaign --cases {options.cases} --seed {options.seed}"
    text = page(found, bad, command, time.monotonic() - start)
    if only:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")
        print("\n".join(bad), text.split("## Cells")[0], sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
