"""Hold simulated errors against the real ones: how many, how dispersed, in runs, by day, and what is taken for what.

    python benchmarks/ruler.py LABELS.csv [--sentences 1440] [--json FILE]      simulated logits
    python benchmarks/ruler.py --runs RUN ... [--names NAME ...] --json FILE    runs on simulated recordings
    python benchmarks/ruler.py --figure [--json FILE]                           the figure, from the results

LABELS.csv has the columns session, sentence_label and phonemes, such as that of the published training split. From each
of its days, the same number of first sentences is taken. A run has been evaluated by `b2t eval`, which leaves
eval/val/trials.csv with the labels and the phonemes that were heard.
The real figures and the definitions are in `simulate.errors`: the published baseline on 766 validation sentences of 21
days. "Before" is the noise that the kit had at first, `even_logits`: independent, and confused by articulation.
"""

import argparse
import csv
import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from b2t_kit.simulate.errors import QUANTILES, ErrorStatistics, real_errors, error_statistics
from b2t_kit.simulate.logits import Noise, even_logits, noisy_logits
from b2t_kit.text.phonemes import collapse, to_ids

RESULTS = Path(__file__).parent / "results"
AIMS = {"phoneme errors, %": (9.5, 11.5), "sentences without an error, %": (25, 35), "dispersion": (2.8, 3.8),
        "dispersion within days": (2.1, 2.7), "errors in runs of three or more, %": (26, 36),
        "overlap of substitutions": (0.55, 1.0), "substitutions, %": (63.3, 71.3), "deletions, %": (18.0, 26.0),
        "insertions, %": (6.7, 14.7), "best day, %": (0, 3), "worst day, %": (15, 30)}
Spoken = list[tuple[str, list[int]]]  # day, labels


def sentences_of(path: Path, count: int) -> Spoken:
    "The first sentences of each day."
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_day = defaultdict(list)
    for row in rows:
        by_day[row["session"]].append(to_ids(row["phonemes"]))
    each = -(-count // len(by_day))
    return [(day, labels) for day in sorted(by_day) for labels in by_day[day][:each]]


def simulated(spoken: Spoken, noise: Noise | None, seed: int = 0) -> ErrorStatistics:
    "The errors of simulated logits; None: those of before."
    numbers = {day: number for number, day in enumerate(sorted({day for day, _ in spoken}))}
    heard = []
    for number, (day, labels) in enumerate(spoken):
        generator = np.random.default_rng([seed, number])
        if noise is None:
            logits = even_logits(labels, generator)
        else:
            logits = noisy_logits(labels, generator, noise, numbers[day])
        heard.append(collapse(logits.argmax(axis=1)))
    return error_statistics([labels for _, labels in spoken], heard, [day for day, _ in spoken])


def of_run(run: Path) -> ErrorStatistics:
    "The errors of an evaluated run."
    with open(run / "eval/val/trials.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    true, heard = ([to_ids(row[name]) for row in rows] for name in ("phonemes_true", "phonemes_decoded"))
    return error_statistics(true, heard, [row["session"] for row in rows])


def row_of(found: dict) -> dict[str, float]:
    "The numbers that are compared."
    return {"phoneme errors, %": 100 * found["rate"], "sentences without an error, %": 100 * found["free"],
            "dispersion": found["dispersion"], "dispersion within days": found["within_days"],
            "errors in runs of three or more, %": 100 * found["runs"]["3"],
            "overlap of substitutions": found.get("overlap", float("nan")),
            **{f"{kind}s, %": 100 * share for kind, share in found["kinds"].items()},
            "best day, %": 100 * min(found["days"].values()), "worst day, %": 100 * max(found["days"].values())}


def table(columns: dict[str, dict], others: list[dict]) -> str:
    "A Markdown table: real, aim, each simulation, and the range of the last one's other seeds."
    rows = {name: row_of(one) for name, one in columns.items()}
    titles = ["real", "aim", *rows, *([f"{len(others)} other seeds"] if others else [])]
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(titles)]
    for name, real in row_of(real_errors()).items():
        low, high = AIMS[name]
        shown = ["–" if np.isnan(real) else f"{real:.4g}", f"{low:g}-{high:g}",
                 *(f"{one[name]:.3g}{'' if low <= one[name] <= high else ' ✗'}" for one in rows.values())]
        if others:
            shown.append("-".join(f"{pick(one[name] for one in others):.3g}" for pick in (min, max)))
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def figure(columns: dict[str, dict], path: Path) -> None:
    "Errors by sentence and by day, real against simulated."
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", dpi=110)
    for name, one in {"real": real_errors(), **columns}.items():
        style = {"color": "black", "linewidth": 2.5} if name == "real" else {}
        rates = [100 * value for value in one["quantiles"].values()]
        left.plot(100 * np.array(QUANTILES), rates, "o-", label=name, **style)
        days = np.sort(list(one["days"].values()))
        right.plot(100 * (np.arange(len(days)) + 0.5) / len(days), 100 * days, ".-", label=name, **style)
    left.set(xlabel="share of the sentences, %", ylabel="at most so many phoneme errors, %", title="by sentence")
    right.set(xlabel="share of the days, %", ylabel="phoneme errors, %", title="by day")
    left.legend(fontsize=8)
    fig.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--sentences", type=int, default=1440)
    parser.add_argument("--seeds", type=int, default=8, help="other days and errors, for the range of each number")
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS / "ruler.json")
    options = parser.parse_args()
    stored = json.loads(options.json.read_text()) if options.json.exists() else {}
    columns: dict[str, dict] = {}
    others: list[dict] = []
    if options.labels:
        spoken = sentences_of(options.labels, options.sentences)
        columns = {"before": asdict(simulated(spoken, None)), "now": asdict(simulated(spoken, Noise()))}
        others = [row_of(asdict(simulated(spoken, Noise(seed=seed), seed))) for seed in range(1, options.seeds + 1)]
        stored |= {"logits": columns, "other_seeds": others}
    if options.runs:
        names = options.names or [run.name for run in options.runs]
        columns = {name: asdict(of_run(run)) for name, run in zip(names, options.runs, strict=True)}
        stored["recordings"] = stored.get("recordings", {}) | columns
    if columns:
        print(table(columns, others))
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        figure({f"{kind}, {name}": one for kind in ("logits", "recordings")
                for name, one in stored.get(kind, {}).items()}, options.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
