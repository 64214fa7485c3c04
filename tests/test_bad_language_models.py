"""Bad language models, texts and word lists: one line that names the file and the line, and nothing half-written.

Each test works in its own folder. It writes a file with one fault, calls `b2t lm` there, and checks that the
folder did not change.
"""
import csv
import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.core import csv_plain
from b2t_kit.lm import leak_warning
from b2t_kit.lm import MAGIC, map_model

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
    "no model": (ARPA, "some text\n", "line 1: is not \\data\\, so this is neither an ARPA file nor another known model"),
    "empty": (ARPA, "", "line 0: the file ends here; it is cut short"),
    "count of letters": ("ngram 2=3", "ngram 2=three", "line 3: should be 'ngram 2=' and a number, not 'ngram 2=three'"),
    "negative count": ("ngram 2=3", "ngram 2=-3", "line 3: should be 'ngram 2=' and a number"),
    "order left out": ("ngram 2=3\n", "", "line 3: should be 'ngram 2=' and a number, not 'ngram 3=1'"),
    "no counts": ("ngram 1=5\nngram 2=3\nngram 3=1\n", "", "the file declares no single words"),
    "no words": ("ngram 1=5", "ngram 1=0", "the file declares no single words"),
    "order 7": ("ngram 3=1", "".join(f"ngram {n}=1\n" for n in range(3, 8)), "n-grams of 7 words; at most 6"),
    "too few words": ("ngram 1=5", "ngram 1=6", "line 12: the section ends after 5 of the 6 n-grams of 1 words"),
    "too many words": ("ngram 1=5", "ngram 1=4", "line 11: should be \\2-grams:, not '-1.1\\tmore\\t-0.2'"),
    "too many pairs": ("ngram 2=3", "ngram 2=2", "line 16: should be \\3-grams:"),
    "too many triples": ("\\end\\", "-0.3\tmore tea </s>\n\\end\\", "line 21: should be \\end\\"),
    "missing section": ("\\3-grams:\n-0.1\t<s> more tea\n", "", "should be \\3-grams:, not '\\\\end\\\\'"),
    "cut short": ("\\3-grams:\n-0.1\t<s> more tea\n\n\\end\\\n", "", "line 17: the file ends here; it is cut short"),
    "cut in a section": ("-0.2\tmore tea\t-0.05\n-0.5\ttea </s>\n\n\\3-grams:\n-0.1\t<s> more tea\n\n\\end\\\n", "",
                         "line 14: the file ends here; it is cut short"),
    "no end": ("\n\\end\\\n", "", "line 19: the file ends here; it is cut short"),
    "no probability": ("-0.9\ttea\t-0.1", "tea", "line 10: should have a probability, 1 word and perhaps"),
    "a word too many": ("more tea\t-0.05", "more tea now\t-0.05", "line 15: should have a probability, 2 words and perhaps"),
    "letters for a number": ("-0.2\tmore tea", "-o.2\tmore tea", "line 15: a number in"),
    "an underscore": ("-0.2\tmore tea", "-1_0\tmore tea", "line 15: a number in"),
    "below the smallest": ("-0.2\tmore tea", "-1e400\tmore tea", "line 15: a number in"),
    "NaN": ("-0.2\tmore tea", "nan\tmore tea", "line 15: a number in"),
    "infinite backoff": ("more tea\t-0.05", "more tea\tinf", "line 15: a number in"),
    "above 1": ("-0.2\tmore tea", "0.2\tmore tea", "line 15: the probability is above 1"),
    "unknown word": ("<s> more tea", "<s> more rum", "line 19: the word 'rum' is not among the single words"),
    "word twice": ("-0.9\ttea\t-0.1", "-0.9\tmore\t-0.1", "line 11: the word 'more' was in line 10 already"),
    "pair twice": ("-0.5\ttea </s>", "-0.5\tmore tea", "line 16: this n-gram was in line 15 already"),
    "no start": ("-99\t<s>\t-0.3", "-99\trum\t-0.3", "there is no <s> among the words"),
    "no stop": ("-0.6\t</s>", "-0.6\trum", "there is no </s> among the words"),
    "backoff at the top": ("<s> more tea", "<s> more tea\t-0.1", "line 19: should have a probability, 3 words and no backoff"),
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


@pytest.mark.parametrize("old, new, mass", [
    ("-0.6\t</s>\n-0.9\ttea", "-0.01\t</s>\n-0.02\ttea", "2.02"), ("-0.4\t<s> more", "-0.01\tmore more", "1.61")])
def test_arpa_whose_probabilities_sum_to_more_than_one(old, new, mass, capsys):
    """Of single words, or after a context; of <s> any is taken, since it is never predicted."""
    Path("bad.arpa").write_text(ARPA.replace(old, new))
    told = refused("lm convert bad.arpa --out new.b2tlm", capsys)
    assert f"bad.arpa: the probabilities of the words after a context sum to {mass}" in told, told
    Path("good.arpa").write_text(ARPA.replace("-99\t<s>", "0\t<s>"))
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0


def test_arpa_whose_probabilities_sum_to_less_than_one(capsys):
    """Programs that filter a vocabulary make such files, so it is said, and not refused."""
    Path("low.arpa").write_text(ARPA.replace("-0.6\t</s>\n-0.9\ttea", "-3.6\t</s>\n-3.9\ttea"))
    assert main("lm check low.arpa".split()) == 0 == main("lm info low.arpa".split())
    assert capsys.readouterr().out.count("probabilities sum to 0.0924") == 2


def test_the_format_is_told_by_the_content(capsys):
    """Whatever a file is called; a file of no known format is called none."""
    Path("good.arpa").write_text(ARPA)
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0
    for name, kind in {"good.arpa": "ARPA text", "good.b2tlm": "model of this kit"}.items():
        Path(name).rename("model")
        assert main("lm info model".split()) == 0 and f"format       {kind}\n" in capsys.readouterr().out
    Path("model").write_bytes(b"GGUF" + bytes(60))
    assert "neither an ARPA file nor another known model" in refused("lm info model", capsys)


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
    assert "lm.bin: its header is damaged (counts 0, 0, multiplier 1.5" in told  # test_kenlm.py has the other faults


@pytest.mark.parametrize("spoil, message", {
    "cut short": (lambda data: data[:-64], "is cut short or damaged"),
    "header cut": (lambda data: data[:50], "its header is damaged"),
    "a letter": (lambda data: data.replace(b'"tea"', b'"tee"'), "its header is damaged (does not fit"),
    "order": (lambda data: data.replace(b'"counts": [5, 3, 1]', b'"counts": [5, 1, 3]'), "its header is damaged (does not fit"),
    "another version": (lambda data: data.replace(b"B2T-LM 2", b"B2T-LM 1"), "of another version of this kit"),
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
    ("good.txt --out new.b2tlm --order 0", "order: must be in [1, 20], not 0"),
    ("good.txt --out new.b2tlm --order 7", "order: 7 is not from 1 to 6"),
    ("good.txt --out new.b2tlm --order x", "--order"),
    ("good.txt --out new.b2tlm --prune 0 2 1", "never become smaller"),
    ("good.txt --out new.b2tlm --prune 1", "the threshold of single words must be 0"),
    ("good.txt --out new.b2tlm --prune 0 0 0 0", "4 thresholds for a model of order 3"),
    ("good.txt --out new.b2tlm --prune 0 -1", "prune: must be in [0, 1,000,000,000], not -1"),
    ("long.txt --out new.b2tlm --memory 1", "allow more"),
    ("good.txt --out new.b2tlm --min-count 99", "no word of the text occurs 99 times"),
    ("good.txt --out new.b2tlm --vocabulary none.txt", "none.txt: cannot be read"),
    ("good.txt --out new.b2tlm --vocabulary words.txt", "words.txt: line 2: 'Tea' cannot occur in scored text"),
    ("good.txt --out new.b2tlm --vocabulary curly.txt", "curly.txt: line 1: 'don\u2019t' cannot occur"),
    ("good.txt --out new.b2tlm --exclude none.txt", "none.txt: cannot be read"),
    ("good.txt --out new.b2tlm --exclude val.txt", "1 of the 2 sentences that will be scored are in the text"),
    ("good.txt --out new.b2tlm --exclude val.txt --leaks maybe", "--leaks"),
])
def test_bad_build(command, message, capsys):
    Path("good.txt").write_text(TEXT)
    Path("val.txt").write_text("Is there coffee?\nTea?\n")
    Path("long.txt").write_text("\n".join(f"tea {chr(97 + n % 26)} {chr(97 + n // 26 % 26)} {chr(97 + n % 23)} {chr(97 + n % 19)}" for n in range(60000)))
    Path("latin.txt").write_bytes("tea\nth\xe9\n".encode("latin-1"))
    Path("empty.txt").write_text("\n...\n12\n")
    Path("cut.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 9)[:-9])
    Path("words.txt").write_text("tea\nTea\n")
    Path("curly.txt").write_text("don\u2019t\n")
    Path("folder").mkdir()
    told = refused(f"lm build {command}", capsys)
    assert message in told, told


@pytest.mark.parametrize("command, message", [
    ("good.b2tlm --text held.txt", "models: 1 given; a mixture needs two or more"),
    ("good.b2tlm none.b2tlm --text held.txt", "none.b2tlm: cannot be read"),
    ("good.b2tlm bad.arpa --text held.txt", "bad.arpa: line 3: should be 'ngram 2='"),
    ("good.b2tlm cut.b2tlm --text held.txt", "cut.b2tlm: has"),
    ("good.b2tlm lm.bin --text held.txt", "lm.bin: its header is damaged"),
    ("good.b2tlm probing.bin --text held.txt", "probing.bin: is a probing file, which holds hashes of n-grams"),
    ("good.b2tlm held.txt --text held.txt", "held.txt: line 1: is not \\data\\"),
    ("good.b2tlm good.arpa", "weights: give one for each model (--weights 0.4 0.6), or a text"),
    ("good.b2tlm good.arpa --weights 0.5 0.5 --text held.txt", "not both"),
    ("good.b2tlm good.arpa --weights 1", "weights: 1 for 2 models; give one"),
    ("good.b2tlm good.arpa --weights 0.2 0.3 0.5", "weights: 0.2, 0.3, 0.5 for 2 models"),
    ("good.b2tlm good.arpa --weights 0.5 0.6", "from 0 to 1, that sum to 1"),
    ("good.b2tlm good.arpa --weights 1.5 -0.5", "weights: must be in [0, 1], not 1.5"),
    ("good.b2tlm good.arpa --weights nan 0.5", "--weights: "),
    ("good.b2tlm good.arpa --weights half half", "--weights: "),
    ("good.b2tlm good.arpa --text none.txt", "none.txt: cannot be read"),
    ("good.b2tlm good.arpa --text empty.txt", "empty.txt: has no sentence"),
    ("good.b2tlm good.arpa --text latin.txt", "latin.txt: line 2: is not UTF-8"),
    ("good.b2tlm good.arpa --text table.csv", "table.csv: has no column 'sentence_label'"),
    ("good.b2tlm good.arpa --text held.txt --exclude none.txt", "none.txt: cannot be read"),
    ("good.b2tlm good.arpa --text held.txt --exclude val.txt",
     "1 of the 2 sentences that will be scored are in the text, the first one is 'no tea' (held.txt, sentence 2)"),
    ("good.b2tlm good.arpa --text leak.txt --exclude val.txt --leaks drop",
     "leak.txt: has no sentence to find weights on, after those that will be scored were left out"),
    ("good.b2tlm seen.b2tlm --weights 0.5 0.5 --exclude tea.txt", "in the text of one of the models"),
    ("good.b2tlm good.arpa --text held.txt --leaks maybe", "--leaks"),
])
def test_bad_mixture(command, message, capsys):
    Path("good.arpa").write_text(ARPA)
    Path("bad.arpa").write_text(ARPA.replace("ngram 2=3", "ngram 2=three"))
    Path("lm.bin").write_bytes(KENLM_HEADER + bytes(400))
    Path("probing.bin").write_bytes((ROOT / "tests" / "kenlm" / "probing.bin").read_bytes())
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
    assert message in refused(f"lm mix good.arpa good.arpa --weights 0.5 0.5 --out {out}", capsys)


LIMITED = """
import resource, sys
from b2t_kit.core import KitError
from b2t_kit.lm import build_language_model, train_language_model
train_language_model([["tea"]])  # compiles what has to be
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
limit = used + int(sys.argv[1]) * 10**6
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    print(build_language_model(["talk.txt"], "talk.b2tlm", 4, (0, 0, 1), memory=int(sys.argv[2])))
except KitError as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_text_that_needs_more_memory_than_there_is():
    """It is refused with another program's command, before the memory is used up; with enough, that much is enough."""
    generator = np.random.default_rng(1)
    words = np.array([f"{first}{second}{third}" for first in "bcdfghklmnprst" for second in "aeiou" for third in "bdgklmnprst"])
    drawn = np.minimum(generator.zipf(1.2, (280_000, 9)), len(words)) - 1
    Path("talk.txt").write_text("\n".join(map(" ".join, words[drawn].tolist())))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def build(allowed: int, memory: int) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", LIMITED, str(allowed), str(memory)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    refused, careless, enough = build(300, 40), build(100, 1000), build(300, 300)
    assert refused.returncode == 1 and "lmplz -o 4" in refused.stderr and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert careless.returncode != 0 and "MemoryError" in careless.stderr  # so the limit is one
    assert enough.returncode == 0, enough.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["talk.b2tlm", "talk.txt"]


FORGE = """
import json, sys
from pathlib import Path
import numpy as np
from b2t_kit import lm
from b2t_kit.core import KitError
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.decode import words_in
from b2t_kit.lm import read_language_model
from b2t_kit.text.lexicon import build_lexicon
from b2t_kit.lm import Arrays, LanguageModel, map_model, perplexity, sentence_scores
from b2t_kit.lm import build_language_model

rng = np.random.default_rng(0)
names = [f"{a}{b}{c}" for a in "bdgkmt" for b in "aeiou" for c in "nstk"]
Path("talk.txt").write_text("\\n".join(" ".join(rng.choice(names[:30], 6)) for _ in range(400)))
build_language_model(["talk.txt"], "good.b2tlm", 3)
good = read_language_model("good.b2tlm")
logits = rng.normal(0, 3, (60, 41)).astype(np.float32)
wild = {"first": [0, 1, 2**31, 2**32 - 1], "link": [1, 7, 2**31, 2**32 - 1], "word": [0, 2**31, 2**32 - 1],
        "ln_p": [np.nan, np.inf, -np.inf, 3e38, -3e38], "back": [np.nan, np.inf, -np.inf, 3e38, -3e38]}
drawn = rng.bit_generator.state
for lm.READ_WHOLE in map(int, sys.argv[1:]):  # -1: as with a file that is too large to be read when it is opened
    told, rng.bit_generator.state = {"fine": 0}, drawn
    for name, values in wild.items():
        for value in values:
            for share in (1.0, 0.1):
                arrays = {one: np.array(array) for one, array in good.arrays._asdict().items()}
                chosen = rng.random(len(arrays[name])) < share
                if name in ("ln_p", "word", "link"):
                    chosen[: 1 + good.counts[0]] &= rng.random() < 0.5
                arrays[name][chosen] = value
                LanguageModel(good.words, Arrays(**arrays), good.counts, good.origin).save("bad.b2tlm")  # fingerprints fit
                for action in (lambda model: BeamSearch(build_lexicon(names[:30]), model).decode(logits),
                               lambda model: perplexity(model, ["ban ten men", "gas"]),
                               lambda model: sentence_scores(model, ["ban ten men", "gas"])):
                    try:
                        action(map_model("bad.b2tlm"))
                        told["fine"] += 1
                    except KitError as error:
                        assert "bad.b2tlm: " in str(error), error
                        told[str(error)] = told.get(str(error), 0) + 1
    print(json.dumps(told))
"""


def test_wild_numbers_with_fingerprints_that_fit():
    """No read outside an array (numba tells of each one here), no circle, no traceback: a result, or one line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_BOUNDSCHECK": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", FORGE, "-1", str(1 << 25)], env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    unread, read = map(json.loads, done.stdout.splitlines())
    assert len(unread) > 3 and len(read) > 3 and read["fine"] < 10, (unread, read)  # some links to 1 or 7 are sound


def model_file(change: Callable[[dict], object], name: str = "bad.b2tlm") -> None:
    """A kit model whose header was changed, with the padding that its length needs."""
    Path("good.arpa").write_text(ARPA)
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0
    whole = Path("good.b2tlm").read_bytes()
    first, line, _ = whole.split(b"\n", 2)
    header, body = json.loads(line), whole[-(-(len(first) + len(line) + 2) // 64) * 64 :]
    made = change(header)
    line = json.dumps(header | (made if isinstance(made, dict) else {})).encode() + b"\n"
    head = MAGIC + hashlib.blake2b(line, digest_size=16).hexdigest().encode() + b"\n" + line
    Path(name).write_bytes(head + b"\0" * (-len(head) % 64) + body)


HEADERS: dict[str, Callable[[dict], object]] = {
    "no hash": lambda head: {"hash": None},
    "a short hash": lambda head: {"hash": "0"},
    "origin a list": lambda head: {"origin": []},
    "counts of halves": lambda head: {"counts": [5.0, 3, 1]},
    "counts true": lambda head: {"counts": [5, 3, True]},
    "negative counts": lambda head: {"counts": [5, 5, -1]},
    "wild counts": lambda head: {"counts": [5, 10**22, 1]},
    "counts a text": lambda head: {"counts": "531"},
    "counts a number": lambda head: {"counts": 9},
    "no counts": lambda head: {"counts": []},
    "words one more": lambda head: {"words": [*head["words"], "x"]},
    "a word twice": lambda head: {"words": [*head["words"][:4], "tea"]},
    "words of several lines": lambda head: {"words": [*head["words"][:4], "x\ny"]},
    "half a character": lambda head: {"words": [*head["words"][:4], "\ud800"]},
    "a number among the words": lambda head: {"words": [*head["words"][:4], 5]},
    "other symbols": lambda head: {"words": ["<s>", *head["words"][1:]]},
    "words a text": lambda head: {"words": "abcde"},
    "no words": lambda head: head.pop("words"),
    "checked a number": lambda head: {"checked": 5},
    "checked no number": lambda head: {"checked": ["zz"]},
    "found too large": lambda head: {"found": ["f" * 17]},
}


@pytest.mark.parametrize("name", HEADERS)
def test_forged_header(name, capsys):
    model_file(HEADERS[name])
    told = refused("lm check bad.b2tlm", capsys)
    assert told.startswith("error: bad.b2tlm: ") and "damaged" in told, told


@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"counts":' * 100_000, b'{"bytes": ' + b"1" * 5000 + b"}", b"[]", b"null",
                                  b"\xff\xfe", b""])
def test_header_that_is_no_header(line, capsys):
    digest = hashlib.blake2b(line + b"\n", digest_size=16).hexdigest().encode()
    Path("bad.b2tlm").write_bytes(MAGIC + digest + b"\n" + line + b"\n" + bytes(4096))
    told = refused("lm check bad.b2tlm", capsys)
    assert "bad.b2tlm: its header is damaged" in told and len(told) < 400, told


def test_what_guards_against_leaks_cannot_be_edited(capsys):
    """Sentences that were in the text are moved to those that were not, or all traces of them are removed."""
    Path("tea.txt").write_text("Is there any tea?\n")
    assert main("lm build tea.txt --exclude tea.txt --leaks keep --out seen.b2tlm".split()) == 0
    capsys.readouterr()
    seen = map_model("seen.b2tlm")
    assert len(seen.found) == 1 and "1 of the 1" in leak_warning(seen, ["is there any tea"])
    whole = Path("seen.b2tlm").read_bytes()
    mark = f"{seen.found[0]:x}".encode()
    assert whole.count(mark) == 1
    Path("bad.b2tlm").write_bytes(whole.replace(b'"found": ["' + mark + b'"]', b'"found": []' + b" " * (len(mark) + 2)))
    assert "does not fit its fingerprint" in refused("lm check bad.b2tlm", capsys)
    assert "does not fit its fingerprint" in refused("lm perplexity bad.b2tlm tea.txt", capsys)


def test_check_of_good_files(capsys):
    Path("good.arpa").write_text(ARPA)
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0
    capsys.readouterr()
    for name in ("good.arpa", "good.b2tlm"):
        assert main(["lm", "check", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: sound; 5 + 3 + 1 n-grams, fingerprint ")


@pytest.mark.parametrize("old, new", [("-0.2\tmore tea", "-1e39\tmore tea"), ("more tea\t-0.05", "more tea\t3e38"),
                                      ("-0.9\ttea", "-1e300\ttea"), ("ngram 1=5", "ngram 1=" + "5" * 5000)])
def test_arpa_with_numbers_that_overflow(old, new, capsys):
    Path("bad.arpa").write_text(ARPA.replace(old, new))
    told = refused("lm convert bad.arpa --out new.b2tlm", capsys)
    assert told.startswith("error: bad.arpa: line ") and len(told) < 300, told


def test_probabilities_too_small_for_a_perplexity(capsys):
    Path("bad.arpa").write_text(ARPA.replace("-0.9\ttea", "-9999\ttea").replace("-0.2\tmore tea", "-9999\tmore tea"))
    Path("tea.txt").write_text("Tea tea tea tea.\n")
    assert "bad.arpa: is damaged (the mean ln p of a word is" in refused("lm perplexity bad.arpa tea.txt", capsys)


LONG = """
import resource, sys
from b2t_kit.cli import main
import b2t_kit.cli, b2t_kit.lm
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = main(sys.argv[1:])
print(status, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)
"""


@pytest.mark.parametrize("command, message", [
    ("build long.txt --memory 50 --out new.b2tlm", "long.txt: line 2: is longer than"),
    ("build long.txt.gz --memory 50 --out new.b2tlm", "long.txt.gz: line 2: is longer than"),
    ("convert long.arpa --out new.b2tlm", "long.arpa: line 2: is longer than"),
    ("build words.txt --memory 50 --out new.b2tlm", "or very long ones"),
])
def test_long_lines_stay_within_the_memory(command, message):
    """200 million bytes in one line, or in some hundred words."""
    name, long = command.split()[1], b"tea " * 50_000_000
    if name == "words.txt":
        long = b"\n".join(str(n).translate({48 + d: 97 + d for d in range(10)}).encode() * 200_000 for n in range(100, 400))
    else:
        long = (b"\\data\\\n" if name == "long.arpa" else b"tea\n") + long
    Path(name).write_bytes(gzip.compress(long, 1) if name.endswith(".gz") else long)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LONG, "lm", *command.split()], env=environment, capture_output=True, text=True)
    status, megabytes = done.stdout.split()
    assert status == "2" and message in done.stderr, done.stderr
    assert float(megabytes) < 50 + 64, megabytes  # what is imported late is in it too


def logits_file(session: str) -> None:
    with h5py.File("logits.h5", "w") as file:
        file["trial/logits"] = np.random.default_rng(0).normal(0, 3, (20, 41))
        file["trial"].attrs.update(session=session, block_num=1, trial_num=2)


@pytest.mark.parametrize("session", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "'=1"])
def test_no_cell_is_a_formula(session, capsys):
    logits_file(session)
    assert main("decode --logits logits.h5 --out sentences".split()) == 0
    with open("sentences/sentences.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert row["session"].startswith("'") and csv_plain(row["session"]) == session


def test_no_control_character_reaches_the_terminal(capsys):
    """Neither from a good file nor in the message about a bad one."""
    logits_file("t15\x1b[2J\x1b]0;owned\x07\x9b\u202e")
    assert main("decode --logits logits.h5 --out sentences".split()) == 0
    with h5py.File("bad.h5", "w") as file:
        file["tri\x1b[31mal/logits"] = np.zeros((20, 41))
    assert main("decode --logits bad.h5 --out others".split()) == 2
    Path("t\x1b[31mea.txt").write_text("")
    assert main(["lm", "build", "t\x1b[31mea.txt", "--out", "new.b2tlm"]) == 2
    said = "".join(capsys.readouterr())
    assert "\\x1b[2J" in said and not set(said) & set("\x1b\x07\x9b\u202e"), said


