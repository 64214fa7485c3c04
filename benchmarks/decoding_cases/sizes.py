"Large language models of synthetic text: memory and time, each part in a process of its own."
import hashlib
import math
import os
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from decoding_cases.task import alone, best, make_text, memory_now, save, spoken, timed

from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.decode import choose_words
from b2t_kit.lm_kenlm import read_language_model
from b2t_kit.lm import sentence_scores
from b2t_kit.lm import build_language_model
from b2t_kit.text.g2p import dictionary
from b2t_kit.text.metrics import wer

VOCABULARY = len(dictionary())
LENGTH = 7  # words of a spoken sentence
LEAST = 10 / 14  # n-grams a word of text
KINDS = {"probing.bin": ["probing"], "trie.bin": ["trie"], "arrays.bin": ["-a", "255", "trie"],
         "quantised.bin": ["-q", "8", "-b", "8", "trie"], "both.bin": ["-q", "8", "-b", "8", "-a", "255", "trie"]}
EXACT = ("model.b2tlm", "probing.bin", "trie.bin", "arrays.bin")


def large_vocabulary(*, words: int = 14_000_000, trials: int = 60, beams: str = "50,200", limit_mb: int = 4000,
                     keep: Path | None = None, json: Path | None = None) -> None:
    """A language model of ten million n-grams over all words of the dictionary: does decoding with it fit into 4 GB?

    A synthetic text over all 125,938 words of the CMU dictionary (Zipf frequencies, favourite successors, as in
    language_model.py) becomes a 3-gram without pruning. Logits of other sentences of the same language are simulated
    with the phoneme error rate of the published baseline (`simulate`) and decoded. Each part runs in its own
    process, whose largest resident memory (`ru_maxrss`, mapped pages of files included) is the result. The kit chooses
    the search. The case fails if a part needs more than the limit or the model of 14 million words
    has fewer than ten million n-grams; of fewer words, in proportion.

    The words are random, so the error rate only shows that the search works at this size.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = {"machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
                   "text": told(speak, folder, words), "build": told(build_large, folder),
                   "decode": [told(decode, folder, trials, int(beam)) for beam in beams.split(",")]}
    save(json, results)
    peak = max(results["build"]["peak_mb"], *(row["peak_mb"] for row in results["decode"]))
    count = sum(results["build"]["ngrams"])
    print(f"{count:,} n-grams, {results['decode'][0]['lexicon']:,} words: at most {peak:,} MB")
    if count < (least := round(LEAST * words)) or peak > limit_mb:
        raise SystemExit(f"failed: {least:,} n-grams within {limit_mb:,} MB were asked for")


def told(part: Callable, *given: object) -> dict:
    "A part in a process of its own; it is printed."
    result = alone(part, *given)
    print(part.__name__, *given[1:], result, flush=True)
    return result


def peak_mb() -> float:
    "The largest resident memory that this process ever had."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def speak(folder: Path, words: int) -> dict:
    "The text, and sentences of the same language that are not in it."
    make_text(folder / "text.txt", words, VOCABULARY)
    make_text(folder / "said.txt", 400 * LENGTH, VOCABULARY, LENGTH, seed=2)
    return {"words": words, "text_mb": (folder / "text.txt").stat().st_size // 10**6}


def build_large(folder: Path) -> dict:
    "The model."
    start = time.process_time()
    built = build_language_model([folder / "text.txt"], folder / "large.b2tlm", 3, vocabulary=dictionary(),
                                 exclude=[folder / "said.txt"], leaks="drop")
    return {"ngrams": list(built.counts), "file_mb": round(built.path.stat().st_size / 1e6),
            "cpu_seconds": round(time.process_time() - start, 1), "peak_mb": round(peak_mb())}


def decode(folder: Path, count: int, beam: int) -> dict:
    "Decode the sentences with the search that the kit chooses."
    said = (folder / "said.txt").read_text(encoding="utf-8").splitlines()[:count]
    trials = spoken(said, 1)
    start = time.process_time()
    lexicon, model = choose_words(folder / "large.b2tlm")
    search = BeamSearch(lexicon, model, SearchConfig(beam=beam))
    ready = time.process_time() - start
    found, seconds = timed(search, trials)
    rate = wer(said, best(found))
    own, mapped = memory_now()
    return {"beam": beam, "lexicon": len(lexicon), "ngrams": sum(model.counts),
            "trials": count, "frames": round(float(np.mean([len(one) for one in trials]))),
            "wer": rate.rate, "low": rate.low, "high": rate.high, "ready_cpu_seconds": round(ready, 1),
            "per_cpu_second": round(count / seconds, 1), "own_mb": round(own), "mapped_mb": round(mapped),
            "real_time_factor": round(seconds / (0.08 * sum(map(len, trials))), 4), "peak_mb": round(peak_mb())}


def kenlm_files(*, kenlm: Path, words: int = 3_000_000, trials: int = 40, keep: Path | None = None,
                json: Path | None = None) -> None:
    """KenLM's files against the kit's own: opening, memory, decoding, and the same scores as KenLM's program.

    --kenlm is a folder with `build_binary` and `query` (tests/kenlm/README.md says how to build them). A synthetic
    text as in the case large_vocabulary becomes a 4-gram in ARPA; that becomes a .b2tlm and five kinds of KenLM files.
    10,000 other sentences, in which every 50th word is unknown, are scored by `query` and by the kit; trials of other
    sentences are decoded. The case fails if a word's log10 p differs by more than 1e-5, or if the decoded sentences of
    two exact formats differ. Further down, lists may differ: of words that sound the same and are equally likely,
    those with smaller numbers stay in the beam, and the formats number words differently.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are started
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "both.bin").exists():
            build_files(folder, kenlm, words)
        results = {"ngrams": list(read_language_model(folder / "trie.bin").counts),
                   "arpa_mb": round((folder / "model.arpa").stat().st_size / 1e6),
                   "use": {name: told(use, folder, name, trials) for name in ("model.b2tlm", *KINDS)},
                   "compare": {name: told(compare, folder, name, kenlm) for name in KINDS}}
    save(json, results)
    assert max(one["largest_difference"] for one in results["compare"].values()) < 1e-5
    assert len({results["use"][name]["sentences"] for name in EXACT}) == 1, "decoded sentences differ"


def build_files(folder: Path, programs: Path, words: int) -> None:
    "Write the texts and the models."
    make_text(folder / "text.txt", words, VOCABULARY)
    make_text(folder / "said.txt", 400 * LENGTH, VOCABULARY, LENGTH, seed=2)
    make_text(folder / "scored.txt", 100_000, VOCABULARY, 10, seed=3)
    lines = (folder / "scored.txt").read_text().splitlines()[:10_000]
    split = [line.split() for line in lines]
    for row, one in enumerate(split):
        if row % 5 == 0:
            one[row % len(one)] = "xyzzy"
    (folder / "scored.txt").write_text("\n".join(map(" ".join, split)) + "\n")
    build_language_model([folder / "text.txt"], folder / "model.arpa", 4, prune=(0, 0, 1), vocabulary=dictionary(),
                         exclude=[folder / "said.txt"], leaks="drop")
    read_language_model(folder / "model.arpa").save(folder / "model.b2tlm")
    for name, options in KINDS.items():
        subprocess.run([programs / "build_binary", *options, folder / "model.arpa", folder / name], check=True,
                       capture_output=True)


def judged(folder: Path, programs: Path, name: str) -> list[list[float]]:
    "log10 p of each word and end by KenLM's own program."
    with open(folder / "scored.txt") as text:
        told = subprocess.run([programs / "query", "-v", "word", folder / name], stdin=text, capture_output=True,
                              text=True, check=True).stdout
    found: list[list[float]] = [[]]
    for item in told.split("\t"):
        if "=" in item:
            found[-1].append(float(item.split()[-1]))
            if item.strip().startswith("</s>="):
                found.append([])
    return found[:-1]


def compare(folder: Path, name: str, programs: Path) -> dict:
    "The largest difference of a word from KenLM's program."
    model, worst, count = read_language_model(folder / name), 0.0, 0
    sentences = (folder / "scored.txt").read_text().splitlines()
    expected = judged(folder, programs, name)
    assert len(expected) == len(sentences)
    for sentence, values in zip(sentences, expected):
        state = model.start
        numbers = [*model.numbers(sentence.split()).tolist(), model.end]
        assert len(numbers) == len(values)
        for number, value in zip(numbers, values):
            ln_p, state = model.score(state, number)
            worst, count = max(worst, abs(ln_p / math.log(10) - value)), count + 1
    return {"words": count, "largest_difference": worst}


def digest(text: bytes) -> str:
    "A few letters that stand for a text."
    return hashlib.sha256(text).hexdigest()[:12]


def use(folder: Path, name: str, trials: int) -> dict:
    "Open, score and decode; what each takes."
    size = (folder / name).stat().st_size
    said = (folder / "said.txt").read_text().splitlines()[:trials]
    logits = spoken(said, 1)
    warm = read_language_model(folder / name)
    sentence_scores(warm, ["the"])  # compiles
    del warm
    before = memory_now()
    start = time.perf_counter()
    model = read_language_model(folder / name)
    opened, after_opening = time.perf_counter() - start, memory_now()
    text = (folder / "scored.txt").read_text().splitlines()
    start = time.process_time()
    total = float(sentence_scores(model, text).sum())
    scored, after_scoring = time.process_time() - start, memory_now()
    lexicon, model = choose_words(folder / name)
    found, seconds = timed(BeamSearch(lexicon, model, SearchConfig(beam=200)), logits)
    first, lists = (repr([[one.words for one in each[:count]] for each in found]).encode() for count in (1, None))
    return {"bytes": size, "per_ngram": round(size / sum(model.counts), 1), "open_ms": round(1000 * opened, 1),
            "mapped_mb": [round(one[1] - before[1], 1) for one in (after_opening, after_scoring)],
            "own_mb": [round(one[0] - before[0], 1) for one in (after_opening, after_scoring)],
            "score_cpu_seconds": round(scored, 2), "sum_ln_p": total,
            "trials_per_cpu_second": round(trials / seconds, 1),
            "decode_cpu_seconds": round(seconds, 2), "sentences": digest(first), "lists": digest(lists),
            "kind": type(model).__name__,
            "peak_own_mb": round(memory_now()[0]), "peak_mapped_mb": round(memory_now()[1])}
