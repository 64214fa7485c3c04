"""Seeds side by side in real processes: the same bits as alone, killed, resumed, stopped, and refused on XLA."""
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import load_json
from b2t_kit.data.write import tiny_recordings
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.decode.combine import AveragedRuns, write_average
from b2t_kit.decode.lists import read_nbest
from b2t_kit.decode.decode import decode_sentences
from b2t_kit.decode.sources import LogitsFile, RunLogits
from b2t_kit.speech.evaluate import certainty_of, evaluate_run
from b2t_kit.speech.logits import read_greedy_trials
from b2t_kit.text.metrics import edit_distance
from b2t_kit.training.log import read_metrics
from b2t_kit.training.seeds import share_devices
from commands import TORCHRUN, bits, newest, python, start

pytestmark = [pytest.mark.usefixtures("dots"), pytest.mark.second_tier]
STEPS = 240
SMALL = "--hidden 8 --num-layers 1 --batch-size 4 --log-every 20 --eval-every 40 --checkpoint-every 10"
PATIENCE = 300  # seconds; the machine may be busy


def train(data: Path, out: Path, words: str, steps: int = STEPS, device: str = "cpu") -> list[str]:
    return ["train", "--data", str(data), "--out", str(out), *SMALL.split(), "--steps", str(steps), "--device", device, *words.split()]


@contextlib.contextmanager
def started(words: list[str], chips: int = 0) -> Iterator[tuple[subprocess.Popen, Callable[[], list[psutil.Process]]]]:
    """A running command and a function that gives its children; nothing survives the block."""
    process = start("-m", "b2t_kit.cli", *words, chips=chips)
    seen: set[psutil.Process] = set()

    def children() -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen.update(psutil.Process(process.pid).children())
        return [one for one in seen if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    try:
        yield process, children
    finally:
        process.kill()
        process.communicate()
        for one in children():
            one.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_seeds_end_with_the_bits_of_a_run_alone(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Stopped together, killed with their command, then one of them killed alone: each time the printed command goes on."""
    out = tmp_path / "seeds"
    runs = [out / "seed_1", out / "seed_2"]

    def until_all_go_on() -> None:
        before = [max(newest(run), 0) for run in runs]
        wait_for(lambda: all(newest(run) > step for run, step in zip(runs, before)))

    with started(train(data, out, "--seeds 1 2 --side-by-side")) as (process, children):
        until_all_go_on()
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM and errors == "interrupted by SIGTERM\n", said + errors
    again, = [line.partition("b2t ")[2].split() for line in said.splitlines() if "b2t train" in line]
    assert again == ["train", "--resume", "--out", str(out)] and not (out / "cache").exists()
    for row, run in ((read_metrics(run)[-1], run) for run in runs):
        assert row["text"].startswith("stopped (SIGTERM)") and row["step"] == newest(run) < STEPS

    with started(again) as (process, children):  # a killed parent takes its children with it
        until_all_go_on()
        assert len(children()) == 2
        process.kill()
        process.communicate(timeout=PATIENCE)
        wait_for(lambda: not children())

    with started(again) as (process, children):
        until_all_go_on()
        next(one for one in children() if str(runs[1]) in one.cmdline()).kill()
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said + errors
    assert errors.splitlines()[-1].startswith("seed 2 died with signal SIGKILL") and "--resume brings it back" in errors
    assert newest(runs[1]) < STEPS == newest(runs[0]) and (out / "seeds.png").exists()
    finished = {path: path.stat().st_mtime_ns for path in runs[0].rglob("*.safetensors")}

    assert main(again) == 0
    said = capsys.readouterr()
    assert said.err == "" and "side by side" in said.out
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    assert all(load_json(out / "seeds.json")["values"][seed] is not None for seed in "12")
    records = [load_json(run / "config.json") for run in runs]
    assert [one["train"].pop("seed") for one in records] == [1, 2] and records[0] == records[1]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert main(train(data, tmp_path / "alone", "--seed 2")) == 0
    finally:
        torch.set_num_threads(threads)
    assert bits(runs[0]) != bits(runs[1]) == bits(tmp_path / "alone")


@pytest.mark.first_tier
def test_each_seed_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees one of the visible GPUs; too few are named."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in share_devices("cuda", 2)] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in share_devices("cuda", 2)] == ["3", "5"]
    with pytest.raises(KitError, match="seeds: 3 side by side need a GPU each, and this machine has 2"):
        share_devices("cuda", 3)


@pytest.mark.torch_xla
def test_a_seed_has_a_chip(tmp_path: Path) -> None:
    """Processes that see one chip each train side by side; one that sees two says so, and nothing is trained."""
    few = replace(T15, participant="s2", num_features=32, dataset="simulated")  # a simulated chip takes long for many
    data, out = tiny_recordings(tmp_path / "data", sessions=2, trials=8, max_bins=60, signal=few), tmp_path / "seeds"
    with started(train(data, out, "--seeds 1 2 --side-by-side", 2, "xla"), chips=1) as (process, _):
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and [newest(out / f"seed_{seed}") for seed in (1, 2)] == [2, 2], said + errors
    alone = python("-m", "b2t_kit.cli", *train(data, tmp_path / "alone", "", 2, "xla"), chips=2, status=2, TPU_VISIBLE_CHIPS="0")
    assert "this process sees 2 chips all the same" in alone.stderr and newest(tmp_path / "alone") == -1


def test_a_run_of_two_processes_is_calibrated(data: Path, tmp_path: Path) -> None:
    """By the first process, after the others have left; the same temperature as that of one process."""
    words = train(data, tmp_path / "two", "", steps=2)
    done = python(*TORCHRUN, "-m", "b2t_kit", *words, ACCELERATE_USE_CPU="true")
    assert done.stdout.count("temperature ") == 1, done.stdout
    found = load_json(tmp_path / "two/temperature.json")
    (tmp_path / "two/temperature.json").unlink()
    assert main(["eval", "--run", str(tmp_path / "two"), "--data", str(data), "--device", "cpu"]) == 0
    assert load_json(tmp_path / "two/temperature.json") == found


def test_runs_decode_together(data: Path, tmp_path: Path) -> None:
    """`--runs` scores, decodes and submits an ensemble; its average is that of the files of logits."""
    runs = [tmp_path / f"seed_{seed}" for seed in (1, 2)]
    for seed, run in enumerate(runs, 1):
        assert main(train(data, run, f"--seed {seed}", steps=30)) == 0
    given, together = ["--runs", *map(str, runs), "--data", str(data), "--device", "cpu"], tmp_path / "ensemble"
    assert main(["eval", *given, "--json", str(tmp_path / "per.json")]) == 0
    for run in runs:
        own = evaluate_run(run, data, device="cpu")
        assert own.to_dict() == load_json(run / "eval/val/result.json")
    average, scored = tmp_path / "average.hdf5", load_json(tmp_path / "per.json")
    parts = [RunLogits(run, data, device="cpu").read(run / "decode/val") for run in runs]
    assert [part.calibration.temperature for part in parts] == [
        load_json(run / "temperature.json")["temperature"] for run in runs]
    write_average(parts, average)
    with Recordings(data, "val") as recordings:
        again = read_greedy_trials(recordings, average)
    assert scored["summary"]["all trials"]["edits"] == sum(edit_distance(one.true, one.decoded) for one in again)
    assert scored["certainty"] == certainty_of(again, 1.0) != own.certainty

    said = {}
    for way in ("average", "pool"):
        assert main(["decode", *given, "--combine", way, "--lm", "default"]) == 0
        said[way] = [trial.sentence for trial in read_nbest(together / way / "val/nbest.jsonl")]
    (temperature,) = {load_json(path)["temperature"] for path in (together / "average").rglob("temperature.json")}
    plain = decode_sentences(LogitsFile(average), "default", out=tmp_path / "plain", temperature=temperature)
    assert said["average"] == [trial.sentence for trial in plain.trials]
    assert main(["decode", *given, "--combine", "average", "--tune", "--lm", "default", "--beam", "8"]) == 0
    record, = (together / "average").glob("*/decoding.json")  # named by the decoders
    assert main(["decode", *given, "--combine", "average"]) == 0  # with the average's weights
    assert load_json(together / "average/val/result.json")["search"] == load_json(record)["search"]
    (runs[0].parent / "seed_3").symlink_to(runs[0])  # an ensemble of other decoders does not find them
    twice = AveragedRuns([RunLogits(runs[0].parent / name, data) for name in ("seed_1", "seed_3")])
    assert twice.record(twice.folder)[0].path != record
    assert AveragedRuns([RunLogits(run, data) for run in reversed(runs)]).record(record)[0].path == record

    record.unlink()  # tuned weights are not for hotwords
    (tmp_path / "names.txt").write_text("aaa AH 100\n")  # so much expected that it is heard everywhere
    for way in ("average", "pool"):
        out = str(tmp_path / f"{way}.csv")
        assert main(["submit", *given, "--combine", way, "--hotwords", str(tmp_path / "names.txt"), "--out", out]) == 0
        assert "aaa" in Path(out).read_text()
