"""Does a Transformer with few labelled sentences gain from masked patches of unlabelled ones? Simulated, one target.

    OMP_NUM_THREADS=1 python benchmarks/pretraining_masks.py FOLDER --json benchmarks/results/pretraining_masks.json
    python benchmarks/pretraining_masks.py FOLDER --seeds 1 --steps 4 --masked-steps 4     # does it run?

The recordings of pretraining.py, which may lie in the same FOLDER: a target with one array and ten days, and another
participant with two arrays who shares its code for phonemes or has a code of their own. `transformer_tiny` is trained
on one of the target's days or all, from initial weights, or from masked patches of all of the target's days, alone or
with all of the other participant's; all take the same steps with labels. The last step counts, on the validation
sentences of the days with labels. FOLDER keeps recordings, runs and what each cell gave, and the command goes on where
it was stopped. Intervals redraw seeds, days and sentences, as in pretraining.py.
"""
import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pretraining import interval, recorded

from b2t_kit.core import load_json, save_json
from b2t_kit.data.dataset import Recordings
from b2t_kit.devices.select import open_device
from b2t_kit.speech.evaluate import decode, load_decoder
from b2t_kit.speech.pretrain import PretrainTask, pretrain_tiny, pretrained
from b2t_kit.speech.recipes import transformer_tiny
from b2t_kit.speech.task import SpeechTask
from b2t_kit.text.metrics import edit_distance
from b2t_kit.train import train
from b2t_kit.training.log import read_metrics
from b2t_kit.training.task import TrainConfig

LONGEST = 2  # patches of eight bins: a phoneme and a half
ONCE = {"eval_every": 0, "checkpoint_every": 0, "log_every": 50, "warmup_steps": 20}
# what masks are trained on -> folders
MASKED = {"": (), "masks, own days": ("target",), "masks, shared code": ("target", "shared"),
          "masks, own code": ("target", "own")}


def done(task: Any, settings: TrainConfig, out: Path) -> None:
    "Train, or go on; nothing if the run is done."
    if train(task, settings, out, resume=out.is_dir(), quiet=True).stopped != "steps":
        raise SystemExit("stopped; the same command goes on")
    task.close()


def masked(folder: Path, way: str, steps: int, seed: int) -> Path:
    "The run that masked patches were trained in."
    masks, out = pretrain_tiny(), folder / f"masked_{'_'.join(MASKED[way])}_{seed}"
    task = PretrainTask([folder / one for one in MASKED[way]], replace(masks.task, longest=LONGEST))
    done(task, replace(masks.train, steps=steps, seed=seed + 1, **ONCE), out)
    return out


def cell(folder: Path, few: Path, way: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    "Edits and phonemes of each validation sentence at the last step, what the pretraining explained, and seconds."
    name = f"{'_'.join(MASKED[way]) or 'initial'}_{few.name}_{seed}"
    kept, began, start, explained = folder / "cells_masks" / f"{name}.json", time.process_time(), None, None
    if kept.exists():
        return load_json(kept)
    if way:
        before = masked(folder, way, options.masked_steps, seed)
        start, explained = pretrained(before), read_metrics(before)[-1]["explained"]
    spent, speech, out = time.process_time() - began, transformer_tiny(), folder / f"speech_{name}"
    config = replace(speech.task, batches=replace(speech.task.batches, impossible="skip"))  # fast sentences
    done(SpeechTask(few, config, start=start),
         replace(speech.train, steps=options.steps, lr=0.003, seed=seed + 1, **ONCE), out)
    with open_device("cpu", "float32") as device, Recordings(few, "val") as recordings:
        found = decode(load_decoder(out), recordings, device)
    rows = [{"day": one.info.session, "edits": edit_distance(one.true, one.decoded), "phonemes": len(one.true)}
            for one in found]
    made = {"rows": rows, "explained": explained, "masks_s": spent, "seconds": time.process_time() - began}
    kept.parent.mkdir(exist_ok=True)
    save_json(kept, made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--masked-steps", type=int, default=160)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder, table, seconds = options.folder, [], 0.0
    days = recorded(folder)
    kept: dict[tuple[int, str], list[list[dict[str, Any]]]] = {}
    for way in MASKED:
        for share in (10, 100):
            fews = [folder / ("target" if share == 100 else f"day_{seed * 3 % len(days)}")
                    for seed in range(options.seeds)]
            cells = [cell(folder, few, way, options, seed) for seed, few in enumerate(fews)]
            runs = kept[share, way] = [one["rows"] for one in cells]
            seconds += sum(one["seconds"] for one in cells)
            against = [one for one in ("", "masks, own days") if one != way and (share, one) in kept]
            row = {"share of days": share, "way": way or "initial weights", "per": interval(runs),
                   "seeds": [interval([one])[0] for one in runs], "explained": [one["explained"] for one in cells],
                   "seconds": sum(one["seconds"] for one in cells), "masks_s": sum(one["masks_s"] for one in cells),
                   "minus": {one or "initial weights": interval(runs, kept[share, one]) for one in against}}
            table.append(row)
            print(f"{share:3} % {row['way']:<20}", *(f"{one:6.1%}" for one in row["per"]), *(
                f"; minus {other} " + " ".join(f"{one:+.1%}" for one in row["minus"][other]) for other in row["minus"]),
                f"; explained {row['explained']}; {row['seconds']:.0f} s", flush=True)
            if options.json:
                settings = {name: getattr(options, name) for name in ("seeds", "steps", "masked_steps")}
                save_json(options.json, {"settings": settings, "rates": table, "processor_s": seconds})


if __name__ == "__main__":
    main()
