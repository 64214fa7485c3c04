"""Each importer's recordings go through the verbs; quarantined trials are kept, named and not trained on."""
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.data.write import tiny_recordings
from b2t_kit.importers.arrays import OwnArrays
from b2t_kit.speech.sentences import load_sentences
from b2t_kit.speech.sentences import scored_sentences
from b2t_kit.speech.decoder import load_decoder
from b2t_kit.text.phonemes import normalise
from published_files import tiny_corp_files, tiny_inner_files, tiny_mat_files, tiny_nwb_files, tiny_voice_files

pytestmark = pytest.mark.usefixtures("dots")
TRAIN = "train --config tiny --hidden 8 --steps 2 --batch-size 4 --buckets 1 --eval-every 2 --device cpu --data "
SETS = {"voice": "brain-to-voice voice", "inner": "inner-speech inner --validation 0.2", "mine": "arrays mine",
        "competitionData": "t12 competitionData"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("sets"), Path.cwd()
    os.chdir(folder)
    tiny_voice_files("voice", days=(27, 67, 102), trials=10)
    tiny_inner_files("inner")
    for path in [*Path("inner").glob("*/t12*")]:
        path.unlink()
    tiny_nwb_files("h2")
    tiny_mat_files(".", trials=4)
    tiny_corp_files("corp", ("t5.2022.05.18", "t5.2022.05.23", "t5.2023.04.17"), trials=10)  # as published: all days of H2
    write_arrays(Path("mine"))
    Path("qvac").mkdir()
    Path("qvac/one.bin").write_bytes(struct.pack("<II", 70, 512) + np.ones((70, 512), "<f4").tobytes())
    Path("words.txt").write_text("we can hear you\nyou can hear\nhear we can now\n")
    assert main("lm build words.txt --out m.arpa".split()) == 0
    yield folder
    os.chdir(before)


def write_arrays(folder: Path) -> None:
    folder.mkdir()
    lines, random = ["session,split,block,trial,file,start,stop,sentence"], np.random.default_rng(0)
    for day in ("m1.2026.03.01", "m1.2026.03.02"):
        np.save(folder / f"{day}.npy", random.poisson(0.4, (1200, 6)).astype(np.uint8))
        for index, split in enumerate(("train", "train", "train", "train", "val", "test")):
            said = "" if split == "test" else "We can hear you."
            lines.append(f"{day},{split},{1 + index // 2},{index},{day}.npy,{200 * index},{200 * index + 180},{said}")
    (folder / "trials.csv").write_text("\n".join(lines))


def run(words: str) -> None:
    assert main(words.split()) == 0, words


@pytest.fixture(scope="module")
def trained(here: Path) -> Callable[[str], None]:
    """Convert one of SETS, train on it and export the run, once, for whichever test asks first."""
    @cache
    def made(name: str) -> None:
        run(f"convert {SETS[name]} --out {name}_out")
        run(f"{TRAIN} {name}_out --out {name}_run")
        run(f"export --run {name}_run --out {name}_exported")

    return made


@pytest.mark.second_tier
@pytest.mark.parametrize("name", SETS)
def test_trained_on_and_decoded(name: str, trained: Callable[[str], None]) -> None:
    """Sets with sentences and phonemes: training and scores, and one goes through every verb."""
    trained(name)
    run(f"validate {name}_out")
    run(f"eval --run {name}_run --data {name}_out --device cpu")
    if name == "voice":  # after the conversion all are alike
        run(f"decode --run {name}_run --data {name}_out --device cpu --lm m.arpa --beam 4")
    with Recordings(f"{name}_out") as recordings:
        assert load_decoder(f"{name}_run").signal == recordings.signal


def test_arrays_are_submitted(trained: Callable[[str], None]) -> None:
    """Trials without sentences, such as T12's hold-out, are decoded into a table, in their order."""
    for name, rows in (("mine", 2), ("competitionData", 4)):
        trained(name)
        run(f"submit --run {name}_run --data {name}_out --device cpu --lm m.arpa --out {name}.csv")
        run(f"check-submission {name}.csv --data {name}_out")
        assert len(Path(f"{name}.csv").read_text().splitlines()) == 1 + rows


@pytest.mark.parametrize("words", [
    "eval --run voice_run --data competitionData_out", "eval --run voice_exported --data competitionData_out",
    "decode --run voice_run --data competitionData_out --lm m.arpa", "eval --runs voice_run competitionData_run --data voice_out",
    "submit --run voice_run --data competitionData_out --lm m.arpa --out no.csv", f"{TRAIN} voice_out --out competitionData_run --resume",
])
def test_participants_are_not_mixed(words: str, trained: Callable[[str], None], capsys: pytest.CaptureFixture) -> None:
    """A run of one participant refuses recordings of another in one line."""
    trained("voice")
    trained("competitionData")
    capsys.readouterr()
    assert main([*words.split(), *(() if "--device" in words else ("--device", "cpu"))]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "cannot be mixed" in said and "T12" in said and "T15" in said or "cannot be resumed" in said, said
    assert not Path("no.csv").exists()


def test_a_folder_of_two_participants(here: Path, trained: Callable[[str], None], capsys: pytest.CaptureFixture) -> None:
    """Whatever reads it names two files and says what to do."""
    trained("competitionData")
    mixed = tiny_recordings("mixed", sessions=1, trials=4)
    day = next(here.glob("competitionData_out/hdf5_data_final/t12*"))
    (mixed / day.name).symlink_to(day)
    for words in (f"validate {mixed}", f"{TRAIN} {mixed} --out no"):
        capsys.readouterr()
        assert main(words.split()) in (1, 2), words
        said = "".join(capsys.readouterr())
        assert "T12 recordings of 256 features" in said and "T15 recordings of 512 features" in said, said
        assert "folders of their own" in said and said.count(".hdf5") >= 2 and "Traceback" not in said, said


def test_quarantine(trained: Callable[[str], None]) -> None:
    """Trials of the competition's days are in the files, with the reason, and not in the run; record, report and card say so."""
    trained("voice")
    run("report --run voice_run --data voice_out --device cpu")
    with Recordings("voice_out") as recordings:
        marked = Counter(info.session for info in recordings.infos if info.quarantine)
        sentences = {info.sentence for info in recordings.infos if info.quarantine}
        free = [info.sentence or "" for info in recordings.infos if not info.quarantine]
    assert marked == {"t15.2023.08.13": 10}
    task = json.loads(Path("voice_run/config.json").read_text())["task"]
    assert task["trained"] == ["t15.2023.09.22", "t15.2023.10.27"] and list(task["quarantine"].values()) == [10]
    for page in ("voice_run/report/val.html", "voice_exported/README.md"):
        assert "10 trials were not trained on: 10 as t15.2023.08.13 is a day of which t15 copy task" in Path(page).read_text(), page
    assert json.loads(Path("voice_exported/config.json").read_text())["task"]["quarantine"] == task["quarantine"]
    assert sentences <= set(scored_sentences("voice_out"))
    assert load_sentences("voice_out") == [normalise(one, True) for one in free], "lm build"


def test_copies_are_quarantined(here: Path, capsys: pytest.CaptureFixture) -> None:
    """A copy of a held-out trial under another name is marked, whatever was done to scale, start, bins and columns; nothing is lifted."""
    order = np.random.default_rng(0).permutation(512)
    run("convert brain-to-voice voice --out voice_days --validation 0.5")
    with Recordings("voice_days", "val", ["t15.2023.10.27"]) as recordings:
        whole = [recordings.features(index) for index in range(len(recordings)) if len(recordings.features(index)) >= 100]
    changed = [lambda one: 2 * one, lambda one: one[6:], lambda one: np.delete(one, [70, 71], 0), lambda one: one[:, order]]
    Path("copies").mkdir()
    lines = ["session,split,block,trial,file,sentence"]
    for index, one in enumerate(whole):
        np.save(f"copies/{index}.npy", changed[index % len(changed)](one))
        lines.append(f"monday,train,1,{index},{index}.npy,We can.")
    np.save("copies/own.npy", np.random.default_rng(1).standard_normal((120, 512)))
    Path("copies/trials.csv").write_text("\n".join([*lines, f"monday,train,1,{len(whole)},own.npy,We can."]))
    capsys.readouterr()
    run("convert arrays copies --out copies_out --held-out voice_days")
    with Recordings("copies_out") as recordings:
        reasons = [info.quarantine for info in recordings.infos]
    assert len(whole) > 2 and all("a copy of a held-out trial" in reason for reason in reasons[:-1]) and not reasons[-1], reasons
    run("convert arrays copies --out copies_alone")
    with Recordings("copies_alone") as recordings:
        assert not any(info.quarantine for info in recordings.infos)


def test_a_day_is_known_however_it_is_written(here: Path, tmp_path: Path) -> None:
    """Own arrays of a day of the competition are quarantined; nbs/data/quarantine.ipynb has thirty more spellings."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).poisson(0.4, (200, 6)))
    table = "session,split,block,trial,file,sentence\n2023.08.13,train,1,0,rows.npy,We can.\n"
    (tmp_path / "trials.csv").write_text(table, encoding="utf-8")
    run(f"convert arrays {tmp_path} --out {tmp_path / 'out'} --participant T15")
    with Recordings(tmp_path / "out") as recordings:
        assert "t15.2023.08.13 is a day of which t15 copy task" in recordings.infos[0].quarantine


def test_what_a_table_of_ones_own_gets_wrong(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Words that no dictionary has are told, and a file of another kind by its name, with what turns it into one."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).poisson(0.4, (200, 6)))
    table = "session,split,block,trial,file,sentence\nm1.2026.01.01,train,1,0,FILE,The Mädchen saw a xqzt.\n"
    (tmp_path / "trials.csv").write_text(table.replace("FILE", "rows.npy"), encoding="utf-8")
    run(f"convert arrays {tmp_path} --out {tmp_path / 'out'}")
    said = capsys.readouterr().out
    assert "1 sentences have letters beyond a to z" in said and "2 words are in no dictionary" in said, said
    (tmp_path / "trials.csv").write_text(table.replace("FILE", "rows.npy").replace(",", ";"), encoding="utf-8")
    run(f"convert arrays {tmp_path} --out {tmp_path / 'semicolons'}")
    for name, remedy in (("one.npz", "numpy.load(file)"), ("one.mat", "scipy.io.loadmat(file)")):
        (tmp_path / "trials.csv").write_text(table.replace("FILE", name), encoding="utf-8")
        assert main(f"convert arrays {tmp_path} --out {tmp_path / 'no'}".split()) == 1
        said = capsys.readouterr().out
        assert f"line 2: file is '{name}'" in said and remedy in said, said


OWN_TABLES = {  # a table of one trial, as spreadsheets and other programs write it
    "tabs": b"session\tsplit\tblock\ttrial\tfile\tsentence\nm1.2026.01.01\ttrain\t1\t0\trows.npy\tWe can, I know.\n",
    "UTF-16": 'session,split,block,trial,file,sentence\r\nm1.2026.01.01,train,1,0,rows.npy,"We can, I know."\r\n'.encode("utf-16"),
    "capitals and spaces": b'Session, Split, Block, Trial, File, Sentence\nm1.2026.01.01, train, 1, 0, rows.npy, "We can, I know."\n',
    "floating numbers": b'session,split,block,trial,file,sentence\nm1.2026.01.01,train,1.0,0.0,rows.npy,"We can, I know."\n',
    "a sentence in two lines": b'session,split,block,trial,file,sentence\nm1.2026.01.01,train,1,0,rows.npy,"We can,\nI know."\n',
    "folders of Windows": b'session,split,block,trial,file,sentence\nm1.2026.01.01,train,1,0,.\\rows.npy,"We can, I know."\n',
}


@pytest.mark.parametrize("name", OWN_TABLES)
def test_tables_of_other_programs_are_read_alike(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).poisson(0.4, (200, 6)))
    (tmp_path / "trials.csv").write_bytes(OWN_TABLES[name])
    run(f"convert arrays {tmp_path} --out {tmp_path / 'out'}")
    with Recordings(tmp_path / "out") as recordings:
        assert recordings.infos[0].sentence == "We can, I know." and recordings.infos[0].block == 1


WRONG_ROWS = {  # what becomes of the numbers, or of the table -> what is said
    "a mark": (lambda rows: np.where(np.arange(rows.size).reshape(rows.shape) == 9, 1e9, rows), "1 of 6 columns (3) vary over"),
    "a dead electrode": (lambda rows: np.where(np.arange(6) == 3, np.nan, rows), "nan at bin 0, column 3; where an electrode"),
    "a healthy one": (lambda rows: rows, ""),
    "a louder one": (lambda rows: np.where(np.arange(6) == 3, 1000 * rows, rows), ""),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_single_columns_of_own_arrays(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    "A column that one value spoils is named, and one that only has larger numbers is not."
    change, told = WRONG_ROWS[name]
    np.save(tmp_path / "rows.npy", change(np.random.default_rng(0).poisson(0.4, (200, 6)).astype(float)))
    (tmp_path / "trials.csv").write_bytes(OWN_TABLES["tabs"])
    main(f"convert arrays {tmp_path} --out {tmp_path / 'out'}".split())
    said = capsys.readouterr().out
    assert told in said and ("vary" in said or "nan" in said) == bool(told), said


def test_a_column_of_sentences_under_another_name_is_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).poisson(0.4, (200, 6)))
    (tmp_path / "trials.csv").write_bytes(OWN_TABLES["tabs"].replace(b"sentence", b"transcript").replace(b"train", b"test"))
    assert main(f"convert arrays {tmp_path} --out {tmp_path / 'out'}".split()) == 2
    assert "column 'transcript': call it sentence" in capsys.readouterr().err


def test_only_quarantined(here: Path, capsys: pytest.CaptureFixture) -> None:
    """A folder in which nothing may be trained on is refused."""
    tiny_voice_files("days", days=(27,))
    run("convert brain-to-voice days --out days_out")
    assert main(f"{TRAIN} days_out --out never".split()) == 2
    assert "quarantined" in capsys.readouterr().err.splitlines()[-1] and not Path("never").exists()


def test_seen_days_are_not_submitted(here: Path, capsys: pytest.CaptureFixture) -> None:
    """A run that was trained on a day of its test in another set makes no submission, alone or with others."""
    tiny_recordings("own", sessions=2, trials=4)
    tiny_recordings("other", sessions=2, trials=4, signal=replace(T15, dataset="another set"))
    for name in ("other_run", "other_too"):
        run(f"{TRAIN} other --out {name}")
    for words in ("--run other_run", "--runs other_run other_too"):
        capsys.readouterr()
        assert main(f"submit {words} --data own --device cpu --lm m.arpa --out no.csv".split()) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "2 days of this test, from another set: 2 of the 2 test trials" in said, said
    assert not Path("no.csv").exists()
    tiny_recordings("later", sessions=2, trials=4, signal=replace(T15, dataset="another set"))
    run("submit --run other_run --data later --device cpu --lm m.arpa --out yes.csv")  # its own set's test


@pytest.mark.parametrize("name", ["h2", "corp"])
def test_characters_end_in_text(name: str, here: Path, capsys: pytest.CaptureFixture) -> None:
    """Handwriting is converted, trained on, scored by its characters and searched for words; adapting is of phonemes."""
    data = f"--run {name}_run --data {name}_out --device cpu"
    for words in (f"convert {name} {name} --out {name}_out --validation 0.2", f"validate {name}_out",
                  f"{TRAIN} {name}_out --out {name}_run", f"eval {data}", f"decode {data} --lm m.arpa", f"report {data}"):
        capsys.readouterr()
        run(words)
        assert words.split()[0] not in ("eval", "decode") or "character error rate" in capsys.readouterr().out
    with Recordings(f"{name}_out") as recordings:
        assert recordings.signal.label_names[27] == ">" and " " in recordings.infos[0].sentence
    assert "Characters, before any lexicon" in Path(f"{name}_run/report/val.html").read_text()
    assert main(f"decode {data} --lm m.arpa --adapt".split()) == 2 and "with phonemes only" in capsys.readouterr().err


def test_unlabelled(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Trials without labels are decoded by a run of the same signal, and never trained on."""
    tiny_recordings("copy", sessions=2, trials=4)
    run(f"{TRAIN} copy --out copy_run")
    run("convert qvac qvac --out qvac_out --session t15.2023.08.01 --assume-t15")
    run("submit --run copy_run --data qvac_out --device cpu --lm m.arpa --out qvac.csv")
    assert len(Path("qvac.csv").read_text().splitlines()) == 2
    assert main(f"{TRAIN} qvac_out --out no_run".split()) == 2
    run("convert qvac qvac --out unknown_out")
    assert main("submit --run copy_run --data unknown_out --device cpu --lm m.arpa --out no.csv".split()) == 2
    assert "QVAC recordings" in capsys.readouterr().err


def test_resumed_and_faulty(trained: Callable[[str], None], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second conversion keeps what the same version made from the same bytes by the same options; a fault is one line."""
    trained("voice")
    run("convert h2 h2 --out h2_out --validation 0.2")
    run("convert arrays mine --out kept_out")
    source = Path("mine/m1.2026.03.01.npy")
    times, content = source.stat(), source.read_bytes()
    for kept, options, change in (
            ("2", "", lambda: None), ("1", "", lambda: source.write_bytes(content[:-1] + b"\7")),
            ("", "--bin-ms 10", lambda: None), ("", "--scale block", lambda: None), ("2", "--scale block --skip-faulty", lambda: None),
            ("", "--scale block", lambda: monkeypatch.setattr(OwnArrays, "version", 99)),
            ("", "--scale block --held-out voice_out", lambda: None)):
        change()
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        capsys.readouterr()
        run(f"convert arrays mine --out kept_out {options}")
        assert "".join(re.findall(r"(\d) days were complete", said := capsys.readouterr().out)) == kept, said
    path = next(Path("corp").rglob("*.mat"))
    content = path.read_bytes()
    path.write_bytes(content[:len(content) // 2])
    assert main("convert corp corp --out corp_out --validation 0.2".split()) == 1
    said = capsys.readouterr().out
    assert f"{path}: is damaged" in said and "Traceback" not in said
