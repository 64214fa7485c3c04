"""Does a Transformer with few labelled sentences gain from masked patches of unlabelled ones? Simulated, one target.

    OMP_NUM_THREADS=1 python benchmarks/pretraining_masks.py FOLDER --json benchmarks/results/pretraining_masks.json
    python benchmarks/pretraining_masks.py FOLDER --seeds 1 --steps 4 --masked-steps 4     # does it run?

Strict recordings of one array and eight days; labels are read of two days only, features of all, those of the test
split too. `transformer_tiny` is trained on the two days from initial weights, or from a pretraining on all eight; both
take the same steps. The last step counts, on the validation sentences of all days. FOLDER keeps recordings and runs,
and the command goes on where it was stopped. Intervals redraw seeds, days and sentences, as in pretraining.py.
"""
import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pretraining import interval, only

from b2t_kit.core.files import save_json
from b2t_kit.data.dataset import Recordings
from b2t_kit.devices.select import open_device
from b2t_kit.simulate.neural import STRICT, simulate
from b2t_kit.speech.evaluate import decode, load_decoder
from b2t_kit.speech.pretrain import PretrainTask, pretrain_tiny, pretrained
from b2t_kit.speech.recipes import transformer_tiny
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import edit_distance
from b2t_kit.train import train
from b2t_kit.training.metrics_log import read_metrics
from b2t_kit.training.task import TrainConfig

DAYS, LABELLED = 8, 2
TARGET = replace(STRICT, difficulty=0.2, bins_per_phoneme=12.0, trials=25, held_out=0.24, wrong_labels=0.0,
                 sessions=DAYS, participant="s1", seed=1, arrays=1)
LONGEST = 2  # patches of eight bins: a phoneme and a half


def recorded(folder: Path) -> tuple[Path, Path]:
    "Write the recordings; returns the folder of all days, and that of the days with labels."
    every, few = folder / "s1/hdf5_data_final", folder / "few"
    if not every.exists():
        simulate(folder / "s1", TARGET, False)
    if not few.exists():
        only(every, sorted(one.name for one in every.iterdir() if one.is_dir())[:LABELLED], few)
    return every, few


def done(task: Any, settings: TrainConfig, out: Path) -> None:
    "Train, or go on."
    if train(task, settings, out, resume=out.is_dir(), quiet=True).stopped != "steps":
        raise SystemExit("stopped; the same command goes on")
    task.close()


def scored(run: Path, every: Path) -> list[dict[str, Any]]:
    "Edits and phonemes of each validation sentence at the last step."
    with open_device("cpu", "float32") as device, Recordings(every, "val") as recordings:
        found = decode(load_decoder(run), recordings, device)
    return [{"day": one.info.session, "edits": edit_distance(one.true, one.decoded), "phonemes": len(one.true)}
            for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--masked-steps", type=int, default=150)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    every, few = recorded(options.folder)
    started, ways, explained = time.process_time(), {"from scratch": [], "pretrained": []}, []
    speech, masks = transformer_tiny(), pretrain_tiny()
    skip = replace(speech.task, batches=replace(speech.task.batches, impossible="skip"))  # fast sentences
    once = {"eval_every": 0, "checkpoint_every": 0, "log_every": 50}
    for seed in range(1, options.seeds + 1):
        settings = replace(masks.train, steps=options.masked_steps, warmup_steps=20, seed=seed, **once)
        before = options.folder / f"masked_{seed}"
        done(PretrainTask([every], replace(masks.task, longest=LONGEST)), settings, before)
        explained.append(read_metrics(before)[-1]["explained"])
        for way, start in (("from scratch", None), ("pretrained", pretrained(before))):
            settings = replace(speech.train, steps=options.steps, lr=0.003, warmup_steps=20, seed=seed, **once)
            out = options.folder / f"{way.split()[-1]}_{seed}"
            done(SpeechTask(few, skip, start=start), settings, out)
            ways[way].append(scored(out, every))
            print(f"seed {seed}  {way:<13} {interval(ways[way][-1:])[0]:.1%}  explained by the pretraining "
                  f"{explained[-1]:.2%}  {time.process_time() - started:.0f} s", flush=True)
    with Recordings(every, "train") as all_days, Recordings(few, "train") as labelled:
        sentences = {"labelled": len(labelled), "all": len(all_days)}
    table = [{"way": way, "per": interval(runs), "seeds": [interval([one])[0] for one in runs],
              "minus from scratch": interval(runs, ways["from scratch"])} for way, runs in ways.items()]
    for row in table:
        print(f"{row['way']:<13}", *(f"{one:7.1%}" for one in row["per"]), "  minus from scratch",
              *(f"{one:+7.1%}" for one in row["minus from scratch"]), flush=True)
    if options.json:
        save_json(options.json, {
            "settings": vars(options) | {"folder": "", "json": ""}, "training sentences": sentences,
            "explained": explained, "processor_s": time.process_time() - started, "table": table})


if __name__ == "__main__":
    main()
