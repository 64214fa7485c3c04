"""Can the pipeline feed a model, and what does a step send? Host caches, and recordings resident on the device.

    python benchmarks/feeding.py                          # this CPU, and XLA's CPU backend where torch_xla is installed
    python benchmarks/feeding.py --python PYTHON          # an interpreter that has torch_xla, for the bytes of a step
    python benchmarks/feeding.py --waiting cuda           # on a GPU: the share of a step that waits for its batch

Pipeline: trials per second of `TrainBatches` alone, 64 to a step, by reader threads and kind of cache, in turns over
the rounds; medians. "Resident" prepares rows, lengths and labels only. Model: steps of `transformer` and
`transformer_tiny`, --model-rows trials each, on this CPU. Bytes: training runs of the linear readout in processes of
their own, on eight simulated chips, 64 trials of up to 1,022 bins; torch_xla's metric `OutboundData` is read before
and after each step, and the logged losses (six digits) are compared. Waiting: the share of the time of some steps in
which the loop waits for the next batch, or for sending it. The result goes to benchmarks/results/feeding.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from loading import write_recordings

from b2t_kit.data.batches import BatchConfig, TrainBatches, end_to_end, gathered
from b2t_kit.data.dataset import Recordings, Trial
from b2t_kit.data.convert import SessionWriter

BATCH, BINS = 64, 1022
CASES = ("float32", "float32 resident", "float16 resident")


def write_equal(folder: Path, sessions: int = 2, trials: int = 96) -> Path:
    "Trials of 960 to 1,022 bins, so that all are in one batch shape, the longest 1,022."
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((3000, 512), dtype=np.float32)
    for day in range(sessions):
        session = f"t15.2023.01.{1 + day:02d}"
        for split, count in (("train", trials), ("val", 1)):
            with SessionWriter(folder / "hdf5_data_final" / session, split) as writer:
                for number in range(count):
                    length = BINS if number == 0 else generator.integers(960, BINS + 1)
                    start = generator.integers(0, 500)
                    labels = generator.integers(1, 40, 30)
                    writer.write(Trial(noise[start:start + length], labels, session, 1, number, sentence="Hi."))
    return folder / "hdf5_data_final"


def pipeline_rates(root: Path, threads: list[int], rounds: int) -> dict[str, dict[str, float]]:
    "Trials per second by kind of cache and threads; 0 threads: the loop itself prepares."
    recordings, made = Recordings(root), {}
    for kind, cache in (("HDF5", "none"), ("float32", "float32"), ("float16", "float16"), ("resident", "float32")):
        for count in threads:
            config = BatchConfig(batch_size=BATCH, cache=cache, readers=max(count, 1), prefetch=2 * count)
            made[kind, count] = TrainBatches(recordings, config)
            if kind == "resident":
                made[kind, count].assembler.starts = np.zeros(len(recordings), np.int32)  # any rows take as long
    found: dict[tuple[str, int], list[float]] = {one: [] for one in made}
    for number in range(rounds + 1):
        for one, batches in made.items():
            started, seen = time.perf_counter(), 0
            with closing(batches.iterate(number * batches.steps_per_epoch)) as stream:
                for step in islice(stream, batches.steps_per_epoch):
                    seen += step[0].step_rows
            if number:  # the first round fills the caches
                found[one].append(seen / (time.perf_counter() - started))
    recordings.close()
    return {kind: {str(count): statistics.median(found[kind, count]) for count in threads}
            for kind in dict.fromkeys(kind for kind, _ in made)}


def gather_rate(root: Path, rounds: int) -> dict[str, float]:
    "Trials per second that this CPU gathers from resident rows, by precision."
    found = {}
    with Recordings(root) as recordings:
        for precision in ("float32", "float16"):
            batches = TrainBatches(recordings, BatchConfig(batch_size=BATCH, cache=precision))
            resident = end_to_end(recordings, batches.trials, precision)
            batches.rest_on(resident)
            rates = []
            with closing(batches.iterate()) as stream:
                for step in islice(stream, rounds * 4):
                    started = time.perf_counter()
                    gathered(step[0], resident.rows)
                    rates.append(step[0].step_rows / (time.perf_counter() - started))
            found[precision] = statistics.median(rates)
    return found


def task_of(name: str, root: Path, rows: int, **batches: object):
    "A recipe's settings and task, with its memory check."
    from b2t_kit.memory import lack_of_room
    from b2t_kit.speech.recipes import recipe
    from b2t_kit.speech.task import SpeechTask

    run = recipe(name)
    chosen = replace(run.task.batches, batch_size=rows, **batches)
    return run, SpeechTask(root, replace(run.task, batches=chosen), lack_of_room=lack_of_room)


def waiting(name: str, root: Path, kind: str, rows: int, steps: int, **batches: object) -> dict[str, float]:
    "Trials per second of gradients and updates, and the share of the time that waits for the next batch on the device."
    from b2t_kit.train import begin, open_run, remaining_batches, seed_step
    from b2t_kit.training.run import accumulate_gradients, update_weights

    run, task = task_of(name, root, rows, **batches)
    config = replace(run.train, steps=steps + 2, decay_steps=0, decay_start=0, warmup_steps=0, device=kind,
                     accumulation=1)
    with tempfile.TemporaryDirectory() as folder, open_run(task, config, Path(folder) / "run", quiet=True) as opened:
        begin(opened)
        place, lost, device = opened.device.place, [0.0], opened.device

        def timed_place(batch):
            started = time.perf_counter()
            placed = place(batch)
            device.synchronize()
            lost[0] += time.perf_counter() - started
            return placed

        device.place, seen, whole = timed_place, 0, 0.0
        stream = remaining_batches(opened)
        for number in range(steps + 2):
            if number == 2:  # the first two steps warm up
                lost[0], whole, seen = 0.0, time.perf_counter(), 0
            started = time.perf_counter()
            micro_batches = next(stream)
            lost[0] += time.perf_counter() - started
            seed_step(opened)
            accumulate_gradients(opened, micro_batches)
            update_weights(opened, micro_batches[-1])
            device.synchronize()
            seen += micro_batches[0].step_rows
        seconds = time.perf_counter() - whole
        stream.close()
    task.close()
    return {"trials_per_second": seen / seconds, "waiting": lost[0] / seconds, "steps": steps, "rows": rows}


def bytes_of_steps(case: str, root: Path, steps: int) -> dict[str, object]:
    "One training run on XLA, in this process: bytes and transfers to the device in each step, and the losses."
    import torch_xla.debug.metrics as metrics
    from b2t_kit.train import begin, open_run, remaining_batches, seed_step
    from b2t_kit.training.run import accumulate_gradients, log, update_weights
    from b2t_kit.training.log import read_metrics, series

    def sent() -> tuple[int, float]:
        return metrics.metric_data("OutboundData")[:2]

    cache, _, how = case.partition(" ")
    run, task = task_of("linear", root, BATCH, cache=cache, resident="on" if how else "off", buckets=1)
    config = replace(run.train, steps=steps, decay_steps=0, decay_start=0, warmup_steps=0, device="xla",
                     log_every=1, eval_every=0, compile_cache="none", precision="float32")
    found = []
    with tempfile.TemporaryDirectory() as folder, open_run(task, config, Path(folder) / "run", quiet=True) as opened:
        begin(opened)
        opened.device.synchronize()
        for micro_batches in remaining_batches(opened):
            before = sent()
            seed_step(opened)
            accumulate_gradients(opened, micro_batches)
            update_weights(opened, micro_batches[-1])
            opened.device.synchronize()
            after = sent()
            found.append([after[0] - before[0], after[1] - before[1]])
            log(opened)
        losses = series(read_metrics(opened.folder), "train", "loss")[1]
    task.close()
    return {"steps": found, "losses": losses, "recordings": task.where, "shape": list(micro_batches[0].features.shape)}


def in_child(python: str, case: str, root: Path, steps: int) -> dict | None:
    "The same in a new process with eight simulated chips; None where torch_xla is not installed."
    if subprocess.run([python, "-c", "import torch_xla"], capture_output=True).returncode:
        return None
    done = subprocess.run([python, __file__, "--case", case, "--data", str(root), "--steps", str(steps)], text=True,
                          env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(found: dict) -> str:
    "The result as tables."
    lines = []
    if rates := found.get("pipeline"):
        threads = list(next(iter(rates.values())))
        lines += [f"{'trials per second, threads':28}" + "".join(f"{one:>10}" for one in threads)]
        lines += [f"{kind:28}" + "".join(f"{each[one]:10,.0f}" for one in threads) for kind, each in rates.items()]
        lines += [f"{'gathered on this CPU, ' + kind:28}{rate:10,.0f}" for kind, rate in found["gathered"].items()]
    for name, each in found.get("waiting", {}).items():
        lines.append(f"{name:44}{each['trials_per_second']:10,.2f} trials/s, waiting {each['waiting']:.2%}")
    for name, each in found.get("bytes", {}).items():
        median = [statistics.median(one[place] for one in each["steps"]) for place in (0, 1)]
        where = each["recordings"] or "on the host"
        lines.append(f"{name:28}{median[1]:14,.0f} bytes in {median[0]:.0f} transfers a step; {where}")
    if found.get("bytes"):
        exact = {json.dumps(found["bytes"][one]["losses"]) for one in CASES[:2]}
        lines.append(f"logged losses with and without, float32: {'equal' if len(exact) == 1 else 'DIFFERENT'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch_xla")
    parser.add_argument("--waiting", metavar="DEVICE", help="only: the share that waits on cuda or cpu, by cache")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of which the pipeline's medians are taken")
    parser.add_argument("--model-rows", type=int, default=4, help="trials of a step of the models on this CPU")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run")
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(bytes_of_steps(options.case, options.data, options.steps)))
        return
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    found: dict = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, {versions}"}
    with tempfile.TemporaryDirectory() as folder:
        equal = write_equal(Path(folder) / "equal")
        if options.waiting:
            found["waiting"] = {
                f"transformer, {cache}{', resident' * (how == 'on')}": waiting(
                    "transformer", equal, options.waiting, BATCH, options.steps, cache=cache, resident=how)
                for cache in ("none", "float32", "float16") for how in ("off", "on") if (cache, how) != ("none", "on")}
        else:
            root = write_recordings(Path(folder) / "usual", 4, 80)
            found["pipeline"] = pipeline_rates(root, [0, 1, 2, 4], options.rounds)
            found["gathered"] = gather_rate(root, options.rounds)
            rows = options.model_rows
            found["waiting"] = {f"{name}, {rows} trials a step": waiting(name, equal, "cpu", rows, 3, cache="float32")
                                for name in ("transformer", "transformer_tiny")}
            children = {case: in_child(options.python, case, equal, options.steps) for case in CASES}
            found["bytes"] = {case: made for case, made in children.items() if made}
    print(found["machine"], report(found), sep="\n\n")
    name = f"feeding_{options.waiting}.json" if options.waiting else "feeding.json"
    (ROOT / "benchmarks" / "results" / name).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
