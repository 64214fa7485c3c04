"A large language model of synthetic text: memory and time, each part in a process of its own."
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from decoding_cases.task import alone, best, make_text, memory_now, save, spoken, timed

from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.decode import choose_words
from b2t_kit.speech.sentences import build_language_model
from b2t_kit.lexicon.g2p import dictionary
from b2t_kit.text.metrics import wer

VOCABULARY = len(dictionary())
LENGTH = 7  # words of a spoken sentence
LEAST = 10 / 14  # n-grams a word of text


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
