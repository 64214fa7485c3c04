"""A language model of ten million n-grams over all words of the dictionary: does decoding with it fit into 4 GB?

    python benchmarks/large_vocabulary.py [--words 14000000] [--trials 60] [--limit-mb 4000] [--json FILE]

A synthetic text over all 125,938 words of the CMU dictionary (Zipf frequencies, favourite successors, as in
language_model.py) becomes a 3-gram without pruning. Logits of other sentences of the same language are
simulated with the phoneme error rate of the published baseline (`simulate.logits`) and decoded. Each part runs
in its own process, whose largest resident memory (`ru_maxrss`, mapped pages of files included) is the
result. The kit chooses the search (`route="auto"`). The command fails if the model
has fewer than ten million n-grams or a part needs more than the limit.

The words are random, so the error rate only shows that the search works at this size.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from language_model import make_text, memory_now

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.lm.ngram_build import build_language_model
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.text.g2p import dictionary
from b2t_kit.text.metrics import wer

VOCABULARY = len(dictionary())
LEAST = 10_000_000  # n-grams
LENGTH = 7  # words of a spoken sentence


def peak_mb() -> float:
    "The largest resident memory that this process ever had."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def speak(folder: Path, words: int) -> dict:
    "The text, and sentences of the same language that are not in it."
    make_text(folder / "text.txt", words, VOCABULARY)
    make_text(folder / "said.txt", 400 * LENGTH, VOCABULARY, LENGTH, seed=2)
    return {"words": words, "text_mb": (folder / "text.txt").stat().st_size // 10**6}


def build(folder: Path) -> dict:
    "The model."
    start = time.process_time()
    built = build_language_model([folder / "text.txt"], folder / "large.b2tlm", 3, vocabulary="dictionary",
                                 exclude=[folder / "said.txt"], leaks="drop")
    return {"ngrams": list(built.counts), "file_mb": round(built.path.stat().st_size / 1e6),
            "cpu_seconds": round(time.process_time() - start, 1), "peak_mb": round(peak_mb())}


def decode(folder: Path, count: int, beam: int) -> dict:
    "Decode the sentences with the search that the kit chooses."
    said = (folder / "said.txt").read_text(encoding="utf-8").splitlines()[:count]
    generator = np.random.default_rng(1)
    trials = [noisy_sentence(one, generator) for one in said]
    start = time.process_time()
    lexicon, model = choose_words(folder / "large.b2tlm")
    search = BeamSearch(lexicon, model, SearchConfig(beam=beam))
    ready = time.process_time() - start
    search.decode(trials[0])  # compiles
    start = time.process_time()
    found = [search.decode(one) for one in trials]
    seconds = time.process_time() - start
    rate = wer(said, [one[0].sentence if one else "" for one in found])
    own, mapped = memory_now()
    return {"route": search.route, "beam": beam, "lexicon": len(lexicon), "ngrams": sum(model.counts),
            "trials": count, "frames": round(float(np.mean([len(one) for one in trials]))),
            "wer": rate.rate, "low": rate.low, "high": rate.high, "ready_cpu_seconds": round(ready, 1),
            "per_cpu_second": round(count / seconds, 1), "own_mb": round(own), "mapped_mb": round(mapped),
            "real_time_factor": round(seconds / (0.08 * sum(map(len, trials))), 4), "peak_mb": round(peak_mb())}


def alone(*arguments: object) -> dict:
    "Run a part of this benchmark in its own process."
    command = [sys.executable, __file__, "--part", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(arguments[0], result, flush=True)
    return result


def part(words: list[str]) -> dict:
    "The part that `alone` requests."
    name, folder, *numbers = words
    return {"speak": speak, "build": build, "decode": decode}[name](Path(folder), *map(int, numbers))


def everything(folder: Path, words: int, trials: int, beams: list[int]) -> dict:
    "All parts."
    return {"machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
            "text": alone("speak", folder, words), "build": alone("build", folder),
            "decode": [alone("decode", folder, trials, beam) for beam in beams]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=14_000_000, help="of the text; default 14 million")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--beams", default="50,200")
    parser.add_argument("--limit-mb", type=int, default=4000)
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--keep", type=Path, help="folder for the text and the model, which stay there")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(part(options.part)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        beams = [int(beam) for beam in options.beams.split(",")]
        results = everything(folder, options.words, options.trials, beams)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    peak = max(results["build"]["peak_mb"], *(row["peak_mb"] for row in results["decode"]))
    count = sum(results["build"]["ngrams"])
    print(f"{count:,} n-grams, {results['decode'][0]['lexicon']:,} words: at most {peak:,} MB")
    if count < LEAST or peak > options.limit_mb:
        raise SystemExit(f"failed: {LEAST:,} n-grams within {options.limit_mb:,} MB were asked for")


if __name__ == "__main__":
    main()
