"""The leaderboard: rows in leaderboard/*.json, and their tables in LEADERBOARD.md.

    python tools/leaderboard.py                      write the tables again
    python tools/leaderboard.py reproduce [FILE]     run a row's commands, and compare; without FILE, the simulated row
                                                     whose turn it is by the date of the last commit
    python tools/leaderboard.py renew FILE ...       run a row's commands, and keep the new numbers: for a commit that
                                                     changes results on purpose

A row is the file that `b2t report --row` writes, with a name in `who`. Its commands are read as words, never by a
shell, and only `b2t simulate`, `b2t train` and `b2t report` are run, on recordings and runs in a temporary folder.

A row is reproduced if the same phonemes and words are scored, and if phoneme and word errors are the same to the last
one on the same kind of machine (instruction set, threads, version of torch), and within the row's own 95 % intervals on
another: there the sums of a training are rounded in another order.
"""
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "leaderboard"
PAGE = ROOT / "LEADERBOARD.md"
VERBS = ("simulate", "train", "report")
OF_ONE_MACHINE = ("--model", "--labels", "--scratch", "--cache-dir")
COMMAND_LIMIT = 20 * 60  # seconds; a row takes three minutes on two idle cores
TITLES = (
    "row", "phoneme errors, %", "word errors, %", "P(best) off by", "minutes, device", "commit", "command", "who",
)
REAL_TITLES = (
    "recipe", "split", "phoneme errors, %", "word errors, %", "not seen in training", "seen", "last six days",
    "P(best) off by", "hours, device", "commit", "command", "who",
)
WORLDS = {  # title -> what all of its rows share
    "Strict world, participant 1": {"seed": 1},
    "Strict world, participant 2": {"seed": 2},
}
AWAITED = {  # heading -> commands of rows that nobody has made yet
    "T15": (
        "b2t report --run PUBLISHED --data T15 --row",
        "b2t train --config baseline --data T15 --out RUN && b2t report --run RUN --row",
        "b2t train --config noise_gru_687m --data T15 --out RUN && b2t report --run RUN --row",
    ),
    "T12": (
        "b2t convert t12 DOWNLOAD --out T12 && b2t train --config baseline --data T12 --out RUN && "
        "b2t report --run RUN --row",
    ),
}


class RowError(Exception):
    "A row that cannot be taken, in one line."


def read_row(path: Path) -> dict[str, Any]:
    "Return a row; one that lacks something is refused."
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RowError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RowError(f"{path}: is not JSON ({error}); `b2t report --row` writes it") from error
    if not isinstance(row, dict):
        raise RowError(f"{path}: is no row; `b2t report --row` writes one")
    for name, kind in (("who", str), ("recipe", str), ("errors", dict), ("commands", list), ("hours", (int, float)),
                       ("device", str), ("machine", dict), ("commit", str), ("split", str), ("calibration", dict)):
        if not isinstance(row.get(name), kind):
            raise RowError(f"{path}: '{name}' is missing; `b2t report --row` writes it")
    if not row["who"].strip():
        raise RowError(f"{path}: 'who' is empty; write the name that the table shall give")
    total = row["errors"].get("all trials")
    if not isinstance(total, dict) or not all(isinstance(total.get(name), dict) for name in ("per", "wer")):
        raise RowError(f"{path}: 'errors' lacks phonemes or words of all trials")
    for command in row["commands"]:
        words_of(command, path)
    return row


def words_of(command: Any, path: Path, folder: Path | None = None) -> list[str]:
    "Return the words of a command, RECORDINGS and RUN in this folder; any other command is refused."
    words = shlex.split(command) if isinstance(command, str) else []
    if words[:1] != ["b2t"] or words[1:2] not in ([verb] for verb in VERBS):
        raise RowError(f"{path}: {command!r} is not run; a row has b2t {', '.join(VERBS)}")
    if any("/" in word or word.partition("=")[0] in OF_ONE_MACHINE for word in words):
        raise RowError(f"{path}: {command!r} is not run: it names a file of one machine, or code")
    named = {"RECORDINGS", "RUN"}
    if any(flag in ("--out", "--run", "--data") and word not in named for flag, word in pairwise(words)):
        raise RowError(f"{path}: {command!r} is not run: its folders are not called RECORDINGS and RUN")
    return [str(folder / word.lower()) if folder and word in named else word for word in words]


def rows() -> dict[str, dict[str, Any]]:  # file name -> row
    "Return all rows, those with fewest phoneme errors first."
    found = {path.stem: read_row(path) for path in ROWS.glob("*.json")}
    return dict(sorted(found.items(), key=lambda one: (one[1]["errors"]["all trials"]["per"]["rate"], one[0])))


def percent(rate: Mapping[str, Any] | None, interval: bool = False) -> str:
    "Return a rate in percent; nothing if it is not known."
    if not rate:
        return ""
    text = f"{100 * rate['rate']:.1f}"
    if interval and rate.get("low") is not None:
        text += f" ({100 * rate['low']:.1f}-{100 * rate['high']:.1f})"
    return text


def training(row: Mapping[str, Any]) -> str:
    "Return the command that trains a row, without the folders."
    command = next((one for one in row["commands"] if one.startswith("b2t train")), row["commands"][-1])
    return command.removesuffix(" --data RECORDINGS --out RUN")


def certainty(row: Mapping[str, Any]) -> str:
    "Return by how many points P(best) of a sentence is off in the mean."
    table = row["calibration"].get("sentences")
    return f"{100 * table['error']:.1f}" if table else ""


def simulated_row(name: str, row: Mapping[str, Any]) -> list[str]:
    "Return the cells of a row on simulated recordings."
    total = row["errors"]["all trials"]
    return [
        f"[{name.partition('-')[2] or name}](leaderboard/{name}.json)",
        percent(total["per"], True),
        percent(total["wer"], True),
        certainty(row),
        f"{60 * row['hours']:.1f}, {row['device']}",
        row["commit"],
        f"`{training(row)}`",
        row["who"],
    ]


def real_row(name: str, row: Mapping[str, Any]) -> list[str]:
    "Return the cells of a row on real recordings; phoneme, word errors of each group."
    errors = row["errors"]

    def both(group: str) -> str:
        rates = errors.get(group) or {}
        return ", ".join(filter(None, (percent(rates.get(kind)) for kind in ("per", "wer"))))

    return [
        f"[{row['recipe']}](leaderboard/{name}.json)",
        row["split"] + "".join(f"; {what}" for what in row["selected"]),
        percent(errors["all trials"]["per"], True),
        percent(errors["all trials"]["wer"], True),
        both("sentence not seen in training"),
        both("sentence seen in training"),
        both("last six sessions"),
        certainty(row),
        f"{row['hours']:.2g}, {row['device']}",
        row["commit"],
        f"`{training(row)}`",
        row["who"],
    ]


def markdown(table: list[list[str]]) -> str:
    "Return titles and rows as a Markdown table."
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def tables() -> Iterator[tuple[str, str]]:  # heading, Markdown
    "Yield the table under each heading of the page."
    found = rows()
    for title, shared in WORLDS.items():
        lines = [simulated_row(name, row) for name, row in found.items()
                 if row["simulation"] and row["simulation"]["seed"] == shared["seed"]]
        yield title, markdown([list(TITLES), *lines])
    for title, commands in AWAITED.items():
        lines = [real_row(name, row) for name, row in found.items()
                 if not row["simulation"] and row["recordings"].lower().startswith(title.lower())]
        made = " ".join(cell for line in lines for cell in line)
        lines += [["", *[""] * (len(REAL_TITLES) - 3), f"`{command}`", ""] for command in commands
                  if command not in made]
        yield title, markdown([list(REAL_TITLES), *lines])


def record() -> dict[str, Any]:
    "Return the row to beat."
    seed = WORLDS["Strict world, participant 1"]["seed"]
    return next(row for row in rows().values() if row["simulation"] and row["simulation"]["seed"] == seed)


def page() -> str:
    "Return LEADERBOARD.md with the tables of today, each the only one below its heading."
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    new = dict(tables())
    for at, part in enumerate(parts):
        title = part.partition("\n")[0]
        if title in new:
            text = part.partition("\n| ")[0].rstrip("\n")
            parts[at] = f"{text}\n\n{new.pop(title)}\n"
    if new:
        raise RowError(f"{PAGE}: has no heading '{next(iter(new))}'")
    best = record()
    rate = percent(best["errors"]["all trials"]["per"])
    text = "\n## ".join(parts).rstrip("\n") + "\n"
    line = f"**The number to beat: {rate} % phoneme errors.**"
    text = re.sub(r"^\*\*The number to beat: .*$", line, text, flags=re.M)
    commands = "\n".join(best["commands"])
    return re.sub(r"^```sh\n(?:.+\n)*?```$", lambda _: f"```sh\n{commands}\n```", text, count=1, flags=re.M)


def run_row(row: Mapping[str, Any], path: Path) -> dict[str, Any]:
    "Run a row's commands in a temporary folder, and return the row that they write."
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in row["commands"]:
            words = words_of(command, path, folder)
            print(f"--- {command}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "b2t_kit", *words[1:]], timeout=COMMAND_LIMIT, stdin=subprocess.DEVNULL
            )
            if done.returncode:
                raise RowError(f"{path}: `{command}` ended with status {done.returncode}")
        written = folder / f"run/report/{row['split']}.row.json"
        if not written.exists():
            raise RowError(f"{path}: its commands write no row; the last one is `b2t report --run RUN --row`")
        return json.loads(written.read_text(encoding="utf-8"))


def differences(row: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    "Return why a row is not reproduced, a line each."
    same_kind = row["machine"] == again["machine"] and row["device"] == again["device"]
    found = []
    for kind, name in (("per", "phoneme"), ("wer", "word")):
        kept, new = (one["errors"]["all trials"][kind] for one in (row, again))
        counts = f"{name} errors: {kept['edits']} of {kept['total']} in the row, {new['edits']} of {new['total']} here"
        inside = kept["low"] is not None and kept["low"] <= new["rate"] <= kept["high"]
        equal = kept["edits"] == new["edits"]
        if kept["total"] != new["total"]:
            found.append(f"{counts}: other recordings were scored")
        elif same_kind and not equal:
            found.append(f"{counts}, on the same kind of machine")
        elif not (equal or inside):
            found.append(f"{counts}, outside of the row's own interval")
        else:
            print(f"{counts}: {'equal' if equal else 'another kind of machine, and within the interval'}")
    return found


def turn(day: date) -> str:  # file name
    "Return the simulated row whose turn it is: another one each day."
    names = sorted(name for name, row in rows().items() if row["simulation"])
    return names[day.toordinal() % len(names)]


def day_of_commit() -> date:
    "Return the date of the last commit; today where this is no clone."
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs"]
    answer = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return date.fromisoformat(answer) if answer else date.today()


def main(arguments: list[str]) -> int:  # exit status
    verb, files = arguments[:1], [Path(name) for name in arguments[1:]]
    try:
        if not verb:
            PAGE.write_text(page(), encoding="utf-8")
        elif verb == ["reproduce"] and len(files) < 2:
            path = files[0] if files else ROWS / f"{turn(day_of_commit())}.json"
            row = read_row(path)
            if not row.get("simulation"):
                raise RowError(f"{path}: its recordings are not simulated, so that they are not here")
            print(f"reproducing {path.name}")
            if found := differences(row, run_row(row, path)):
                raise RowError(f"{path}: cannot be reproduced: {'; '.join(found)}")
        elif verb == ["renew"] and files:
            for path in files:
                row = read_row(path)
                new = run_row(row, path) | {"who": row["who"], "commands": row["commands"]}
                path.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
        else:
            print(__doc__)
            return 2
    except RowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
