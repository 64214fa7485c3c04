"""The program of the child processes of test_xla.py: train small decoders one after the other, and report as JSON.

    xla_runs.py FOLDER JOBS

JOBS is JSON, a list of runs in FOLDER: [name, "train", what differs from the settings below], or [name, "evaluate",
"data" and "device"]. Each prints a line.
"""
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from b2t_kit import train as train_module
from b2t_kit.data.batches import BatchConfig
from b2t_kit.data.write import tiny_recordings
from b2t_kit.data.dataset import T15
from b2t_kit.devices import xla
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.noise_gru import NoiseGRUConfig
from b2t_kit.speech.task import SpeechConfig, SpeechTask
from b2t_kit.train import train
from b2t_kit.training.log import read_metrics, series
from b2t_kit.training.task import TrainConfig

STEPS = 20
SETTINGS = TrainConfig(
    steps=STEPS, decay_steps=STEPS, lr=0.01, warmup_steps=2, eps=0.01, precision="float32",
    log_every=1, eval_every=10, checkpoint_every=0, ema_decay=0.9, compile_cache="none",
)
STILL = {"dropout": 0.0, "day_dropout": 0.0}
MODELS = {
    "gru": GRUConfig(hidden=16, num_layers=1, **STILL),
    "wide": NoiseGRUConfig(hidden=32, num_layers=1, noise_layers=2, noise_hidden=96, noisy_layers=1, noisy_hidden=32),
}
WIDE = 2 * 3 * 48**2  # bytes of recurrent weights from which these runs divide a layer by units


def small_task(folder: Path, model: str, **batches: Any) -> SpeechTask:
    """Three short days of few features, since a step of compilers' least effort takes long; white noise and offsets are on."""
    if not folder.exists():
        tiny_recordings(folder, sessions=3, trials=9, signal=replace(T15, participant="s2", num_features=32, dataset="simulated"))
    return SpeechTask(folder, SpeechConfig(MODELS[model], batches=BatchConfig(batch_size=7, **batches)))


@contextmanager
def counted(report: dict[str, Any]) -> Iterator[None]:
    """Note the counts when the first step begins, before each update, and when the last is done."""
    from b2t_kit.devices.runtime import count_programs, fallbacks

    after, begin, finish = {}, train_module.begin, train_module.finish
    update, report["fetched"] = train_module.update_weights, []

    def begin_and_count(run: Any) -> None:
        begin(run)
        run.device.synchronize()
        report["warm_up"] = dict(run.device.watch.programs)
        after["counts"], after["fallbacks"] = count_programs(), fallbacks()

    def count_and_finish(run: Any) -> Any:
        run.device.synchronize()
        report["programs"] = dict(run.device.watch.programs)
        report["since"] = vars(count_programs().since(after["counts"]))
        before, now = after["fallbacks"], fallbacks()
        report["fallbacks"] = [name for name in now if now[name] > before.get(name, 0)]
        return finish(run)

    def count_and_update(run: Any, batch: Any = None) -> None:
        if after:  # not while rehearsing
            report["fetched"].append(count_programs().fetched)
        update(run, batch)

    train_module.begin, train_module.finish = begin_and_count, count_and_finish
    train_module.update_weights = count_and_update
    try:
        yield
    finally:
        train_module.begin, train_module.finish = begin, finish
        train_module.update_weights = update


def run(out: Path, data: str, model: str = "gru", resume: bool = False, buckets: int = 2, **settings: Any) -> dict[str, Any]:
    report: dict[str, Any] = {}
    with counted(report) if settings["device"] == "xla" else nullcontext():
        result = train(small_task(Path(data), model, buckets=buckets), replace(SETTINGS, **settings), out, resume)
    rows = read_metrics(result.folder)
    return report | {"train": series(rows, "train", "loss"), "norm": series(rows, "train", "norm"),
                     "eval": series(rows, "eval", "loss"), "per": series(rows, "eval", "per")}


def score(out: Path, **settings: str) -> dict[str, Any]:
    found = evaluate_run(out, **settings)
    return {"decoded": [one.decoded for one in found.trials], "losses": [one.loss for one in found.trials]}


if __name__ == "__main__":
    os.environ.pop("XLA_PERSISTENT_CACHE_PATH", None)
    xla.STAYS_ON_CHIP = WIDE
    folder, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
    if jobs[0][2]["device"] == "cpu":  # autograd counts the kinds of devices at its first gradient
        xla.start_runtime("none")
    for out, verb, settings in jobs:
        print("REPORT" + json.dumps({"train": run, "evaluate": score}[verb](folder / out, **settings)), flush=True)
