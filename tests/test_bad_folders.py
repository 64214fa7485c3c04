"""Run folders, published checkpoints and numbers from elsewhere: one line each, and nothing outside is touched."""
import hashlib
import json
import os
import re
import shutil
import struct
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.data.write import NewFile, tiny_recordings
from b2t_kit.publish.kaggle import bring_run
from b2t_kit.models.gru import load_pretrained
from b2t_kit.training.checkpoint import checkpoint_fault, checkpoint_steps
from tiny_models import write_published

TRAIN = """train --data data --config tiny --batch-size 4 --checkpoint-every 3 --keep-checkpoints 5 --eval-every 0
--log-every 1 --warmup-steps 2 --decay-steps 9 --device cpu --precision float32 --task.model.patch 2
--task.model.stride 2 --hidden 8 --task.model.subsample 1"""
EVAL, RESUME = "eval --run gru --data data --device cpu", f"{TRAIN} --steps 6 --out gru --resume"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("made"), os.getcwd()
    os.chdir(folder)
    try:
        assert main("simulate --out data --sessions 1 --trials 4 --held-out 0.3 --seed 7 --bins-per-phoneme 6".split()) == 0
        assert main(f"{TRAIN} --steps 3 --out gru".split()) == 0
    finally:
        os.chdir(before)
    shutil.rmtree(folder / "gru/checkpoints/00000000")
    return folder


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "rolling.json", "best"])
def test_no_link_in_a_run_folder_is_written_through(name, here, refused):
    (here / "precious.txt").write_text("mine\n")
    (here / "gru" / name).unlink(missing_ok=True)
    (here / "gru" / name).symlink_to(here / "precious.txt")
    main(RESUME.split())
    assert (here / "precious.txt").read_text() == "mine\n"
    if name in ("rolling.json", "best"):
        (here / "gru" / name).unlink()
        (here / "gru" / name).symlink_to("nowhere")
        assert f"gru/{name}: " in refused(EVAL)


def test_names_among_checkpoints_that_are_none(here):
    """Damaged markers: hostile.py."""
    checkpoint = here / "gru/checkpoints/00000003"
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "other.safetensors")
    assert "does not list other.safetensors" in checkpoint_fault(checkpoint)
    for name in ("\u0663", "\u00b2", "0000000\u0663", "9" * 30, "1"):
        checkpoint.with_name(name).mkdir()
    assert checkpoint_steps(here / "gru") == [3]


def test_a_note_that_names_a_folder_of_others(here, refused):
    "A run from elsewhere may name any folder: nothing there is read, and above all nothing is removed."
    other = here / "other/checkpoints"
    shutil.copytree(here / "gru/checkpoints", other)
    shutil.copytree(other / "00000003", other / "00000001")
    (other / ".run").write_text("b" * 64)
    before = sorted(path.name for path in other.rglob("*"))
    for mark in ({}, {"owner": 5}, {"owner": "a" * 64}):
        (here / "gru/rolling.json").write_text(json.dumps({"folder": str(other), **mark}))
        for words in (RESUME.replace("--keep-checkpoints 5", "--keep-checkpoints 1"), EVAL):
            assert "gru/rolling.json: names a folder that this run did not make" in refused(words, same=False)
    assert sorted(path.name for path in other.rglob("*")) == before


def test_a_folder_that_the_run_made_is_its_own(here):
    assert main(f"{RESUME} --scratch large".split()) == 0
    assert main(f"{TRAIN} --steps 9 --out gru --resume --scratch large".split()) == 0
    assert len(list((here / "large").iterdir())) == 1 and main(EVAL.split()) == 0


def test_a_run_of_an_earlier_session_is_copied_whole(here):
    "Also without a large disk, and with its markers; a pipe or an endless device in it is refused."
    shutil.copytree(here / "gru", here / "input/run")
    assert bring_run(here / "copy", roots=(here / "input",)) == here / "input/run"
    assert not checkpoint_fault(here / "copy/checkpoints/00000003")
    for name, make in (("pipe", os.mkfifo), ("zero", lambda path: path.symlink_to("/dev/zero"))):
        make(here / "input/run" / name)
        with pytest.raises(KitError, match=f"{name}: is a pipe"):
            bring_run(here / "second", roots=(here / "input",))
        (here / "input/run" / name).unlink()
    assert not (here / "second").exists()


def test_a_state_that_is_not_a_runs(here, refused):
    path = here / "gru/checkpoints/00000003/state.json"
    right = path.read_text()
    for change in ({"optimizer": 5}, {"log": None}, {"step": "three"}, {"best": [1]}, {"device": 7}, {"log": {"recent": 5}}, None):
        path.write_text(json.dumps(json.loads(right) | change if change else {}))
        marks = {one.name: {"bytes": one.stat().st_size, "sha256": hashlib.sha256(one.read_bytes()).hexdigest()}
                 for one in path.parent.iterdir() if one.name != ".complete"}
        (path.parent / ".complete").write_text(json.dumps(json.loads((path.parent / ".complete").read_text()) | {"files": marks}))
        assert "gru/checkpoints/00000003" in refused(RESUME, same=False)


def test_settings_are_bound_to_the_weights(here, refused):
    "Its config.json cannot be changed unnoticed."
    assert main(EVAL.split()) == main(RESUME.split()) == main(EVAL.split()) == 0
    path = here / "gru/config.json"
    right = path.read_text()
    path.write_text(re.sub(r'"smooth": [0-9.]+', '"smooth": 9.0', right))
    assert "gru/config.json: was changed" in refused(EVAL)
    record = json.loads(right)
    del record["task"]["config"]["model"]["name"]
    path.write_text(json.dumps(record))
    assert "version before 0.2.0" in refused(EVAL) and "gru" in refused(RESUME, same=False)


@pytest.fixture
def unbounded(monkeypatch):
    "Learning rates that no option takes, so that a few steps diverge for certain."
    monkeypatch.setattr("b2t_kit.training.task.check_bounds", lambda *asked: None)


@pytest.mark.parametrize("steps, lr", [(2, "1e38"), (1, "1e39")])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(steps, lr, unbounded, here, refused):
    "With one step its loss is finite; what the step makes of the weights is not. No link is written through."
    (here / "precious.txt").write_text("mine\n")
    (here / "wild").mkdir()
    for step in range(6):
        (here / f"wild/bad_step_{step}.npz").symlink_to(here / "precious.txt")
    command = TRAIN.replace("--warmup-steps 2", "--warmup-steps 0")
    told = refused(f"{command} --steps {steps} --out wild --lr {lr} --clip-norm 1e30 --eps 0", same=False)
    assert "diverged" in told or "is nan" in told, told
    assert checkpoint_steps(here / "wild") == [0] and not checkpoint_fault(here / "wild/checkpoints/00000000")
    assert [path.is_symlink() for path in sorted((here / "wild").glob("bad_step_*"))].count(False) == (steps == 2)
    assert (here / "precious.txt").read_text() == "mine\n"


def test_no_temporary_name_leads_elsewhere(here):
    "A link or a pipe under the name that a file has while it is written is removed."
    (here / "precious.txt").write_text("mine\n")
    (here / "run").mkdir()
    for make in (os.mkfifo, lambda path: path.symlink_to(here / "precious.txt")):
        make(here / "run/.data_val.hdf5.partial")
        with NewFile(here / "run/data_val.hdf5") as file:
            assert file.partial.is_file() and not file.partial.is_symlink()
    assert (here / "precious.txt").read_text() == "mine\n"


def test_batches_that_the_host_cannot_hold(here, refused):
    for option in ("--batch-size 900000", "--batch-size 1000 --prefetch 1000"):
        told = refused(f"{TRAIN.replace('--batch-size 4', option)} --steps 3 --out new")
        assert "prefetch: " in told and "of the host's memory" in told and not (here / "new").exists()


def test_numbers_that_cannot_be_right(tmp_path, refused, capsys):
    """A day without a signal: validate and training say so, and training is refused if no day is left."""
    root = tiny_recordings(tmp_path / "dull", sessions=2)
    train = f"train --data {root} --config tiny --steps 1 --hidden 8 --device cpu --out {tmp_path}/run"
    for day in ("t15.2023.08.01", "t15.2023.08.02"):
        for path in (root / day).glob("*.hdf5"):
            with h5py.File(path, "r+") as file:
                for trial in file.values():
                    trial["input_features"][...] = np.where(np.arange(512) < 20, trial["input_features"][:], 1)
        assert main(["validate", str(root)]) == 1
        said = capsys.readouterr().out
        assert "492 of 512 columns" in said and "nothing can be learned from" in said
    assert "nothing can be learned from these numbers" in refused(train.split())


# Published checkpoints

def opened(folder):
    "Whether a checkpoint opens; anything but a `KitError` is let through."
    try:
        load_pretrained(folder)
    except KitError as error:
        assert str(folder) in str(error) and "\n" not in str(error) and len(str(error)) < 1000, error
        return False
    return True


def test_other_content_in_a_published_checkpoint(here, monkeypatch):
    saved = write_published(folder := here / "baseline")
    state = {"out.weight": [3, torch.zeros(3)], "day_weights.1": ["x"], "day_biases.0": [torch.zeros(())],
             "out.bias": [torch.full((41,), torch.nan), torch.zeros(41, dtype=torch.complex64)]}
    changed = [{"model_state_dict": saved | {name: value}} for name, values in state.items() for value in values]
    for wrong in (*changed, 5, {"model_state_dict": 5}, {"model_state_dict": {}}, {"model_state_dict": {1: 2}},
                  {"model_state_dict": [saved]}):
        torch.save(wrong, folder / "best_checkpoint")
        assert not opened(folder), wrong
    for kind in (SystemError, struct.error, RecursionError, MemoryError):
        monkeypatch.setattr(torch, "load", Mock(side_effect=kind("returned NULL")))
        assert not opened(folder)


def test_settings_beside_a_published_checkpoint(here):
    write_published(folder := here / "baseline")
    for text in (
            "model: 5", "model: [1]", "dataset: 5", "dataset: {sessions: 5}", "dataset: {sessions: [1, 2]}", "dataset: null",
            "model: {patch_size: x}", "model: {patch_size: [1]}", "model: {patch_size: 1.0e+400}", "model: {rnn_dropout: x}",
            "model: {patch_size: 10000000000000000000000}", "model: {patch_size: " + "9" * 5000 + "}", "model: {input_network: 5}",
            "[" * 5000, "{a: " * 5000, "- " * 5000, "a: &a [*a]", "a: 2023-99-99", "a: !!python/object:os.system x", "\x00", "a: 0b2",
            "a: !!int x", "a: !!timestamp x", "? [a]\n: 1", "a: 1:99999999999999999999:1", "a: !!binary \u00e9", "- 1"):
        (folder / "args.yaml").write_text(text)
        opened(folder)


def test_records_beside_a_run(here, refused):
    """A row of metrics is to be removed, and no checkpoint; a result of `eval` is named."""
    (here / "gru/eval/val").mkdir(parents=True, exist_ok=True)
    for content in ("[1]", "5", '{"days": [1]}', '{"days": {"t15.2023.08.01": {"rate": 1}}}'):
        (here / "gru/eval/val/result.json").write_text(content)
        assert "gru/eval/val/result.json: lacks a part" in refused("show gru")
    rows = (here / "gru/metrics.jsonl").read_text().splitlines()
    (here / "gru/metrics.jsonl").write_text("\n".join([rows[0], '{"kind": "train", "step": 2, "loss": "x"}', *rows[1:]]) + "\n")
    for words in ("show gru", RESUME):
        told = refused(words, same=False)
        assert "gru/metrics.jsonl: line 2 is not a row of measurements" in told and "remove the line" in told
    assert not checkpoint_fault(here / "gru/checkpoints/00000003")
    (here / "seeds/seed_1.txt").mkdir(parents=True)
    told = refused(f"{TRAIN} --steps 2 --out seeds --seeds 1 2 --side-by-side")
    assert "seeds/seed_1.txt: is not a plain file" in told


WRONG_PATHS = {  # a command with another path than was meant -> what is said
    "eval --run gru/checkpoints --data data": "it has no config.json; give gru",
    "eval --run gru/config.json --data data": "it has no config.json; give gru",
    "eval --run grus --data data": "grus: is not a run folder; it does not exist",
    "train --config gru --data data --out new": "gru/config.json has the settings of a run",
    "train --config tiny --data data --out data": "data: holds recordings; choose another folder",
    "validate data/hdf5_data_final/t15.2023.08.11/data_train.hdf5": "is a file; give the folder that holds all sessions",
    "validate datas": "datas: no such folder",
}


@pytest.mark.parametrize("command", WRONG_PATHS)
def test_the_path_that_was_meant_is_named(command, here, refused):
    (data,) = (here / "data").glob("**/data_train.hdf5")
    command = command.replace("t15.2023.08.11", data.parent.name)
    assert WRONG_PATHS[command.replace(data.parent.name, "t15.2023.08.11")] in refused(command)
