"""What one GPU does: memory beside the plan, steps, training on strict recordings, a language model's sentences.

    python benchmarks/gpu.py steps                                     # planned and measured memory, time of a step
    python benchmarks/gpu.py simulate RECORDINGS LABELS.csv            # strict recordings, a process per core
    python benchmarks/gpu.py train RECORDINGS OUT --minutes 5          # both published recipes side by side
    python benchmarks/gpu.py ways RECORDINGS OUT --minutes 5           # Transformers that look back, and both ways
    python benchmarks/gpu.py score RECORDINGS OUT                      # what they hear, and their logits
    python benchmarks/gpu.py rescoring TOKENIZER LABELS.csv            # a model of 135M random weights
    python benchmarks/gpu.py plans                                    # today's plans beside stored peaks; any machine
    python benchmarks/gpu.py curves                                    # the figure, from the stored results

`steps`: full batches of random features, as the loop takes them; the peak is torch's own count of what is allocated,
and the plan is the one that `b2t train` logs for the open device. Each part adds its numbers to results/gpu.json, with
the device and the versions.
"""

import argparse
import csv
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from plan import settings_of, task_and_batch

from b2t_kit.core.errors import KitError
from b2t_kit.core.files import atomic_folder
from b2t_kit.devices.select import open_device
from b2t_kit.plan.memory import PlannedDevice, find_target, plan_task
from b2t_kit.precision import resolve_precision
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.simulate.recordings import STRICT, SimulateConfig, open_sessions, write_session
from b2t_kit.text.metrics import compare
from b2t_kit.text.phonemes import normalise
from b2t_kit.training.log import read_metrics
from b2t_kit.training.run import accumulate_gradients, build_training, seed_step, update_weights

STEPS = [  # configuration, rows, bins, settings, precision
    ("tiny", 16, 1010, {}, "auto"),
    *(("baseline", 64, bins, {}, precision) for bins in (1010, 2478) for precision in ("auto", "float32")),
    ("gpu_16gb", 32, 2478, {}, "auto"), ("gpu_16gb", 32, 2478, {}, "float16"),
    *(("transformer", 64, bins, {}, precision) for bins in (1010, 2478) for precision in ("auto", "float32")),
    ("noise_gru_687m", 16, 1010, {}, "auto"), ("noise_gru_687m", 64, 1010, {}, "auto"),
    ("noise_gru_687m", 64, 1010, {"model.recompute": True}, "auto"),
    ("eit_small", 64, 0, {}, "auto"), ("eit_cdeit", 16, 0, {}, "auto"), ("eit_cdeit", 64, 0, {}, "auto"),
    ("eit_cdeit", 16, 0, {}, "float32"), ("codec", 256, 0, {}, "auto"),
]
CURVES, WAYS = ("transformer", "baseline"), ("causal", "no-causal")
PUBLISHED = {127: 97.0, 635: 67.6, 2540: 26.0, 12_700: 13.2, 37_973: 10.0, 63_373: 8.29}  # Transformer: updates, %


def measured(case: tuple, device_name: str, count: int, graphs: bool) -> dict:
    "The plan of a case, its peak, and the median time of its steps; batches lie in page-locked memory, as in training."
    name, rows, bins, changes, precision = case
    run = settings_of(name, rows, changes)
    config = replace(run.train, device=device_name, precision=precision)
    task, given = task_and_batch(run, rows, bins)
    with open_device(device_name, precision, graphs=graphs) as device:
        gpu = device.kind == "cuda"
        if gpu:
            given = pinned(given)
        planned = plan_task(task, config, device).total if gpu else 0
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        training = build_training(task, config, device)
        seconds, losses = [], []
        for _ in range(count):
            device.synchronize()
            started = time.perf_counter()
            seed_step(training)
            accumulate_gradients(training, [given])
            update_weights(training, given)
            device.synchronize()
            seconds.append(time.perf_counter() - started)
            losses.append(training.meter.steps[-1][0]["loss"].item())
        found = {"ms": 1000 * statistics.median(seconds[2:]), "first_ms": 1000 * seconds[0],
                 "precision": str(device.precision.dtype).removeprefix("torch."), "losses": losses[:6]}
        if gpu:
            found |= {"planned": planned, "peak": torch.cuda.max_memory_allocated(),
                      "reserved": torch.cuda.max_memory_reserved()}
        del training
    gc.collect()
    return {"rows_per_second": 1000 * rows / found["ms"], **found}


def pinned(batch: Any) -> Any:
    "A batch with its tensors in page-locked memory."
    moved = {item.name: getattr(batch, item.name) for item in fields(batch)}
    return replace(batch, **{name: one.pin_memory() for name, one in moved.items() if torch.is_tensor(one)})


def steps(device: str, count: int, only: str) -> list[dict]:
    "All cases without and with CUDA graphs, one after another; one that fails is told and left out."
    rows = []
    for case, graphs in ((case, graphs) for case in STEPS for graphs in (False, True)):
        if only and case[0] not in only.split(","):
            continue
        try:
            row = {"case": case, "graphs": graphs, **measured(case, device, count, graphs)}
        except (KitError, RuntimeError) as error:  # no such precision here, or out of memory
            row = {"case": case, "graphs": graphs, "error": " ".join(str(error).split())[:200]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def planned(case: list) -> int:
    "Today's plan of a case on a GPU that need not be there, bytes."
    name, rows, bins, changes, precision = case
    run = settings_of(name, rows, changes)
    task, _ = task_and_batch(run, rows, bins)
    target = find_target("h100")
    device = PlannedDevice(target, resolve_precision(precision, "cuda", (9, 0)))
    return plan_task(task, replace(run.train, precision=precision), device, target).total


def one_day(out: Path, config: SimulateConfig, number: int) -> int:
    "Simulate one session of a plan."
    from tqdm import tqdm

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    session = open_sessions(config)[number]
    return write_session(session, out, tqdm(disable=True))


def simulated(out: Path, labels: Path, processes: int, sessions: int, trials: int) -> dict:
    "Strict recordings of real sentences: what `b2t simulate` writes, by several processes."
    started = time.perf_counter()
    config = replace(STRICT, labels=str(labels), sessions=sessions, trials=trials, held_out=0.12, seed=1)
    with atomic_folder(out / "hdf5_data_final") as folder, ProcessPoolExecutor(processes) as pool:
        jobs = [pool.submit(one_day, folder, config, number) for number in range(sessions)]
        bins = sum(job.result() for job in jobs)
    return {"seconds": time.perf_counter() - started, "processes": processes, "hours": bins * 0.02 / 3600}


def side_by_side(data: Path, out: Path, runs: dict[str, list[str]], device: str) -> dict:
    "Several trainings at once, each its own command; their metrics by name."
    started, running = time.perf_counter(), {}
    for name, words in runs.items():
        command = [sys.executable, "-m", "b2t_kit", "train", "--data", str(data), "--out", str(out / name),
                   "--device", device, "--cache", "float16", *words]
        with open(out / f"{name}.txt", "w") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
    status = {name: one.wait() for name, one in running.items()}
    found = {}
    for name in runs:
        print(name, status[name], (out / f"{name}.txt").read_text()[-1500:], flush=True)
        rows = read_metrics(out / name) if not status[name] else []
        found[name] = {kind: [row for row in rows if row["kind"] == kind] for kind in ("eval", "train")}
    return {"minutes": (time.perf_counter() - started) / 60, **found}


def train_both(data: Path, out: Path, minutes: float, device: str, small: bool) -> dict:
    "Both published recipes at once."
    often = ["--batch-size", "4", "--eval-every", "3", "--log-every", "2"] if small else [
        "--eval-every", "635", "--log-every", "127"]
    common = ["--hours", f"{minutes / 60:.4f}", "--checkpoint-every", "100000", *often]
    return side_by_side(data, out, {name: ["--config", name, *common] for name in CURVES}, device)


def both_ways(data: Path, out: Path, minutes: float, device: str, small: bool) -> dict:
    "Transformers that look back only, and both ways: two seeds each, all at once, and the errors of each sentence."
    steps, small_words = (6, ["--batch-size", "4"]) if small else (3200, [])
    common = ["--config", "transformer_tiny" if small else "transformer_short", "--steps", str(steps), *small_words,
              "--warmup-steps", str(steps // 25), "--decay-start", str(6 * steps // 10), "--decay-steps", str(steps),
              "--eval-every", str(steps // 4), "--checkpoint-every", "0", "--hours", f"{minutes / 60:.4f}"]
    runs = {f"{way}-{seed}": [f"--{way}", "--seed", str(seed), *common] for seed in (1, 2) for way in WAYS}
    found = side_by_side(data, out, runs, device)
    for seed in (1, 2):
        back, both = (evaluate_run(out / f"{way}-{seed}", data, device=device).counts for way in WAYS)
        found[f"seed {seed}"] = str(compare(back, both))
        print(seed, back.edits.sum() / back.lengths.sum(), found[f"seed {seed}"], flush=True)
    return found


def scored(data: Path, out: Path, device: str) -> dict:
    "Evaluate both, and keep the logits of the validation split in halves small enough to be carried."
    found = {}
    for name in CURVES:
        evaluated = evaluate_run(out / name, data, device=device)
        found[name] = str(evaluated)
        halved(out / name / "decode/val/logits.hdf5", out / f"{name}_logits.hdf5")
        shutil.copyfile(out / name / "eval/val/trials.csv", out / f"{name}_trials.csv")
        print(name, evaluated, flush=True)
    return found


def halved(source: Path, target: Path) -> None:
    "A copy of a file of logits in float16, compressed, for a narrow way back."
    with h5py.File(source) as given, h5py.File(target, "w") as copied:
        def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                copied.create_dataset(name, data=item[:].astype(np.float16), compression="gzip", shuffle=True)
            copied.require_group(name if isinstance(item, h5py.Group) else item.parent.name).attrs.update(
                item.attrs if isinstance(item, h5py.Group) else item.parent.attrs)
        given.visititems(take)


def random_model(tokenizer: Path, out: Path) -> Path:
    "A folder with the tokenizer and random weights of the size of SmolLM2-135M (its config is in the folder)."
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(tokenizer)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(out)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(out)
    return out


def rescoring(tokenizer: Path, labels: Path, device_name: str, sentences: int) -> dict:
    "Sentences per second and memory of scoring lists of ten; random weights take as long as trained ones."
    from b2t_kit.rescore.llm import load_scorer

    with open(labels, newline="", encoding="utf-8") as file:
        said = [normalise(row["sentence_label"]) for row in csv.DictReader(file)]
    words = sorted({word for one in said for word in one.split()})
    generator = np.random.default_rng(0)

    def changed(sentence: str) -> str:
        parts = sentence.split()
        parts[generator.integers(len(parts))] = words[generator.integers(len(words))]
        return " ".join(parts)

    lists = [[one, *(changed(one) for _ in range(9))] for one in said[:sentences] if one]
    folder = random_model(tokenizer, tokenizer.parent / "random")
    found = {}
    for precision in ("auto", "float32"):
        with open_device(device_name, precision) as device:
            scorer = load_scorer(folder, device)
            scorer.score_lists([[one] for one in said[sentences : sentences + 100]])  # warm up, on others
            if device.kind == "cuda":
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            scorer.score_lists(lists)
            seconds = time.perf_counter() - started
            peak = torch.cuda.max_memory_allocated() if device.kind == "cuda" else 0
            found[str(device.precision.dtype)] = {"sentences_per_second": sum(map(len, lists)) / seconds, "peak": peak}
            print(precision, found, flush=True)
            del scorer
    return found


def draw(found: dict, path: Path) -> None:
    "Phoneme errors by update, beside the published Transformer's on real recordings."
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained", dpi=110)
    for name, color in zip(CURVES, ("tab:orange", "tab:blue")):
        rows = found[name]["eval"]
        axes.plot([row["step"] for row in rows], [100 * row["per"] for row in rows], "o-", color=color,
                  label=f"{name}, strict simulated recordings")
    axes.plot(list(PUBLISHED), list(PUBLISHED.values()), "s--", color="black", label="published Transformer, T15")
    axes.set(xscale="log", yscale="log", xlabel="updates of 64 trials", ylabel="phoneme errors on validation, %")
    axes.set_yticks([8, 10, 20, 50, 100], ["8", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    plt.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["steps", "simulate", "train", "ways", "score", "rescoring", "plans", "curves"])
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=12, help="steps of each case")
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--sessions", type=int, default=STRICT.sessions)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--small", action="store_true", help="batches of 4, to try it on a CPU")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/gpu.json")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.part == "curves":
        draw(kept["train"]["found"], options.json.with_suffix(".png"))
        return
    if options.part == "plans":
        for row in kept["steps"]["found"]:
            if "peak" in row and options.only in row["case"][0]:
                plan = planned(row["case"])
                print(*row["case"], f"{plan / 1e9:.2f} of {row['peak'] / 1e9:.2f} GB, {plan / row['peak'] - 1:+.0%}")
        return
    if options.part == "steps":
        found: object = steps(options.device, options.count, options.only)
    elif options.part == "simulate":
        found = simulated(*options.paths, options.processes, options.sessions, options.trials)
    elif options.part in ("train", "ways"):
        options.paths[1].mkdir(parents=True, exist_ok=True)
        several = train_both if options.part == "train" else both_ways
        found = several(*options.paths, options.minutes, options.device, options.small)
    elif options.part == "score":
        found = scored(*options.paths, options.device)
    else:
        found = rescoring(*options.paths, options.device, options.sentences)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "CPU"
    made = {"device": name, "torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    options.json.write_text(json.dumps({**kept, options.part: {**made, "found": found}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
