"""Three seeds side by side against one after another: seconds, memory, a killed seed, an ensemble.

    python benchmarks/seeds.py                              # simulated recordings, minutes on two cores
    python benchmarks/seeds.py --runs RUN RUN ... --data DATA --out FILE    # only the ensemble, of runs that are there

Every run is `b2t train` or another command in a process of its own. Memory is the proportional set size of all
processes of a command (what several share, such as the mapped recordings, counts once), sampled up to ten times a
second. Every seed has its share of the cores, so that both ways do the same work; `--threads N` gives those that run
one after another another number. The result goes to benchmarks/results/seeds.json, the board of all curves to seeds.png
beside it.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import load_json, save_json
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.simulate import SimulateConfig, simulate
from b2t_kit.text.metrics import Counts, compare, count_edits
from b2t_kit.text.phonemes import normalise
from b2t_kit.training.checkpoint import checkpoint_path, checkpoint_steps

SEEDS = (1, 2, 3)
SMALL = ["train", "--hidden", "8", "--num-layers", "1", "--batch-size", "4"]


def threads_each(seeds: int) -> int:
    "Threads of each of so many seeds side by side."
    return max(1, (os.cpu_count() or 1) // seeds)


def processes_of(command: subprocess.Popen) -> list[psutil.Process]:
    "The processes of a command."
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(command.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def megabytes(processes: list[psutil.Process]) -> float:
    "Their memory; what they share counts once."
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def b2t(
    words: list[str],  # what follows `b2t`
    look: Callable[[subprocess.Popen], None] = lambda command: None,  # called after each sample
    **variables: str,  # environment variables to add
) -> dict[str, Any]:  # status, seconds, peak of memory in MB, what it printed
    "Run a command and measure it."
    started, peak = time.monotonic(), 0.0
    with tempfile.TemporaryFile("w+") as output:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        command = subprocess.Popen([sys.executable, "-m", "b2t_kit.cli", *words], env=environment, stdout=output,
                                   stderr=subprocess.STDOUT)
        while command.poll() is None:
            peak = max(peak, megabytes(processes_of(command)))
            look(command)
            time.sleep(0.1)
        output.seek(0)
        said = output.read()
    return {"status": command.returncode, "seconds": time.monotonic() - started, "megabytes": peak, "said": said}


def bits(run: Path) -> str:
    "A digest of the tensors in a run's last checkpoint."
    last = checkpoint_path(run, checkpoint_steps(run)[-1])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(last.glob("*.safetensors")))).hexdigest()


def killer(run: Path, step: int) -> Callable[[subprocess.Popen], None]:
    "What kills the process of a run once it has a checkpoint of this step or later."
    done = []

    def look(command: subprocess.Popen) -> None:
        if not done and max(checkpoint_steps(run), default=-1) >= step:
            for process in processes_of(command):
                with suppress(psutil.Error):
                    if str(run) in process.cmdline():
                        process.kill()
                        done.append(process.pid)

    return look


def measure(data: Path, out: Path, steps: int, threads: int) -> dict[str, Any]:
    "All parts of the benchmark."
    train = ["train", "--data", str(data), "--device", "cpu", "--steps", str(steps), "--eval-every", "20"]
    listed = [*map(str, SEEDS)]
    beside = [*train, "--seeds", *listed, "--side-by-side"]
    found: dict[str, Any] = {"cores": os.cpu_count(), "steps": steps, "threads": threads}
    found["side by side"] = b2t([*beside, "--out", str(out / "beside")])
    found["figure"] = (out / "beside/seeds.png").read_bytes()
    given = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    found["one after another"] = b2t([*train, "--seeds", *listed, "--out", str(out / "after")], **given)
    if threads == threads_each(len(SEEDS)):
        found["same bits as one after another"] = all(
            bits(out / f"after/seed_{seed}") == bits(out / f"beside/seed_{seed}") for seed in SEEDS)
    found |= measure_killed(out)
    found |= ensemble([out / f"beside/seed_{seed}" for seed in SEEDS], data, out)
    return found


def measure_killed(out: Path) -> dict[str, Any]:
    "A seed killed beside others on a few short trials, resumed, and compared with the same seed alone."
    data = tiny_recordings(out / "small", sessions=2, trials=8, max_bins=60)
    train = [*SMALL, "--data", str(data), "--device", "cpu", "--steps", "120", "--checkpoint-every", "20"]
    beside = [*train, "--seeds", "1", "2", "3", "--side-by-side", "--out", str(out / "killed")]
    found: dict[str, Any] = {"killed": b2t(beside, killer(out / "killed/seed_2", 20)),
                             "resumed": b2t([*beside, "--resume"])}
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads_each(3)))
    found["alone"] = b2t([*train, "--seed", "2", "--out", str(out / "alone")], **one)
    return {**found, "same bits": bits(out / "alone") == bits(out / "killed/seed_2")}


def ensemble(runs: list[Path], data: Path, out: Path) -> dict[str, Any]:
    "Errors of each run and of the ways to combine them, and word errors of these minus those of each run."
    several = ["--runs", *map(str, runs)]
    ways = {run.name: ["--run", str(run)] for run in runs} | {"average": several}
    phonemes = {name: per(data, words, out / "errors.json") for name, words in ways.items()}
    ways |= {way: [*several, "--combine", way] for way in ("pool", "risk")}
    words = {name: wer(data, way, out / f"words_{name}") for name, way in ways.items()}
    counts = {name: word_errors(data, out / f"words_{name}/sentences.csv") for name in ways}
    gaps = {f"{way} minus {name}": str(compare(counts[name], counts[way]))
            for way in ("average", "pool", "risk") for name in ways if name != way}
    return {"phonemes": phonemes, "words": words, "differences": gaps}


def word_errors(data: Path, sentences: Path) -> Counts:
    "Word errors of each decoded sentence."
    with open(sentences, newline="", encoding="utf-8") as file, Recordings(data, "val") as recordings:
        said = {(info.session, str(info.block), str(info.number)): info.sentence for info in recordings.infos}
        pairs = [(said[row["session"], row["block_num"], row["trial_num"]], row["text"])
                 for row in csv.DictReader(file)]
    true, decoded = ([normalise(text, True).split() for text in texts] for texts in zip(*pairs))
    return count_edits(true, decoded)


def per(data: Path, words: list[str], file: Path) -> dict[str, float]:
    "Phoneme errors and their rate."
    done = b2t(["eval", *words, "--data", str(data), "--device", "cpu", "--json", str(file)])
    assert done["status"] == 0, done["said"]
    return load_json(file)["summary"]["all trials"]


def wer(data: Path, words: list[str], out: Path) -> dict[str, float]:
    "Word errors and their rate."
    done = b2t(["decode", *words, "--data", str(data), "--device", "cpu", "--lm", "default", "--out", str(out)])
    assert done["status"] == 0, done["said"]
    return load_json(out / "result.json")


def main() -> None:
    "Measure, print, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of each seed")
    parser.add_argument("--trials", type=int, default=80, help="simulated trials per session")
    parser.add_argument("--threads", type=int, default=threads_each(len(SEEDS)),
                        help="of each seed that is trained after another")
    parser.add_argument("--runs", type=Path, nargs="*", help="with --data: only the ensemble of these runs")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/seeds.json")
    options = parser.parse_args()
    if options.runs:
        with tempfile.TemporaryDirectory() as scratch:
            save_json(options.out, found := ensemble(options.runs, options.data, Path(scratch)))
        print(json.dumps(found, indent=1))
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        simulate(data, SimulateConfig(sessions=3, trials=options.trials, difficulty=0.5, bins_per_phoneme=18.0))
        found = measure(data, Path(scratch), options.steps, options.threads)
    for name in ("side by side", "one after another", "killed", "resumed", "alone"):
        if name in found:
            one = found[name]
            one["said"] = [line.replace(scratch, "") for line in one["said"].splitlines() if line.startswith(
                ("seeds  ", "seed ", "per ", "error"))]
            print(f"{name:<20}{one['seconds']:>8.1f} s {one['megabytes']:>8.0f} MB   status {one['status']}")
            print(*(f"    {line}" for line in one["said"]), sep="\n")
    print("same bits:", json.dumps({name: value for name, value in found.items() if name.startswith("same bits")}))
    for name in ("phonemes", "words"):
        for who, rate in found[name].items():
            share = rate["rate"] if name == "phonemes" else rate["wer"]
            print(f"{name:<10}{who:<10}{rate['edits']:>6} errors {share:>8.1%}")
    options.out.with_suffix(".png").write_bytes(found.pop("figure"))
    save_json(options.out, found)


if __name__ == "__main__":
    main()
