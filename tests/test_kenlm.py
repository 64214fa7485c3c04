"""KenLM files in the decoder, and hostile ones: one line each, nothing read outside, no hang.

The good files are in tests/kenlm, with the commands that made them.
"""
import json
import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.decode import choose_words
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.text.phonemes import PHONEMES
from commands import TESTS, python

pytestmark = pytest.mark.second_tier

FILES = TESTS / "kenlm"
SENTENCES = ["i would like some more tea please", "can you put the kettle on", "the train was late again", "it is time for my medicine"]


def noisy(sentence: str, seed: int) -> np.ndarray:
    """The logits of a sentence, with enough doubt for a list of hypotheses."""
    return 0.15 * noisy_sentence(sentence, np.random.default_rng(seed))


@pytest.mark.first_tier
def test_same_sentences_and_scores_as_with_the_kits_own_format(tmp_path):
    """The same ARPA file, converted to .b2tlm and by KenLM: hypotheses, order and scores agree to float32."""
    own = tmp_path / "small.b2tlm"
    assert main(["lm", "convert", str(FILES / "small.arpa"), "--out", str(own)]) == 0
    found = []
    for path in (own, FILES / "arrays.bin"):  # of other kinds: nbs/lm_kenlm.ipynb
        words, model = choose_words(path)
        found.append([BeamSearch(words, model).decode(noisy(one, seed)) for seed, one in enumerate(SENTENCES)])
    for ours, theirs in zip(*found):
        assert [one.words for one in ours] == [one.words for one in theirs] and len(ours) > 5
        for column in ("acoustic", "language", "total"):
            assert np.allclose([getattr(one, column) for one in ours], [getattr(one, column) for one in theirs], rtol=1e-6)
    assert sum(" ".join(one[0].words) == said for one, said in zip(found[0], SENTENCES)) >= 2


def write_logits(path: str, order: np.ndarray | None = None) -> None:
    with h5py.File(path, "w") as file:
        for number, sentence in enumerate(SENTENCES):
            logits = noisy(sentence, number)
            file[f"trial_{number}/logits"] = logits if order is None else logits[:, order]
            file[f"trial_{number}"].attrs["sentence_label"] = sentence


def test_the_reference_laboratorys_three_files(tmp_path, monkeypatch, capsys):
    """Their model, lexicon (WORD P1 P2 SIL) and order of classes decode as the same logits in our order do."""
    monkeypatch.chdir(tmp_path)
    theirs = ["BLANK", "SIL", *PHONEMES[1:-1]]
    write_logits("ours.h5")
    write_logits("theirs.h5", np.array([PHONEMES.index(name) for name in theirs]))
    Path("tokens.txt").write_text("\n".join(theirs))
    lexicon, model = choose_words(FILES / "trie.bin")
    Path("lexicon.txt").write_text("".join(f"{word} {' '.join(PHONEMES[one] for one in form)} SIL\n"
                                           for word, forms in lexicon.forms.items() for form in forms))
    common = f"decode --lm {FILES / 'nowords.bin'} --lexicon lexicon.txt"
    assert main(f"{common} --logits ours.h5 --out ours".split()) == 0
    assert main(f"{common} --logits theirs.h5 --tokens tokens.txt --out theirs".split()) == 0
    assert Path("ours/sentences.csv").read_text() == Path("theirs/sentences.csv").read_text()
    assert json.loads(Path("ours/result.json").read_text())["wer"] < 0.3
    Path("tokens.txt").write_text("\n".join([*theirs[:-1], "AX"]))
    assert main(f"{common} --logits theirs.h5 --tokens tokens.txt --out never".split()) == 2
    assert "AX is unknown" in capsys.readouterr().err and not Path("never").exists()


def changed(place: int, form: str, *values: float) -> Callable[[bytes], bytes]:
    """A file with some numbers at a place replaced."""
    return lambda data: data[:place] + struct.pack("<" + form, *values) + data[place + struct.calcsize("<" + form) :]


ORDER, MULTIPLIER, KIND, WORDS, VERSION, COUNTS, VOCABULARY = 88, 92, 96, 100, 104, 108, 144  # places in a file of order 4
HOSTILE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "cut in the magic": ("trie", lambda data: data[:40], "begins like a KenLM file but is none of version 5"),
    "cut in the counts": ("trie", lambda data: data[:120], "its header says kind 2"),
    "cut in the n-grams": ("trie", lambda data: data[:2000], "bytes instead of"),
    "cut in the words": ("trie", lambda data: data[:-20], "words instead of 58"),
    "words moved": ("probing", lambda data: data.replace(b"<unk>\0", b"<<nk>\0"), "not where the counts say"),
    "version 4": ("trie", lambda data: data.replace(b"version 5", b"version 4"), "none of version 5"),
    "rest costs": ("probing", changed(KIND, "I", 1), "of kind 1 (probing with rest costs)"),
    "trie called probing": ("trie", lambda data: changed(VERSION, "I", 0)(changed(KIND, "I", 0)(data)), ""),
    "trie called quantised": ("trie", changed(KIND, "I", 3), "of quantisation"),
    "order 7": ("trie", changed(ORDER, "B", 7), "its header says kind 2"),
    "multiplier NaN": ("probing", changed(MULTIPLIER, "f", float("nan")), "multiplier nan"),
    "multiplier 900": ("probing", changed(MULTIPLIER, "f", 900.0), "bytes instead of"),
    "count 2^64 - 1": ("trie", changed(COUNTS + 16, "Q", 2**64 - 1), "18446744073709551615"),
    "counts 2^47 compressed": ("arrays", changed(COUNTS + 8, "3Q", *[2**47] * 3), "bytes instead of"),
    "bits 25": ("quantised", changed(VOCABULARY + 8 * 59, "3B", 2, 25, 25), "bytes instead of"),
    "more words than counted": ("trie", changed(VOCABULARY, "Q", 2**40), "its vocabulary has"),
    "fewer words than are there": ("probing", changed(VOCABULARY + 4, "I", 20), ""),
    "hashes all 0": ("trie", changed(152, "57Q", *[0] * 57), "does not know <s>"),
    "no empty bucket": ("probing", lambda data: data[:152] + b"\1" * 12 * 87 + data[152 + 12 * 87 :], "has no empty bucket"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name, tmp_path, monkeypatch, capsys):
    """Opening a small file reads all of it, and ends in one line that names the file."""
    monkeypatch.chdir(tmp_path)
    source, change, message = HOSTILE[name]
    good = (FILES / f"{source}.bin").read_bytes()
    Path("lm.bin").write_bytes(change(good))
    assert Path("lm.bin").read_bytes() != good
    assert main("lm info lm.bin".split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: lm.bin: ") and message in lines[0], lines


def test_resident_memory_grows_with_what_is_used(tmp_path):
    """A sparse file of 3 GB opens without being read."""
    data, count, path = (FILES / "nowords.bin").read_bytes(), 200_000_000, tmp_path / "large.bin"
    path.write_bytes(changed(COUNTS + 24, "Q", count)(data))
    multiplier, = np.frombuffer(data[MULTIPLIER : MULTIPLIER + 4], np.float32)
    with open(path, "r+b") as file:
        file.truncate(len(data) + 12 * (int(multiplier * np.float32(count)) - int(multiplier * np.float32(72))))
    script = ("import sys; from b2t_kit.lm.kenlm import KenlmModel; "
              "used = lambda: int(next(one for one in open('/proc/self/status') if one.startswith('VmRSS')).split()[1]); "
              "KenlmModel(sys.argv[2]).sentence(['tea', 'please']); before = used(); model = KenlmModel(sys.argv[1]); "
              "model.sentence(['tea', 'please']); print(model.bytes, used() - before)")
    size, grown = map(int, python("-c", script, path, FILES / "nowords.bin").stdout.split())
    assert size > 2.8e9 and grown < 4000, (size, grown)  # kB
