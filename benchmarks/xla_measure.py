"""Shared by the two XLA benchmarks: a process per case, and XLA's numbers about its programs.

torch_xla's CPU backend on one device stands for a TPU: what is compiled, moved and kept is decided by
the same compiler passes, while seconds are those of this machine. Alternatives of a case take turns in
one process, so other programs slow them equally.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def run_case(script: str, case: str) -> dict:
    "Run one case in two processes: seconds come from the first, memory from the second."
    found = _start(script, case, {})
    with tempfile.TemporaryDirectory() as folder:  # reports take time to write, so not in the first
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        with_reports = _start(script, case, {"XLA_FLAGS": flags, "BENCHMARK_DUMP": folder}, "--rounds", "2")
    for name, entry in found.items():
        entry["program_mb"] = with_reports[name]["program_mb"]
    return found


def _start(script: str, case: str, settings: dict[str, str], *options: str) -> dict:
    "The last line of a benchmark started again for one case."
    environment = dict(os.environ, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1", **settings)
    environment["OMP_NUM_THREADS"] = str(os.cpu_count())  # the host's CTC loss may use all cores
    command = [sys.executable, script, "--case", case, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise SystemExit(f"case {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def program_bytes(since: float) -> int:
    "Largest memory, arguments and results included, of the programs compiled since a time."
    if "BENCHMARK_DUMP" not in os.environ:
        return 0
    reports = Path(os.environ["BENCHMARK_DUMP"]).glob("*memory-usage-report.txt")
    recent = [path.read_text() for path in reports if path.stat().st_mtime >= since - 0.01]
    return max(int(re.search(r"Total bytes used: (\d+)", text, re.I)[1]) for text in recent)


def first_run(action: Callable[[], object]) -> dict[str, float]:
    "Compile: seconds, programs, memory, and transfers to the host."
    import torch_xla
    import torch_xla.debug.metrics as metrics

    torch_xla.sync(wait=True)
    metrics.clear_all()
    started = time.time()
    kept = action()
    torch_xla.sync(wait=True)
    counters = {name: metrics.counter_value(name) or 0 for name in ("UncachedCompile", "CachedCompile")}
    sent, compiled = (metrics.metric_data(name) for name in ("TransferFromDeviceTime", "CompileTime"))
    del kept
    return {
        "compile_s": round(compiled[1] / 1e9, 2),
        "programs": sum(counters.values()),
        "transfers": sent[0] if sent else 0,
        "on_host": [name for name in metrics.counter_names() if name.startswith("aten::")],
        "program_mb": round(program_bytes(started) / 1e6, 1),
    }


def in_turns(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    "Milliseconds of each alternative, from the call until all results are there."
    import torch_xla

    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 2):
        for name, action in actions.items():
            started = time.perf_counter()
            kept = action()
            torch_xla.sync(wait=True)
            spent = 1000 * (time.perf_counter() - started)
            del kept
            if number > 1:
                times[name].append(spent)
    return times


def compared(times: dict[str, list[float]], ours: str) -> dict[str, dict[str, float]]:
    "Medians, and the median and quartiles over rounds of each one's time over that of ours."
    summary = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(values, times[ours])], n=4)
        summary[name] = {
            "step_ms": round(statistics.median(values), 2),
            "times_ours": round(middle, 2),
            "quartiles": [round(low, 2), round(high, 2)],
        }
    return summary


def table(rows: list[dict], columns: list[str]) -> str:
    "Rows as a Markdown table."
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)
