"""Hold simulated errors against the real ones: how many, how dispersed, in runs, by day, and what is taken for what.

    python benchmarks/ruler.py LABELS.csv [--sentences 1440] [--json FILE]      simulated logits
    python benchmarks/ruler.py --recordings DIR [--difficulty 0.13] [--decoders strict,quiet,...] [--steps 1200]
                                                [--set onsets=0.3 ...]          other sizes than those of `STRICT`
    python benchmarks/ruler.py --trials FILE.csv ...                            decoders evaluated elsewhere
    python benchmarks/ruler.py --tuning                                         how similar tuning is after months
    python benchmarks/ruler.py --correlations REAL.npy                          how features hang together
    python benchmarks/ruler.py --figure [--json FILE]                           the figure, from the results

LABELS.csv has the columns session, sentence_label and phonemes, such as that of the published training split. From each
of its days, the same number of first sentences is taken.
--recordings writes strict recordings and small GRUs to DIR, if they are not there yet: `strict` is trained as `tiny`
is, `quiet` without its noise, `early` without the days after the fifteenth, `causal` with smoothing that does not
wait. `few` and `few-quiet` take twice the steps on a fifth of the sentences. `transformer` is `transformer_tiny`;
`strict-both-ways` and `transformer-both-ways` are not causal. `-2` and `-3` behind a name are other seeds of the
training. `lost` is `strict` on recordings with a quarter of the electrodes lost. DIR/demo, if it is there, is a folder
of `b2t demo`.
--trials takes what an evaluation leaves as `trials.csv`, such as the two files of `benchmarks/gpu.py score`.
The real figures and the definitions are in `errors.py`: the published baseline on 766 validation sentences of 21
days. "Before", which the results keep, is the noise that the kit had at first: independent, confused by articulation.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from b2t_kit.core.files import atomic_folder, load_json
from b2t_kit.core.cache import plain
from b2t_kit.core.settings import to_dict
from b2t_kit.data.dataset import Recordings, find_recordings
from b2t_kit.data.write import SessionWriter
from b2t_kit.text.confusions import real_errors
from errors import QUANTILES, ErrorStatistics, error_statistics
from b2t_kit.simulate.logits import Noise, noisy_logits
from b2t_kit.simulate.recordings import (
    STRICT, Participant, SimulateConfig, electrodes_on, open_sessions, simulate,
)
from b2t_kit.simulate.recordings import day_number, session_names
from b2t_kit.speech.evaluate import evaluate_run, save_evaluation
from b2t_kit.speech.recipes import tiny, transformer_tiny
from b2t_kit.speech.task import SpeechRun
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import compare, count_edits
from b2t_kit.text.phonemes import collapse, to_ids
from b2t_kit.train import train, uninterrupted

RESULTS = Path(__file__).parent / "results"
AIMS = {"phoneme errors, %": (9.5, 11.5), "sentences without an error, %": (25, 35), "dispersion": (2.8, 3.8),
        "dispersion within days": (2.1, 2.7), "errors in runs of three or more, %": (26, 36),
        "overlap of substitutions": (0.55, 1.0), "substitutions, %": (63.3, 71.3), "deletions, %": (18.0, 26.0),
        "insertions, %": (6.7, 14.7), "best day, %": (0, 3), "worst day, %": (15, 30)}
DAYS = session_names(STRICT.sessions)
EARLY, LATE = DAYS[:15], DAYS[15:]
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


def simulated(spoken: Spoken, noise: Noise, seed: int = 0) -> ErrorStatistics:
    "The errors of simulated logits."
    numbers = {day: number for number, day in enumerate(sorted({day for day, _ in spoken}))}
    heard = []
    for number, (day, labels) in enumerate(spoken):
        generator = np.random.default_rng([seed, number])
        logits = noisy_logits(labels, generator, noise, numbers[day])
        heard.append(collapse(logits.argmax(axis=1)))
    return error_statistics([labels for _, labels in spoken], heard, [day for day, _ in spoken])


def recorded(difficulty: float, seed: int, sizes: dict[str, Any] | None = None) -> SimulateConfig:
    "Strict recordings with another signal and other sizes; drift and shared noise stay as large as in `STRICT`."
    same = {name: getattr(STRICT, name) * STRICT.difficulty / difficulty for name in ("drift", "shared_noise")}
    chosen = {"trials": 150, "held_out": 0.12, "seed": seed, "difficulty": difficulty}
    return replace(STRICT, **chosen | same | (sizes or {}))


def decoders(steps: int, days: Sequence[str] = DAYS) -> dict[str, SpeechRun]:
    "The recipe `tiny`, and what is changed in each other decoder."
    run, attention = tiny(), transformer_tiny()
    task = replace(run.task, batches=replace(run.task.batches, cache="float16"))
    short = {"steps": steps, "eval_every": 0, "checkpoint_every": 100, "log_every": 50}
    fitted = replace(run.train, **short)
    quiet = replace(task, augment=replace(task.augment, white_noise=0.0, offset=0.0))
    early = replace(task, holdout=tuple(days[15:]))
    causal = replace(task, augment=replace(task.augment, causal_smoothing=True))
    runs = {"strict": task, "quiet": quiet, "early": early, "few": task, "few-quiet": quiet, "causal": causal}
    found = {name: SpeechRun(settings, fitted) for name, settings in runs.items()}
    found |= {name: replace(found[name], train=replace(fitted, steps=2 * steps)) for name in ("few", "few-quiet")}
    found["transformer"] = SpeechRun(replace(attention.task, batches=task.batches), replace(attention.train, **short))
    for name in ("strict", "transformer"):
        one = found[name]
        found[f"{name}-both-ways"] = replace(one, task=replace(one.task, model=replace(one.task.model, causal=False)))
    return found | {f"{name}-{seed}": replace(one, train=replace(one.train, seed=seed))
                    for name, one in found.items() for seed in (2, 3)}


def fifth_of(data: Path, out: Path) -> Path:
    "A folder with every fifth training sentence of each day, and the same validation sentences."
    if not out.is_dir():
        with atomic_folder(out) as folder, Recordings(data, "train") as recordings:
            for day in recordings.sessions:
                (folder / day).mkdir()
                scored = find_recordings(data) / day / "data_val.hdf5"
                if scored.exists():
                    (folder / day / scored.name).symlink_to(scored.resolve())
                with SessionWriter(folder / day, "train") as writer:
                    for at in [at for at, info in enumerate(recordings.infos) if info.session == day][::5]:
                        writer.write(recordings[at])
    return out


def source_of(name: str, out: Path) -> Path:
    "The recordings that a decoder learns from and is scored on: all, or a fifth."
    return fifth_of(out / "data", out / "fifth") if name.startswith("few") else out / "data"


def train_missing(out: Path, names: list[str], steps: int, config: SimulateConfig) -> None:
    "Write what is not there yet: the recordings, and each decoder with its evaluation."
    if not (out / "data").is_dir():
        simulate(out / "data", config)
    elif load_json(out / "data/simulation.json") != plain(to_dict(config)):
        raise SystemExit(f"error: {out / 'data'}: was simulated with other settings; give another folder")
    runs = decoders(steps, session_names(config.sessions))
    for name in (name for name in names if name != "lost"):
        run, there = runs[name], (out / name).is_dir()
        if there and (made := load_json(out / name / "config.json")["train"]["steps"]) != run.train.steps:
            raise SystemExit(f"error: {out / name}: was trained for {made} steps; give another folder or --steps")
        if not (out / name / "eval/val").is_dir():
            task = SpeechTask(source_of(name, out), run.task)
            uninterrupted(train(task, run.train, out / name, resume=there))
            task.close()
            evaluate_run(out / name, source_of(name, out))
    if "lost" in names:
        if not (out / "data-lost").is_dir():
            simulate(out / "data-lost", replace(config, lost=0.25))
        save_evaluation(evaluate_run(out / "strict", out / "data-lost"), out / "lost/eval/val")


def heard_by(run: Path, days: Sequence[str] = ()) -> tuple[list[list[int]], list[list[int]], list[str]]:
    "What was said and what an evaluated run heard, with the day of each trial; on some days. Or of its trials.csv."
    with open(run / "eval/val/trials.csv" if run.is_dir() else run, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not days or row["session"] in days]
    true, heard = ([to_ids(row[name]) for row in rows] for name in ("true", "decoded"))
    return true, heard, [row["session"] for row in rows]


def of_run(run: Path, days: Sequence[str] = ()) -> ErrorStatistics:
    "The errors of an evaluated run, on some of its days."
    return error_statistics(*heard_by(run, days))


def harms(out: Path) -> dict[str, float]:
    "Phoneme errors, %, of the decoders that are there, differences to the usual one (95 %), and days without training."
    found: dict[str, float] = {}
    for name in (*decoders(1), "lost"):
        if (out / name / "eval/val").is_dir():
            whole = of_run(out / name)
            found[name] = whole.rate
            found |= {f"{name}, {part}": of_run(out / name, days).rate
                      for part, days in (("first 15 days", EARLY), ("other days", LATE)) if whole.days.keys() & {*days}}
            later = [day for day in whole.days if day in LATE] if name == "early" else []
            found |= {f"{name}, {day_number(day) - day_number(EARLY[-1])} days later": whole.days[day] for day in later}
    pairs = [(f"{usual}{seed}", f"{other}{seed}") for seed in ("", "-2", "-3") for usual, other in (
        ("strict", "quiet"), ("few", "few-quiet"), ("strict", "causal"), ("strict", "lost"),
        ("strict", "strict-both-ways"), ("transformer", "transformer-both-ways"))]
    for usual, other in pairs:
        if {usual, other} <= found.keys():
            gap = compare(*(count_edits(*heard_by(out / name)[:2]) for name in (usual, other)))
            found |= {f"{other} minus {usual}": gap.difference, f"{other} minus {usual}, low": gap.low,
                      f"{other} minus {usual}, high": gap.high}
    return {name: 100 * rate for name, rate in found.items()}


def tuning_left() -> None:
    "Correlation of the tuning of the fifteenth day with that of later ones, with and without `lasting`."
    who, config = Participant(1), STRICT
    last = day_number(EARLY[-1])
    for lasting in (1.0, config.lasting):
        first, *others = (electrodes_on(who, day_number(day), config.difficulty, config.drift, lasting)
                          for day in (EARLY[-1], *LATE))
        for kind in ("weights", "power_weights"):
            row = {day_number(day) - last: np.corrcoef(getattr(first, kind).ravel(), getattr(one, kind).ravel())[0, 1]
                   for day, one in zip(LATE, others)}
            print(f"lasting {lasting:g}, {kind}:", *(f"{days} days {like:.2f}" for days, like in row.items()))


def hang_together(correlation: np.ndarray) -> dict[str, float]:
    "Figures of a correlation matrix of 512 features, crossings then power, of four arrays each."
    matrix = np.nan_to_num(correlation.astype(np.float64))
    values, blocks = np.linalg.eigvalsh(matrix), matrix.reshape(8, 64, 8, 64)
    mean = blocks.mean(axis=(1, 3))
    within = (blocks.sum(axis=(1, 3)).diagonal() - 64) / (64 * 63)
    crossings, power = (np.triu(part, 1) > 0.5 for part in (matrix[:256, :256], matrix[256:, 256:]))
    return {"crossings with power, median": float(np.median(matrix[:256, 256:].diagonal())),
            "first eigenvalue": float(values[-1]), "participation ratio": float(values.sum() ** 2 / (values**2).sum()),
            "power within the first three arrays": float(within[4:7].mean()),
            "power within dorsal 6v": float(within[7]),
            "power between the first three arrays": float(mean[[4, 4, 5], [5, 6, 6]].mean()),
            "crossings within the first three arrays": float(within[:3].mean()),
            "crossings between the first three arrays": float(mean[[0, 0, 1], [1, 2, 2]].mean()),
            "pairs of electrodes above .5": float(crossings.sum() + power.sum())}


def correlations(picture: Path) -> dict[str, dict[str, float]]:
    "Real, and of 20 strict trials with features as they were, and coupled; two participants."
    columns = {"real": hang_together(np.load(picture))}
    for seed, coupling in ((1, 0.0), (1, 1.0), (2, 1.0)):
        config = replace(STRICT, sessions=1, trials=20, held_out=0.0, seed=seed, coupling=coupling)
        features = np.concatenate([trial.features for _, trial in open_sessions(config)[0]])
        with np.errstate(invalid="ignore", divide="ignore"):  # dead electrodes
            row = hang_together(np.corrcoef(features.T))
        power = features[:, 256:]
        lagged = (power[1:] * power[:-1]).mean(axis=0) / np.maximum(power.var(axis=0), 1e-9)
        columns[f"coupling {coupling:g}, participant {seed}"] = row | {
            "99.9 % quantile of crossings": float(np.quantile(features[:, :256], 0.999)),
            "largest": float(features.max()),
            "autocorrelation of power at one bin, median": float(np.median(lagged))}
    return columns


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
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", dpi=110)
    for name, one in {"real": real_errors(), **columns}.items():
        style = {"color": "black", "linewidth": 2.5} if name == "real" else {}
        rates = [100 * value for value in one["quantiles"].values()]
        left.plot(100 * np.array(QUANTILES), rates, "o-", label=name, **style)
        days = np.sort(list(one["days"].values()))
        right.plot(100 * (np.arange(len(days)) + 0.5) / len(days), 100 * days, ".-", label=name, **style)
    left.set(xlabel="share of the sentences, %", ylabel="at most so many phoneme errors, %", title="by sentence")
    right.set(xlabel="share of the days, %", ylabel="phoneme errors, %", title="by day")
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    fig.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--sentences", type=int, default=1440)
    parser.add_argument("--seeds", type=int, default=8, help="other days and errors, for the range of each number")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--difficulty", type=float, default=STRICT.difficulty)
    parser.add_argument("--seed", type=int, default=1, help="of the simulated participant")
    parser.add_argument("--decoders", default="strict,quiet,early")
    parser.add_argument("--steps", type=int, default=1200, help="of each training")
    parser.add_argument("--set", nargs="*", default=[], help="sizes of what goes wrong, such as onsets=0.3")
    parser.add_argument("--trials", type=Path, nargs="*", default=[], help="trials.csv of decoders evaluated elsewhere")
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--correlations", type=Path, help="correlations of 512 real features (.npy)")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS / "ruler.json")
    options = parser.parse_args()
    stored = json.loads(options.json.read_text()) if options.json.exists() else {}
    columns: dict[str, dict] = {}
    others: list[dict] = []
    if options.labels:
        spoken = sentences_of(options.labels, options.sentences)
        columns = {**stored.get("logits", {}), "now": asdict(simulated(spoken, Noise()))}  # keeps "before"
        others = [row_of(asdict(simulated(spoken, Noise(seed=seed), seed))) for seed in range(1, options.seeds + 1)]
        stored |= {"logits": columns, "other_seeds": others}
    if options.recordings:
        names = [name for name in options.decoders.split(",") if name]
        sizes = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
        config = recorded(options.difficulty, options.seed, sizes)
        train_missing(options.recordings, names, options.steps, config)
        who = [f"participant {options.seed}"] if options.seed != 1 else []
        named = ["strict", *who, *options.set, f"difficulty {options.difficulty:g}", f"{options.steps} updates"]
        title = ", ".join(named)
        runs = {"demo": options.recordings / "demo/decoder", title: options.recordings / "strict"}
        columns = {name: asdict(of_run(run)) for name, run in runs.items() if run.is_dir()}
        stored["recordings"] = stored.get("recordings", {}) | columns
        stored.setdefault("harms of strict", {})[title] = found = harms(options.recordings)
        print(json.dumps(found, indent=1))
    if options.trials:
        columns = {path.stem.removesuffix("_trials"): asdict(of_run(path)) for path in options.trials}
        stored["decoders elsewhere"] = stored.get("decoders elsewhere", {}) | columns
    if columns:
        print(table(columns, others))
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if options.correlations:
        stored["correlations"] = together = correlations(options.correlations)
        for name in together["coupling 0, participant 1"]:
            shown = (f"{one[name]:.3g}" if name in one else "" for one in together.values())
            print("|", name, "|", " | ".join(shown), "|")
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if options.tuning:
        tuning_left()
    if options.figure:
        figure({f"{kind}, {name}": one for kind in ("logits", "recordings")
                for name, one in stored.get(kind, {}).items()}, options.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
