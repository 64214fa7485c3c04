"The front page: each number of its table is that of the stored result of the command in its row; both languages agree."
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from b2t_kit.core.files import load_json
from b2t_kit.data.batches import smoothing_taps
from b2t_kit.data.dataset import BIN_SECONDS
from b2t_kit.decode.words import made_up_words
from b2t_kit.publish.report import ROW_TITLES
from b2t_kit.simulate.recordings import session_names
from b2t_kit.speech.recipes import RECIPES, baseline

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
    "Mean phoneme errors of the days after training: as trained, and as used, of both participants."
    last = session_names(10)[-1]
    days = [[row for day, row in one["five known"]["days"].items() if day > last] for one in stored("months").values()]
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
    "python benchmarks/months.py DIR --sentences TEXT --participants 11,12": months,
    f"{PREFLIGHT}--programs largest": lambda: whole(f"{PREFLIGHT}--programs largest"),
    f"{PREFLIGHT}--shard units --programs largest": lambda: divided(f"{PREFLIGHT}--shard units --programs largest"),
    "python benchmarks/eit.py real eit_uef2017": tomography,
}


def table(page: str) -> dict[str, str]:
    "Command of each row -> its condition and its result."
    rows = re.findall(r"^\| (.+) \| (.+) \| `(.+)` \| \[.+\]\(.+\) \|$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    return {command: f"{what} | {result}" for what, result, command in rows}


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_numbers(page: str) -> None:
    rows = table(page)
    assert list(rows) == list(ROWS)
    for command, text in rows.items():
        text = text.replace("4,400 万（44M）", "44M")
        assert sorted(NUMBER.findall(NAMES.sub("", text))) == sorted(ROWS[command]()), (command, text)


RUNS = {"b2t demo --out demo": demo, "python benchmarks/gpu.py train RECORDINGS OUT --minutes 4": gpu}


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_rows_of_runs(page: str) -> None:
    "As `b2t report --row` prints them; rows of real recordings are empty, with the command that fills them."
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) ?\| ([^|]*) ?\| (\d*) ?\| (\w*) ?\| `(.+)` \|$", text, re.M)
    assert len(rows) == 4 and len(ROW_TITLES) == 7
    for recipe, recordings, errors, hours, seed, commit, command in rows:
        if command in RUNS:
            numbers = NUMBER.findall(f"{recordings} {errors} {hours.replace('H200', '')}")
            assert sorted(numbers) == sorted(RUNS[command]()) and seed == "1" and len(commit) == 7, (command, numbers)
        else:
            assert not errors and not seed and not commit and command.split()[3] == recipe in RECIPES


def test_length_and_pictures() -> None:
    "Short enough to be read; simulated recordings are called so; the live page is shown."
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 900
    pictures = re.findall(r"!\[(.+)\]\((.+)\)", text)
    assert [path for _, path in pictures] == ["nbs/images/decoded.png", "nbs/images/live.png"]
    assert all("simulated" in about for about, _ in pictures)
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    assert [path for _, path in re.findall(r"!\[(.+模拟.*)\]\((.+)\)", chinese)] == [path for _, path in pictures]


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
