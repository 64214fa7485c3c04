"""Compare the memory plan with the TPU compiler, and plan and estimate with a CPU.

    python benchmarks/plan.py --compiler PYTHON [--only 0,3,5]   # in an environment with torch_xla
    python benchmarks/plan.py --cpu [--only 0,3]                 # in any environment with torch, on Linux
    python benchmarks/plan.py --estimate [--only 0,3]            # the same cases, traced on fake tensors
    python benchmarks/plan.py --table                            # from the results, for plan.md and v5e.md

PYTHON is the interpreter of an environment with jax 0.7.1 and libtpu 0.0.21. Each case is a configuration with
batches of one length: its training step is lowered as in `b2t preflight`, in its own process, and compiled for
the slice; the compiler's memory (arguments + results that are not donated + temporaries) is compared with the plan's
total. On a CPU, two steps run in their own process, and the growth of its largest resident memory is compared
with the plan: with the default allocator, and with one that returns every free block of a megabyte or more.
Results go to benchmarks/results/plan.json and plan_cpu.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core.settings import override
from b2t_kit.data.sampler import Bucket
from b2t_kit.plan.configs import configuration
from b2t_kit.plan.memory import find_target, plan_run
from b2t_kit.devices.slices import CHIPS

RESULTS = ROOT / "benchmarks/results"
LABELS = 64
AGAIN, DIVIDED = (("model.recompute", True),), (("train.shard", "moments"),)
EVERY_BIN = {"model.patch": 14, "model.subsample": 1}  # the small recipes read every fourth
CASES = [  # configuration, slice, global batch, bins, settings
    *((name, "v5e-8", batch, bins, {**changes, **more}) for more in ({}, EVERY_BIN) for name, batch, bins, changes in (
        ("tiny", 64, 1010, {}), ("tiny", 512, 1010, {}), ("linear", 512, 1010, {}), ("noise_gru_tiny", 512, 1010, {}),
        ("noise_gru_tiny", 64, 2478, {"model.recompute": True}))),
    ("baseline", "v5e-8", 64, 1010, {}),
    ("baseline", "v5e-8", 512, 1010, {}),
    ("gpu_16gb", "v5e-8", 32, 2478, {}),
    ("tpu_v5e8", "v5e-8", 64, 2478, {}),
    ("tpu_v5e8", "v5e-8", 64, 2478, {"train.shard": "moments"}),
    *(("tpu_v5e8", "v5e-8", batch, 1010, dict(one)) for batch in (64, 128, 256, 512) for one in (
        (), AGAIN, DIVIDED, (*DIVIDED, *AGAIN))),
    ("tpu_v5e8", "v5e-8", 64, 1010, {"train.shard": "all"}),
    ("tpu_v5e8", "v5e-8", 512, 1010, {"train.shard": "all"}),
]
CPU_CASES = [  # configuration, batch, bins, settings; 45 days
    *((name, batch, bins, {**changes, **more}) for more in ({}, EVERY_BIN) for name, batch, bins, changes in (
        ("tiny", 8, 1010, {}), ("tiny", 16, 502, {}), ("linear", 16, 1010, {}), ("linear", 32, 402, {}),
        ("noise_gru_tiny", 8, 1010, {}), ("tiny", 16, 1010, {"model.num_layers": 3}))),
    ("baseline", 8, 658, {}),
    ("eit_tiny", 256, 0, {}), ("eit_small", 16, 0, {}), ("eit_small", 64, 0, {}), ("eit_cdeit", 1, 0, {}),
    ("codec", 16, 0, {"width": 512, "heads": 8, "frames": 200}), ("codec", 256, 0, {}),
]


def settings_of(name: str, batch: int, changes: dict):
    "A recipe with another batch and other settings; or the codec task, whose settings are its model's."
    if name == "codec":
        from b2t_kit.tasks.codec import CodecConfig, CodecTask, codec_config

        task = CodecTask(CodecConfig(**changes), examples=batch, batch_size=batch)
        return SimpleNamespace(task=task, train=codec_config())
    run = configuration(name).with_rows(batch)
    changes = {"train.shard": "none", **changes}  # unless a case divides something
    return override(run, {key if key.startswith("train.") else f"task.{key}": value for key, value in changes.items()})


def planned(name: str, slice_name: str, batch: int, bins: int, changes: dict):
    "The plan of a case; images have no bins."
    run = settings_of(name, batch, changes)
    task = run.without_data()
    if bins:
        task.lengths = replace(task.lengths, buckets=(Bucket(bins, LABELS),))
    return plan_run(name, task, run.train, find_target("tpu", slice_name))


def compiled_steps() -> list[dict]:
    "Recorded figures of the compiler for steps that compile: those of this program, and those of `b2t preflight`."
    steps = [{"case": row["case"], "total": row["total"]} for row in known()
             if row["compiles"] and row["case"][4].get("train.shard") != "all"]  # chips gather weights then
    for case, row in json.loads((RESULTS / "preflight.json").read_text()).items():
        words = case.split()
        own = words[0] in ("transformer", "noise_gru_687m", "tpu_v5e8", "eit_cdeit", "eit_small", "eit_tiny")
        others = (",", "resident", "shard all", "PYTHON", "answers")  # another way of the same step
        if not own or not row["fits"] or any(word in case for word in others):
            continue
        changes = {"model.recompute": True} if "--recompute" in words else {}
        for option, name, kind in (("--shard", "train.shard", str), ("--accumulation", "train.accumulation", int)):
            if option in words:
                changes[name] = kind(words[words.index(option) + 1])
        step = next(each["name"] for each in row["by_program"] if each["kind"] in ("train", "accumulate"))
        bins = 0 if words[0].startswith("eit") else int(re.findall(r"\d+", step)[1])
        steps.append({"case": [words[0], row["slice"], row["global_batch"], bins, changes],
                      "total": row["bytes_per_chip"]["total"]})
    return steps


def lower(case: list, folder: Path) -> None:
    "Write a case's training step down; in a process of its own, which must not end orderly."
    from b2t_kit.plan.lower import lower_run
    from b2t_kit.speech.task import Lengths, SpeechTask
    from b2t_kit.devices.slices import find_slice

    name, slice_name, batch, bins, changes = case
    run = settings_of(name, batch, changes)

    def take(program) -> None:
        if program.kind == "train":
            (folder / "module.pb").write_bytes(program.module)
            (folder / "job.json").write_text(json.dumps(program.job()))

    task = SpeechTask(Lengths((Bucket(bins, LABELS),)), run.task)
    lower_run(task, replace(run.train, device="auto"), find_slice(slice_name), take, "largest")
    sys.stdout.flush()
    os._exit(0)


def compiled_bytes(case: list, python: str) -> dict:
    "The compiler's sizes for a case."
    from b2t_kit.plan.cost import moved_bytes, read_hlo
    from b2t_kit.plan.preflight import ON_CPU, compile_program, environment
    from b2t_kit.devices.slices import find_slice

    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--lower", json.dumps(case), "--folder", name]
        variables = environment({**ON_CPU, "PYTHONPATH": str(ROOT)})
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{case} could not be lowered:\n{done.stderr[-2000:]}")
        found = compile_program(Path(name), find_slice(case[1]), python)
        program, rounds = read_hlo(Path(name, "after.hlo").read_text()) if found.bytes else None, Counter()
        for within, one, times in program.executed() if program else ():
            rounds[within.name] += moved_bytes(one, within, program) if times > 1 else 0
    limit = found.roofline
    return {"total": found.needed, "compiles": bool(found.bytes), "bytes": found.bytes,
            "compile_s": round(found.compile_s, 1), "processor_s": round(found.compile_processor_s, 1),
            "error": found.error[:300], "round": max(rounds.values(), default=None),
            "seconds": limit and {"matrix": limit.matrix, "memory": limit.memory, "links": limit.links}}


def task_and_batch(run, batch: int, bins: int):
    "The task of a case and a batch of it, all of whose rows are full."
    import torch

    from b2t_kit.data.batches import Batch
    from b2t_kit.tasks.codec import CodecTask, codec_batch
    from b2t_kit.tasks.eit import EITShapes, make_batch
    from b2t_kit.speech.task import Lengths, SpeechTask

    if isinstance(run.task, CodecTask):
        return run.task, codec_batch(list(range(batch)), run.task.model, batch)
    if not bins:
        return EITShapes(run.task), make_batch(None, [], batch, batch)
    days = {} if getattr(run.task.model, "num_days", None) is None else {"num_days": run.task.model.num_days}
    task = SpeechTask(Lengths((Bucket(bins, LABELS),), **days), run.task)
    patches = (bins - run.task.model.patch) // run.task.model.stride + 1
    one, number = torch.ones(batch), torch.arange(batch)
    return task, Batch(torch.randn(batch, bins, 512), (one * bins).int(), (one * patches).int(),
                       torch.ones(batch, LABELS, dtype=torch.int32), (one * min(20, patches // 2)).int(),
                       day=(one * 0).int(), weight=one, noise_key=number, trial=number, step_key=0 * number,
                       step_rows=batch)


def step_on_cpu(run, batch: int, bins: int, steps: int) -> None:
    "Training steps as the loop takes them."
    import torch

    from b2t_kit.training.optim import Ema, build_adamw

    task, given = task_and_batch(run, batch, bins)
    model = task.build_model().train()
    optimizer = build_adamw(task.parameter_groups(model, run.train), run.train.betas, run.train.eps)
    average = Ema(model, 0.99) if run.train.ema_decay else None
    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        (task.compute_loss(model, given).sum / batch).backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.requires_grad])
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), run.train.clip_norm, norm)
        optimizer.step()
        if average:
            average.update(step)


def small_run(run, name: str, bins: int):
    "The same kind of run with a tiny model."
    if name == "codec":
        return settings_of(name, 2, {})
    if not bins:
        return override(run, {"task.model.heads": 2, "task.model.width": 8})
    few = {"task.model.num_days": 2, "task.model.hidden": 8}
    narrow = {"task.model.noise_hidden": 8, "task.model.noisy_hidden": 8}
    return override(run, few | (narrow if hasattr(run.task.model, "noise_hidden") else {}))


def estimated(case: list) -> dict:
    "Bytes of the state and of the step, traced without numbers, and the processor time that it took."
    from b2t_kit.plan.memory import meta_model, state_of, trace_step

    name, batch, bins, changes = case
    run = settings_of(name, batch, changes)
    started = time.process_time()
    task, given = task_and_batch(run, batch, bins)
    found = trace_step(task, given)
    state = state_of(meta_model(task), run.train, find_target("cpu"))
    total = max(state.least, sum(state.parts.values()) + found.bytes)
    return {"total": total, "at": found.at, "seconds": round(time.process_time() - started, 1)}


def measure_cpu(case: list) -> None:
    "Print the peak growth of this process during two steps."
    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    name, batch, bins, changes = case
    run = settings_of(name, batch, changes)
    step_on_cpu(small_run(run, name, bins), 2, bins and 60, 2)  # so that libraries have what they keep
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
    before = resident("VmRSS")
    step_on_cpu(run, batch, bins, 2)
    print(json.dumps({"increment": resident("VmHWM") - before}))


def growth(case: list, **settings: str) -> int:
    "The peak growth of a process, bytes; `settings` are its environment variables."
    done = subprocess.run([sys.executable, __file__, "--measure", json.dumps(case)], capture_output=True, text=True,
                          env={**os.environ, **settings})
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])["increment"]


def named(changes: dict) -> str:
    "Settings in words."
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in changes.items()) or "-"


def known() -> list[dict]:
    "The recorded cases in order."
    rows = json.loads((RESULTS / "plan.json").read_text())
    return sorted(rows, key=lambda row: (row["case"][0], -row["case"][3], row["case"][2], str(row["case"][4])))


def steps_table() -> str:
    "What the compiler said of the 687M step: the table of v5e.md."
    lines = ["| global batch | bins | settings | arguments | temporaries | total | to spare | compiler, processor s "
             "| a round moves at most | seconds at least | interconnect, s |", "|" + "---|" * 11]
    for row in known():
        name, _, batch, bins, changes = row["case"]
        if name != "tpu_v5e8":
            continue
        parts = [f"{row['bytes'][one] / 2**30:.2f}" if row["bytes"] else "" for one in ("arguments", "temporaries")]
        room = CHIPS["v5e"].memory - row["total"] / 2**30
        spare = f"{room:.2f}" if room >= 0 else f"none: {-room:.2f} too much"
        least = row["seconds"]
        tail = (f"{row['round'] / 1e9:.2f} GB | {max(least.values()):.2f} | {least['links']:.2f}"
                if least else " | | ")
        lines.append(f"| {batch} | {bins} | {named(changes)} | {parts[0]} | {parts[1]} | {row['total'] / 2**30:.2f} "
                     f"| {spare} | {row['processor_s']:.0f} | {tail} |")
    return "\n".join(lines)


def table() -> str:
    "The results as the tables of plan.md."
    lines = ["| configuration | slice | global batch | bins | settings | compiler, GiB | plan, GiB | difference "
             "| plan's fullest point |", "|---|---|---|---|---|---|---|---|---|"]
    for row in compiled_steps():
        name, slice_name, batch, bins, changes = row["case"]
        plan = planned(*row["case"])
        lines.append(f"| {name} | {slice_name} | {batch} | {bins or ''} | {named(changes)} "
                     f"| {row['total'] / 2**30:.2f} | {plan.total / 2**30:.2f} "
                     f"| {plan.total / row['total'] - 1:+.1%} | {plan.at} |")
    lines += ["", "| configuration | batch | bins | settings | measured, MiB | large blocks returned | estimate, MiB "
              "| difference to that | traced in, s |", "|" + "---|" * 9]
    path = RESULTS / "plan_cpu.json"
    for row in json.loads(path.read_text()) if path.exists() else []:
        name, batch, bins, changes = row["case"]
        returned, guess = row.get("returned"), row.get("estimate")
        if not (returned and guess):
            continue
        cells = [name, str(batch), str(bins or ""), named(changes)]
        cells += [f"{one / 2**20:.0f}" for one in (row["increment"], returned, guess["total"])]
        cells += [f"{guess['total'] / returned - 1:+.1%}", str(guess["seconds"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def put(path: Path, row: dict) -> None:
    "Add a row to a file of results; other values of an older row of the same case stay."
    rows = json.loads(path.read_text()) if path.exists() else []
    before = next((one for one in rows if one["case"] == row["case"]), None)
    if before is None:
        rows.append(row)
    else:
        before |= row
    path.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", help="Python of the environment with jax and libtpu")
    parser.add_argument("--only", help="numbers of the cases, from 0")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--lower", help="for the program itself")
    parser.add_argument("--measure", help="for the program itself")
    parser.add_argument("--folder", type=Path, help="for the program itself")
    options = parser.parse_args()
    if options.lower:
        return lower(json.loads(options.lower), options.folder)
    if options.measure:
        return measure_cpu(json.loads(options.measure))
    if options.table:
        return print(steps_table(), table(), sep="\n\n")
    cases = CPU_CASES if options.cpu or options.estimate else CASES
    chosen = [int(one) for one in options.only.split(",")] if options.only else range(len(cases))
    for case in [list(cases[number]) for number in chosen]:
        if options.cpu:
            row = {"case": case, "increment": growth(case),
                   "returned": growth(case, MALLOC_MMAP_THRESHOLD_="1048576")}
            put(RESULTS / "plan_cpu.json", row)
            print(case, *(f"{name} {row[name] / 2**20:.0f} MiB" for name in ("increment", "returned")), flush=True)
            continue
        if options.estimate:
            row = {"case": case, "estimate": estimated(case)}
            put(RESULTS / "plan_cpu.json", row)
            print(case, row["estimate"], flush=True)
            continue
        if not options.compiler:
            parser.error("--compiler is needed: a Python with jax 0.7.1 and libtpu 0.0.21")
        row = {"case": case, "lowered": "preflight", **compiled_bytes(case, options.compiler)}
        put(RESULTS / "plan.json", row)
        print(case, f"compiler {row['total'] / 2**30:.2f} GiB, plan {planned(*case).total / 2**30:.2f}", flush=True)


if __name__ == "__main__":
    main()
