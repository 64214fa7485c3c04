"""Does a linear readout with more training steps still make twice the errors of the demo's decoder?

    python benchmarks/readout.py --seeds 1,2,3 --steps 320,640,1280    # half an hour per seed on one core

For each seed, the demo's recordings are simulated again. The demo's decoder trains on them, and the readout trains for
several numbers of steps (its schedule is stretched accordingly). The best readout of a seed is chosen on the scored
sentences themselves, which favours the readout; the decoder has one setting. The result is added to
benchmarks/results/readout.json after every run.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import save_json
from b2t_kit.simulate import simulate
from b2t_kit.demo import demo_recordings
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.recipes import linear, tiny
from b2t_kit.speech.task import SpeechRun
from b2t_kit.speech.task import SpeechTask
from b2t_kit.train import train, uninterrupted

RESULT = ROOT / "benchmarks/results/readout.json"
DECODER = "GRU decoder"


def runs(steps: list[int]) -> dict[str, SpeechRun]:
    "The demo's decoder and the readouts, by name."
    line = linear()
    made = {
        f"readout, {each} steps": replace(line, train=replace(line.train, steps=each))
        for each in steps
    }
    return {**made, DECODER: tiny()}


def score(data: Path, run: SpeechRun, seed: int, out: Path) -> dict[str, float]:
    "Train, evaluate on the validation split; its phoneme error rate and 95 % interval."
    task = SpeechTask(data, run.task)
    uninterrupted(train(task, replace(run.train, seed=seed), out, quiet=True))
    task.close()
    rate = evaluate_run(out, data, device=run.train.device).per
    return {key: round(getattr(rate, key), 4) for key in ("rate", "low", "high")}


def main() -> None:
    "Parse, then simulate and train for each seed, save after each run."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1,2,3", help="of recordings and training, with commas")
    parser.add_argument("--difficulty", type=float, help="of the recordings; default: the demo's")
    parser.add_argument("--steps", default="320,640,1280", help="of readouts, with commas")
    options = parser.parse_args()
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for seed in options.seeds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            recordings = demo_recordings(int(seed))
            if options.difficulty is not None:
                recordings = replace(recordings, difficulty=options.difficulty)
            name = f"seed {seed}, difficulty {recordings.difficulty}"
            work, rates = Path(folder), found.setdefault(name, {})
            simulate(work / "data", recordings)
            for name, run in runs([int(each) for each in options.steps.split(",") if each]).items():
                rates[name] = score(work / "data", run, int(seed), work / name)
                print(f"seed {seed}  {name:<21} {100 * rates[name]['rate']:5.1f} %", flush=True)
                save_json(RESULT, found)
        best = min(rates[name]["rate"] for name in rates if name != DECODER)
        print(f"seed {seed}  ratio to the best readout: {best / rates[DECODER]['rate']:.2f}", flush=True)


if __name__ == "__main__":
    main()
