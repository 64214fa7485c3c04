"""What the look at recordings finds, and what it says of healthy ones.

    python benchmarks/signal_checks.py                                # simulated recordings
    python benchmarks/signal_checks.py --shared ../shared/data        # real statistics too, where they are at hand
"""
import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from b2t_kit.data.convert import tiny_recordings
from b2t_kit.data.dataset import T15, DayStatistics, Recordings, Signal, look_at, signal_warnings
from b2t_kit.simulate import SimulateConfig, simulate

BINS, TRIALS, DAYS = 600, 20, 3
Numbers = Callable[[np.random.Generator, int], np.ndarray]  # bins of one trial


def days_of(numbers: Numbers, signal: Signal, change: Callable | None = None) -> list[str]:
    "The warnings about some days, the last of them changed."
    random, days = np.random.default_rng(1), dict[str, DayStatistics]()
    for day in range(DAYS):
        for trial in range(TRIALS):
            features = numbers(random, trial).astype(np.float32)
            if change and day == DAYS - 1:
                features = change(features.copy(), trial, random).astype(np.float32)
            statistics = days.setdefault(f"day {day}", DayStatistics(replace(signal, num_features=features.shape[1])))
            statistics.add(features, f"trial {trial}")
    return signal_warnings(days)


def normal(random: np.random.Generator, trial: int) -> np.ndarray:
    "White z-scores."
    return random.standard_normal((BINS, 512))


def poisson(rate: float, columns: int, scored: bool) -> Numbers:
    "Counts of 20 ms, as they are or z-scored."
    def numbers(random: np.random.Generator, trial: int) -> np.ndarray:
        counts = random.poisson(rate * random.permutation(np.geomspace(0.3, 3, columns)), (BINS, columns))
        return (counts - rate) / rate**0.5 if scored else counts
    return numbers


def put(where: tuple, value: float, trials: int = TRIALS) -> Callable:
    "A change that writes a value into the first trials."
    def change(features: np.ndarray, trial: int, random: np.random.Generator) -> np.ndarray:
        if trial < trials:
            features[where] = value
        return features
    return change


def nearly_dead(features: np.ndarray, trial: int, random: np.random.Generator) -> np.ndarray:
    "Three columns with one spike in 2,000 bins."
    features[:, 3:6] = -0.02
    features[trial, 3:6] = 40.0 if trial % 4 == 0 else -0.02
    return features


def held(features: np.ndarray, trial: int, random: np.random.Generator) -> np.ndarray:
    "A bin that is repeated for a second, in one trial."
    if trial == 7:
        features[200:250] = features[200]
    return features


COUNTS = replace(T15, scale="none", participant="m1")
FAULTS = {  # name -> recordings, what they are, the change, a word of the warning
    "half a second of zeros, one trial": (normal, T15, put(np.s_[100:125], 0, 1), "are 0"),
    "a bin repeated for a second, one trial": (normal, T15, held, "stay the same"),
    "two seconds of zeros in counts of 16 channels": (
        poisson(0.1, 16, False), COUNTS, put(np.s_[100:200], 0, 1), "are 0"),
    "an array of 64 dead channels": (normal, T15, put(np.s_[:, 64:128], 0), "never change"),
    "one dead channel": (normal, T15, put(np.s_[:, 9], 0.3), "never change"),
    "three channels with a spike in 2,000 bins": (normal, T15, nearly_dead, "1 of 1,000"),
    "a day in microvolt (times 300, plus 5,000)": (normal, T15, lambda x, *_: 300 * x + 5000, "z-score by day"),
    "a day in volt (times 1e-6)": (normal, T15, lambda x, *_: 1e-6 * x, "z-score by day"),
    "a day of counts among z-scores": (
        normal, T15, lambda x, trial, random: random.poisson(0.5, x.shape), "z-score by day"),
    "a day with its mean left in (plus 2)": (normal, T15, lambda x, *_: x + 2, "z-score by day"),
    "a day of counts times 40": (poisson(0.3, 96, False), COUNTS, lambda x, *_: 40 * x, "z-score by day"),
    "an artefact of 300 standard deviations in one bin": (normal, T15, put(np.s_[50, 7], 300, 1), "beyond 20"),
    "a day without a signal": (normal, T15, lambda x, *_: 0 * x + 1, "nothing can be learned"),
}
HEALTHY: dict[str, tuple[Numbers, Signal]] = {
    "white z-scores, 512 columns": (normal, T15),
    "z-scores clipped at 10, standard deviation 3": (
        lambda random, trial: np.clip(3 * normal(random, trial), -10, 10), T15),
    "three days of scales 0.5, 1, 2": (lambda random, trial: normal(random, trial) * random.choice([0.5, 1, 2]), T15),
    "one gain a trial, 0.3 to 3": (
        lambda random, trial: normal(random, trial) * np.exp(random.uniform(-1.1, 1.1)), T15),
    **{f"counts of {rate:g} a bin, {columns} channels{', z-scored' * scored}": (poisson(rate, columns, scored), signal)
       for rate in (0.02, 0.1, 0.5, 4) for columns in (16, 96, 256)
       for scored, signal in ((False, COUNTS), (True, T15))},
}


def real(folder: Path) -> dict[str, list[str]]:
    "Recorded statistics: a trial of T12, and noise with the correlation of T15's first day."
    trial = np.load(folder / "t12_one_trial.npy").T
    values, vectors = np.linalg.eigh(np.load(folder / "t15_correlation.npy").astype(float))
    root = vectors * np.sqrt(np.maximum(values, 0))
    parts = np.array_split(trial, 5)
    return {"a recorded trial of T12": days_of(lambda random, number: trial, T15),
            "five parts of it": days_of(lambda random, number: parts[number % 5], T15),
            "T15's correlation, heavy tails, clipped at 10": days_of(lambda random, number: np.clip(
                random.standard_normal((BINS, 512)) @ root.T * random.gamma(2, 0.5, (BINS, 1)), -10, 10), T15)}


def simulated() -> dict[str, list[str]]:
    "Folders that the kit writes itself."
    found = {}
    configs = {"b2t simulate": SimulateConfig(sessions=2, trials=12),
               "b2t simulate with gains and lapses": SimulateConfig(
                   sessions=2, trials=30, trial_gain=0.3, wander=0.5, lapses=0.2),
               "b2t simulate --normalise blocks": SimulateConfig(sessions=2, trials=12, normalise="blocks")}
    for name, config in configs.items():
        with tempfile.TemporaryDirectory() as folder:
            simulate(folder, config)
            with Recordings(folder) as recordings:
                found[name] = look_at(recordings)
    with tempfile.TemporaryDirectory() as folder, Recordings(tiny_recordings(folder)) as recordings:
        return found | {"short random recordings": look_at(recordings)}


def main() -> None:
    "Print both tables; fails if a fault is missed or something healthy is blamed."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path)
    shared = parser.parse_args().shared
    print("| fault in one of three days | warning |\n|---|---|")
    for name, (numbers, signal, change, word) in FAULTS.items():
        found = days_of(numbers, signal, change)
        assert any(word in line for line in found) and all("day 2" in line for line in found), (name, found)
        print(f"| {name} | {found[0]} |")
    healthy = {name: days_of(*one) for name, one in HEALTHY.items()} | (real(shared) if shared else {})
    print("\n| healthy | warnings |\n|---|--:|")
    for name, found in healthy.items():
        print(f"| {name} | {len(found)} |" + "".join(f" {line}" for line in found))
    assert not any(healthy.values())
    for name, found in simulated().items():
        print(f"| {name} | {len(found)} |" + "".join(f" {line} |" for line in found))


if __name__ == "__main__":
    main()
