"""A model of general English, from the file of another package.

pip download --no-deps pocketsphinx==5.1.1 && unzip -j pocketsphinx-*.whl '*/en-us.lm.bin'

The file (27 MB, two-clause BSD licence) is a 3-gram of 72,547 words with 2.05 million 2-grams and 1.67 million 3-grams.
Its text is not published, so it may contain scored sentences.
"""
import math
from pathlib import Path

import numpy as np

from b2t_kit.lm import END, NEVER, START, UNKNOWN, LanguageModel, Level, compile_arrays

LN_BASE = math.log(1.0001)
NAMES = {"<s>": START, "</s>": END, "<UNK>": UNKNOWN, "<unk>": UNKNOWN}


def bits(data: np.ndarray, offsets: np.ndarray, width: int) -> np.ndarray:
    "Whole numbers of some bits, each at its place in bits."
    words = np.zeros(len(offsets), np.uint64)
    for byte in range(5):
        words |= data[(offsets >> 3) + byte].astype(np.uint64) << np.uint64(8 * byte)
    return ((words >> (offsets & 7).astype(np.uint64)) & np.uint64((1 << width) - 1)).astype(np.int64)


def read_trie(path: Path, known: dict[str, int]) -> tuple[list, list]:
    """N-grams of 1, 2, 3 known words (numbers as in `known`), and (ln p, ln backoff weight) of each.

    The file: "Trie Language Model", the order, the counts, tables of 65,536 values for probabilities and backoff
    weights (logarithms to the base 1.0001), the single words, and bit fields of (word, numbers of the values, first
    child) for longer n-grams, which are spelled from their last word to their first.
    """
    raw = np.fromfile(path, np.uint8)
    assert raw[:19].tobytes() == b"Trie Language Model" and raw[19] == 3, "not a 3-gram of pocketsphinx"
    counts = raw[20:32].view("<u4").astype(int).tolist()
    place = 36  # after the kind of the tables
    tables = raw[place : place + 3 * 4 * 65536].view("<f4").reshape(3, 65536).astype(float) * LN_BASE
    place += tables.size * 4
    single = raw[place : place + 12 * (counts[0] + 1)].view("<f4").reshape(-1, 3)
    child = np.ascontiguousarray(single[:, 2]).view("<u4").astype(np.int64)
    place += single.size * 4
    word_bits, next_bits = counts[0].bit_length(), counts[2].bit_length()
    wide, narrow = word_bits + 32 + next_bits, word_bits + 16
    middle = raw[place : place + ((1 + counts[1]) * wide + 7) // 8 + 8]
    place += len(middle)
    longest = raw[place : place + ((1 + counts[2]) * narrow + 7) // 8 + 8]
    place += len(longest)
    names = raw[place + 4 :].tobytes().decode().split("\0")[: counts[0]]
    numbers = np.array([NAMES.get(name, known.get(name, -1)) for name in names])
    at = np.arange(child[-1] + 1) * wide  # the counts at the beginning are a little too high
    grandchild = bits(middle, at + word_bits + 32, next_bits)
    last = np.repeat(np.arange(counts[0]), np.diff(child))  # of each 2-gram
    before = bits(middle, at[:-1], word_bits)
    pairs = np.stack([numbers[before], numbers[last]], 1)
    pair_p = tables[0][bits(middle, at[:-1] + word_bits + 16, 16)]
    pair_back = tables[1][bits(middle, at[:-1] + word_bits, 16)]
    at = np.arange(grandchild[-1]) * narrow
    owner = np.repeat(np.arange(len(pairs)), np.diff(grandchild))
    first = numbers[bits(longest, at, word_bits)]
    triples = np.concatenate([first[:, None], pairs[owner]], 1)
    triple_p = tables[2][bits(longest, at + word_bits, 16)]
    single = single[:-1, :2].astype(float) * LN_BASE
    ngrams = [numbers[:, None], pairs, triples]
    values = [single, np.stack([pair_p, pair_back], 1), np.stack([triple_p, 0 * triple_p], 1)]
    inside = [(one >= 0).all(axis=1) & (one[:, 1:] != START).all(axis=1) for one in ngrams]
    return [one[keep] for one, keep in zip(ngrams, inside)], [one[keep] for one, keep in zip(values, inside)]


def keys_of(ngrams: np.ndarray, size: int) -> np.ndarray:
    "Each n-gram as one number; in order as the n-grams are."
    keys = np.zeros(len(ngrams), np.int64)
    for column in ngrams.T:
        keys = keys * size + column
    return keys


def model_of(words: tuple[str, ...], keys: list[np.ndarray], values: list[np.ndarray]) -> LanguageModel:
    "A model of sorted n-grams of 1, 2, ... words; the first are all single words."
    size, levels = len(words), []
    for n, (rows, table) in enumerate(zip(keys, values)):
        parent = np.searchsorted(keys[n - 1], rows // size) if n else np.zeros(len(rows), np.int64)
        levels.append(Level(parent, (rows % size).astype(np.uint32), table[:, 0], table[:, 1]))
    return LanguageModel(words, compile_arrays(levels), [len(one) for one in keys])


def closed(keys: list[np.ndarray], size: int) -> list[np.ndarray]:
    "The n-grams with the beginnings and the ends of the longer ones."
    keys = [np.unique(one) for one in keys]
    for n in range(len(keys) - 1, 1, -1):
        keys[n - 1] = np.unique(np.concatenate([keys[n - 1], keys[n] // size, keys[n] % size**n]))
    return keys


def english(path: Path, words: tuple[str, ...]) -> LanguageModel:
    "The package's model over the words of another; those that it does not know are never said."
    size = len(words)
    ngrams, found = read_trie(path, {word: number for number, word in enumerate(words)})
    own = [keys_of(one, size) for one in ngrams]
    keys = closed([np.arange(size), *own[1:]], size)
    values = [np.full((len(one), 2), np.nan) for one in keys]
    values[0][:] = NEVER
    for table, rows, new in zip(values, keys, zip(own, found)):
        table[:, 1] = 0.0
        table[np.searchsorted(rows, new[0])] = new[1]
    return model_of(words, keys, values)
