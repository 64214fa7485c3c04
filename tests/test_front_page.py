"The front page and its rows: each number is that of the stored result of its command; both languages say the same."
import re
import runpy
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from PIL import Image

from b2t_kit.core.files import load_json
from b2t_kit.data.augment import smoothing_taps
from b2t_kit.data.dataset import BIN_SECONDS
from b2t_kit.decode.words import made_up_words
from b2t_kit.publish.row import ROW_TITLES
from b2t_kit.simulate.recordings import session_names
from b2t_kit.speech.recipes import baseline

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?M?")
NAMES = re.compile(r"3-gram|v5e-8")
GIB = 2**30


def stored(name: str) -> dict:
    return load_json(ROOT / "benchmarks/results" / f"{name}.json")


def percent(share: float, places: int = 1) -> str:
    return f"{100 * share:.{places}f}"


def demo() -> list[str]:
    "As the demo's own result.json has it."
    found = stored("demo")
    chosen = [one["text"] for part in (found["decoder"], found["linear"], found["words"]) for one in part["marks"]]
    assert chosen == [*3 * ["checkpoint chosen on these trials"], "temperature fitted on these trials"]
    rates = [found["per"], found["linear_per"], found["wer"]]
    return [f"{len(made_up_words()[0])}", *map(percent, rates), "0.02"]


def words() -> list[str]:
    found = stored("words_flatness_1426")
    levels = {one["flatness"]: one for one in found["levels"]}
    assert {one["tuned_on"] for one in levels.values()} == {0}
    origin = found["models"]["3-gram"]["origin"]
    rates = [percent(levels[name]["rows"]["3-gram"]["wer"]) for name in ("middle", "sharp", "flat")]
    return [percent(levels["middle"]["per"]), f"{origin['sentences']:,}", f"{stored('live')['delay_baseline']['words']:,}",
            f"{levels['middle']['rows']['3-gram']['words']:,}", *rates]


def hotwords() -> list[str]:
    found = stored("hotwords_distractors")["hotwords"]
    rows = {name: found[name]["rows"] for name in ("middle", "sharp", "flat")}
    long = {name: one["unknown + list, distractors"] for name, one in rows.items()}
    assert not any(one["unknown"]["found"] for one in rows.values())
    unsaid = f"{found['distractors']:,}"
    return [f"{found['targets']}", unsaid, *(percent(one["found"] / one["of"], 0) for one in long.values()),
            f"{long['middle']['of']}", f"{long['middle']['changed']}", f"{found['without']}",
            f"{rows['middle']['unknown + list']['changed']}", unsaid]


def gpu() -> list[str]:
    found = stored("gpu")["train"]["found"]
    rows = [found[name]["eval"] for name in ("baseline", "transformer")]
    hours = {f"{max(row['seconds'] for row in one) / 3600:.1g}" for one in rows}
    return [*(percent(min(row["per"] for row in one)) for one in rows), *hours]


def live() -> list[str]:
    found, run = stored("live")["delay_baseline"], baseline()
    taps = smoothing_taps()
    ahead = 1000 * BIN_SECONDS * (len(taps) // 2)
    times = found["summary"]["words"]
    return [f"{found['parameters'] / 1e6:.0f}M", f"{found['minutes']:.0f}", f"{1000 * times['p50']:.1f}", "99",
            f"{1000 * times['p99']:.1f}", f"{ahead:.0f}", f"{1000 * BIN_SECONDS * run.task.model.patch:.0f}"]


def months() -> list[str]:
    "Mean phoneme errors of the days after training: as trained, and as used, of three participants."
    last = session_names(10)[-1]
    ways = [stored("months")[name]["without labels, 40 a day"] for name in ("11", "13", "14")]
    days = [[row for day, row in way["days"].items() if day > last] for way in ways]
    return [percent(sum(row[side] for row in rows) / len(rows)) for side in ("before", "used") for rows in days]


def step(command: str) -> dict:
    "The stored report of `b2t preflight`."
    found = stored("preflight")[command.removeprefix("b2t preflight ")]
    assert (found["chips"], found["global_batch"], found["by_program"][0]["name"]) == (8, 64, "a training step of 64 x 2478 x 512")
    return found


def whole(command: str) -> list[str]:
    found = step(command)
    sizes = found["bytes_per_chip"]
    parameters = found["by_program"][0]["states"]["parameter"] / 4 / 1e6
    return [f"{int(parameters)}M", "64", "2,478", f"{sizes['total'] / GIB:.2f}", f"{sizes['available'] / GIB:.2f}",
            f"{found['step_seconds_at_least']:.1f}"]


def divided(command: str) -> list[str]:
    found = step(command)
    return [f"{found['bytes_per_chip']['total'] / GIB:.2f}", f"{found['step_seconds_at_least']:.2f}"]


def tomography() -> list[str]:
    found = stored("eit")["uef2017"]
    network, classical = found["the same, times 0.8"], found["classical of the kit, scaled"]
    assert network["rmse"] < classical["rmse"]
    return [f"{network['count']}", "8", "0.8", *(text for one in (network, classical)
                                          for text in (f"{one['cc']:.2f}", f"{one['iou']:.2f}", f"{one['rmse']:.3f}"))]


PREFLIGHT = "b2t preflight noise_gru_687m --slice v5e-8 --global-batch 64 "
ROWS: dict[str, Callable[[], list[str]]] = {
    "python benchmarks/decoding.py words LABELS.csv --flatness middle,sharp,flat --tune-on 0": words,
    "python benchmarks/decoding.py hotwords LABELS.csv": hotwords,
    "python benchmarks/live.py delay --lm MODELS/large.b2tlm --said MODELS/said.txt": live,
    "python benchmarks/months.py DIR --sentences TEXT --participants 11,13,14": months,
    f"{PREFLIGHT}--programs largest": lambda: whole(f"{PREFLIGHT}--programs largest"),
    f"{PREFLIGHT}--shard units --programs largest": lambda: divided(f"{PREFLIGHT}--shard units --programs largest"),
    "python benchmarks/eit.py real eit_uef2017": tomography,
}


def table(page: str) -> dict[str, str]:
    "Command of each row -> its condition and its result."
    rows = re.findall(r"^\| (.+) \| (.+) \| `(.+)` \| \[.+\]\(.+\) \|$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    return {command: f"{what} | {result}" for what, result, command in rows}


def test_numbers() -> None:
    rows = table("benchmarks/README.md")
    assert list(rows) == list(ROWS)
    for command, text in rows.items():
        assert sorted(NUMBER.findall(NAMES.sub("", text))) == sorted(ROWS[command]()), (command, text)


RUNS: dict[str, Callable[[], list[str]]] = {"b2t demo --out demo": demo, "python benchmarks/gpu.py train RECORDINGS OUT --minutes 4": gpu}


def test_rows_of_runs() -> None:
    "As `b2t report --row` prints them."
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) ?\| ([^|]*) ?\| (\d+) ?\| (\w+) ?\| `(.+)` \|$", text, re.M)
    assert len(rows) == len(RUNS) and len(ROW_TITLES) == 7
    for _, recordings, errors, hours, seed, commit, command in rows:
        numbers = NUMBER.findall(f"{recordings} {errors} {hours.replace('H200', '')}")
        assert sorted(numbers) == sorted(RUNS[command]()) and seed == "1" and len(commit) == 7, (command, numbers)


PAGES = ["README.md", "README.zh.md"]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)]+)\)")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_what_it_tells(name: str) -> None:
    "Each number of the list stands on the page that its line links to; the number to beat is the leaderboard's."
    lines = re.findall(r"^- \*\*(?:.+\n(?:  .+\n)*)", page(name), re.M)
    told = [line for line in lines if "benchmarks/" in line and "nbs/" not in line]
    assert len(told) == 6
    for line in told:
        (target,) = {link.partition("#")[0] for _, _, link in LINK.findall(line)}
        words = re.sub(r"T15|687M|CPU|TPU", "", LINK.sub("", line))
        missing = [number for number in NUMBER.findall(words) if number not in page(target)]
        assert not missing, (line, missing)
    number = re.search(r"The number to beat: ([\d.]+) %", page("LEADERBOARD.md"))[1]
    assert f"**{number} %" in page(name)


def test_badges_and_addresses() -> None:
    "Badges are pictures of this repository; Kaggle and Colab open what stands at the address of settings.ini."
    settings = ConfigParser(delimiters=["="], interpolation=None)
    settings.read(ROOT / "settings.ini", encoding="utf-8")
    kit = settings["DEFAULT"]
    clone = f"{kit['user']}/{kit['repo']}/blob/{kit['branch']}"
    text = page("README.md")
    for start, notebook in (
        ("https://kaggle.com/kernels/welcome?src=https://github.com/", "kaggle/b2t-gpu/b2t-gpu.ipynb"),
        ("https://colab.research.google.com/github/", "nbs/tutorials/colab.ipynb"),
    ):
        assert f"]({start}{clone}/{notebook})" in text and (ROOT / notebook).exists()
    readme = runpy.run_path(str(ROOT / "tools/readme.py"))
    for name, picture in readme["badges"]().items():
        assert (ROOT / "nbs/images" / name).read_text(encoding="utf-8") == picture, name
    assert kit["license"] in page("nbs/images/badge_licence.svg") and kit["min_python"] in page("nbs/images/badge_python.svg")


def outline(text: str) -> tuple[list[int], list[int], set[str]]:
    "Levels of the headings of a page, columns of its tables, and what it links to, in one language."
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.M)]
    columns = [line.count("|") for line in re.findall(r"^\|[\s:|-]+\|$", text, re.M)]
    links = {link.replace("_zh.", ".").replace(".zh.", ".").replace("-zh.", ".") for _, _, link in LINK.findall(text)}
    anchors = {f"#{len(link)}" if link.startswith("#") else link for link in links}
    return levels, columns, {link for link in anchors if link not in ("README.md", "failures.md")}


@pytest.mark.parametrize("english, chinese", [
    (PAGES[0], PAGES[1]), ("nbs/tutorials/failures.md", "nbs/tutorials/failures_zh.md"),
])
def test_both_languages(english: str, chinese: str) -> None:
    "The Chinese page has the sections, tables and links of the English one."
    ours, theirs = outline(page(english)), outline(page(chinese))
    assert ours[:2] == theirs[:2]
    assert ours[2] == theirs[2], sorted(ours[2] ^ theirs[2])


def test_length_and_pictures() -> None:
    "Short enough to be read; simulated recordings are called so; the live page moves, in less than two megabytes."
    assert len(page("README.md").split()) < 900
    pictures = [(about, path) for mark, about, path in LINK.findall(page("README.md")) if mark and "badge" not in path]
    assert [path for _, path in pictures] == ["nbs/images/live.gif", "nbs/images/decoded.png"]
    assert all("simulated" in about for about, _ in pictures)
    chinese = [(about, path) for mark, about, path in LINK.findall(page("README.zh.md")) if mark and "badge" not in path]
    assert [path for _, path in chinese] == [path for _, path in pictures] and all("模拟" in about for about, _ in chinese)
    with Image.open(ROOT / "nbs/images/live.gif") as moving:
        assert moving.n_frames > 20
    assert (ROOT / "nbs/images/live.gif").stat().st_size < 2_000_000


WITHOUT_SOURCE = re.compile(r"none( found.*)?|not (stated|measured|looked up).*|no network")


def test_peers() -> None:
    "Each cell about another program names the file that says so, at a commit; a row that we measured has its command."
    text = (ROOT / "benchmarks/peers.md").read_text(encoding="utf-8")
    sources = dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, re.M))
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    cited = set()
    for about, ours, *others in rows:
        assert ours.strip() and len(others) == 4, about
        for cell in others:
            found = re.findall(r"\[\[(\w+)\]\]", cell)
            cited |= {*found}
            measured = "decoding.py flashlight" in about or "of that" in about
            assert found or measured or WITHOUT_SOURCE.fullmatch(cell.strip(" |")), (about, cell)
    assert cited == {*sources}
    for link in sources.values():
        assert "github.com" not in link or re.search(r"/(blob|tree)/[0-9a-f]{40}/", link), link
