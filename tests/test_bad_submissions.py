"""Submissions, tables of sentences, lists and reports: every fault is named in one line, and nothing is half-written."""
from pathlib import Path
from collections.abc import Callable

import pytest

from b2t_kit.cli import main
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.write import tiny_recordings
from b2t_kit.decode.lists import DecodedTrial, Hypothesis, write_nbest
from commands import tree

TEXT = "we can hear you now"
GOOD = "id,text\n" + "".join(f"{number},{TEXT}\n" for number in range(1450))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    with Recordings(tiny_recordings(folder / "data", sessions=3, trials=8, max_bins=60), "test") as recordings:
        best = (Hypothesis(("we", "hear"), -1.0, -2.0, -3.0),)
        write_nbest(folder / "nbest.jsonl", [DecodedTrial(info.session, info.block, info.number, best) for info in recordings.infos])
    (folder / "said.csv").write_text("id,text\n0,Good night.\n1,I slept well.\n2,Nan.\n")
    (folder / "heard.csv").write_text("id,text\n0,good night\n1,i slept while\n2,nan\n")
    (folder / "run").mkdir()
    return folder


def row(number: int, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(f"\n{number},{TEXT}\n", f"\n{new}\n")


FAULTS: dict[str, Callable[[str], str | bytes]] = {  # of a submission of 1,450 rows
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


def test_checker(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Every fault of every row is named, with status 1; words that pandas does not swallow and Windows' line ends are none."""
    def checked(content: str | bytes, options: str = "") -> tuple[int, list[str]]:
        Path("sub.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        before = tree()
        status = main(f"check-submission sub.csv {options}".split())
        said = capsys.readouterr()
        assert not said.err and tree() == before
        return status, said.out.splitlines()

    for name, spoil in FAULTS.items():
        status, lines = checked(spoil(GOOD))
        assert status == 1 and len(lines) > 1 and all(line.startswith("sub.csv: ") for line in lines), name
        assert not name.startswith(("id '", "text")) or lines[0].startswith("sub.csv: line 9: "), lines
    four = GOOD.replace("id,text", "id;text")
    for number, new in ((7, "7,"), (100, "100,No"), (900, "9,we")):
        four = row(number, new)(four)
    assert checked(four)[1][-1] == "sub.csv: 4 faults, 1450 rows expected"
    for word in ("na", "none", "true", "nan and null", "i'm", "x-ray", "o'clock"):
        assert checked(row(7, f"7,{word}")(GOOD).replace("\n", "\r\n"))[0] == 0, word
    status, lines = checked(GOOD, "--data data")
    assert status == 1 and "1450 rows, but there are 6 test trials" in lines[-2]


# What is refused: one line, and nothing written

SCORE = "score --reference said.csv --hypothesis heard.csv --json new.json"
REPORT = "report --run run --data data"
NBEST = "submit --nbest nbest.jsonl --data data --out new.csv"
PLACES = "session,block_num,trial_num,sentence_label\n"
Files = dict[str, str | bytes]  # name -> content
REFUSED: list[tuple[str, str, Files]] = [  # command, what is named, files that are written before
    ("check-submission gone.csv", "gone.csv", {}),
    (SCORE.replace("heard.csv", "data"), "data: cannot be read", {}),
    (SCORE.replace("new.json", "data"), "data: is not a plain file", {}),
    (SCORE, "said.csv: has no row for", {"said.csv": "id,text\n0,Good night.\n1,I slept well.\n"}),
    (SCORE, "nothing to score", {"said.csv": "id,text\n0,...\n1,?\n2,\n"}),
    (SCORE, "heard.csv: has no row for d 1 0", {"said.csv": PLACES + "d,1,0,Hello.\n", "heard.csv": PLACES + "e,1,0,Hello.\n"}),
    *((SCORE, f"heard.csv: {named}", {"heard.csv": content}) for content, named in (
        ("", "is empty"), ("id,text\n", "holds no sentence"), ("id;text\n0;a\n", "has no row for 1"),
        ("id,words\n0,a\n", "line 1: no column says what was decoded: it has 'id', 'words'"),
        ("id,text,id\n0,a,0\n", "line 1: a column appears twice: id, text, id"), ("id,text\n0,a\n1,b\n5,c\n", "has no row for 2"),
        ("id,text\n0,a\n1,b\n1,c\n", "line 4: 1 appears twice"), ("id,text\n,a\n", "line 2: id is empty"),
        *((f"id,text\n{name},a\n1,b\n2,c\n", "some of its trials are numbers, and others names") for name in ("one", "\u0660", "-1")),
        ("id,text\n0,a,b\n", "line 2: has more"), ("id,text\n0\n", "line 2: has more or fewer"),
        ('id,text\n0,"a\n1,b\n', "line"), (b"id,text\n0,na\xefve\n", "cannot be read as UTF-8"),
        (PLACES + ",1,0,Hello.\n", "line 2: session is empty"), (PLACES + 2 * "d,1,0,Hello.\n", "line 3: "))),
    ("submit --data data --out new.csv", "--run", {}), (f"{NBEST} --run run", "--run", {}),
    ("submit --run run --data data --out new.csv", "run: is not a run folder", {}),
    (f"{NBEST} --hotwords said.csv", "hotwords: is for decoding", {}),
    (NBEST.replace("new.csv", "said.csv/new.csv"), "said.csv", {}),
    (NBEST.replace("nbest.jsonl", "fewer.jsonl"), "has no list; it holds 5 trials, and there are 6", {}),
    (NBEST.replace("nbest.jsonl", "other.jsonl"), "is not a test trial", {}),
    (REPORT, "run: is not a run folder", {}), (f"{REPORT} --split test", "split test", {}),
    (f"{REPORT} --out data", "data: is not a plain file", {}),
]


def test_refused_in_one_line(here: Path, refused: Callable) -> None:
    """With undamaged files the same commands are done."""
    lists = Path("nbest.jsonl").read_text()
    Path("fewer.jsonl").write_text(lists.partition("\n")[2])
    Path("other.jsonl").write_text(lists.replace("t15.2023.08.02", "t15.2023.08.09"))
    before = {name: Path(name).read_bytes() for name in ("said.csv", "heard.csv")}
    for words, named, files in REFUSED:
        for name, content in files.items():
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        assert named in refused(words), (words, files)
        for name, content in before.items():
            Path(name).write_bytes(content)
    assert main(SCORE.split()) == main(NBEST.split()) == main("check-submission new.csv --data data".split()) == 0
    assert main("submit --nbest new.csv --data data --out again.csv".split()) == 0, "a table whose ids are a submission's"
    assert Path("again.csv").read_bytes() == Path("new.csv").read_bytes()
    for path in Path("data").rglob("data_test.hdf5"):
        path.unlink()
    assert "data_test.hdf5" in refused("check-submission said.csv --data data")
