"The leaderboard: its tables are those of its files, each row names its commands, and a row that is not reproduced is refused."
import copy
import json
import runpy
import zipfile
from datetime import date, timedelta
from pathlib import Path

import pytest

from b2t_kit.cli import command_in
from b2t_kit.data.write import tiny_recordings
from tiny_models import write_published

ROOT = Path(__file__).resolve().parent.parent
BOARD = runpy.run_path(str(ROOT / "tools/leaderboard.py"))
ROWS = BOARD["rows"]()
SIMULATED = {name: row for name, row in ROWS.items() if row["simulation"]}
FIRST = next(iter(SIMULATED.values()))


def test_page() -> None:
    "`python tools/leaderboard.py` was run after the last row; the number to beat stands on the front page, too."
    text = (ROOT / "LEADERBOARD.md").read_text(encoding="utf-8")
    assert BOARD["page"]() == text
    number = BOARD["percent"](BOARD["record"]()["errors"]["all trials"]["per"])
    assert f"**The number to beat: {number} % phoneme errors.**" in text
    assert all(f"](leaderboard/{name}.json)" in text for name in ROWS)


def test_rows() -> None:
    "The simulated rows of a participant share recordings; none chose its checkpoint on them; all take three minutes."
    assert 4 <= len(SIMULATED) <= 8
    for participant in (1, 2):
        found = [row for row in SIMULATED.values() if row["simulation"]["seed"] == participant]
        assert found and all(row["simulation"] == found[0]["simulation"] for row in found)
        assert len({row["commands"][0] for row in found}) == 1
    for name, row in SIMULATED.items():
        assert "checkpoint chosen" not in row["selected"] and row["simulation"]["labels"] is None, name
        assert [command.split()[1] for command in row["commands"]] == ["simulate", "train", "report"], name
        assert row["errors"]["sentence seen in training"] is None, name


def test_each_row_has_its_turn() -> None:
    days = [date(2026, 11, 29) + timedelta(days=one) for one in range(len(SIMULATED))]
    assert {BOARD["turn"](day) for day in days} == set(SIMULATED)


def changed(kind: str, **values: object) -> dict:
    row = copy.deepcopy(FIRST)
    row["errors"]["all trials"][kind] |= values
    return row


def test_reproduced() -> None:
    "The last error counts on the same kind of machine, the row's interval on another, and the trials on each."
    differences = BOARD["differences"]
    assert differences(FIRST, copy.deepcopy(FIRST)) == []
    rate = FIRST["errors"]["all trials"]["per"]
    near = changed("per", edits=rate["edits"] + 1, rate=(rate["edits"] + 1) / rate["total"])
    assert "on the same kind of machine" in differences(FIRST, near)[0]
    near["machine"] = {**FIRST["machine"], "processor": "another"}
    assert differences(FIRST, near) == []
    far = changed("wer", edits=10**6, rate=0.99)
    far["machine"] = near["machine"]
    assert "outside of the row's own interval" in differences(FIRST, far)[0]
    assert "other recordings were scored" in differences(FIRST, changed("per", total=1))[0]


@pytest.mark.parametrize("command", [
    "rm -rf RUN", "b2t live --run RUN", "b2t train --model own.py:Own --out RUN", "b2t train --scratch=DIR --out RUN", 7,
    "b2t simulate --out HERE", "b2t train --data RECORDINGS --out ../run",
])
def test_other_commands_are_not_run(command: object, tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(FIRST | {"commands": [command]}))
    with pytest.raises(BOARD["RowError"], match="is not run"):
        BOARD["read_row"](path)


@pytest.mark.parametrize("values, message", [
    ({"who": " "}, "'who' is empty"), ({"errors": {}}, "'errors' lacks"), ({"commands": None}, "'commands' is missing"),
])
def test_incomplete_rows(values: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(FIRST | values))
    with pytest.raises(BOARD["RowError"], match=message):
        BOARD["read_row"](path)


def test_names_of_folders_only_as_words(tmp_path: Path) -> None:
    "RECORDINGS and RUN become folders of their own; nothing passes a shell."
    words = BOARD["words_of"]("b2t train --data RECORDINGS --out RUN --seed '1; rm RUN'", tmp_path, tmp_path)
    assert words[-5:] == [str(tmp_path / "recordings"), "--out", str(tmp_path / "run"), "--seed", "1; rm RUN"]


def test_published_weights_have_a_row(tmp_path: Path) -> None:
    "The commands of the first hour with real data, on weights in the published layout and random recordings."
    tiny_recordings(tmp_path / "t15", sessions=2, trials=24, min_bins=60, max_bins=140)
    days = sorted(path.name for path in (tmp_path / "t15/hdf5_data_final").iterdir())
    write_published(tmp_path / "base", 512, tuple(days))
    b2t = command_in(tmp_path)
    status, said, *_ = b2t("show base --data t15")
    assert status == 0 and "were z-scored" in said
    status, said, *_ = b2t("report --run base --data t15 --row --pictures 0 --device cpu")
    assert status == 0 and said.count(" | ") == 6
    (path,) = (tmp_path / "base/report").glob("val*.row.json")
    row = json.loads(path.read_text())
    assert row["seed"] is None and row["commands"] == ["b2t report --run RUN --split val --row --data RECORDINGS"]
    row["who"] = "somebody"
    path.write_text(json.dumps(row))
    assert BOARD["read_row"](path)["errors"]["all trials"]["per"]["total"] > 0
    status, said, *_ = b2t("doctor --bundle base --out report.zip")
    assert status == 0, said
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        assert f"report/{path.name}" in archive.namelist()
