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
from b2t_kit.core import KitError
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.decode import choose_words
from b2t_kit.lm import convert_language_model, perplexity, read_language_model
from b2t_kit.simulate import noisy_sentence
from b2t_kit.text.phonemes import PHONEMES
from commands import TESTS, python

FILES = TESTS / "kenlm"
SENTENCES = ["i would like some more tea please", "can you put the kettle on", "the train was late again", "it is time for my medicine"]


def noisy(sentence: str, seed: int) -> np.ndarray:
    """The logits of a sentence, with enough doubt for a list of hypotheses."""
    return 0.15 * noisy_sentence(sentence, np.random.default_rng(seed))


def test_same_sentences_and_scores_as_with_the_kits_own_format(tmp_path):
    """The same ARPA file, converted to .b2tlm and by KenLM: hypotheses, order and scores agree to float32."""
    own = convert_language_model(FILES / "small.arpa", tmp_path / "small.b2tlm").path
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
    common = f"decode --lm {FILES / 'nowords.bin'} --lexicon lexicon.txt --lm-preload"
    assert main(f"{common} --logits ours.h5 --out ours".split()) == 0
    assert main(f"{common} --logits theirs.h5 --tokens tokens.txt --out theirs".split()) == 0
    assert "read 0.00 GB" in capsys.readouterr().err
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
    "cut in the counts": ("trie", lambda data: data[:120], "its header is damaged"),
    "cut in the n-grams": ("trie", lambda data: data[:2000], "bytes instead of"),
    "cut without words": ("nowords", lambda data: data[:-1], "bytes instead of"),
    "cut in the words": ("trie", lambda data: data[:-20], "words instead of 58"),
    "words moved": ("probing", lambda data: data.replace(b"<unk>\0", b"<<nk>\0"), "its words are not where the counts say"),
    "unfinished": ("trie", lambda data: b"mmap lm http://kheafield.com/code incomplete\n" + data[45:], "unfinished"),
    "version 4": ("trie", lambda data: data.replace(b"version 5", b"version 4"), "none of version 5"),
    "rest costs": ("probing", changed(KIND, "I", 1), "of kind 1 (probing with rest costs)"),
    "kind 2^32 - 1": ("probing", changed(KIND, "I", 2**32 - 1), "of kind 4294967295"),
    "trie called probing": ("trie", lambda data: changed(VERSION, "I", 0)(changed(KIND, "I", 0)(data)), ""),
    "trie called quantised": ("trie", changed(KIND, "I", 3), "of quantisation"),
    "order 7": ("trie", changed(ORDER, "B", 7), "n-grams of 7 words"),
    "multiplier NaN": ("probing", changed(MULTIPLIER, "f", float("nan")), "multiplier nan"),
    "multiplier 900": ("probing", changed(MULTIPLIER, "f", 900.0), "bytes instead of"),
    "version 7": ("probing", changed(VERSION, "I", 7), "version 7"),
    "count 2^64 - 1": ("trie", changed(COUNTS + 16, "Q", 2**64 - 1), "its header is damaged"),
    "count 2^47": ("trie", changed(COUNTS + 16, "Q", 2**47), "bytes instead of"),
    "counts 2^47 compressed": ("arrays", changed(COUNTS + 8, "3Q", *[2**47] * 3), "bytes instead of"),
    "2^32 words": ("trie", changed(COUNTS, "Q", 2**32), "its header is damaged"),
    "bits 200": ("quantised", changed(VOCABULARY + 8 * 59, "3B", 2, 200, 200), "200 and 200 bits"),
    "bits 25": ("quantised", changed(VOCABULARY + 8 * 59, "3B", 2, 25, 25), "bytes instead of"),
    "quantisation 3": ("quantised", changed(VOCABULARY + 8 * 59, "B", 3), "version 3 of quantisation"),
    "more words than counted": ("trie", changed(VOCABULARY, "Q", 2**40), "its vocabulary is damaged"),
    "probing with too many words": ("probing", changed(VOCABULARY + 4, "I", 2**32 - 1), "its vocabulary is damaged"),
    "fewer words than are there": ("probing", changed(VOCABULARY + 4, "I", 20), ""),
    "hashes all 0": ("trie", changed(152, "57Q", *[0] * 57), "does not know <s>"),
    "no empty bucket": ("probing", lambda data: data[:152] + b"\1" * 12 * 87 + data[152 + 12 * 87 :], "has no empty bucket"),
    "pipe's worth of nothing": ("trie", lambda data: data[:51] + bytes(len(data) - 51), "none of version 5"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name, tmp_path, monkeypatch, capsys):
    """`b2t lm check` ends in one line that names the file."""
    monkeypatch.chdir(tmp_path)
    source, change, message = HOSTILE[name]
    good = (FILES / f"{source}.bin").read_bytes()
    Path("lm.bin").write_bytes(change(good))
    assert Path("lm.bin").read_bytes() != good
    assert main("lm check lm.bin".split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: lm.bin: ") and message in lines[0], lines


@pytest.mark.parametrize("name", ["probing", "trie", "arrays", "nowords"])
def test_a_spoiled_part_is_found_on_opening(name, tmp_path):
    """64 bytes of zeros, of noise, or of another place: refused, or no number is another."""
    good, random, path = (FILES / f"{name}.bin").read_bytes(), np.random.default_rng(0), tmp_path / "bad.bin"
    text, refused = ["i would like some more tea please", "the train was late again"], 0
    expected = perplexity(read_language_model(FILES / f"{name}.bin"), text)
    for turn in range(60):
        place, other = random.integers(112, len(good) - 64, 2)
        part = (bytes(64), random.bytes(64), good[other : other + 64])[turn % 3]
        path.write_bytes(good[:place] + part + good[place + 64 :])
        try:
            assert perplexity(read_language_model(path), text) == expected, (turn, place)
        except KitError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
    assert refused >= 57, refused


FLIPS = """
import json, sys
from pathlib import Path
import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st
from b2t_kit.core import KitError
from b2t_kit.decode.search import BeamSearch
from b2t_kit.lm_kenlm import KenlmModel
from b2t_kit.text.lexicon import build_lexicon
from b2t_kit.lm import perplexity, sentence_scores

files = {path.name: path.read_bytes() for path in sorted(Path(sys.argv[1]).glob("*.bin"))}
words = "i would like some more tea please can you put the kettle on".split()
lexicon, logits = build_lexicon(words), np.random.default_rng(0).normal(0, 3, (30, 41)).astype(np.float32)
text, told = [" ".join(words), "the tea please coffee"], {"fine": 0}

@settings(max_examples=int(sys.argv[2]), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(files)), st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=16)), min_size=1,
       max_size=4), st.booleans())
def spoil(name, changes, late):
    data = bytearray(files[name])
    for where, block in changes:
        first = 112 if late else 0
        place = first + int(where * (len(data) - 1 - first))
        data[place : place + len(block)] = block[: len(data) - place]
    Path("bad.bin").write_bytes(data)
    for action in (KenlmModel.verify, lambda model: sentence_scores(model, text), lambda model: perplexity(model, text),
                   lambda model: BeamSearch(lexicon, model).decode(logits)):
        try:
            action(KenlmModel("bad.bin"))
            told["fine"] += 1
        except KitError as error:
            assert str(error).startswith("bad.bin: ") and "\\n" not in str(error), error
            kind = str(error).split("(")[0]
            told[kind] = told.get(kind, 0) + 1

spoil()
print(json.dumps(told))
"""


def test_changed_bytes_anywhere(tmp_path):
    """Random bytes in any place: a result or one line. numba tells of each read outside an array here."""
    told = json.loads(python("-c", FLIPS, FILES, 60, timeout=600, cwd=tmp_path, NUMBA_BOUNDSCHECK="1").stdout)
    assert len(told) > 5 and told["fine"] > 20, told


def test_resident_memory_grows_with_what_is_used(tmp_path):
    """A sparse file of 4 GB opens without being read."""
    data = (FILES / "nowords.bin").read_bytes()
    count = 200_000_000
    head = changed(COUNTS + 24, "Q", count)(data)
    path = tmp_path / "large.bin"
    path.write_bytes(head)
    with open(path, "r+b") as file:
        rows = max(count + 1, int(np.float32(struct.unpack_from("<f", data, MULTIPLIER)[0]) * np.float32(count)))
        old = max(73, int(np.float32(struct.unpack_from("<f", data, MULTIPLIER)[0]) * np.float32(72)))
        file.truncate(len(data) + 12 * (rows - old))
    script = ("import sys; from pathlib import Path; from b2t_kit.lm_kenlm import KenlmModel; "
              "used = lambda: int(next(one for one in open('/proc/self/status') if one.startswith('VmRSS')).split()[1]); "
              "KenlmModel(sys.argv[2]).sentence(['tea', 'please']); before = used(); model = KenlmModel(sys.argv[1]); "
              "model.sentence(['tea', 'please']); print(model.bytes, used() - before)")
    size, grown = map(int, python("-c", script, path, FILES / "nowords.bin").stdout.split())
    assert size > 2.8e9 and grown < 4000, (size, grown)  # kB
