"""KenLM's files against the kit's own: opening, memory, decoding, and the same scores as KenLM's program.

    python benchmarks/kenlm_files.py --kenlm DIR [--words 3000000] [--trials 40] [--keep FOLDER] [--json FILE]

DIR holds `build_binary` and `query` (tests/kenlm/README.md says how to build them). A synthetic text over the whole CMU
dictionary, as in large_vocabulary.py, becomes a 4-gram in ARPA; that becomes a .b2tlm and five kinds of KenLM files.
10,000 other sentences, in which every 50th word is unknown, are scored by `query` and by the kit; trials of other
sentences are decoded. Every part runs in its own process. The command fails if a word's log10 p differs by more than
1e-5, or if the decoded sentences of two exact formats differ. Further down, lists may differ: of words that sound the
same and are equally likely, those with smaller numbers stay in the beam, and the formats number words differently.
"""

import hashlib
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

from decoding_task import alone, make_text, memory_now, options_of, save, spoken, timed

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.pipeline import choose_words
from b2t_kit.lm.arpa import read_language_model
from b2t_kit.lm.ngram import sentence_scores
from b2t_kit.lm.ngram_build import build_language_model, convert_language_model
from b2t_kit.text.g2p import dictionary

KINDS = {"probing.bin": ["probing"], "trie.bin": ["trie"], "arrays.bin": ["-a", "255", "trie"],
         "quantised.bin": ["-q", "8", "-b", "8", "trie"], "both.bin": ["-q", "8", "-b", "8", "-a", "255", "trie"]}
EXACT = ("model.b2tlm", "probing.bin", "trie.bin", "arrays.bin")


def build(folder: Path, programs: Path, words: int) -> None:
    "Write the texts and the models."
    make_text(folder / "text.txt", words, len(dictionary()))
    make_text(folder / "said.txt", 400 * 7, len(dictionary()), 7, seed=2)
    make_text(folder / "scored.txt", 100_000, len(dictionary()), 10, seed=3)
    lines = (folder / "scored.txt").read_text().splitlines()[:10_000]
    split = [line.split() for line in lines]
    for row, one in enumerate(split):
        if row % 5 == 0:
            one[row % len(one)] = "xyzzy"
    (folder / "scored.txt").write_text("\n".join(map(" ".join, split)) + "\n")
    build_language_model([folder / "text.txt"], folder / "model.arpa", 4, prune=(0, 0, 1), vocabulary="dictionary",
                         exclude=[folder / "said.txt"], leaks="drop")
    convert_language_model(folder / "model.arpa", folder / "model.b2tlm")
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


def compare(folder: Path, programs: Path, name: str) -> dict:
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
    best, lists = (repr([[one.words for one in each[:count]] for each in found]).encode() for count in (1, None))
    return {"bytes": size, "per_ngram": round(size / sum(model.counts), 1), "open_ms": round(1000 * opened, 1),
            "mapped_mb": [round(one[1] - before[1], 1) for one in (after_opening, after_scoring)],
            "own_mb": [round(one[0] - before[0], 1) for one in (after_opening, after_scoring)],
            "score_cpu_seconds": round(scored, 2), "sum_ln_p": total,
            "trials_per_cpu_second": round(trials / seconds, 1),
            "decode_cpu_seconds": round(seconds, 2), "sentences": digest(best), "lists": digest(lists),
            "kind": type(model).__name__,
            "peak_own_mb": round(memory_now()[0]), "peak_mapped_mb": round(memory_now()[1])}


def told(verb: str, folder: Path, *words: object) -> dict:
    "A part in a process of its own; it is printed."
    result = alone(verb, folder, *words)
    print(verb, words, result, flush=True)
    return result


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    options = options_of(__doc__, labels=False, kenlm=Path, words=3_000_000, trials=40, keep=Path,
                         part=list).parse_args()
    if options.part:
        verb, folder, name, more = options.part
        compared = verb == "compare"
        print(json.dumps(compare(Path(folder), Path(more), name) if compared else use(Path(folder), name, int(more))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "both.bin").exists():
            build(folder, options.kenlm, options.words)
        results = {"ngrams": list(read_language_model(folder / "trie.bin").counts),
                   "arpa_mb": round((folder / "model.arpa").stat().st_size / 1e6),
                   "use": {name: told("use", folder, name, options.trials) for name in ("model.b2tlm", *KINDS)},
                   "compare": {name: told("compare", folder, name, options.kenlm) for name in KINDS}}
    save(options.json, results)
    assert max(one["largest_difference"] for one in results["compare"].values()) < 1e-5
    assert len({results["use"][name]["sentences"] for name in EXACT}) == 1, "decoded sentences differ"


if __name__ == "__main__":
    main()
