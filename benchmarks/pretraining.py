"""Does a participant with few sentences gain from other recordings? Simulated: one target, several ways to train.

    OMP_NUM_THREADS=1 python benchmarks/pretraining.py FOLDER --json benchmarks/results/pretraining.json
    python benchmarks/pretraining.py FOLDER --seeds 1 --steps 20 --shares 10            # does it run?

The target has one array and ten days, of which training sees one or all. It is trained alone; jointly with a
participant of two arrays who shares its code for phonemes or has a code of their own, or with its own other days with
electrodes in another order; or from a decoder of that source alone, on the target's sentences or on 70 % of them and
30 % of the source's. Some ways have an inner CTC loss, a read-in that is trained, a frozen GRU or twice the steps;
where it is not trained, the narrower participant has zeros beside its features. In joint training half of the steps
are the source's, and a decoder of the source takes as many steps as the target then does. Nothing is chosen on the
sentences that are scored: the last step counts. FOLDER keeps recordings, runs and what each cell gave, so the command
goes on where it was stopped; the table has the cells that are there. Intervals redraw seeds, days and sentences.
"""
import argparse
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from b2t_kit.core import load_json, save_json
from b2t_kit.data.batches import Augment, BatchConfig, TrainBatches
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.convert import SessionWriter
from b2t_kit.devices.select import open_device
from b2t_kit.models.gru import GRUConfig
from b2t_kit.simulate.neural import STRICT, simulate
from b2t_kit.speech.evaluate import decode, load_decoder
from b2t_kit.speech.task import SpeechConfig, SpeechTask, framing
from b2t_kit.text.metrics import edit_distance
from b2t_kit.train import train, uninterrupted
from b2t_kit.training.task import TrainConfig

DAYS, OTHERS = 10, 8  # of the target; of each source
MODEL = GRUConfig(hidden=96, num_layers=2, patch=16, stride=4, subsample=4, dropout=0.2, day_dropout=0.0)
SPEECH = SpeechConfig(MODEL, Augment(white_noise=0.6, offset=0.1), BatchConfig(batch_size=16, buckets=2))
STEPS = TrainConfig(steps=160, lr=0.004, eps=1e-8, warmup_steps=20, ema_decay=0.98, log_every=100, eval_every=0,
                    checkpoint_every=0, keep_checkpoints=1, device="cpu")
COMMON = replace(STRICT, difficulty=0.2, drift=2.0, shared_noise=2.0, wander=0.3, lapses=0.0, onsets=0.0,
                 day_gain=0.25, trial_gain=0.3, bins_per_phoneme=12.0,  # as when it was measured
                 trials=25, held_out=0.24, wrong_labels=0.0)
SOURCES = {"shared code": "shared", "own code": "own", "own days permuted": "permuted"}  # -> folder
WIDE = 256  # features of the widest set


@dataclass(frozen=True)
class Way:
    "One way to train the target."
    name: str
    source: str = ""  # folder of the source; empty: alone
    share: float = 0.5  # of the steps that are the source's; 0: its decoder only
    begun: bool = False  # with a decoder of the source
    read_in: int = 0  # features that read-ins bring every set to; 0: they stay as they begin, zeros beside features
    rates: tuple[str, ...] = ()
    times: int = 1  # the usual steps
    against: tuple[str, ...] = ("alone",)  # ways that it is compared with, sentence by sentence


def ways() -> list[Way]:
    "All ways, those that others are compared with before them."
    found = [Way("alone", against=()), Way("alone, twice the steps", times=2), Way("alone, read-ins", read_in=WIDE),
             Way("alone, read-ins, twice the steps", read_in=WIDE, times=2, against=("alone, twice the steps",))]
    both = ("alone", "alone, twice the steps")
    for name, source in SOURCES.items():
        found += [Way(f"transfer, {name}", source, 0.0, True, against=both),
                  Way(f"transfer, {name}, 30 % source", source, 0.3, True, against=(*both, f"transfer, {name}"))]
    for name in ("shared code", "own code"):
        found += [Way(f"joint, {name}", SOURCES[name]), Way(f"joint, {name}, read-ins", SOURCES[name], read_in=WIDE,
                                                            against=("alone", f"joint, {name}"))]
    before, same = "transfer, shared code", "alone, read-ins, twice the steps"  # the latter has the same layers
    return [*found, Way(f"{before}, read-ins", "shared", 0.0, True, read_in=WIDE, against=(*both, before, same)),
            Way(f"{before}, GRU frozen", "shared", 0.0, True, rates=("gru.*=0",), against=(*both, before)),
            Way("joint, own days permuted", "permuted"),
            Way("joint, shared code, twice the steps", "shared", times=2, against=(*both, "joint, shared code"))]


def permuted(source: Path, sessions: list[str], out: Path) -> None:
    "Write days of a participant with the electrodes in one other order, the same for both kinds of features."
    for split in ("train", "val"):
        with Recordings(source, split, sessions) as recordings:
            order = np.random.default_rng(0).permutation(recordings.signal.num_features // 2)
            columns = np.concatenate([order, order + len(order)])
            signal = replace(recordings.signal, participant="p1", order="permuted")
            for session in sessions:
                name = "p1" + session[2:]
                with SessionWriter(out / name, split) as writer:
                    for trial in recordings:
                        if trial.session == session:
                            features = np.ascontiguousarray(trial.features[:, columns])
                            writer.write(replace(trial, features=features, session=name, signal=signal))


def only(source: Path, sessions: list[str], out: Path) -> None:
    "A folder with some of the days of another."
    out.mkdir(parents=True)
    for session in sessions:
        (out / session).symlink_to((source / session).resolve())


def recorded(folder: Path) -> list[str]:
    "Write all recordings; returns the target's days."
    every = folder / "s1" / "hdf5_data_final"
    if not every.exists():
        simulate(folder / "s1", replace(COMMON, participant="s1", seed=1, arrays=1, sessions=DAYS + OTHERS), False)
    days = sorted(one.name for one in every.iterdir() if (one / "data_val.hdf5").exists())
    mine, others = days[:DAYS], days[DAYS:]
    if not (folder / "target").exists():
        only(every, mine, folder / "target")
        permuted(every, others, folder / "permuted")
    for place, day in enumerate(mine):
        if not (folder / f"day_{place}").exists():
            only(every, [day], folder / f"day_{place}")
    for name, sharing in (("shared", 1.0), ("own", 0.0)):
        if not (folder / name).exists():
            simulate(folder / f"s2_{name}", replace(COMMON, participant="s2", seed=2, arrays=2, sessions=OTHERS,
                                                    held_out=0.04, sharing=sharing), False)
            (folder / name).symlink_to((folder / f"s2_{name}" / "hdf5_data_final").resolve())
    return mine


def hours(folder: Path) -> dict[str, float]:
    "Days, sentences and hours of training recordings."
    with Recordings(folder, "train") as found:
        bins = sum(one.num_bins for one in found.infos)
        return {"days": len(found.sessions), "sentences": len(found), "hours": bins * 0.02 / 3600,
                "features": found.signal.num_features}


def feeding(folders: list[Path]) -> float:
    "Trials per second of batches in their own right, from a warm cache, over an epoch or more."
    task = SpeechTask(folders, replace(SPEECH, read_in=WIDE))
    batches = TrainBatches(task.train, task.config.batches, frames=framing(task.config.model))
    stream = batches.iterate(0)
    for _ in range(2 * batches.steps_per_epoch):
        next(stream)
    start, trials = time.perf_counter(), 0
    while time.perf_counter() < start + 3:
        trials += next(stream)[0].step_rows
    found = trials / (time.perf_counter() - start)
    stream.close()
    task.close()
    return found


def trained(folders: list[Path], config: SpeechConfig, settings: TrainConfig, out: Path, begun: Path | None) -> None:
    "Train, or go on; nothing if the run is done."
    start = load_decoder(begun).as_start if begun else None
    task = SpeechTask(folders, config, start=start)
    done = uninterrupted(train(task, settings, out, resume=out.is_dir(), quiet=True))
    task.close()
    if done.stopped != "steps":
        raise SystemExit(f"stopped ({done.stopped}); the same command goes on")


def cell(folder: Path, few: Path, way: Way, steps: int, seed: int, name: str) -> dict[str, Any]:
    "Train in one way; edits and phonemes of each of the target's validation sentences at the last step, and seconds."
    kept = folder / "cells" / f"{name}.json"
    if kept.exists():
        return load_json(kept)
    began, settings, begun = time.process_time(), replace(STEPS, steps=steps, seed=seed + 1), None
    if way.begun:
        begun = folder / f"source_{way.source}_{way.read_in}_{seed}"
        trained([folder / way.source], replace(SPEECH, read_in=way.read_in), settings, begun, None)
    spent = time.process_time() - began  # nothing where another cell has trained the source's decoder
    folders = [few, folder / way.source] if way.source and way.share else [few]
    batches = replace(SPEECH.batches, set_shares=(1 - way.share, way.share) if len(folders) > 1 else ())
    width, rates = way.read_in, way.rates
    if way.source in ("shared", "own") and not width:
        width, rates = WIDE, (*rates, "read_in.*=0")
    config = replace(SPEECH, batches=batches, read_in=width, rates=rates)
    out = folder / f"run_{name}"
    trained(folders, config, replace(settings, steps=steps * way.times), out, begun)
    with open_device("cpu", "float32") as device, Recordings(few, "val") as recordings:
        found = decode(load_decoder(out), recordings, device)
    rows = [{"day": one.info.session, "edits": edit_distance(one.true, one.decoded), "phonemes": len(one.true)}
            for one in found]
    kept.parent.mkdir(exist_ok=True)
    made = {"rows": rows, "source_s": spent, "seconds": time.process_time() - began}
    save_json(kept, made)
    return made


def interval(runs: list[list[dict[str, Any]]], before: list[list[dict[str, Any]]] | None = None) -> list[float]:
    "Rate, or difference of rates, with a 95 % interval that redraws seeds, their days, and the sentences of these."
    tables = []  # of each seed, its days with (edits, phonemes) of each sentence
    for seed, run in enumerate(runs):
        less = [one["edits"] for one in before[seed]] if before else [0] * len(run)
        days: dict[str, list[tuple[int, int]]] = {}
        for one, other in zip(run, less, strict=True):
            days.setdefault(one["day"], []).append((one["edits"] - other, one["phonemes"]))
        tables.append(list(days.values()))
    generator = np.random.default_rng(0)

    def drawn(items: list) -> list:
        return [items[index] for index in generator.integers(len(items), size=len(items))]

    def rate(rows: list[tuple[int, int]]) -> float:
        edits, phonemes = np.sum(rows, axis=0)
        return float(edits / phonemes)

    whole = rate([one for run in tables for day in run for one in day])
    again = [rate([one for run in drawn(tables) for day in drawn(run) for one in drawn(day)]) for _ in range(1000)]
    return [whole, *np.quantile(again, [0.025, 0.975]).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS.steps)
    parser.add_argument("--shares", type=int, nargs="+", default=[10, 100], choices=[10, 100])
    parser.add_argument("--ways", nargs="+", default=[], help="only those that contain one of these, and alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder
    days = recorded(folder)
    sizes = {name: hours(folder / name) for name in ("target", "day_0", "shared", "own", "permuted")}
    for name, size in sizes.items():
        print(f"{name:<10} {size['days']} days, {size['sentences']} sentences, {size['hours']:.2f} hours", flush=True)
    found: dict[str, Any] = {"settings": {"steps": options.steps, "seeds": options.seeds}, "hours": sizes}
    found["trials per second of feeding"] = {
        "target alone": feeding([folder / "target"]),
        "target and source": feeding([folder / "target", folder / "shared"])}
    print(found["trials per second of feeding"], flush=True)
    kept: dict[tuple[int, str], list[list[dict[str, Any]]]] = {}
    table, seconds = [], 0.0
    for way in ways():
        if options.ways and not any(one in way.name for one in (*options.ways, "alone")):
            continue
        for share in options.shares:
            spent = []
            for seed in range(options.seeds):
                few = folder / ("target" if share == 100 else f"day_{seed * 3 % len(days)}")
                name = re.sub(r"\W+", "_", f"{way.name} {share} {seed}")
                made = cell(folder, few, way, options.steps, seed, name)
                kept.setdefault((share, way.name), []).append(made["rows"])
                spent.append(made["seconds"])
                rate = sum(one["edits"] for one in made["rows"]) / sum(one["phonemes"] for one in made["rows"])
                print(f"seed {seed + 1}  {share:3} %  {way.name:<40} {rate:.1%}  {made['seconds']:.0f} s", flush=True)
            runs, seconds = kept[share, way.name], seconds + sum(spent)
            row = {"share of days": share, "way": way.name, "per": interval(runs),
                   "seeds": [interval([one])[0] for one in runs], "seconds": sum(spent),
                   "minus": {one: interval(runs, kept[share, one]) for one in way.against if (share, one) in kept}}
            table.append(row)
            print(f"{share:3} % {way.name:<40}", *(f"{one:6.1%}" for one in row["per"]), *(
                f"; minus {other} " + " ".join(f"{one:+.1%}" for one in row["minus"][other]) for other in row["minus"]),
                flush=True)
            if options.json:
                save_json(options.json, {**found, "rates": table, "processor_s": seconds})


if __name__ == "__main__":
    main()
