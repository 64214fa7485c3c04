"""Bad language models, texts and word lists: one line that names the file and the line, and nothing half-written.

Each test works in its own folder. It writes a file with one fault, calls `b2t lm` there, and checks that the
folder did not change.
"""
import gzip
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main

ROOT = Path(__file__).resolve().parent.parent
ARPA = """\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1.9\t<unk>
-99\t<s>\t-0.3
-0.6\t</s>
-0.9\ttea\t-0.1
-1.1\tmore\t-0.2

\\2-grams:
-0.4\t<s> more\t-0.1
-0.2\tmore tea\t-0.05
-0.5\ttea </s>

\\3-grams:
-0.1\t<s> more tea

\\end\\
"""
TEXT = "More tea!\nNo more tea, thanks.\nTea?\n"
Fault = tuple[str, str, str]  # what is replaced, by what, what the message says

ARPA_FAULTS: dict[str, Fault] = {
    "no model": (ARPA, "some text\n", "line 1: is not \\data\\, so this is not an ARPA file"),
    "empty": (ARPA, "", "line 0: the file ends where \\data\\ should come"),
    "count of letters": ("ngram 2=3", "ngram 2=three", "line 3: should be 'ngram 2=' and a number, not 'ngram 2=three'"),
    "negative count": ("ngram 2=3", "ngram 2=-3", "line 3: should be 'ngram 2=' and a number"),
    "order left out": ("ngram 2=3\n", "", "line 3: should be 'ngram 2=' and a number, not 'ngram 3=1'"),
    "no counts": ("ngram 1=5\nngram 2=3\nngram 3=1\n", "", "the file declares no single words"),
    "no words": ("ngram 1=5", "ngram 1=0", "the file declares no single words"),
    "order 7": ("ngram 3=1", "".join(f"ngram {n}=1\n" for n in range(3, 8)), "n-grams of 7 words; at most 6"),
    "too few words": ("ngram 1=5", "ngram 1=6", "line 12: the section ends after 5 of the 6 n-grams of 1 word"),
    "too many words": ("ngram 1=5", "ngram 1=4", "line 11: should be \\2-grams:, not '-1.1\\tmore\\t-0.2'"),
    "too many pairs": ("ngram 2=3", "ngram 2=2", "line 16: should be \\3-grams:"),
    "too many triples": ("\\end\\", "-0.3\tmore tea </s>\n\\end\\", "line 21: should be \\end\\"),
    "missing section": ("\\3-grams:\n-0.1\t<s> more tea\n", "", "should be \\3-grams:, not '\\\\end\\\\'"),
    "cut short": ("\\3-grams:\n-0.1\t<s> more tea\n\n\\end\\\n", "", "line 17: the file ends where \\3-grams: should come"),
    "cut in a section": ("-0.2\tmore tea\t-0.05\n-0.5\ttea </s>\n\n\\3-grams:\n-0.1\t<s> more tea\n\n\\end\\\n", "",
                         "the file ends after 1 of the 3 n-grams of 2 words"),
    "no end": ("\n\\end\\\n", "", "the file ends where \\end\\ should come"),
    "no probability": ("-0.9\ttea\t-0.1", "tea", "line 10: should have a probability, 1 word"),
    "a word too many": ("more tea\t-0.05", "more tea now\t-0.05", "line 15: should have a probability, 2 words"),
    "letters for a number": ("-0.2\tmore tea", "-o.2\tmore tea", "line 15: the probability '-o.2' is not a finite number"),
    "NaN": ("-0.2\tmore tea", "nan\tmore tea", "line 15: the probability 'nan' is not a finite number"),
    "infinite backoff": ("more tea\t-0.05", "more tea\tinf", "line 15: the backoff weight 'inf' is not a finite number"),
    "above 1": ("-0.2\tmore tea", "0.2\tmore tea", "line 15: the probability is above 1"),
    "unknown word": ("<s> more tea", "<s> more rum", "line 19: the word 'rum' is not among the single words"),
    "word twice": ("-0.9\ttea\t-0.1", "-0.9\tmore\t-0.1", "line 11: the word 'more' was in line 10 already"),
    "pair twice": ("-0.5\ttea </s>", "-0.5\tmore tea", "line 16: this n-gram was in line 15 already"),
    "no start": ("-99\t<s>\t-0.3", "-99\trum\t-0.3", "there is no <s> among the words"),
    "no stop": ("-0.6\t</s>", "-0.6\trum", "there is no </s> among the words"),
    "backoff at the top": ("<s> more tea", "<s> more tea\t-0.1", "line 19: n-grams of the highest order have no backoff"),
}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(command: str, capsys: pytest.CaptureFixture) -> str:
    """The error line of a command that must fail and change nothing."""
    before = tree(Path())
    assert main(command.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0], lines
    assert tree(Path()) == before
    return errors[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_good_files_are_good(capsys):
    """Without the faults below, the files are read."""
    Path("good.arpa").write_text(ARPA)
    Path("good.txt").write_text(TEXT)
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0
    assert main("lm build good.txt --out built.b2tlm".split()) == 0
    assert main("lm perplexity good.b2tlm good.txt".split()) == 0
    assert "perplexity" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ARPA_FAULTS)
def test_broken_arpa(fault, capsys):
    old, new, message = ARPA_FAULTS[fault]
    assert ARPA.count(old) == 1
    Path("bad.arpa").write_text(ARPA.replace(old, new))
    told = refused("lm convert bad.arpa --out new.b2tlm", capsys)
    assert told.startswith("error: bad.arpa: line ") and message in told, told


def test_arpa_in_another_encoding(capsys):
    Path("bad.arpa").write_bytes(ARPA.replace("tea", "t\xe9a").encode("latin-1"))
    assert "line 10: the word 't\ufffda' is not UTF-8" in refused("lm convert bad.arpa --out new.b2tlm", capsys)


def test_arpa_whose_words_differ_in_capitals(capsys):
    """Capitals become lower case only if no two words become equal."""
    Path("bad.arpa").write_text(ARPA.replace("tea", "TEA").replace("more", "MORE"))
    assert main("lm convert bad.arpa --out small.b2tlm".split()) == 0
    capsys.readouterr()
    Path("bad.arpa").write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-1 \u01c4\n-1 \u01c4\n\n\\end\\\n")
    assert "was in line 7 already" in refused("lm convert bad.arpa --out new.b2tlm", capsys)


def test_compressed_arpa_cut_short(capsys):
    Path("bad.arpa.gz").write_bytes(gzip.compress(ARPA.encode())[:-20])
    told = refused("lm convert bad.arpa.gz --out new.b2tlm", capsys)
    assert "bad.arpa.gz: line" in told and "damaged or cut short" in told


KENLM_HEADER = (  # the first 96 bytes of a file that KenLM's build_binary wrote, of a 2-gram
    b"mmap lm http://kheafield.com/code format version 5\n" + bytes(9) + bytes.fromhex(
        "0000803f000000bf01000000ffffffff000000000100000000000000020000000000c03f"))


@pytest.mark.parametrize("command", [
    "lm convert lm.bin --out new.b2tlm",
    "lm perplexity lm.bin good.txt",
    "decode --logits logits.h5 --lm lm.bin --out new.b2tlm",
])
def test_kenlm_binary(command, capsys):
    Path("lm.bin").write_bytes(KENLM_HEADER + bytes(400))
    with h5py.File("logits.h5", "w") as file:
        file["trial/logits"] = np.random.default_rng(0).normal(0, 3, (20, 41))
    told = refused(command, capsys)
    assert "lm.bin: is a KenLM binary" in told and "b2t lm convert FILE.arpa --out lm.b2tlm" in told


@pytest.mark.parametrize("spoil, message", {
    "cut short": (lambda data: data[:-64], "is cut short or damaged"),
    "header cut": (lambda data: data[:50], "its header is damaged"),
    "a letter": (lambda data: data.replace(b"\ntea\n", b"\ntee\n"), "does not fit its fingerprint"),
    "order": (lambda data: data.replace(b'"counts": [5, 3, 1]', b'"counts": [5, 1, 3]'), "header is damaged"),
    "another version": (lambda data: data.replace(b"B2T-LM 1", b"B2T-LM 9"), "of another version of this kit"),
}.values(), ids=["cut short", "header cut", "a letter", "order", "another version"])
def test_broken_kit_model(spoil, message, capsys):
    Path("good.arpa").write_text(ARPA)
    assert main("lm convert good.arpa --out bad.b2tlm".split()) == 0
    capsys.readouterr()
    good = Path("bad.b2tlm").read_bytes()
    Path("bad.b2tlm").write_bytes(spoil(good))
    assert Path("bad.b2tlm").read_bytes() != good
    told = refused("lm perplexity bad.b2tlm good.arpa", capsys)
    assert "bad.b2tlm" in told and message in told, told


@pytest.mark.parametrize("command, message", [
    ("good.txt none.txt --out new.b2tlm", "none.txt: there is no such text file"),
    ("folder --out new.b2tlm", "no recordings"),
    ("latin.txt --out new.b2tlm", "latin.txt: line 2: is not UTF-8"),
    ("empty.txt --out new.b2tlm", "the text has no sentence"),
    ("cut.txt.gz --out new.b2tlm", "cut.txt.gz: cannot be read"),
    ("good.txt --out new.lm", "new.lm: the name should end in .b2tlm, .arpa or .arpa.gz"),
    ("good.txt --out folder", "folder: the name should end in"),
    ("good.txt --out good.txt/new.b2tlm", "good.txt/new.b2tlm: cannot be written"),
    ("good.txt --out new.b2tlm --order 0", "order: 0 is not from 1 to 6"),
    ("good.txt --out new.b2tlm --order 7", "order: 7 is not from 1 to 6"),
    ("good.txt --out new.b2tlm --order x", "--order"),
    ("good.txt --out new.b2tlm --prune 0,2,1", "never become smaller"),
    ("good.txt --out new.b2tlm --prune 1", "the threshold of single words must be 0"),
    ("good.txt --out new.b2tlm --prune 0,0,0,0", "4 thresholds for a model of order 3"),
    ("good.txt --out new.b2tlm --prune 0,-1", "prune: '0,-1' should be whole numbers"),
    ("good.txt --out new.b2tlm --memory 1", "memory: 1 MB is too little; the minimum is 50 MB"),
    ("good.txt --out new.b2tlm --min-count 99", "no word of the text occurs 99 times"),
    ("good.txt --out new.b2tlm --vocabulary none.txt", "none.txt: cannot be read as a list of words"),
    ("good.txt --out new.b2tlm --vocabulary words.txt", "words.txt: line 2: 'Tea' cannot occur in scored text"),
    ("good.txt --out new.b2tlm --vocabulary curly.txt", "curly.txt: line 1: 'don\u2019t' cannot occur"),
    ("good.txt --out new.b2tlm --exclude none.txt", "none.txt: cannot be read"),
    ("good.txt --out new.b2tlm --exclude val.txt", "1 of the 2 sentences that will be scored are in the text"),
    ("good.txt --out new.b2tlm --exclude val.txt --leaks maybe", "--leaks"),
])
def test_bad_build(command, message, capsys):
    Path("good.txt").write_text(TEXT)
    Path("val.txt").write_text("Is there coffee?\nTea?\n")
    Path("latin.txt").write_bytes("tea\nth\xe9\n".encode("latin-1"))
    Path("empty.txt").write_text("\n...\n12\n")
    Path("cut.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 9)[:-9])
    Path("words.txt").write_text("tea\nTea\n")
    Path("curly.txt").write_text("don\u2019t\n")
    Path("folder").mkdir()
    told = refused(f"lm build {command}", capsys)
    assert message in told, told


@pytest.mark.parametrize("command, message", [
    ("good.b2tlm --text held.txt", "models: 1 given; interpolation needs two or more"),
    ("good.b2tlm none.b2tlm --text held.txt", "none.b2tlm: cannot be read"),
    ("good.b2tlm bad.arpa --text held.txt", "bad.arpa: line 3: should be 'ngram 2='"),
    ("good.b2tlm cut.b2tlm --text held.txt", "cut.b2tlm: has"),
    ("good.b2tlm lm.bin --text held.txt", "lm.bin: is a KenLM binary"),
    ("good.b2tlm held.txt --text held.txt", "held.txt: line 1: is not \\data\\"),
    ("good.b2tlm good.arpa", "shares: give one for each model (--shares 0.4,0.6), or a text"),
    ("good.b2tlm good.arpa --shares 0.5,0.5 --text held.txt", "not both"),
    ("good.b2tlm good.arpa --shares 1", "shares: 1 given for 2 models"),
    ("good.b2tlm good.arpa --shares 0.2,0.3,0.5", "shares: 3 given for 2 models"),
    ("good.b2tlm good.arpa --shares 0.5,0.6", "should be from 0 to 1 and sum to 1, not 1.1"),
    ("good.b2tlm good.arpa --shares 1.5,-0.5", "shares: 1.5, -0.5 should be from 0 to 1"),
    ("good.b2tlm good.arpa --shares nan,0.5", "shares: nan, 0.5 should be from 0 to 1"),
    ("good.b2tlm good.arpa --shares half,half", "shares: 'half,half' should be numbers"),
    ("good.b2tlm good.arpa --text none.txt", "none.txt: there is no such text file"),
    ("good.b2tlm good.arpa --text empty.txt", "empty.txt: has no sentence to find shares on"),
    ("good.b2tlm good.arpa --text latin.txt", "latin.txt: line 2: is not UTF-8"),
    ("good.b2tlm good.arpa --text table.csv", "table.csv: has no column 'sentence_label'"),
    ("good.b2tlm good.arpa --text held.txt --exclude none.txt", "none.txt: cannot be read"),
    ("good.b2tlm good.arpa --text held.txt --exclude val.txt",
     "1 of the 2 sentences that will be scored are in the text, the first one is 'no tea' (held.txt, line 2)"),
    ("good.b2tlm good.arpa --text leak.txt --exclude val.txt --leaks drop",
     "leak.txt: has no sentence to find shares on, after those that will be scored were left out"),
    ("good.b2tlm seen.b2tlm --shares 0.5,0.5 --exclude tea.txt", "in the text of one of the models"),
    ("good.b2tlm good.arpa --text held.txt --leaks maybe", "--leaks"),
    ("good.b2tlm good.arpa --text held.txt --memory 1", "memory: 1 MB is too little"),
])
def test_bad_mixture(command, message, capsys):
    Path("good.arpa").write_text(ARPA)
    Path("bad.arpa").write_text(ARPA.replace("ngram 2=3", "ngram 2=three"))
    Path("lm.bin").write_bytes(KENLM_HEADER + bytes(400))
    Path("held.txt").write_text("More tea.\nNo tea!\n")
    Path("leak.txt").write_text("No tea.\n")
    Path("val.txt").write_text("No tea.\nCoffee?\n")
    Path("latin.txt").write_bytes("tea\nth\xe9\n".encode("latin-1"))
    Path("empty.txt").write_text("\n...\n12\n")
    Path("table.csv").write_text("id,words\n0,tea\n")
    Path("tea.txt").write_text("Is there any tea?\n")
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0
    assert main("lm build tea.txt --exclude tea.txt --leaks keep --out seen.b2tlm".split()) == 0
    Path("cut.b2tlm").write_bytes(Path("good.b2tlm").read_bytes()[:-64])
    capsys.readouterr()
    told = refused(f"lm mix {command} --out new.b2tlm", capsys)
    assert message in told, told


@pytest.mark.parametrize("out, message", [
    ("new.lm", "new.lm: the name should end in"), ("good.arpa/new.b2tlm", "good.arpa/new.b2tlm: cannot be written")])
def test_bad_place_for_a_mixture(out, message, capsys):
    Path("good.arpa").write_text(ARPA)
    assert message in refused(f"lm mix good.arpa good.arpa --shares 0.5,0.5 --out {out}", capsys)


LIMITED = """
import resource, sys
from b2t_kit.decode.ngram_build import build_language_model
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
limit = used + int(sys.argv[1]) * 10**6
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(build_language_model(["talk.txt"], sys.argv[2], 4, (0, 0, 1), memory=int(sys.argv[3])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_text_larger_than_memory():
    """A process limited to 64 MB above its start builds a model from 12 million bytes of text."""
    import numpy as np

    generator = np.random.default_rng(1)
    words = np.array([f"{first}{second}{third}" for first in "bcdfghklmnprst" for second in "aeiou" for third in "bdgklmnprst"])
    drawn = np.minimum(generator.zipf(1.2, (280_000, 9)), len(words)) - 1
    Path("talk.txt").write_text("\n".join(map(" ".join, words[drawn].tolist())))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def build(allowed: int, name: str, memory: int) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", LIMITED, str(allowed), name, str(memory)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    small, large, careless = build(64, "small.b2tlm", 50), build(4000, "large.b2tlm", 4000), build(64, "careless.b2tlm", 4000)
    assert small.returncode == large.returncode == 0, small.stderr + large.stderr
    assert careless.returncode != 0 and "MemoryError" in careless.stderr  # so the limit is one
    assert Path("small.b2tlm").read_bytes() == Path("large.b2tlm").read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["large.b2tlm", "small.b2tlm", "talk.txt"]
