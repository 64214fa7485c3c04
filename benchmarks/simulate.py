"""Measure the speed of the simulation, and that its memory does not grow with the number of trials.

    python benchmarks/simulate.py                       # 200 and 800 trials, realistic speaking rate
    python benchmarks/simulate.py --trials 200 10000    # needs about 18 GB in the temporary folder
    python benchmarks/simulate.py --out benchmarks/results/simulate_cpu.json

Each size is simulated in its own process: 10 sessions, written to a temporary folder that is removed.
Peak memory is the operating system's count for that process; the memory before the first trial, with
everything imported, is reported too.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SESSIONS = 10


def peak_megabytes() -> float:
    "Largest resident size of this process so far (Linux counts kilobytes, macOS bytes)."
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(trials: int, rate: float, seed: int) -> dict:
    "Simulate `trials` training trials, with their validation and test trials."
    from b2t_kit.simulate import labels_of
    from b2t_kit.simulate import SimulateConfig, simulate

    labels_of("Good morning.")  # loads the pronunciation dictionary
    before = peak_megabytes()
    config = SimulateConfig(sessions=SESSIONS, trials=trials // SESSIONS, seed=seed, bins_per_phoneme=rate)
    with tempfile.TemporaryDirectory() as folder:
        start, cpu = time.perf_counter(), time.process_time()
        summary = simulate(Path(folder) / "out", config, progress=False)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    count = sum(summary.trials.values())
    return {
        "trials": count,
        "gigabytes": round(summary.gigabytes, 2),
        "trials_per_second": round(count / seconds, 1),
        "trials_per_cpu_second": round(count / cpu, 1),
        "megabytes_before": round(before),
        "megabytes_peak": round(peak_megabytes()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[200, 800], help="training trials")
    parser.add_argument("--bins-per-phoneme", type=float, default=33.0, help="speaking rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--one", action="store_true", help="measure the first size here and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.trials[0], options.bins_per_phoneme, options.seed)))
        return
    rows = []
    for trials in options.trials:
        command = [sys.executable, __file__, "--one", "--trials", str(trials), "--seed", str(options.seed),
                   "--bins-per-phoneme", str(options.bins_per_phoneme)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    result = {
        "command": "python benchmarks/simulate.py " + " ".join(sys.argv[1:]),
        "bins_per_phoneme": options.bins_per_phoneme,
        "python": platform.python_version(), "cores": os.cpu_count(),
        "load_at_end": round(os.getloadavg()[0], 1), "runs": rows,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
