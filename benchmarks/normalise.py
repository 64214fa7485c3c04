"""A copy of recordings with running z-scores, as `data.dataset.RunningNorm` makes them live.

    python benchmarks/normalise.py FOLDER OUT
"""
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from b2t_kit.core import atomic_folder
from b2t_kit.data.dataset import SPLITS, Recordings, RunningNorm, find_recordings
from b2t_kit.data.convert import SessionWriter


def normalise_recordings(data: str | Path, out: str | Path) -> Path:
    "Write the copy to a new folder; a day's trials of all splits are normalised in the order of recording."
    root = find_recordings(data)
    with ExitStack() as stack:
        splits = [stack.enter_context(Recordings(root, split)) for split in SPLITS
                  if list(root.glob(f"*/data_{split}.hdf5"))]
        folder = stack.enter_context(atomic_folder(Path(out) / "hdf5_data_final"))
        for session in splits[0].sessions:
            trials = sorted((info.block, info.number, which, index) for which, split in enumerate(splits)
                            for index, info in enumerate(split.infos) if info.session == session)
            norm, before = RunningNorm(splits[0].signal.num_features), None
            with ExitStack() as files:
                writers = {which: files.enter_context(SessionWriter(folder / session, splits[which].split))
                           for which in sorted({which for _, _, which, _ in trials})}
                for block, _, which, index in trials:
                    if before not in (None, block):
                        norm.block()
                    before, trial = block, splits[which][index]
                    writers[which].write(replace(trial, features=norm.push(trial.features)))
    return Path(out)


if __name__ == "__main__":
    print(normalise_recordings(*sys.argv[1:]))
