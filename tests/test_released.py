"Every version resumes the runs and accepts the options of earlier versions."
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from b2t_kit.cli import VERBS, Parser
from b2t_kit.data.dataset import Recordings
from b2t_kit.data.fingerprint import data_fingerprint
from b2t_kit.speech.evaluate import load_decoder
from b2t_kit.training.checkpoint import read_part

RELEASED = Path(__file__).parent / "released"
SAME_EVERYWHERE = {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
COMMON = """--batch-size 4 --steps 6 --checkpoint-every 3 --keep-checkpoints 5 --eval-every 0 --log-every 1
--warmup-steps 2 --device cpu --precision float32 --task.model.patch 2 --task.model.stride 2 --hidden 8
--task.model.subsample 1 --resume"""
RUNS = {"gru": "--config tiny",
        "noise_gru": "--config noise_gru_tiny --noise-hidden 8 --noisy-hidden 8 --reversal 0.1 --accumulation 2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("released")
    zipfile.ZipFile(RELEASED / "runs.zip").extractall(path)
    for run in RUNS:  # version 0.1.0 noted lengths and sentences, not the content of its recordings
        record = json.loads((path / run / "config.json").read_text())
        for split in record["data"]:
            with Recordings(path / "data", split) as recordings:
                record["data"][split] = data_fingerprint(recordings)
        (path / run / "config.json").write_text(json.dumps(record))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_of_version_0_1_0_is_continued_to_the_same_bits(folder, run):
    command = [sys.executable, "-m", "b2t_kit.train", "--data", folder / "data", "--out", folder / run,
               *RUNS[run].split(), *COMMON.split()]
    environment = {**os.environ, **SAME_EVERYWHERE, "PYTHONPATH": str(RELEASED.parents[1])}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
             for path in (folder / run / "checkpoints/00000006").glob("*.safetensors")}
    assert found == json.loads((RELEASED / "bits.json").read_text())[run]


def test_a_noise_run_without_reversal_is_refused_in_one_line_and_still_decodes(folder):
    """Version 0.1.0 trained the noisy speech model without reversal too. Its first checkpoint is that of the stored run:
    initial weights do not depend on the reversal."""
    run = folder / "unheard"
    shutil.copytree(folder / "noise_gru", run)
    for name in ("00000003", "00000006"):
        shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
    record = json.loads((run / "config.json").read_text())
    record["task"]["config"]["noise"]["reversal"] = 0.0
    (run / "config.json").write_text(json.dumps(record))
    environment = {**os.environ, **SAME_EVERYWHERE, "PYTHONPATH": str(RELEASED.parents[1])}
    for reversal, words in (("0.1", "noise.reversal was 0.0 and is 0.1"), ("0", "other parameters: noisy.")):
        command = [sys.executable, "-m", "b2t_kit.train", "--data", folder / "data", "--out", run,
                   *RUNS["noise_gru"].replace("reversal 0.1", f"reversal {reversal}").split(), *COMMON.split()]
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert str(run) in done.stderr
    decoder = load_decoder(run).model
    saved = read_part(run / "checkpoints/00000000", "ema")
    assert any(name.startswith("noisy.") for name in saved)
    assert all(torch.equal(value, saved[name]) for name, value in decoder.state_dict().items())


def parsers(name: str, parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    "A verb's parser and those of its parts, by the typed words."
    found = {name: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part, made in action.choices.items():
                found |= parsers(f"{name} {part}", made)
    return found


def test_every_verb_and_option_of_version_0_1_0_is_accepted():
    "Options take a value if and only if they did before, and accept the same choices."
    known = {}
    for verb, declare in VERBS.items():
        parser = Parser(f"b2t {verb}")
        declare(parser)
        known |= parsers(f"b2t {verb}", parser)
    missing = []
    for verb, was in json.loads((RELEASED / "help.json").read_text()).items():
        actions = {name: action for action in known[verb]._actions
                   for name in action.option_strings or [action.dest]} if verb in known else {}
        for option in was["options"]:
            for name in option["names"]:
                action = actions.get(name)
                choices = set(option["choices"] or ())
                if action is None or (action.nargs != 0) != option["takes_value"]:
                    missing.append(f"{verb} {name}")
                elif action.choices is not None and not choices <= set(action.choices):
                    missing.append(f"{verb} {name}: {choices - set(action.choices)}")
    assert not missing, missing
