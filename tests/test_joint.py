"""Several folders are more days of one run: the same bits after a stop, narrower recordings padded, and no leak."""
import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import load_json
from b2t_kit.data.batches import BatchConfig
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.data.write import SessionWriter, tiny_recordings
from b2t_kit.data.quarantine import refuse_leak
from b2t_kit.decode.counter import WordCounter
from b2t_kit.devices.select import open_device
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.transformer import TransformerConfig
from b2t_kit.adapt.adapt import single_trial
from b2t_kit.speech.days import fit_days
from b2t_kit.speech.evaluate import evaluate_run
from b2t_kit.speech.decoder import load_decoder, recorded_settings
from b2t_kit.speech.task import SpeechConfig, SpeechTask, WordsConfig, logits_of
from b2t_kit.train import train
from b2t_kit.training.log import read_metrics
from b2t_kit.training.task import TrainConfig
from commands import bits, newest

pytestmark = pytest.mark.second_tier

S2 = replace(T15, participant="s2", num_features=64, arrays="ventral 6v", dataset="simulated")
MODEL = GRUConfig(hidden=16, num_layers=1)
SPEECH = SpeechConfig(MODEL, batches=BatchConfig(batch_size=4, buckets=2))
STEPS = TrainConfig(steps=12, lr=0.003, eps=1e-8, warmup_steps=2, ema_decay=0.9, log_every=1, eval_every=6,
                    checkpoint_every=3, device="cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of two participants, the second with fewer features and trials."""
    return [tiny_recordings(tmp_path_factory.mktemp("t15"), sessions=2, trials=12, signal=T15),
            tiny_recordings(tmp_path_factory.mktemp("s2"), sessions=1, trials=8, seed=1, signal=S2)]


class Interrupted(SpeechTask):
    """A task whose batches end with an error after step 8."""

    def batches(self, config: Any, device: Any, position: int) -> Generator:
        for step, micro_batches in enumerate(super().batches(config, device, position), start=position):
            if step == 8:
                raise RuntimeError("killed")
            yield micro_batches


def test_every_verb_reads_a_run_of_two_folders(folders: list[Path], tmp_path: Path) -> None:
    """Training, evaluation of each folder, export and the live step agree about narrower recordings."""
    stream = pytest.importorskip("b2t_kit.live.stream")  # a wing
    run, words = tmp_path / "run", [str(folder) for folder in folders]
    options = ["--config", "tiny", "--steps", "4", "--eval-every", "4", "--hidden", "16", "--batch-size", "4"]
    assert main(["train", "--data", *words, "--out", str(run), *options]) == 0
    (row,) = [one for one in read_metrics(run) if one["kind"] == "eval"]
    counts = [evaluate_run(run, folder, device="cpu").per for folder in folders]
    assert sum(one.edits for one in counts) / sum(one.total for one in counts) == pytest.approx(row["per"], abs=1e-5)
    assert main(["train", "--resume", "--out", str(run), "--steps", "6", "--new-schedule"]) == 0
    assert main(["train", "--resume", "--data", *words[::-1], "--out", str(run)]) == 2  # the same folders only
    decoder = load_decoder(run)
    assert {one: signal.participant for one, signal in decoder.signals.items()} == {
        "t15.2023.08.01": "t15", "t15.2023.08.02": "t15", "s2.2023.08.01": "s2"}
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "exported")]) == 0
    assert load_decoder(tmp_path / "exported").signals == decoder.signals
    with Recordings(folders[1], "val") as recordings, torch.no_grad():
        batch = single_trial(recordings.features(0), 0, decoder.config.model.framing)
        fitted = fit_days(decoder.model, decoder.sessions, decoder.trained, ["s2.2023.08.01"])
        logits, count = logits_of(fitted, batch, decoder.config)
        frames, windows = stream.Windows(decoder.config), stream.steps_on(decoder, "s2.2023.08.01")
        pieces = [*frames.push(torch.from_numpy(recordings.features(0))), *frames.finish()]
    live = np.stack([windows.frame(one) for one in pieces])
    assert np.allclose(live, logits[0, : int(count[0])].numpy(), atol=1e-4)
    with pytest.raises(KitError, match="cannot be mixed"):
        evaluate_run(run, tiny_recordings(tmp_path / "s3", sessions=1, signal=replace(S2, participant="s3")))


def test_days_in_two_sets(folders: list[Path], tmp_path: Path) -> None:
    """A day that the first folder holds out is not trained on from another, marked or not, whatever the session is named."""
    twin = replace(S2, participant="t15", dataset="free speech")
    source = tiny_recordings(tmp_path / "twin", sessions=3, trials=4, signal=twin)
    with pytest.raises(KitError, match="has the session 't15.2023.08.0[12]'"):
        SpeechTask([folders[0], tiny_recordings(tmp_path / "own", sessions=2, trials=4, signal=T15)], SPEECH)
    task = SpeechTask([folders[0], source], SPEECH)
    assert task.trained == ["t15.2023.08.01", "t15.2023.08.02", "t15.2023.08.03"]
    kept = [sum(info.file.is_relative_to(folder) for info in task.train.infos) for folder in (folders[0], source)]
    assert kept == [24, 4] and sum(task.left_out.values()) == 8
    assert all("of which t15 copy task holds out sentences" in why for why in task.left_out), task.left_out
    assert [one["signal"]["dataset"] for one in task.describe()["sets"]] == ["t15 copy task", "free speech"]
    assert {info.session for info in task.val.infos if info.file.is_relative_to(source)} == {"t15.2023.08.03"}
    for session in ("t15.2023.08.01", "t15.2023.08.02"):
        renamed(source, session, session + ".talk")
    again = SpeechTask([folders[0], source], SPEECH)
    assert again.left_out == task.left_out and not [one for one in again.trained if "talk" in one]
    with pytest.raises(KitError, match="no trial of data_train.hdf5 may be"):
        SpeechTask([source, folders[0]], SPEECH)  # the first folder's days, and the second has no others


def renamed(folder: Path, session: str, name: str) -> None:
    """Give a session another name."""
    for split in ("train", "val", "test"):
        if (folder / session / f"data_{split}.hdf5").exists():
            with Recordings(folder, split, [session]) as recordings:
                trials = [replace(trial, session=name) for trial in recordings]
            with SessionWriter(folder / name, split) as writer:
                for trial in trials:
                    writer.write(trial)
    shutil.rmtree(folder / session)


def test_days_held_out(folders: list[Path], tmp_path: Path) -> None:
    """A held-out day is not drawn, and has the layer of its own participant; several folders share a mapped cache."""
    task = SpeechTask(folders, replace(SPEECH, holdout=("t15.2023.08.02",)), cache_dir=tmp_path / "cache")
    assert len(task.train.mapped["float32"]) == len(task.train) == 20
    read = SpeechTask(folders, task.config)
    with open_device("cpu", "float32") as device, torch.no_grad():
        for (one,), (other,), _ in zip(task.batches(STEPS, device, 0), read.batches(STEPS, device, 0), range(8)):
            assert torch.equal(one.features, other.features) and torch.equal(one.day, other.day) and not (one.day == 1).any()
        model, losses = task.build_model().eval(), []
        for day in (None, 2, 0):
            if day is not None:
                model.day_layer.weight[day].zero_()
            losses.append(task.evaluate(model, device)["unseen_loss"])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.first_tier
def test_a_run_starts_from_another_decoder(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """New day layers for a new participant, frozen parts, the same bits after a stop, and a leak that is remembered."""
    source, few = tmp_path / "source", str(folders[1])
    options = ["--steps", "6", "--eval-every", "6", "--checkpoint-every", "3", "--warmup-steps", "1"]
    small = ["--config", "tiny", "--hidden", "16", "--batch-size", "4"]
    assert main(["train", "--data", str(folders[0]), "--out", str(source), *small, *options]) == 0
    started = ["train", "--data", few, "--from-run", str(source), *options, "--rates", "gru.*=0", "h0=0"]
    assert main([*started, "--out", str(tmp_path / "once")]) == 0
    assert "starts     from source, step 6; new: only layers of sessions" in capsys.readouterr().out
    resumed = ["train", "--resume", "--out", str(tmp_path / "once"), "--from-run"]
    assert main([*resumed, str(source)]) == 0 and main([*resumed, str(tmp_path / "once")]) == 2
    assert f"did not begin with {tmp_path / 'once'}; leave --from-run out" in capsys.readouterr().err
    before, after = load_decoder(source), load_decoder(tmp_path / "once")
    assert after.sessions == ("s2.2023.08.01",) and after.config.model == replace(before.config.model, num_days=1)
    known, found = before.model.state_dict(), after.model.state_dict()
    for name, value in found.items():
        assert name.startswith("day_layer") or torch.equal(value, known[name]) == name.startswith(("gru", "h0"))
    assert not torch.equal(found["day_layer.weight"][0], torch.eye(512)), "the new layer is trained"
    assert after.seen == {"t15.2023.08.01": "t15 copy task", "t15.2023.08.02": "t15 copy task",
                          "s2.2023.08.01": "simulated"}
    with Recordings(folders[0], "test") as test, pytest.raises(KitError, match="trained on 2 days of this test"):
        refuse_leak("run", {**after.seen, **dict.fromkeys(before.trained, "free speech")}, test)

    joint = replace(after.config, model=replace(after.config.model, num_days=None))  # with the old participant's days too
    task = Interrupted(folders, joint, start=before.as_start)
    settings = replace(recorded_settings(tmp_path / "once").train, steps=12)
    with pytest.raises(RuntimeError, match="killed"):
        train(task, settings, tmp_path / "killed", quiet=True)
    assert main(["train", "--resume", "--out", str(tmp_path / "killed")]) == 0
    train(SpeechTask(folders, joint, start=before.as_start), settings, tmp_path / "straight", quiet=True)
    assert newest(tmp_path / "killed") == 12 and bits(tmp_path / "killed") == bits(tmp_path / "straight")
    assert load_json(tmp_path / "killed/config.json")["task"] == load_json(tmp_path / "straight/config.json")["task"]
    with pytest.raises(KitError, match="its weights do not fit"):
        SpeechTask(few, replace(SPEECH, model=TransformerConfig(blocks=1)), start=before.as_start).build_model()


LETTERS = replace(S2, participant="t5", num_features=32, labels="a b c d e f g h", dataset="handwriting")


def test_other_labels(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A set with labels of its own is trained and scored alone (as in importers/); what needs phonemes says so in a line."""
    letters, run = tiny_recordings(tmp_path / "letters", sessions=1, trials=8, seed=2, signal=LETTERS), tmp_path / "run"
    with pytest.raises(KitError, match="has other labels than .*; a decoder has one label set"):
        SpeechTask([folders[0], letters], SPEECH)
    task = SpeechTask(letters, SPEECH)
    assert task.config.model.num_classes == 9
    train(task, replace(STEPS, steps=3), run, quiet=True)
    assert evaluate_run(run, letters, device="cpu").per.total > 0
    assert main(["decode", "--run", str(run), "--data", str(letters), "--device", "cpu"]) == 2
    assert "nor a blank, a space and characters" in capsys.readouterr().err
    with pytest.raises(KitError, match="words: are decoded from phonemes"):
        SpeechTask(letters, replace(SPEECH, words=WordsConfig("default")), WordCounter)
