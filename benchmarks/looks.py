"""Do the checks of recordings accuse healthy days of which they see a few trials, and what do they find on faulty ones?

    python benchmarks/looks.py DIR [--looks 40]

`b2t train` and `b2t decode` look at eight trials of a day. Folders of recordings are simulated into DIR, once, in five
minutes on an idle core. Each look draws so many trials of each day. Healthy: how many looks at a folder say something
other than dead columns. Faulty: one day has a fault in all of its trials; how often that day is named, and another.
"""
import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from b2t_kit.data.dataset import Recordings
from b2t_kit.data.validate import DayStatistics, signal_warnings
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.simulate.recordings import STRICT, SimulateConfig, simulate

EASY = SimulateConfig(sessions=3, trials=60, bins_per_phoneme=18, difficulty=0.5, seed=7)
COUPLED = replace(STRICT, trials=60, bins_per_phoneme=16)
WORLDS = {
    "easy, three days": EASY,
    "hard, three days": replace(EASY, difficulty=1.0, seed=33),
    "strict, four days": replace(COUPLED, sessions=4, seed=35),
    "strict, ten days": replace(COUPLED, sessions=10, seed=1),
}
GROUP = 64  # columns of one kind on one array
HEALTHY = ("train", 8), ("train", 16), ("val", 3), ("val", 8)  # splits, and trials of a day
Faulty = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # (T, C) to (T, C); the generator is one day's


def permuted(rows: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    start = GROUP * draw.integers(rows.shape[1] // GROUP)
    rows[:, start : start + GROUP] = rows[:, start + draw.permutation(GROUP)]
    return rows


FAULTS: dict[str, Faulty] = {
    "a group permuted": permuted,
    "two arrays exchanged": lambda rows, _: rows[:, np.r_[GROUP : 2 * GROUP, :GROUP, 2 * GROUP : rows.shape[1]]],
    "kinds exchanged": lambda rows, _: np.roll(rows, rows.shape[1] // 2, 1),
    "shifted by one": lambda rows, _: np.roll(rows, 1, 1),
}


def look(recordings: Recordings, trials: int, seed: int, fault: Faulty | None = None) -> tuple[list[str], str]:
    "Return what is said of a few trials of each day, and the day that has the fault."
    draw = np.random.default_rng(seed)
    sessions = list(dict.fromkeys(info.session for info in recordings.infos))
    bad = str(draw.choice(sessions))
    days = {}
    for session in sessions:
        members = [index for index, info in enumerate(recordings.infos) if info.session == session]
        day = days[session] = DayStatistics(recordings.infos[members[0]].signal, sentence_to_phonemes)
        for index in sorted(draw.choice(members, min(trials, len(members)), replace=False)):
            info = recordings.infos[index]
            rows = recordings.features(index)
            if fault and session == bad:
                rows = fault(rows.copy(), np.random.default_rng(seed))
            day.add(rows, info.group, info.sentence, recordings.labels(index), info.block)
    return [line for line in signal_warnings(days) if "never change" not in line], bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--looks", type=int, default=40)
    options = parser.parse_args()
    print("| recordings |", *[f"healthy, {count} of {split} |" for split, count in HEALTHY], end=" ")
    print(*[f"{name}: that day, another |" for name in FAULTS])
    for name, config in WORLDS.items():
        folder = options.folder / name
        if not folder.is_dir():
            simulate(folder, config, progress=False)
        cells = []
        for split, count in HEALTHY:
            with Recordings(folder, split) as recordings:
                said = [look(recordings, count, seed)[0] for seed in range(options.looks)]
            cells.append(f"{sum(map(bool, said))} of {options.looks}")
        with Recordings(folder, "train") as recordings:
            for fault in FAULTS.values():
                found = [look(recordings, 8, seed, fault) for seed in range(options.looks // 2)]
                told = sum(any(line.startswith(bad) for line in lines) for lines, bad in found)
                others = sum(any(not line.startswith(bad) for line in lines) for lines, bad in found)
                cells.append(f"{told}, {others} of {len(found)}")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
