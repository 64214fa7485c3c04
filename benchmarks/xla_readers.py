"""Do threads that read recordings disturb a program on XLA, and how many of them help?

    python benchmarks/xla_readers.py [--data FOLDER] [--steps 60]

Trains the linear readout on XLA, with nothing cached, so every trial is read from its file while the
device computes; each number of reader threads has its own process. Reported are trials per second
(median of the rows of metrics after the first two), and whether all runs gave the
same losses to the last bit: a reader that disturbed the device, or was disturbed by it, would change them.
The result goes to benchmarks/results/xla_readers.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

READERS = (0, 1, 2, 4)  # 0: the loop itself reads, nothing is prepared ahead


def measure(data: Path, steps: int, readers: int) -> dict:
    "One run, in this process."
    from dataclasses import replace

    from b2t_kit.speech.recipes import linear
    from b2t_kit.speech.task import SpeechTask
    from b2t_kit.train import train
    from b2t_kit.training.log import read_metrics

    run = linear()
    batches = replace(run.task.batches, cache="none", readers=max(readers, 1), prefetch=2 * readers, buckets=2,
                      batch_size=32)
    config = replace(run.train, steps=steps, decay_steps=steps, log_every=5, eval_every=0, checkpoint_every=0,
                     device="xla", compile_cache="none")
    task = SpeechTask(data, replace(run.task, batches=batches))
    with tempfile.TemporaryDirectory() as folder:
        train(task, config, Path(folder) / "run", quiet=True)
        rows = [row for row in read_metrics(Path(folder) / "run") if row["kind"] == "train"]
    task.close()
    return {"readers": readers, "losses": [row["loss"] for row in rows],
            "trials_per_second": statistics.median(row["trials_per_second"] for row in rows[2:])}


def in_child(data: Path, steps: int, readers: int) -> dict:
    "The same in a new process with eight simulated chips."
    command = [sys.executable, __file__, "--data", str(data), "--steps", str(steps), "--readers", str(readers)]
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{readers} readers failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recordings; simulated if not given")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3, help="runs per number of readers")
    parser.add_argument("--readers", type=int, help="for the program itself")
    options = parser.parse_args()
    if options.readers is not None:
        print(json.dumps(measure(options.data, options.steps, options.readers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            from b2t_kit.simulate import SimulateConfig, simulate
            simulate(Path(folder) / "data", SimulateConfig(sessions=3, trials=80), progress=False)
        data = options.data or Path(folder) / "data"
        found = [in_child(data, options.steps, readers)
                 for _ in range(options.rounds) for readers in READERS]
    same = all(one["losses"] == found[0]["losses"] for one in found)
    medians = {readers: statistics.median(one["trials_per_second"] for one in found if one["readers"] == readers)
               for readers in READERS}
    print("readers   trials per second   against none")
    for readers, rate in medians.items():
        print(f"{readers:>7}   {rate:>17.1f}   {rate / medians[0]:>12.2f}")
    print(f"losses of all {len(found)} runs are {'the same bits' if same else 'NOT THE SAME'}")
    result = {"trials_per_second": medians, "same_losses": same, "runs": len(found), "steps": options.steps}
    (ROOT / "benchmarks/results/xla_readers.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
