"""Short random recordings in the layouts of published sets."""
from pathlib import Path

import h5py
import numpy as np
from scipy.io import savemat


def tiny_mat_files(folder: str | Path, days: int = 2, trials: int = 6, packed: bool = False) -> Path:
    """T12: training trials of a day, in two blocks, and a third as many in the other parts; the new `competitionData`."""
    root = Path(folder) / "competitionData"
    for day in range(days):
        for part, (split, name) in enumerate({"train": "train", "val": "test", "test": "competitionHoldOut"}.items()):
            random = np.random.default_rng([0, day, part])
            count = trials if split == "train" else max(2, trials // 3)
            bins = random.integers(80, 141, count)
            cells = {kind: np.empty((1, count), object) for kind in ("tx1", "spikePow")}
            for index, length in enumerate(bins):
                cells["tx1"][0, index] = random.poisson(0.4, (length, 256)).astype(np.uint8)
                cells["spikePow"][0, index] = random.gamma(4, 9, (length, 256)).astype(np.float32)
            said = [" ".join(random.permutation(["we", "can", "hear", "you"])[:2]).capitalize() + "." for _ in bins]
            blocks = np.sort(np.arange(count) % 2)[:, None] + 1 + 2 * part
            (root / name).mkdir(parents=True, exist_ok=True)
            text = {} if split == "test" else {"sentenceText": np.array(said)}
            path = root / name / f"t12.2022.{4 + day // 28:02d}.{1 + day % 28:02d}.mat"
            savemat(path, {**cells, "blockIdx": blocks.astype(np.uint8), **text}, do_compression=packed)
    return root


def tiny_voice_files(folder: str | Path, days: tuple[int, ...] = (27, 67), trials: int = 5, kind: str = "float32") -> Path:
    """Brain to voice: days after implantation, of which 27 is one of the competition, 67 not; `kind` is of the crossings."""
    root = Path(folder) / "t15_neural_data"
    for day in days:
        random, words = np.random.default_rng([0, day]), ["we", "can", "hear", "you", "now"]
        cells = {name: np.empty(trials, object) for name in ("threshcross_trials", "spikepow_trials")}
        for index, length in enumerate(random.integers(150, 260, trials)):
            counts = random.poisson(0.3, (length, 256))
            cells["threshcross_trials"][index] = (counts if np.dtype(kind).kind in "iu" else counts - 0.3).astype(kind)
            cells["spikepow_trials"][index] = random.standard_normal((length, 256)).astype(np.float32)
        cues = [" ".join(random.permutation(words)[:2]).capitalize() + "." for _ in range(trials)]
        path = root / f"t15_day{day:03d}" / f"t15_day{day:03d}_neural_data.mat"
        path.parent.mkdir(parents=True)
        savemat(path, {**cells, "cues": np.array([f"{cue:<70}" for cue in cues]), "session": f"t15_day{day:03d}"},
                do_compression=True)
    return root


def tiny_inner_files(folder: str | Path, trials: int = 8) -> Path:
    """Inner speech: a file of each kind."""
    files = (("isolatedVerbalBehaviors/t12.2023.08.15_listening_raw", 128, None),
             ("isolatedVerbalBehaviors/t15.2024.04.07_attempted_raw", 256, None),
             ("interleavedVerbalBehaviors/t15.2024.06.14_interleavedVerbalBehaviors_raw", 256, 10),
             ("seqRecallUninstructedSingleArrow/t12.2023.09.01_binnedTX_spikePow_20ms_arrow", 128, None))
    for name, channels, width in files:
        random, length = np.random.default_rng([0, channels, width or 0]), 300
        ends = np.arange(1, trials + 1) * length
        arrow = "arrow" in name
        said = ["DO_NOTHING$0", "ban (attempted)", "day\n(imagined)$1", "kite (passivelistening)"]
        cues = ["up", "down"] if arrow else said
        content = {"binnedTX": random.poisson(0.4, (trials * length, channels)).astype(np.uint8),
                   "spikePow": random.gamma(4, 9, (trials * length, channels)).astype(np.float32),
                   "blockNum": (1 + np.arange(trials * length) // (4 * length))[:, None].astype(np.uint8),
                   "delayTrialEpochs": np.stack([ends - 299, ends - 200], 1),
                   "goTrialEpochs": np.stack([ends - 199, ends - 20], 1),
                   "trialCues": (1 + np.arange(trials) % len(cues))[:, None], "cueList": np.array(cues, object)[None]}
        path = Path(folder) / f"{name}.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        savemat(path, content | ({"binSize": width} if width else {}), do_compression=True)
    return Path(folder)


def tiny_nwb_files(folder: str | Path, trials: int = 6) -> Path:
    """H2: a held-in and a held-out day; the new `000950`."""
    root = Path(folder) / "000950"
    for kind, date in (("held-in", "20220518"), ("held-out", "20230417")):
        random = np.random.default_rng([0, int(date)])
        count = trials if kind == "held-in" else 3
        lengths = random.integers(120, 200, count)
        starts = np.concatenate([[0], np.cumsum(lengths + 500)[:-1]])
        times = np.concatenate([np.arange(start, start + length) for start, length in zip(starts, lengths)]) * 0.02
        path = root / f"sub-T5-{kind}-calib" / f"sub-T5-{kind}-calib_ses-{date}.nwb"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            counts = random.poisson(0.4, (len(times), 192)).astype(np.uint8)
            for name, data in (("binned_spikes", counts), ("eval_mask", np.ones(len(times), bool))):
                group = file.create_group(f"acquisition/{name}")
                group.create_dataset("data", data=data, compression="gzip")
                group.create_dataset("timestamps", data=times)
            table = file.create_group("intervals/trials")
            table["start_time"], table["stop_time"] = starts * 0.02, (starts + lengths - 1) * 0.02
            table["id"], table["block_num"] = np.arange(count), 1 + np.arange(count) // 3
            words = [">".join(random.permutation(["we", "can", "hear"])[:2]) + "~" for _ in range(count)]
            table.create_dataset("cue", data=words, dtype=h5py.string_dtype())
    return root


def tiny_corp_files(folder: str | Path, days: tuple[str, ...] = ("t5.2022.05.18", "t5.2023.04.17", "t5.2023.12.01"), trials: int = 5) -> Path:
    root = Path(folder) / "online_recalibration_data"
    root.mkdir(parents=True)
    for number, day in enumerate(days):
        random = np.random.default_rng([0, number])
        cells = {name: np.empty((1, trials), object) for name in ("tx_feats", "sentences", "blocks")}
        for index in range(trials):
            length = int(random.integers(120, 200))
            cells["tx_feats"][0, index] = random.poisson(0.4, (length, 192)).astype(np.uint8)
            cells["sentences"][0, index] = np.array([">".join(random.permutation(["we", "can", "hear"])[:2]) + "~"])
            cells["blocks"][0, index] = np.array([[1 + index // 3]])
        savemat(root / f"{day}.mat", cells)
    return root
