"""Bad language models, texts and word lists: one line that names the file, and nothing half-written.

KenLM's files: tests/test_kenlm.py."""
import csv
import gzip
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.core.files import csv_plain
from b2t_kit.lm.model import MAGIC, map_model
from b2t_kit.lm.leaks import leak_warning
from commands import TESTS, python

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
ARPA_FAULTS = [  # what is replaced, by what, what the message says
    (ARPA, "some text\n", "line 1: is not \\data\\, so this is neither an ARPA file nor another known model"),
    (ARPA, "", "line 0: the file ends here; it is cut short"),
    ("\n\\end\\\n", "", "line 19: the file ends here; it is cut short"),
    *(("ngram 1=5", f"ngram 1={count}", "line 2: should be 'ngram 1=' and a number") for count in ("5" * 5000, "\u0665", "5e0")),
    ("ngram 2=3\n", "", "line 3: should be 'ngram 2=' and a number"),
    ("ngram 1=5", "ngram 1=0", "the file declares no single words"),
    ("ngram 3=1", "".join(f"ngram {n}=1\n" for n in range(3, 8)), "or n-grams of more than 6"),
    ("ngram 3=1", "ngram 3=900000000000", "GB of memory; KenLM makes a file that is read as it is"),
    ("ngram 1=5", "ngram 1=6", "line 13: should be one of 6 n-grams"),
    ("ngram 2=3", "ngram 2=2", "line 16: is not \\3-grams:, the counts at the top do not match"),
    ("\\end\\", "-0.3\tmore tea </s>\n\\end\\", "line 21: is not \\end\\"),
    ("-0.9\ttea\t-0.1", "tea", "line 10: should be one of 5 n-grams: a probability, 1 word and perhaps"),
    ("<s> more tea", "<s> more tea\t-0.1", "line 19: should be one of 1 n-grams: a probability, 3 words and no backoff"),
    *(("-0.2\tmore tea", f"{number}\tmore tea", "line 15: ") for number in ("-o.2", "-1_0", "nan", "-0x1p-1", "-1e30", "0.2")),
    ("more tea\t-0.05", "more tea\t3e38", "line 15: 3e38 cannot be a logarithm"),
    ("<s> more tea", "<s> more rum", "line 19: the word b'rum' is not among the words"),
    ("-0.9\ttea\t-0.1", "-0.9\tmore\t-0.1", "line 11: the word 'more' is there already"),
    ("-0.5\ttea </s>", "-0.5\tmore tea", "the n-gram 'more tea' appears twice"),
    ("-99\t<s>\t-0.3", "-99\trum\t-0.3", "there is no <s> or no </s>"),
    ("-0.4\t<s> more", "-0.01\tmore more", "after a context sum to 1.61: are the logarithms to base 10?"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with files that are sound; `b2t lm info` says so."""
    monkeypatch.chdir(tmp_path)
    Path("good.arpa").write_text(ARPA)
    assert main("lm convert good.arpa --out good.b2tlm".split()) == 0


def test_a_mixture_counts_as_perplexity_does(capsys):
    """What a mixture records of its parts and itself is what `b2t lm perplexity` says, unknown words too."""
    Path("text.txt").write_text("More cake!\nNo more cake, thanks.\nCake?\n")
    Path("held_out.txt").write_text("More tea, thanks.\nCake, rum?\n")
    assert main("lm build text.txt --out cake.b2tlm".split()) == 0
    assert main("lm mix good.b2tlm cake.b2tlm --text held_out.txt --out both.b2tlm".split()) == 0
    capsys.readouterr()
    for name, value, unknown in zip(("good", "cake", "both"), *map(map_model("both.b2tlm").origin.get, ("perplexities", "unknown words"))):
        assert main(f"lm perplexity {name}.b2tlm held_out.txt".split()) == 0
        assert f"perplexity {value:.1f} of 2 sentences, {unknown} of the words unknown" in capsys.readouterr().out
    for name, kind in {"good.arpa": "ARPA text", "good.b2tlm": "model of this kit"}.items():
        Path(name).rename("model")  # the first bytes tell the format
        assert main("lm info model".split()) == 0
        said = capsys.readouterr().out
        assert all(part in said for part in (f"  {kind}\n", "  5 + 3 + 1\n", "all of it was read, and is sound")), said


@pytest.mark.parametrize("old, new, message", ARPA_FAULTS)
def test_broken_arpa(old, new, message, refused):
    assert ARPA.count(old) == 1
    Path("bad.arpa").write_text(ARPA.replace(old, new))
    told = refused("lm convert bad.arpa --out new.b2tlm")
    assert told.startswith("error: bad.arpa: ") and message in told, told


def test_arpa_of_other_programs(refused, capsys):
    """Packed or cut, another encoding, capitals, infinities, probabilities filtered out or of <s>, any name."""
    Path("cut.arpa.gz").write_bytes(gzip.compress(ARPA.encode())[:-20])
    Path("latin.arpa").write_bytes(ARPA.replace("tea", "t\xe9a").encode("latin-1"))
    Path("gguf").write_bytes(b"GGUF" + bytes(60))
    for name, told in {"cut.arpa.gz": "cannot be read (Compressed file ended", "gguf": "line 1: is not \\data\\",
                       "latin.arpa": "line 10: the word is not UTF-8"}.items():
        assert f"{name}: {told}" in refused(f"lm info {name}")
    Path("model").write_text(ARPA.replace("tea", "TEA").replace("more", "MORE").replace("-99\t<s>", "0\t<s>"))
    assert main("lm convert model --out capitals.b2tlm".split()) == 0 and "tea" in map_model("capitals.b2tlm").ids
    Path("low.arpa").write_text(ARPA.replace("-0.6\t</s>\n-0.9\ttea", "-3.6\t</s>\n-inf\ttea"))
    assert main("lm info low.arpa".split()) == 0 and "probabilities sum to 0.0923" in capsys.readouterr().out
    Path("tiny.arpa").write_text(ARPA.replace("-0.9\ttea", "-9999\ttea").replace("-0.2\tmore tea", "-9999\tmore tea"))
    Path("tea.txt").write_text("Tea tea tea tea.\n")
    assert "tiny.arpa: is damaged (the mean ln p of a word is" in refused("lm perplexity tiny.arpa tea.txt")


def headed(line: bytes) -> bytes:
    """A file that begins with a header whose fingerprint fits."""
    return MAGIC + hashlib.blake2b(line + b"\n", digest_size=16).hexdigest().encode() + b"\n" + line + b"\n" + bytes(4096)


BYTES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda data: data[:-64], "is cut short or damaged"), (lambda data: data[:50], "its header is damaged"),
    (lambda data: data.replace(b'"tea"', b'"tee"'), "its header is damaged (does not fit its fingerprint"),
    (lambda data: data.replace(b"B2T-LM 2", b"B2T-LM 1"), "of another version of this kit"),
    (lambda data: data.replace(np.float32(-0.9 * math.log(10)).tobytes(), np.float32(-2).tobytes()), "does not fit its fingerprint"),
    *((lambda data, line=line: headed(line), "its header is damaged") for line in
      (b"[" * 200_000, b'{"bytes": ' + b"1" * 5000 + b"}", b"null", b"\xff\xfe"))]
HEADERS: list[tuple[str, object]] = [
    ("hash", "0"), ("hash", 5), ("origin", 5), ("counts", (5.0, 3, 1)), ("counts", (5, 5, -1)), ("counts", (5, 10**22, 1)), ("counts", ()),
    ("words", ("<unk>", "<s>", "</s>", "tea")), ("words", ("<unk>", "<s>", "</s>", "tea", "\ud800")),
    ("words", ("<unk>", "<s>", "</s>", "tea", 5)), ("words", ("<s>", "<unk>", "</s>", "tea", "more")), ("words", 5)]


@pytest.mark.parametrize("case", range(len(BYTES) + len(HEADERS)))
def test_broken_kit_model(case, refused):
    """Other bytes, or a header that another program wrote, with a fingerprint that fits."""
    model, message = map_model("good.b2tlm"), "damaged"
    if case < len(BYTES):
        changed, message = BYTES[case]
        Path("bad.b2tlm").write_bytes(changed(Path("good.b2tlm").read_bytes()))
    else:
        setattr(model, *HEADERS[case - len(BYTES)])
        model.save("bad.b2tlm")
    told = refused("lm info bad.b2tlm")
    assert told.startswith("error: bad.b2tlm: ") and message in told, told


WILD = """
import sys
from pathlib import Path
import numpy as np
from b2t_kit.lm import model as lm_model
from b2t_kit.lm.build import train_language_model
from b2t_kit.core.errors import KitError
from b2t_kit.decode.search import BeamSearch
from b2t_kit.lm.kenlm import KenlmModel
from b2t_kit.lexicon.lexicon import build_lexicon

rng, words = np.random.default_rng(0), "i would like some more tea please can you put the kettle on".split()
text, lexicon, logits = [" ".join(words), "the tea please coffee"], build_lexicon(words), rng.normal(0, 3, (40, 41)).astype(np.float32)
good = train_language_model([[" ".join(rng.choice(words, 6)) for _ in range(400)]], 3)
wild = {"first": [0, 1, 2**31, 2**32 - 1], "link": [1, 7, 2**31, 2**32 - 1], "word": [0, 2**31, 2**32 - 1],
        "ln_p": [np.nan, np.inf, -np.inf, 3e38, -3e38], "back": [np.nan, np.inf, -np.inf, 3e38, -3e38]}
lm_model.READ_WHOLE = -1  # as with files that are too large to be read when they are opened

def forged():
    for name, share, value in ((name, share, value) for name in wild for share in (1.0, 0.1) for value in wild[name]):
        arrays = {one: np.array(array) for one, array in good.arrays._asdict().items()}
        arrays[name][rng.random(len(arrays[name])) < share] = value
        lm_model.LanguageModel(good.words, lm_model.Arrays(**arrays), good.counts).save("bad.b2tlm")  # fingerprints fit
        yield lambda: lm_model.map_model("bad.b2tlm")

def flipped():
    noticed, paths = 0, sorted(Path(sys.argv[1]).glob("*.bin")) * 8
    for path in paths:
        right, data = lm_model.sentence_scores(KenlmModel(path), text), bytearray(path.read_bytes())
        for place in rng.integers(rng.choice([0, 112]), len(data), rng.integers(1, 5)):
            block = rng.bytes(rng.integers(1, 17))[: len(data) - place]
            data[place : place + len(block)] = block
        Path("bad.bin").write_bytes(data)
        yield lambda: KenlmModel("bad.bin")
        try:
            KenlmModel("bad.bin").verify()
            noticed += np.array_equal(lm_model.sentence_scores(KenlmModel("bad.bin"), text), right)
        except KitError:
            noticed += 1
    assert noticed > 0.9 * len(paths), f"{noticed} of {len(paths)} are refused, or read the same"

for damaged in (forged, flipped):
    fine, told = 0, set()
    for opened in damaged():
        for action in (lambda model: model.verify(), lambda model: lm_model.sentence_scores(model, text),
                       lambda model: lm_model.perplexity(model, text), lambda model: BeamSearch(lexicon, model).decode(logits)):
            try:
                action(opened())
                fine += 1
            except KitError as error:
                assert str(error).startswith("bad.b") and "\\n" not in str(error), error
                told.add(str(error))
    print(damaged.__name__, fine, sorted(told), file=sys.stderr)
    assert fine > 20 and len(told) > 5, (fine, told)
"""


@pytest.mark.second_tier
def test_wild_numbers_in_models_too_large_to_be_read_first():
    """No read outside an array (numba tells of each one here), no circle, no traceback: a result, or one line."""
    python("-c", WILD, TESTS / "kenlm", timeout=600, NUMBA_BOUNDSCHECK="1", PYTHONWARNINGS="error")


def write_texts() -> None:
    Path("text.txt").write_text("More tea!\nNo more tea, thanks.\nTea?\n")
    Path("val.txt").write_text("No tea.\nTea?\n")
    Path("leak.txt").write_text("No tea.\n")
    Path("many.txt").write_text("\n".join(f"tea {chr(97 + n % 26)} {chr(97 + n // 26 % 26)} {chr(97 + n % 23)} {chr(97 + n % 19)}"
                                          for n in range(30000)))
    Path("latin.txt").write_bytes("tea\nth\xe9\n".encode("latin-1"))
    Path("empty.txt").write_text("\n...\n12\n")
    Path("cut.txt.gz").write_bytes(gzip.compress(b"More tea!\n" * 99)[:-9])
    Path("words.txt").write_text("tea\nTea\n")
    Path("table.csv").write_text("id,words\n0,tea\n")
    Path("folder").mkdir()
    Path("bad.arpa").write_text(ARPA.replace("ngram 2=3", "ngram 2=three"))
    Path("probing.bin").write_bytes((TESTS / "kenlm/probing.bin").read_bytes())


COMMANDS = [
    ("build text.txt none.txt", "none.txt: there is no such text file"), ("build folder", "no recordings"),
    ("build latin.txt", "latin.txt: line 2: is not UTF-8"), ("build empty.txt", "the text has no sentence"),
    ("build cut.txt.gz", "cut.txt.gz: cannot be read"), ("build text.txt --order 7", "--order: must be in [1, 6], not 7"),
    ("build text.txt --prune 0 2 1", "never decrease"), ("build text.txt --prune 0 0 0 0", "at most 3 thresholds"),
    ("build many.txt --memory 1", "allow more"), ("build text.txt --min-count 99", "no word of the text occurs 99 times"),
    ("build text.txt --vocabulary words.txt", "words.txt: line 2: 'Tea' cannot occur in scored text"),
    ("build text.txt --exclude none.txt", "none.txt: cannot be read"),
    ("build text.txt --exclude val.txt", "1 of the 2 sentences that will be scored are in the text"),
    ("mix good.b2tlm --text text.txt", "models: 1 given; a mixture needs two or more"),
    ("mix good.b2tlm bad.arpa --text text.txt", "bad.arpa: line 3: should be 'ngram 2='"),
    ("mix good.b2tlm probing.bin --text text.txt", "probing.bin: is a probing file, which holds hashes of n-grams"),
    ("mix good.b2tlm good.arpa --text table.csv", "table.csv: line 1: no column says what was said: it has 'id', 'words'"),
    ("mix good.b2tlm good.arpa --text text.txt --exclude val.txt", "the first one is 'tea' (text.txt, sentence 3)"),
    ("mix good.b2tlm good.arpa --text leak.txt --exclude val.txt --leaks drop", "leak.txt: has no sentence to find weights on"),
    ("build text.txt --out new.lm", "new.lm: the name should end in .b2tlm, .arpa or .arpa.gz"),
    ("mix good.arpa good.arpa --text text.txt --out folder", "folder: the name should end in"),
    ("convert good.arpa --out text.txt/new.b2tlm", "text.txt/new.b2tlm: cannot be written"),
]


@pytest.mark.parametrize("command, message", COMMANDS)
def test_bad_build_or_mixture(command, message, refused):
    write_texts()
    assert message in (told := refused(f"lm {command}" if "--out" in command else f"lm {command} --out new.b2tlm")), told


def test_what_guards_against_leaks_cannot_be_edited(refused):
    """A model says for which sentences its text was checked, a mixture for which all were; the record cannot be edited by hand."""
    Path("text.txt").write_text("More tea, please.\nIs there any tea?\n")
    Path("val.txt").write_text("Is there any tea?\nNo tea.\n")
    assert main("lm build text.txt --exclude val.txt --leaks drop --out own.b2tlm".split()) == 0
    Path("held_out.txt").write_text("More tea.\n")
    assert main("lm mix own.b2tlm good.b2tlm --text held_out.txt --exclude val.txt --out both.b2tlm".split()) == 0
    own, whole = map_model("own.b2tlm"), Path("own.b2tlm").read_bytes()
    assert leak_warning(own, ["is there any tea", "no tea"]) is None and "1 of the 2" in leak_warning(own, ["no tea", "tea"])
    assert own.origin["sentences"] == 1 and "2 of the 2" in leak_warning(map_model("both.b2tlm"), ["is there any tea", "no tea"])
    mark = f"{own.checked[0]:x}".encode()
    Path("bad.b2tlm").write_bytes(whole.replace(mark, mark[::-1]))
    assert "does not fit its fingerprint" in refused("lm perplexity bad.b2tlm val.txt")


LIMITED = """
import json, os, resource, sys
from b2t_kit.cli import main
from b2t_kit.lm.build import train_language_model
train_language_model([["tea"]])  # compiles what has to be
for megabytes, command in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, 2 * (used + megabytes * 10**6,))
        os._exit(main(["lm", *command.split()]))
    print("=== ", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""
BUILD = "build talk.txt --order 4 --prune 0 0 1 --out talk.b2tlm --memory"
IN_MEMORY = [  # megabytes that may be taken, command, status, what is said
    (300, f"{BUILD} 40", 2, "lmplz -o 4"), (100, f"{BUILD} 1000", 2, "this machine has not enough"),  # so the limit is one
    (300, f"{BUILD} 300", 0, ""), (120, "build words.txt --memory 50 --out new.b2tlm", 2, "or very long ones"),
    *((120, f"{words} --out new.b2tlm", 2, f"{words.split()[1]}: line 2: is longer than") for words in (
        "build long.txt --memory 50", "build long.txt.gz --memory 50", "convert long.arpa"))]


@pytest.mark.second_tier
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_texts_stay_within_the_memory():
    """More is refused with another program's command; with enough, that much is enough. Also 200 million bytes in a line, or in
    some hundred words."""
    generator = np.random.default_rng(1)
    words = np.array([f"{first}{second}{third}" for first in "bcdfghklmnprst" for second in "aeiou" for third in "bdgklmnprst"])
    drawn = np.minimum(generator.zipf(1.2, (280_000, 9)), len(words)) - 1
    Path("talk.txt").write_text("\n".join(map(" ".join, words[drawn].tolist())))
    Path("words.txt").write_text("\n".join(
        str(n).translate({48 + d: 97 + d for d in range(10)}) * 200_000 for n in range(100, 400)))
    long = b"tea " * 50_000_000
    Path("long.txt").write_bytes(b"tea\n" + long)
    Path("long.txt.gz").write_bytes(gzip.compress(b"tea\n" + long, 1))
    Path("long.arpa").write_bytes(b"\\data\\\n" + long)
    commands = json.dumps([one[:2] for one in IN_MEMORY])
    said = python("-c", LIMITED, commands, OPENBLAS_NUM_THREADS="1").stderr
    found = re.split(r"===  (-?\d+)\n", said)
    for (_, command, status, message), before, ended in zip(IN_MEMORY, found[:-1:2], found[1::2], strict=True):
        assert int(ended) == status and message in before, (command, ended, before)
    assert Path("talk.b2tlm").is_file() and not list(Path().glob(".talk*")) and not Path("new.b2tlm").exists()


def test_names_run_nothing_in_a_spreadsheet_or_terminal(capsys):
    """Sessions that are formulas read back from the table as they were; control characters are spelled, in errors too."""
    sessions = ("!t15\x1b[2J\x1b]0;owned\x07\x9b\u202e", "=cmd|' /C calc'!A0", "+1", "@SUM(A1)", "\t=1", "'=1")
    with h5py.File("logits.h5", "w") as file, h5py.File("bad.h5", "w") as bad:
        for number, session in enumerate(sessions):
            file[f"{number}/logits"] = np.random.default_rng(number).normal(0, 3, (20, 41))
            file[str(number)].attrs.update(session=session, block_num=1, trial_num=2)
        bad["tri\x1b[31mal/logits"] = np.zeros((20, 41))
    assert main("decode --logits logits.h5 --lm good.b2tlm --out out".split()) == 0
    with open("out/sentences.csv", newline="") as file:
        rows = [row["session"] for row in csv.DictReader(file)]
    formulas = [row for row in rows if "t15" not in row]
    assert all(row.startswith("'") for row in formulas) and sorted(map(csv_plain, formulas)) == sorted(sessions[1:])
    assert main("decode --logits bad.h5 --lm good.b2tlm --out others".split()) == 2
    Path("t\x1b[31mea.txt").write_text("")
    assert main(["lm", "build", "t\x1b[31mea.txt", "--out", "new.b2tlm"]) == 2
    said = "".join(capsys.readouterr())
    assert "\\x1b[2J" in said and not set(said) & set("\x1b\x07\x9b\u202e"), said
