"Run folders, published checkpoints, pipes and numbers from elsewhere: one line each, and nothing outside is touched."
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from b2t_kit.cli import main, parse
from b2t_kit.core import KitError, clear_way
from b2t_kit.data.convert import tiny_recordings
from b2t_kit.data.dataset import begin_hdf5
from b2t_kit.kaggle import bring_run
from b2t_kit.models.gru import GRUConfig, GRUDecoder, load_pretrained
from b2t_kit.training.checkpoint import checkpoint_fault, checkpoint_steps

ROOT = Path(__file__).resolve().parent.parent
TRAIN = """train --data data --config tiny --batch-size 4 --checkpoint-every 3 --keep-checkpoints 5 --eval-every 0
--log-every 1 --warmup-steps 2 --decay-steps 9 --device cpu --precision float32 --task.model.patch 2
--task.model.stride 2 --hidden 8 --task.model.subsample 1"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "Recordings of four trials, and a run of three steps with one checkpoint."
    folder, before = tmp_path_factory.mktemp("made"), os.getcwd()
    os.chdir(folder)
    try:
        assert main("simulate --out data --sessions 1 --trials 4 --held-out 0.3 --seed 7 --bins-per-phoneme 6".split()) == 0
        assert main(f"{TRAIN} --steps 3 --out gru".split()) == 0
    finally:
        os.chdir(before)
    shutil.rmtree(folder / "gru/checkpoints/00000000")
    return folder


@pytest.fixture(autouse=True)
def here(made, tmp_path, monkeypatch):
    "The recordings and the run, in a folder to work in."
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    return tmp_path


def refused(words, capsys):
    "The one line that a command ends with, with status 2."
    capsys.readouterr()
    assert main(words if isinstance(words, list) else words.split()) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and len(errors[0]) < 1010, errors
    return errors[0]


def reseal(folder):
    "The marker of a checkpoint for what is in it now."
    marks = {path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
             for path in folder.iterdir() if path.name != ".complete"}
    marker = json.loads((folder / ".complete").read_text())
    (folder / ".complete").write_text(json.dumps(marker | {"files": marks}))


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_no_link_in_a_run_folder_is_written_through(name, here, capsys):
    (here / "precious.txt").write_text("mine\n")
    (here / "gru" / name).unlink(missing_ok=True)
    (here / "gru" / name).symlink_to(here / "precious.txt")
    if name == ".lock":
        told = refused(f"{TRAIN} --steps 6 --out gru --resume", capsys)
        assert "gru/.lock: is a link or a pipe; remove it" in told
    else:
        main(f"{TRAIN} --steps 6 --out gru --resume".split())
    assert (here / "precious.txt").read_text() == "mine\n"


@pytest.mark.parametrize("spoil", [
    lambda marker: b"\xff" + marker,
    lambda marker: marker.replace(b'"', b"\xa0", 1),
    lambda marker: b'{"step": 3, "files": {}}',
    lambda marker: b'{"step": 3, "files": []}',
    lambda marker: b'{"step": 3, "files": {"state.json": 5}}',
    lambda marker: b'{"step": 3}',
    lambda marker: b"[]",
    lambda marker: b"[" * 100_000,
    lambda marker: b'{"step": 3, "files": {"state.json": {"bytes": ' + b"1" * 5000 + b', "sha256": ""}}}',
    lambda marker: marker.replace(b'"step": 3', b'"step": 4'),
    lambda marker: marker.replace(b"model.safetensors", b"../../../data/x"),
    lambda marker: json.dumps({"step": 3, "files": {"state.json": json.loads(marker)["files"]["state.json"]}}).encode(),
])
def test_a_marker_that_does_not_vouch_for_the_checkpoint(spoil, here, capsys):
    marker = here / "gru/checkpoints/00000003/.complete"
    marker.write_bytes(spoil(marker.read_bytes()))
    assert checkpoint_fault(marker.parent)
    assert "holds no sound checkpoint" in refused("eval --run gru --data data --device cpu", capsys)


def test_weights_beside_those_that_the_marker_lists(here, capsys):
    folder = here / "gru/checkpoints/00000003"
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    assert "does not list other.safetensors" in checkpoint_fault(folder)


@pytest.mark.parametrize("name", ["\u0663", "\u00b2", "0000000\u0663", "9" * 30, "1"])
def test_folders_that_are_no_checkpoints(name, here):
    (here / "gru/checkpoints" / name).mkdir()
    assert checkpoint_steps(here / "gru") == [3]


@pytest.mark.parametrize("note", ["[]", '{"folder": 5}', "{}", '{"folder": "\\u0000"}', "[" * 100_000, "\xff"])
def test_a_note_that_names_no_folder(note, here, capsys):
    (here / "gru/rolling.json").write_bytes(note.encode("latin-1"))
    assert "gru/rolling.json: " in refused("eval --run gru --data data --device cpu", capsys)


@pytest.mark.parametrize("mark", [{}, {"owner": ""}, {"owner": 5}, {"owner": "a" * 64}])
def test_a_note_that_names_a_folder_of_others(mark, here, capsys):
    "A run from elsewhere may name any folder: nothing there is read, and above all nothing is removed."
    other = here / "other/checkpoints"
    shutil.copytree(here / "gru/checkpoints", other)
    shutil.copytree(other / "00000003", other / "00000001")
    (other / ".run").write_text("b" * 64)
    before = sorted(path.name for path in other.rglob("*"))
    (here / "gru/rolling.json").write_text(json.dumps({"folder": str(other), **mark}))
    for words in (f"{TRAIN} --steps 6 --out gru --resume --keep-checkpoints 1", "eval --run gru --data data --device cpu"):
        assert "gru/rolling.json: names a folder that this run did not make" in refused(words.replace("--keep-checkpoints 5", ""), capsys)
    assert sorted(path.name for path in other.rglob("*")) == before


def test_a_folder_that_the_run_made_is_its_own(here):
    assert main(f"{TRAIN} --steps 6 --out gru --resume --scratch large".split()) == 0
    assert main(f"{TRAIN} --steps 9 --out gru --resume --scratch large".split()) == 0
    assert len(list((here / "large").iterdir())) == 1 and main("eval --run gru --data data --device cpu".split()) == 0


def test_a_run_of_an_earlier_session_is_copied_whole(here):
    "Also without a large disk, and with its markers; a pipe or an endless device in it is refused."
    shutil.copytree(here / "gru", here / "input/run")
    assert bring_run(here / "copy", roots=(here / "input",)) == here / "input/run"
    assert not checkpoint_fault(here / "copy/checkpoints/00000003")
    os.mkfifo(here / "input/run/pipe")
    with pytest.raises(KitError, match="pipe: is a pipe"):
        bring_run(here / "second", roots=(here / "input",))
    (here / "input/run/pipe").unlink()
    (here / "input/run/zero").symlink_to("/dev/zero")
    with pytest.raises(KitError, match="zero: is a pipe"):
        bring_run(here / "second", roots=(here / "input",))
    assert not (here / "second").exists()


@pytest.mark.parametrize("name", ["best", "rolling.json"])
def test_a_dangling_link_in_a_run_folder(name, here, capsys):
    (here / "gru" / name).unlink(missing_ok=True)
    (here / "gru" / name).symlink_to("nowhere")
    assert f"gru/{name}: " in refused("eval --run gru --data data --device cpu", capsys)


@pytest.mark.parametrize("change", [
    lambda state: state.pop("optimizer"), lambda state: state.pop("log"), lambda state: state.update(optimizer=5),
    lambda state: state.update(step="three"), lambda state: state.update(best=[1]), lambda state: state.update(device=7),
    lambda state: state.update(log={"recent": 5}), lambda state: state.clear(),
])
def test_a_state_that_is_not_a_runs(change, here, capsys):
    path = here / "gru/checkpoints/00000003/state.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    reseal(path.parent)
    assert "gru/checkpoints/00000003" in refused(f"{TRAIN} --steps 6 --out gru --resume", capsys)


def test_settings_are_bound_to_the_weights(here, capsys):
    "Its config.json cannot be changed unnoticed."
    assert main("eval --run gru --data data --device cpu".split()) == 0
    assert main(f"{TRAIN} --steps 6 --out gru --resume".split()) == 0
    assert main("eval --run gru --data data --device cpu".split()) == 0
    path = here / "gru/config.json"
    record = json.loads(path.read_text())
    text = json.dumps(record)
    smooth = re.search(r'"smooth": [0-9.]+', text)[0]
    path.write_text(text.replace(smooth, '"smooth": 9.0'))
    assert "gru/config.json: was changed" in refused("eval --run gru --data data --device cpu", capsys)


def test_a_run_of_a_version_before_0_2_0(here, capsys):
    "Its record names no model; it is refused in one line, to evaluate as to resume."
    path = here / "gru/config.json"
    record = json.loads(path.read_text())
    del record["task"]["config"]["model"]["name"]
    path.write_text(json.dumps(record))
    assert "version before 0.2.0" in refused("eval --run gru --data data --device cpu", capsys)
    assert "gru" in refused(f"{TRAIN} --steps 6 --out gru --resume", capsys)


@pytest.fixture
def unbounded(monkeypatch):
    "Learning rates that no option takes, so that a few steps diverge for certain."
    monkeypatch.setattr("b2t_kit.training.task.check_bounds", lambda *asked: None)


@pytest.mark.parametrize("steps, lr", [(2, "1e38"), (1, "1e39")])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint(steps, lr, unbounded, here, capsys):
    "With one step its loss is finite; what the step makes of the weights is not."
    command = TRAIN.replace("--warmup-steps 2", "--warmup-steps 0")
    told = refused(f"{command} --steps {steps} --out wild --lr {lr} --clip-norm 1e30 --eps 0", capsys)
    assert "diverged" in told or "is nan" in told, told
    assert checkpoint_steps(here / "wild") == [0] and not checkpoint_fault(here / "wild/checkpoints/00000000")


# Pipes, sockets and devices in the place of files

PIPES = {
    "lm check PIPE": "PIPE", "lm perplexity PIPE gru/config.json": "PIPE", "lm convert PIPE --out x.b2tlm": "PIPE",
    "lm build data/none.txt PIPE --out x.b2tlm": "none.txt", "lm build gru/config.json --vocabulary PIPE --out x.b2tlm": "PIPE",
    "lm build gru/config.json --exclude PIPE --out x.b2tlm": "PIPE", "decode --logits PIPE": "PIPE",
    "decode --run gru --data data --lm PIPE": "PIPE", "decode --run gru --data data --lexicon PIPE": "PIPE",
    "check-submission PIPE": "PIPE", "score --reference PIPE --hypothesis PIPE": "PIPE",
    "lm mix PIPE PIPE --weights 0.5 0.5 --out x.b2tlm": "PIPE", "fetch --out x --token-file PIPE": "PIPE",
    "simulate --out x --labels PIPE": "PIPE", "eval --run gru --data data --json PIPE": "PIPE",
}


@pytest.fixture
def in_time(capsys):
    "The error line of a command that must not wait: after a minute an alarm interrupts it."
    late = []

    def ring(*_):
        late.append(True)
        raise AssertionError("the command waits")

    def run(words):
        signal.alarm(60)
        try:
            told = refused(words, capsys)
        finally:
            signal.alarm(0)
        assert not late
        return told

    before = signal.signal(signal.SIGALRM, ring)
    yield run
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("words", PIPES)
def test_a_pipe_hangs_no_verb(words, here, in_time):
    os.mkfifo(here / "PIPE")
    assert PIPES[words] in in_time(words)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "best", ".lock", "rolling.json",
                                  "checkpoints/00000003/.complete", "checkpoints/00000003/state.json"])
def test_a_pipe_in_a_run_folder_hangs_nothing(name, here, in_time):
    (here / "gru" / name).unlink(missing_ok=True)
    os.mkfifo(here / "gru" / name)
    verb = f"{TRAIN} --steps 6 --out gru --resume" if name in (".lock", "metrics.jsonl") else "eval --run gru --data data"
    in_time(verb)


def test_a_socket_and_a_device_are_no_files(here, capsys):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("SOCKET")
        assert "SOCKET: is a pipe, a socket or a device" in refused("lm check SOCKET", capsys)
    assert "/dev/zero: is a pipe, a socket or a device" in refused("lm check /dev/zero", capsys)


# Calls that open something else than a path from outside, by module and function
OPENED_SAFELY = {
    "core": {"known_mistake", "sync_folder", "forget_output", "memory"},  # a folder, /dev/null, the system's own files
    "tpu/compile": {"work"}, "tpu/lower": {"lower_request", "requested_task"},  # temporary
    "tpu/preflight": {"judged", "lower_in_child", "compile_program", "program_key", "run_preflight"}, "demo": {"demo"},  # folders that the kit has just made
    "data/dataset": {"as_png", "open_file"},
    "data/convert": {"close"}, "importers/arrays": {"qvac_features"}, "importers/kept": {"kept_bins"}, "training/checkpoint": {"_seal"},
    "data/download": {"_open", "_receive"},  # the network, and a name that was cleared
    "simulate": {"real_errors"},  # part of the package
    "devices/torch": {"tpu_chips"},  # /sys
    "doctor": {"known_failures"}, "kaggle": {"package_files", "installed_notes"}, "live/page": {"page"}, "live/keep": {"_run"}, "tasks/codec": {"array_shape"},
    "text/g2p": {"packaged"},  # the package
}
OPENERS = {"open", "gzip.open", "np.load", "np.memmap", "np.fromfile", "h5py.File", "torch.load", "load_file", "safe_open",
           "zipfile.ZipFile", "tarfile.open"}


def opened_in(function):
    "The calls of a function that read a file without asking first what it is."
    source = ast.unparse(function)
    for node in ast.walk(function) if not re.search(r"regular_file\(|S_ISREG\(", source) else ():
        if isinstance(node, ast.Call):
            modes = [one for one in [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]]
            reads = not any(isinstance(one, ast.Constant) and str(one.value)[:1] in "wax" for one in modes)
            method = isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "read_bytes", "open")
            if reads and (method or ast.unparse(node.func) in OPENERS):
                yield ast.unparse(node)


def test_every_file_from_outside_is_opened_as_a_regular_file():
    "A new reader goes through `regular_file`, or is named above with its reason."
    found = {}
    for path in sorted((ROOT / "b2t_kit").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and list(opened_in(one))}
        found |= {str(path.relative_to(ROOT / "b2t_kit").with_suffix("")): names} if names else {}
    assert found == OPENED_SAFELY


@pytest.mark.parametrize("name", ["run/.data_val.hdf5.partial", "run/x.part"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_no_temporary_name_leads_elsewhere(name, kind, here):
    "A link or a pipe under the name that a file has while it is written is removed."
    (here / "precious.txt").write_text("mine\n")
    place = here / name
    place.parent.mkdir()
    place.symlink_to(here / "precious.txt") if kind == "link" else os.mkfifo(place)
    assert clear_way(place) == place and not os.path.lexists(place)
    place.symlink_to(here / "precious.txt") if kind == "link" else os.mkfifo(place)
    begin_hdf5(here / "run/data_val.hdf5")[1].close()
    assert (here / "precious.txt").read_text() == "mine\n" and (here / "run/.data_val.hdf5.partial").is_file()


def test_the_batch_of_a_bad_step_is_not_written_through_a_link(unbounded, here, capsys):
    "A run folder from elsewhere may hold a link of that name."
    (here / "precious.txt").write_text("mine\n")
    (here / "wild").mkdir()
    for step in range(6):
        (here / f"wild/bad_step_{step}.npz").symlink_to(here / "precious.txt")
    command = TRAIN.replace("--warmup-steps 2", "--warmup-steps 0")
    assert "wild/bad_step_" in refused(f"{command} --steps 5 --out wild --lr 1e38 --clip-norm 1e30 --eps 0", capsys)
    assert [path.is_symlink() for path in sorted((here / "wild").glob("bad_step_*"))].count(False) == 1
    assert (here / "precious.txt").read_text() == "mine\n"


# Numbers

@pytest.mark.parametrize("option", [
    "--steps 10000000000000000000000", f"--steps {'9' * 5000}", "--steps \u0663", "--num-layers 1000000000",
    "--hidden 1000000000000", "--patch 99999999999", "--accumulation 10000000000000000000000", "--num-days 77",
    "--noise-layers 1000000000", "--warmup-steps 10000000000000000000", "--seeds \u0663 4", f"--seeds {'9' * 5000}",
    "--eval-every 99999999999999999999", "--noise-hidden 99999999999",
])
def test_a_number_that_no_training_can_mean(option, capsys):
    name = option.split()[0].strip("-").replace("-", "_")
    recipe = "noise_gru_tiny" if "nois" in option else "tiny"
    told = refused(f"train --data data --out new --config {recipe} --device cpu {option}", capsys)
    assert name in told.replace("-", "_"), told


@pytest.mark.parametrize("option", ["--batch-size 900000", "--batch-size 20000 --prefetch 1000"])
def test_batches_that_the_host_cannot_hold(option, here, capsys):
    told = refused(f"{TRAIN.replace('--batch-size 4', option)} --steps 3 --out new", capsys)
    assert "prefetch: " in told and "of the host's memory" in told and not (here / "new").exists()


def test_numbers_that_cannot_be_right(tmp_path, capsys):
    """A day without a signal: validate and training say so, and training is refused if no day is left."""
    root = tiny_recordings(tmp_path / "dull", sessions=2)
    train = f"train --data {root} --config tiny --steps 1 --hidden 8 --device cpu --out {tmp_path}/run"
    for day, status in (("t15.2023.08.01", 0), ("t15.2023.08.02", 2)):
        for path in (root / day).glob("*.hdf5"):
            with h5py.File(path, "r+") as file:
                for trial in file.values():
                    trial["input_features"][...] = np.where(np.arange(512) < 20, trial["input_features"][:], 1)
        assert main(["validate", str(root)]) == 1
        said = capsys.readouterr().out
        assert "492 of 512 columns" in said and "nothing can be learned from" in said and day in said or status
    assert "nothing can be learned from these numbers" in refused(train.split(), capsys)


ODD = ["\u0663", "9" * 5000, "1_0", "nan", "1e999", "\uff11"]


@pytest.mark.parametrize("words", [
    "demo --out x --seed", "train --data data --out x --seeds", "lm build data/x --out x.b2tlm --order",
    "lm build data/x --out x.b2tlm --min-count", "lm build data/x --out x.b2tlm --memory", "report --run gru --pictures",
    "plan baseline --chips", "plan baseline --memory", "plan baseline --global-batch", "eit simulate --out x --processes",
    "eit train --data-path x --out x --epochs", "eit train --data-path x --out x --hours", "eit test --data-path x --draws"])
def test_one_parser_of_numbers(words):
    if words.startswith("eit"):
        pytest.importorskip("b2t_kit.tasks")  # a wing
    for number in ODD:
        with pytest.raises(KitError, match=words.split()[-1]):
            parse([*words.split(), number])


@pytest.mark.parametrize("words", ["train --data data --out x --hidden", "train --data data --out x --lr", "simulate --out x --sessions"])
def test_numbers_of_settings(words, capsys):
    for number in ODD:
        assert words.split()[-1].strip("-") in refused([*words.split(), number], capsys)


@pytest.mark.parametrize("words", ["lm build data/x --out x.b2tlm --prune \u0663", "plan baseline --bins \u0663",
                                   f"lm build data/x --out x.b2tlm --prune {'9' * 5000}", f"plan baseline --bins {'9' * 5000}"])
def test_lists_of_odd_numbers(words, capsys):
    assert "Could not find valid parse" in refused(words, capsys)


# Published checkpoints

def published(folder):
    "A small checkpoint in the layout of the published baseline."
    torch.manual_seed(1)
    config = GRUConfig(num_days=2, num_features=4, hidden=3, num_layers=1, padding="valid")
    state = GRUDecoder(config).state_dict()
    saved = {name: value for name, value in state.items() if not name.startswith("day_layer")}
    for day in range(2):
        saved[f"day_weights.{day}"] = state["day_layer.weight"][day].clone()
        saved[f"day_biases.{day}"] = state["day_layer.bias"][day][None].clone()
    folder.mkdir()
    torch.save({"model_state_dict": saved, "val_PER": 0.1}, folder / "best_checkpoint")
    (folder / "args.yaml").write_text("model: {patch_size: 14, patch_stride: 4}\ndataset: {sessions: [a, b]}\n")
    return saved


def opened(folder):
    "Whether a checkpoint opens; anything but a `KitError` is let through."
    try:
        load_pretrained(folder)
    except KitError as error:
        assert str(folder) in str(error) and "\n" not in str(error) and len(str(error)) < 1000, error
        return False
    return True


def test_mutated_bytes_of_a_published_checkpoint(here):
    published(folder := here / "baseline")
    assert opened(folder)
    whole, generator = (folder / "best_checkpoint").read_bytes(), np.random.default_rng(1)
    for _ in range(400):
        bad = bytearray(whole)
        for place in generator.integers(0, len(bad), generator.integers(1, 6)):
            bad[place] = generator.integers(256)
        (folder / "best_checkpoint").write_bytes(bad[: generator.integers(1, len(bad))] if generator.random() < 0.2 else bad)
        opened(folder)


@pytest.mark.parametrize("change", [
    lambda saved: 5, lambda saved: {"model_state_dict": 5}, lambda saved: {"model_state_dict": {}},
    lambda saved: {"model_state_dict": {1: 2}}, lambda saved: {"model_state_dict": saved, "val_PER": "low"},
    lambda saved: {"model_state_dict": saved, "val_PER": [1]},
    lambda saved: {"model_state_dict": saved | {"out.weight": 3}},
    lambda saved: {"model_state_dict": saved | {"out.weight": torch.zeros(3)}},
    lambda saved: {"model_state_dict": saved | {"out.bias": torch.full((41,), torch.nan)}},
    lambda saved: {"model_state_dict": saved | {"out.bias": torch.zeros(41, dtype=torch.complex64)}},
    lambda saved: {"model_state_dict": saved | {"day_weights.1": "x"}},
    lambda saved: {"model_state_dict": saved | {"day_biases.0": torch.zeros(())}},
    lambda saved: {"model_state_dict": [saved]},
])
def test_other_content_in_a_published_checkpoint(change, here):
    saved = published(folder := here / "baseline")
    torch.save(change(saved), folder / "best_checkpoint")
    assert not opened(folder)


@pytest.mark.parametrize("kind", [SystemError, struct.error, RecursionError, MemoryError])
def test_what_torch_raises_for_a_damaged_checkpoint(kind, here, monkeypatch):
    published(folder := here / "baseline")
    monkeypatch.setattr(torch, "load", lambda *given, **named: (_ for _ in ()).throw(kind("returned NULL")))
    assert not opened(folder)


@pytest.mark.parametrize("text", [
    "model: 5", "model: [1]", "dataset: 5", "dataset: {sessions: 5}", "dataset: {sessions: [1, 2]}", "dataset: null",
    "model: {patch_size: x}", "model: {patch_size: [1]}", "model: {patch_size: 1.0e+400}", "model: {rnn_dropout: x}",
    "model: {patch_size: 10000000000000000000000}", "model: {patch_size: " + "9" * 5000 + "}", "model: {input_network: 5}",
    "[" * 5000, "{a: " * 5000, "- " * 5000, "a: &a [*a]", "a: 2023-99-99", "a: !!python/object:os.system x", "\x00", "a: 0b2",
    "a: !!int x", "a: !!float x", "a: !!timestamp x", "? [a]\n: 1", "a: 1:99999999999999999999:1", "a: !!binary \u00e9", "- 1",
])
def test_settings_beside_a_published_checkpoint(text, here):
    published(folder := here / "baseline")
    (folder / "args.yaml").write_text(text)
    opened(folder)


@pytest.mark.parametrize("content", ["[1]", "5", '{"days": [1]}', '{"days": {"t15.2023.08.01": {"rate": 1}}}'])
def test_a_record_of_eval_that_is_none(content, here, capsys):
    (here / "gru/eval/val").mkdir(parents=True, exist_ok=True)
    (here / "gru/eval/val/result.json").write_text(content)
    assert "gru/eval/val/result.json: lacks a part" in refused("show gru", capsys)


@pytest.mark.parametrize("row", ["garbage", '{"step": 1}', '{"kind": "train", "step": 2, "loss": "x"}',
                                 '{"kind": "eval", "step": 3, "per": []}'])
def test_a_row_of_metrics_that_is_none(row, here, capsys):
    "The line is to be removed, and no checkpoint."
    rows = (here / "gru/metrics.jsonl").read_text().splitlines()
    (here / "gru/metrics.jsonl").write_text("\n".join([rows[0], row, *rows[1:]]) + "\n")
    for words in ("show gru", f"{TRAIN} --steps 6 --out gru --resume"):
        told = refused(words, capsys)
        assert "gru/metrics.jsonl: line 2 is not a row of measurements" in told and "remove the line" in told
    assert not checkpoint_fault(here / "gru/checkpoints/00000003")


def test_the_output_of_a_seed_that_is_a_folder(here, capsys):
    (here / "seeds/seed_1.txt").mkdir(parents=True)
    told = refused(f"{TRAIN} --steps 2 --out seeds --seeds 1 2 --side-by-side", capsys)
    assert "seeds/seed_1.txt: is not a plain file" in told
