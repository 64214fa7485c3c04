"""Adaptation to days that were not in training: does it help, does it harm?

    python benchmarks/adapt.py --run RUN --data DATA       # ten minutes for 22 days on one core
    python benchmarks/adapt.py --run demo/decoder --data demo/data --drift 0.2 --copies 8 --out OUT.json

Decodes the days that a decoder was not trained on, as trained and with `--adapt`, in the order of recording.
Both decode the same trials. The learning rates are those of `--adapt`, tuned on nothing here. The result goes to
benchmarks/results/adapt_strict.json. With `--drift` the days are those of the training, months later: each channel of a
day has another gain and offset, with this spread.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from b2t_kit.core import KitError, save_json
from b2t_kit.data.dataset import find_recordings
from b2t_kit.decode.decode import AdaptedRun, decode_sentences
from b2t_kit.speech.adapt import AdaptConfig
from b2t_kit.speech.evaluate import load_decoder


def drift(path: Path, later: Path, spread: float, seed: int) -> None:
    "Copy a day's validation trials to another day, with other gains and offsets of the channels."
    later.mkdir()
    shutil.copy(path, later / path.name)
    generator = np.random.default_rng(seed)
    with h5py.File(later / path.name, "r+") as file:
        channels = next(iter(file.values()))["input_features"].shape[1]
        gains, offsets = np.exp(spread * generator.standard_normal(channels)), generator.standard_normal(channels)
        for trial in file.values():
            trial["input_features"][...] = trial["input_features"][()] * gains + spread * offsets
            trial.attrs["session"] = later.name


def main() -> None:
    "Adapt, compare, save."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="decoder, adapted on all days it was not trained on")
    parser.add_argument("--data", type=Path, required=True, help="its recordings")
    parser.add_argument("--drift", type=float, help="spread of gains and offsets of later copies of the trained days")
    parser.add_argument("--copies", type=int, default=AdaptConfig.copies)
    parser.add_argument("--lr", type=float, help="of the steps; default: that of --adapt")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "adapt_strict.json")
    options = parser.parse_args()
    folder, trained = find_recordings(options.data), load_decoder(options.run).trained
    with tempfile.TemporaryDirectory() as work:
        for number, path in enumerate(sorted(folder.glob("*/data_val.hdf5"))):
            if options.drift is not None:
                drift(path, Path(work) / f"t15.2024.01.{1 + number:02d}", options.drift, number)
            elif path.parent.name not in trained:
                (Path(work) / path.parent.name).symlink_to(path.parent)
        start = time.monotonic()
        adapt = AdaptConfig(copies=options.copies, lr=options.lr)
        report = decode_sentences(AdaptedRun(options.run, work, device="cpu", adapt=adapt), progress=print).adaptation
    print(report)
    save_json(options.out, {**report.to_dict(), "seconds": time.monotonic() - start})


if __name__ == "__main__":
    try:
        main()
    except KitError as error:
        sys.exit(f"error: {error}")
