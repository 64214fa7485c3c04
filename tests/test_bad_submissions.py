"""Bad submissions, tables of sentences, lists and reports: every fault is named, and nothing is half-written.

Each test works in its own folder, calls `b2t` there, and checks that the folder did not change.
"""
import shlex
import shutil
from pathlib import Path
from collections.abc import Callable

import pytest

from b2t_kit.cli import main
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.decode.files import DecodedTrial, Hypothesis, write_nbest
from commands import tree

TEXT = "we can hear you now"
GOOD = "id,text\n" + "".join(f"{number},{TEXT}\n" for number in range(1450))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with recordings of three days and 6 test trials, lists of them, and tables to score."""
    monkeypatch.chdir(tmp_path)
    with Recordings(tiny_recordings("data", sessions=3, trials=8, max_bins=60), "test") as recordings:
        places = [(info.session, info.block, info.number) for info in recordings.infos]
    sentence = (Hypothesis(("we", "hear"), -1.0, -2.0, -3.0),)
    write_nbest("nbest.jsonl", [DecodedTrial(*place, sentence) for place in places])
    Path("said.csv").write_text("id,text\n0,Good night.\n1,I slept well.\n2,Nan.\n")
    Path("heard.csv").write_text("id,text\n0,good night\n1,i slept while\n2,nan\n")
    Path("run").mkdir()
    return tmp_path


def said_by(words: str, capsys: pytest.CaptureFixture) -> tuple[int, list[str], list[str]]:
    """Exit status, output and errors of a command."""
    capsys.readouterr()
    status = main(shlex.split(words))
    said = capsys.readouterr()
    return status, said.out.splitlines(), said.err.splitlines()


# What `b2t check-submission` says of a file of 1,450 rows with one fault

def row(number: int, new: str) -> Callable[[str], str]:
    """Replace a row."""
    return lambda text: text.replace(f"\n{number},{TEXT}\n", f"\n{new}\n")


FAULTS: dict[str, Callable[[str], str | bytes]] = {
    "empty": lambda _: "", "only line ends": lambda _: "\n\n\n", "byte order mark": lambda text: "\ufeff" + text,
    "UTF-16": lambda text: text.encode("utf-16"), "old Mac line ends": lambda text: text.replace("\n", "\r"),
    "cut short": lambda text: text[:-12], "cut in the middle": lambda text: text[:20000],
    "header in capitals": lambda text: text.replace("id,text", "ID,Text"), "no header": lambda text: text.removeprefix("id,text\n"),
    "header quoted": lambda text: text.replace("id,text", '"id","text"'), "semicolons": lambda text: text.replace(",", ";"),
    "index column": lambda text: text.replace("id,text", ",id,text"), "blank line": row(7, f"7,{TEXT}\n"),
    "row missing": lambda text: text.replace(f"\n7,{TEXT}", ""), "row too many": lambda text: text + f"1450,{TEXT}\n",
    "validation split": lambda text: text[:text.index("\n1426,") + 1], "id twice": row(8, f"7,{TEXT}"),
    "ids from one": lambda text: "id,text\n" + "".join(f"{n},{TEXT}\n" for n in range(1, 1451)),
    "ids descending": lambda text: "id,text\n" + "".join(f"{n},{TEXT}\n" for n in range(1449, -1, -1)),
    "Latin-1": lambda text: row(7, "7,na\u00efve")(text).encode("latin-1"),
    **{f"id {name!r}": row(7, f"{name},{TEXT}") for name in ("-7", "7.0", "07", " 7", "\u0667")},
    **{f"text {text!r}": row(7, f"7,{text}") for text in (
        "", "   ", "'-", "We can", "we 2 can", "we can.", "well, no", '"we can"', "we can\u2019t", "we\u2014can", "we\tcan",
        "we\u00a0can", "na\u00efve", "w\u0435", "=we", '"we', "we\u2028can", "we\0can", " we can", "we can ", "we  can", "null", "nan", "-nan")},
}


def test_checker_names_the_fault(here: Path, capsys: pytest.CaptureFixture) -> None:
    """It says what is wrong, exits with 1, and does not change the file."""
    for name, spoil in FAULTS.items():
        content = spoil(GOOD)
        Path("sub.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        before = tree()
        status, lines, errors = said_by("check-submission sub.csv", capsys)
        assert (status, errors) == (1, []) and tree() == before and len(lines) > 1, name
        assert all(line.startswith("sub.csv: ") for line in lines), name
        if name[:3] in ("id ", "tex") and name != "id twice":
            assert lines[0].startswith("sub.csv: line 9: "), lines


def test_checker_names_all_faults_at_once(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Three faulty rows of 1,450 and a wrong header are four faults; Windows' line ends are none."""
    text = GOOD.replace("id,text", "id;text")
    for number, new in ((7, "7,"), (100, "100,No"), (900, "9,we")):
        text = row(number, new)(text)
    Path("sub.csv").write_bytes(text.replace("\n", "\r\n").encode())
    status, lines, _ = said_by("check-submission sub.csv", capsys)
    assert status == 1 and lines[-1] == "sub.csv: 4 faults, 1450 rows expected"
    Path("sub.csv").write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert said_by("check-submission sub.csv", capsys)[0] == 0


def test_words_that_tables_swallow_survive(here: Path, capsys: pytest.CaptureFixture) -> None:
    """A sentence stays text, also if a table library would read it as a missing value."""
    for word in ("na", "none", "true", "nan and null", "i'm", "x-ray", "o'clock"):
        Path("sub.csv").write_text(row(7, f"7,{word}")(GOOD))
        assert said_by("check-submission sub.csv", capsys)[0] == 0, word


def test_number_of_rows_follows_the_recordings(here: Path, capsys: pytest.CaptureFixture) -> None:
    """With recordings, their test trials count; 1,450 rows are then too many."""
    Path("sub.csv").write_text(GOOD)
    assert said_by("check-submission sub.csv", capsys)[0] == 0
    status, lines, _ = said_by("check-submission sub.csv --data data", capsys)
    assert status == 1 and "1450 rows, but there are 6 test trials" in lines[-2]
    assert said_by("submit --nbest nbest.jsonl --data data --out six.csv", capsys)[0] == 0
    assert said_by("check-submission six.csv --data data", capsys)[0] == 0


# What is refused: one line, and nothing written

SCORE = "score --reference said.csv --hypothesis heard.csv --json new.json"
REPORT = "report --run run --data data"
NBEST = "submit --nbest nbest.jsonl --data data --out new.csv"
PLACES = "session,block_num,trial_num,sentence_label\n"


def text(path: str, content: str | bytes) -> Callable[[], object]:
    """Write a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda: Path(path).write_bytes(data)


def dropped(path: str, line: int) -> Callable[[], object]:
    """Leave a line out of a file."""
    def spoil() -> None:
        lines = Path(path).read_text().splitlines(keepends=True)
        Path(path).write_text("".join(lines[:line] + lines[line + 1:]))
    return spoil


REFUSED: dict[str, tuple[str, str, Callable[[], object] | None]] = {
    "check: no file": ("check-submission gone.csv", "gone.csv", None),
    "check: no test split": ("check-submission said.csv --data data", "data_test.hdf5", lambda: [
        path.unlink() for path in Path("data").rglob("data_test.hdf5")]),
    "score: a folder": (SCORE.replace("heard.csv", "data"), "data: cannot be read", None),
    "score: fewer hypotheses": (SCORE, "heard.csv: has no row for", dropped("heard.csv", 3)),
    "score: more hypotheses": (SCORE, "said.csv: has no row for", dropped("said.csv", 3)),
    "score: nothing was said": (SCORE, "nothing to score", text("said.csv", "id,text\n0,...\n1,?\n2,\n")),
    "score: other places": (SCORE, "heard.csv: has no row for d 1 0", lambda: (
        Path("said.csv").write_text(PLACES + "d,1,0,Hello.\n"), Path("heard.csv").write_text(PLACES + "e,1,0,Hello.\n"))),
    "score: JSON is a folder": (SCORE.replace("new.json", "data"), "data: is not a plain file", None),
    **{f"score: {content!r}": (SCORE, f"heard.csv: {named}", text("heard.csv", content)) for content, named in (
        ("", "line 1: its columns"), ("id,text\n", "holds no sentence"), ("id;text\n0;a\n", "line 1: its columns"),
        ("id,text,id\n0,a,0\n", "line 1: its columns"), ("id,text\n0,a\n1,b\n5,c\n", "has no row for 2"),
        ("id,text\n0,a\n1,b\n1,c\n", "line 4: 1 is there twice"), ("id,text\none,a\n", "line 2: id 'one'"), ("id,text\n\u0660,a\n", "line 2: id"),
        ("id,text\n-1,a\n", "line 2: id '-1'"), ("id,text\n0,a,b\n", "line 2: has more"), ("id,text\n0\n", "line 2: has more or fewer"),
        ('id,text\n0,"a\n1,b\n', "line"), (b"id,text\n0,na\xefve\n", "cannot be read as UTF-8"),
        (PLACES + ",1,0,Hello.\n", "line 2: session is empty"), (PLACES + 2 * "d,1,0,Hello.\n", "line 3: "))},
    "submit: nothing to submit": ("submit --data data --out new.csv", "--run", None),
    "submit: two sources": (f"{NBEST} --run run", "--run", None),
    "submit: not a run": ("submit --run run --data data --out new.csv", "run: is not a run folder", None),
    "submit: lists and hotwords": (f"{NBEST} --hotwords said.csv", "hotwords: is for decoding", None),
    "submit: out in a file": (NBEST.replace("new.csv", "said.csv/new.csv"), "said.csv", None),
    "submit: list missing": (NBEST, "has no list; it holds 5 trials, and there are 6", dropped("nbest.jsonl", 2)),
    "submit: list of another trial": (NBEST, "is not a test trial", lambda: Path("nbest.jsonl").write_text(
        Path("nbest.jsonl").read_text().replace("t15.2023.08.02", "t15.2023.08.09"))),
    "submit: damaged journal": (NBEST, ".new.csv.journal: line 1", text(".new.csv.journal", "not written by us\n")),
    "submit: journal of others": (NBEST, ".new.csv.journal: was begun with other test trials", text(
        ".new.csv.journal", '{"trials": 5, "key": "x", "settings": {}}\n')),
    "report: not a run": (REPORT, "run: is not a run folder", None),
    "report: split without sentences": (f"{REPORT} --split test", "split test", None),
    "report: out is a folder": (f"{REPORT} --out data", "data: is not a plain file", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wish_is_refused(name: str, here: Path, refused: Callable) -> None:
    """An impossible request is rejected in one line."""
    words, named, spoil = REFUSED[name]
    if spoil:
        spoil()
    assert named in refused(words)


def test_good_inputs_are_accepted(here: Path, refused: Callable, capsys: pytest.CaptureFixture) -> None:
    """The commands of the cases above work with undamaged files."""
    assert said_by(SCORE, capsys)[0] == 0 and said_by(NBEST, capsys)[0] == 0
    assert Path("new.json").is_file() and Path("new.csv").is_file()
    shutil.copy("new.csv", "heard.csv")
    assert "said.csv: has no row for 3" in refused(SCORE)
