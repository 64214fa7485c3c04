"""The small EIT network: its training curve, its table on real measurements, the simulation's statistics.

    python benchmarks/eit.py ship RUN                  put a run's averaged weights into the package
    python benchmarks/eit.py real DIR [--data SET]     compare reconstructions of real measurements
    python benchmarks/eit.py scale DIR [--count 64]    the factors of images with the least squared error
    python benchmarks/eit.py curve RUN                 the training curve
    python benchmarks/eit.py statistics MEAN.npy STD.npy [--count N] [--figure FILE]
    python benchmarks/eit.py lines                     what each task adds

Each prints a table and, except for `ship`, adds its numbers to benchmarks/results/eit.json.
"""
import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from b2t_kit.core.files import load_json, save_json
from b2t_kit.devices.select import open_device
from b2t_kit.tasks.eit_physics import classical_images
from b2t_kit.tasks.eit import UNITS, Measurements, find_measurements
from b2t_kit.tasks.eit_physics import read_pairs
from b2t_kit.tasks.eit_physics import PhantomConfig, simulate_one
from b2t_kit.tasks.eit import load_reconstructor, reconstruct
from b2t_kit.tasks.eit import score_images
from b2t_kit.training.checkpoint import best_checkpoint, read_state
from b2t_kit.training.log import read_metrics, series

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/eit.json"


def keep(name: str, value: Any) -> None:
    """Put numbers under a name into the results."""
    known = load_json(RESULTS) if RESULTS.exists() else {}
    save_json(RESULTS, {**known, name: value})


def ship(run: Path) -> None:
    """Copy what `b2t eit test` needs: the record, the averaged weights, and the step."""
    load_reconstructor(run)
    source, target = best_checkpoint(run), ROOT / "b2t_kit/tasks/eit_weights"
    target.mkdir(exist_ok=True)
    record = load_json(run / "config.json")
    save_json(target / "config.json", record)
    shutil.copyfile(source / "ema.safetensors", target / "ema.safetensors")
    save_json(target / "state.json", {"step": read_state(source)["step"]})
    print(f"{target}: step {read_state(source)['step']}, "
          f"{(target / 'ema.safetensors').stat().st_size / 1e6:.1f} MB")


def real(folder: Path, data: str, run: Path | None) -> None:
    """All methods on one set, with the classical image that its files hold."""
    measurements = Measurements(find_measurements(folder, data), UNITS[data])
    pairs = [measurements[number] for number in range(len(measurements))]
    true, volts = (np.stack(part) for part in zip(*pairs))
    stored = np.stack([np.load(path)["TR"] for path in measurements.files]) / UNITS[data].image
    images = {"nothing": 0 * true, "Tikhonov as stored, clipped": stored.clip(-1, 1),
              "classical of the kit, scaled": classical_images(volts)}
    with open_device("cpu") as device:
        reconstructor = load_reconstructor(run)
        for steps in (1, 2, 5, 10):
            images[f"network, {steps} steps"] = reconstruct(reconstructor, measurements, device, 16, steps)
        drawn = [reconstruct(reconstructor, measurements, device, 16, 5, seed=seed) for seed in range(8)]
    mean = np.mean(drawn, axis=0)
    images["network, mean of 8 draws of 5 steps"] = mean
    images[f"the same, times {reconstructor.scale:g}"] = reconstructor.scale * mean
    factor = load_json(RESULTS)["scale"]["classical"]["factor"]  # what `scale` found for it on simulated measurements
    images[f"classical, times {factor:.2f}"] = factor * images["classical of the kit, scaled"]
    found = {name: score_images(one, true) for name, one in images.items()}
    print(f"| method | RMSE | PSNR dB | CC | IoU |  ({data}, n={len(true)}, {reconstructor.origin})")
    for name, one in found.items():
        print(f"| {name} | {one.rmse:.3f} | {one.psnr:.2f} | {one.cc:.3f} | {one.iou:.3f} |")
    keep(data, {"network": reconstructor.origin, **{name: vars(one) for name, one in found.items()}})


def scale(folder: Path, count: int) -> None:
    """The factors with the least squared error on simulated ones: of the mean of 8 draws, of the classical image."""
    measurements = Measurements(folder)
    measurements.files = measurements.files[:count]
    true, volts = (np.stack(part) for part in zip(*(measurements[number] for number in range(count))))
    with open_device("cpu") as device:
        reconstructor = load_reconstructor()
        drawn = [reconstruct(reconstructor, measurements, device, 16, 5, seed=seed) for seed in range(8)]
    found = {}
    for name, one in (("network", np.mean(drawn, axis=0)), ("classical", classical_images(volts))):
        factor = float((one * true).sum() / (one**2).sum())
        found[name] = {"factor": factor}
        for times in (1.0, reconstructor.scale, factor):
            scores = score_images(times * one, true)
            found[name][f"times {times:.2f}"] = vars(scores)
            print(f"{name} times {times:.2f}: RMSE {scores.rmse:.4f}, CC {scores.cc:.3f}, IoU {scores.iou:.3f}")
    keep("scale", {"count": count, **found})


def curve(run: Path) -> None:
    """Loss and validation against steps and time."""
    rows = read_metrics(run)
    steps, losses = series(rows, "train", "loss")
    checked = [(row["step"], row["seconds"] / 60, row["loss"], row["rmse"]) for row in rows if row["kind"] == "eval"]
    print("| step | minutes | training loss | validation loss | RMSE of one-step samples |")
    for step, minutes, loss, rmse in checked:
        near = float(np.mean([one for at, one in zip(steps, losses) if step - 100 < at <= step]))
        print(f"| {step} | {minutes:.0f} | {near:.4f} | {loss:.4f} | {rmse:.4f} |")
    keep("curve", {"train": [steps, losses], "eval": checked})


def by_distance(values: np.ndarray) -> np.ndarray:  # (16, 13) -> (7,)
    """Means over readings by their distance from the drive, 2 to 8 electrodes."""
    apart = (read_pairs() - np.arange(16)[:, None]) % 16
    apart = np.minimum(apart, 16 - apart)
    return np.array([values[apart == distance].mean() for distance in range(2, 9)])


def asymmetry(values: np.ndarray) -> float:  # of (16, 13)
    """The largest difference between a value and its reciprocal one, as a share of the largest value."""
    whole = np.zeros((16, 16))
    np.put_along_axis(whole, read_pairs(), values, axis=1)
    return float(abs(whole - whole.T).max() / abs(whole).max())


def statistics(mean: Path, std: Path, count: int, figure: Path | None) -> None:
    """The simulation's mean and standard deviation next to the published ones."""
    config = PhantomConfig(count=count, seed=11)
    volts = np.stack([simulate_one(config, number)["ys"].reshape(16, 13) for number in range(count)]).astype(np.float64)
    published = np.load(mean)[0].astype(np.float64), np.load(std)[0].astype(np.float64)
    simulated = volts.mean(0), volts.std(0, ddof=1)
    table = {}
    for who, (middle, spread) in (("published", published), ("simulated", simulated)):
        middles, spreads = by_distance(middle) * 1e6, by_distance(spread) * 1e6
        table[who] = {"mean": middles.tolist(), "std": spreads.tolist(), "ratio": spreads[0] / spreads[-1],
                      "asymmetry": asymmetry(spread)}
        print(f"{who}: mean {middles.round(2)} std {spreads.round(2)} microvolts; neighbour to opposite "
              f"{spreads[0] / spreads[-1]:.2f}; asymmetry of std {asymmetry(spread):.3f}")
    keep("statistics", {"count": count, **table})
    if figure:
        import matplotlib.pyplot as plt

        shown, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
        for axis, name in zip(axes, ("mean", "std")):
            for who, one in table.items():
                axis.plot(range(2, 9), one[name], "o-", label=who)
            axis.set(xlabel="electrodes between drive and reading", ylabel=f"{name} (microvolts)")
        axes[0].legend()
        shown.savefig(figure, dpi=80)


def code_lines(path: Path) -> int:
    """Lines that are neither empty nor a comment."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in path.read_text().splitlines())


def lines() -> None:
    """Count the lines of code of each task."""
    tasks = {"EIT: task, files, scores, test": "eit", "EIT: physics": "eit_physics", "EIT: network": "eit_model",
             "codec: task and network": "codec"}
    found = {name: code_lines(ROOT / f"b2t_kit/tasks/{file}.py") for name, file in tasks.items()}
    core = [*(ROOT / "b2t_kit/training").glob("*.py"), *(ROOT / "b2t_kit/devices").glob("*.py"),
            *(ROOT / f"b2t_kit/{name}.py" for name in ("train", "precision", "core"))]
    found["shared core"] = sum(map(code_lines, core))
    for name, count in found.items():
        print(f"| {name} | {count} |")
    keep("lines", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("ship", "curve"):
        parts.add_parser(name).add_argument("folder", type=Path)
    tested = parts.add_parser("real")
    tested.add_argument("folder", type=Path)
    tested.add_argument("--data", default="uef2017")
    tested.add_argument("--run", type=Path)
    compared = parts.add_parser("statistics")
    compared.add_argument("mean", type=Path)
    compared.add_argument("std", type=Path)
    compared.add_argument("--count", type=int, default=2000)
    compared.add_argument("--figure", type=Path)
    scaled = parts.add_parser("scale")
    scaled.add_argument("folder", type=Path)
    scaled.add_argument("--count", type=int, default=64)
    parts.add_parser("lines")
    options = parser.parse_args()
    if options.part == "statistics":
        statistics(options.mean, options.std, options.count, options.figure)
    elif options.part == "real":
        real(options.folder, options.data, options.run)
    elif options.part == "scale":
        scale(options.folder, options.count)
    elif options.part == "lines":
        lines()
    else:
        {"ship": ship, "curve": curve}[options.part](options.folder)


if __name__ == "__main__":
    main()
