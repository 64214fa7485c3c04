"""Adaptation to days that were not in training: does it help, does it harm?

    python benchmarks/adapt.py --run RUN --data DATA       # ten minutes for 22 days on one core

Evaluates a decoder on the days that it was not trained on, as trained and with `--adapt`, in the order of recording.
Both decode the same trials. The learning rates are those of `--adapt`, tuned on nothing here. The result goes to
benchmarks/results/adapt_strict.json.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import KitError, save_json
from b2t_kit.data.dataset import find_recordings
from b2t_kit.decode.decode import evaluate_adapting
from b2t_kit.speech.adapt import AdaptConfig
from b2t_kit.speech.evaluate import load_decoder


def main() -> None:
    "Adapt, compare, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="decoder, adapted on all days it was not trained on")
    parser.add_argument("--data", type=Path, required=True, help="its recordings")
    parser.add_argument("--copies", type=int, default=AdaptConfig.copies)
    parser.add_argument("--lr", type=float, help="of the steps; default: that of --adapt")
    parser.add_argument("--unseen", default="mean", help="day layer that the first day starts from")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "adapt_strict.json")
    options = parser.parse_args()
    folder, trained = find_recordings(options.data), load_decoder(options.run).trained
    with tempfile.TemporaryDirectory() as work:
        for path in folder.glob("*/data_val.hdf5"):
            if path.parent.name not in trained:
                (Path(work) / path.parent.name).symlink_to(path.parent)
        start = time.monotonic()
        _, report = evaluate_adapting(options.run, work, unseen=options.unseen, device="cpu", progress=print,
                                      adapt=AdaptConfig(copies=options.copies, lr=options.lr))
    print(report)
    save_json(options.out, {**report.to_dict(), "seconds": time.monotonic() - start})


if __name__ == "__main__":
    try:
        main()
    except KitError as error:
        sys.exit(f"error: {error}")
