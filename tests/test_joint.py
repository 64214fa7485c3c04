"""One run on several folders: the same bits after a stop, sets apart in batches and validation, and no leak."""
import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core import KitError, load_json
from b2t_kit.data.batches import Augment, BatchConfig
from b2t_kit.data.dataset import T15, Recordings
from b2t_kit.data.convert import refuse_seen
from b2t_kit.data.convert import SessionWriter, tiny_recordings
from b2t_kit.decode.word_error import WordCounter
from b2t_kit.devices.select import open_device
from b2t_kit.models.gru import GRUConfig
from b2t_kit.models.model import ModelConfig
from b2t_kit.models.transformer import TransformerConfig
from b2t_kit.decode.stream import Windows, steps_on
from b2t_kit.output.runs import run_state, show_text
from b2t_kit.speech.adapt import fit_days, single_trial
from b2t_kit.speech.evaluate import Decoder, evaluate_run, load_decoder, recorded_settings
from b2t_kit.speech.task import SpeechConfig, SpeechTask, WordsConfig, framing, logits_of
from b2t_kit.train import train
from b2t_kit.training.checkpoint import checkpoint_path, read_best, read_part
from b2t_kit.training.log import read_metrics
from b2t_kit.training.task import TrainConfig

S2 = replace(T15, participant="s2", num_features=64, arrays="ventral 6v", dataset="simulated")
MODEL = GRUConfig(hidden=16, num_layers=1)
SPEECH = SpeechConfig(MODEL, batches=BatchConfig(batch_size=4, buckets=2, set_balance=1.0), read_in=512)
STEPS = TrainConfig(steps=12, lr=0.003, eps=1e-8, warmup_steps=2, ema_decay=0.9, log_every=1, eval_every=6,
                    checkpoint_every=3, device="cpu", select="per/s2")


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


def test_stopped_and_resumed(folders: list[Path], tmp_path: Path) -> None:
    """A run that dies between checkpoints goes on to the same bits; the best step is chosen by one set."""
    train(SpeechTask(folders, SPEECH), STEPS, tmp_path / "straight", quiet=True)
    with pytest.raises(RuntimeError, match="killed"):
        train(Interrupted(folders, SPEECH), STEPS, tmp_path / "killed", quiet=True)
    train(SpeechTask(folders, SPEECH), STEPS, tmp_path / "killed", resume=True, quiet=True)
    for part in ("model", "ema", "optimizer"):
        one, other = (read_part(checkpoint_path(tmp_path / run, 12), part) for run in ("straight", "killed"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    rows = [row for row in read_metrics(tmp_path / "straight") if row["kind"] == "eval"]
    assert read_best(tmp_path / "straight").value == pytest.approx(min(row["per/s2"] for row in rows), abs=1e-5)
    assert all(row["per"] == pytest.approx((row["per/s2"] + row["per/t15"]) / 2, abs=1e-5) for row in rows)
    with pytest.raises(KitError, match="cannot be resumed"):
        train(SpeechTask(folders[::-1], SPEECH), STEPS, tmp_path / "killed", resume=True, quiet=True)


def test_sets_keep_apart(folders: list[Path]) -> None:
    """A step has trials of one set at its own width, six lengths at most; noise stays off the columns it lacks; different widths need a read-in."""
    with pytest.raises(KitError, match="the sets have 64 and 512 features; --read-in 512 brings them to one number"):
        SpeechTask(folders, replace(SPEECH, read_in=0))
    task = SpeechTask(folders, replace(SPEECH, augment=Augment(white_noise=1.0)))
    alone = [SpeechTask(folder, SPEECH) for folder in folders]
    with open_device("cpu", "float32") as device:
        drawn = [micro for step, (micro,) in zip(range(12), task.batches(STEPS, device, 0))]
        again = [next(task.batches(STEPS, device, position))[0] for position in range(12)]
    widths = [batch.features.shape[2] for batch in drawn]
    assert widths.count(64) == widths.count(512) == 6, "with set_balance 1 each set has as many steps"
    assert len({batch.features.shape[1] for batch in drawn}) <= 2
    for batch, same in zip(drawn, again):
        assert torch.equal(batch.noise_key, same.noise_key) and torch.equal(batch.trial, same.trial)
        source = alone[batch.features.shape[2] == 64]
        for row, trial in enumerate(batch.trial.tolist()):
            if trial >= 0:
                info = task.train.infos[trial]
                index = trial - (len(alone[0].train) if source is alone[1] else 0)
                assert source.train.infos[index].file == info.file and task.sessions[batch.day[row]] == info.session
    model = task.build_model().train()
    narrow = drawn[widths.index(64)]
    seen: list[torch.Tensor] = []
    model.day_layer.register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
    task.compute_loss(model, narrow).sum.backward()
    assert not seen[0][:, :, 64:].any() and seen[0][:, :, :64].any()
    days = model.day_layer.weight.grad.abs().sum(dim=(1, 2))
    assert [float(one) > 0 for one in days] == [False, False, True], "only the layer of the session is trained"


def test_each_folder_is_scored_as_in_validation(folders: list[Path], tmp_path: Path) -> None:
    """The command trains on both, and `b2t eval` of a folder finds what validation found for its set."""
    run, words = tmp_path / "run", [str(folder) for folder in folders]
    options = ["--config", "tiny", "--steps", "4", "--eval-every", "4", "--hidden", "16", "--batch-size", "4", "--read-in", "512"]
    assert main(["train", "--data", *words, "--out", str(run), *options]) == 0
    (row,) = [one for one in read_metrics(run) if one["kind"] == "eval"]
    for name, folder in zip(("t15", "s2"), folders):
        assert evaluate_run(run, folder, device="cpu").per.rate == pytest.approx(row[f"per/{name}"], abs=1e-5)
    assert main(["train", "--resume", "--out", str(run), "--steps", "6", "--new-schedule"]) == 0
    assert {one: signal.participant for one, signal in load_decoder(run).signals.items()} == {
        "t15.2023.08.01": "t15", "t15.2023.08.02": "t15", "s2.2023.08.01": "s2"}
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "exported")]) == 0
    assert load_decoder(tmp_path / "exported").signals == load_decoder(run).signals
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
    assert [len(one) for one in task.train.sets] == [24, 4] and sum(task.left_out.values()) == 8
    assert all("of which t15 copy task holds out sentences" in why for why in task.left_out), task.left_out
    assert task.signals["t15.2023.08.01"] == T15 and task.signals["t15.2023.08.03"] == twin
    assert [one["signal"]["dataset"] for one in task.describe()["sets"]] == ["t15 copy task", "free speech"]
    assert {info.session for info in task.val.sets[1].infos} == {"t15.2023.08.03"}
    for session in ("t15.2023.08.01", "t15.2023.08.02"):
        renamed(source, session, session + ".talk")
    again = SpeechTask([folders[0], source], SPEECH)
    assert again.left_out == task.left_out and not [one for one in again.trained if "talk" in one]
    with pytest.raises(KitError, match="no trial of data_train.hdf5 may be used"):
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


@pytest.mark.parametrize("changes, said", [({"set_shares": (1.0,)}, "set_shares")])
def test_refused(folders: list[Path], changes: dict[str, Any], said: str) -> None:
    """What several folders cannot do is said in a line."""
    with pytest.raises(KitError, match=said):
        with open_device("cpu", "float32") as device:
            SpeechTask(folders, replace(SPEECH, batches=replace(SPEECH.batches, **changes))).train_buckets(STEPS, device)


def test_a_cache_and_days_held_out(folders: list[Path], tmp_path: Path) -> None:
    """Several folders share a mapped cache with the same batches; a held-out day has the layer of its own participant."""
    held = replace(SPEECH, holdout=("t15.2023.08.02",))
    plain, mapped = SpeechTask(folders, held), SpeechTask(folders, held, cache_dir=tmp_path / "cache")
    assert len(mapped.train.mapped["float32"]) == len(mapped.train) == 20
    with open_device("cpu", "float32") as device:
        for (one,), (other,), _ in zip(plain.batches(STEPS, device, 0), mapped.batches(STEPS, device, 0), range(8)):
            assert torch.equal(one.features, other.features) and torch.equal(one.day, other.day)
            assert not (one.day == 1).any()
        model, losses = plain.build_model().eval(), []
        with torch.no_grad():
            for day in (None, 2, 0):
                if day is not None:
                    model.day_layer.weight[day].zero_()
                losses.append(plain.evaluate(model, device)["unseen_loss"])
    assert losses[0] == losses[1] != losses[2]



def test_begin_with_a_decoder(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New day layers for a new participant, frozen parts, the same bits after a stop, and a leak that is remembered."""
    source, few = tmp_path / "source", str(folders[1])
    options = ["--steps", "6", "--eval-every", "6", "--checkpoint-every", "3", "--warmup-steps", "1"]
    small = ["--config", "tiny", "--hidden", "16", "--batch-size", "4"]
    assert main(["train", "--data", str(folders[0]), "--out", str(source), *small, *options]) == 0
    rates = ["--rates", "gru.*=0", "h0=0"]
    started = ["train", "--data", few, "--from-run", str(source), *options, *rates]
    assert main([*started, "--out", str(tmp_path / "once")]) == 0
    assert "begins     with source, step 6; new: read_in.of_s2" in capsys.readouterr().out
    before, after = load_decoder(source), load_decoder(tmp_path / "once")
    assert after.sessions == ("s2.2023.08.01",) and after.config.model == replace(before.config.model, num_days=1) and after.config.read_in == 512
    known, found = before.model.state_dict(), after.model.state_dict()
    for name, value in found.items():
        assert name.startswith(("day_layer", "read_in")) or torch.equal(value, known[name]) == name.startswith(("gru", "h0"))
    assert not torch.equal(found["day_layer.weight"][0], torch.eye(512)), "the new layer is trained"
    assert not torch.equal(found["read_in.of_s2"], torch.eye(64, 512)), "and the new matrix"
    assert after.seen == {"t15.2023.08.01": "t15 copy task", "t15.2023.08.02": "t15 copy task",
                          "s2.2023.08.01": "simulated"}
    with Recordings(folders[0], "test") as test, pytest.raises(KitError, match="trained on 2 days of this test"):
        refuse_seen("run", {**after.seen, **dict.fromkeys(before.trained, "free speech")}, test)
    assert main(["export", "--run", str(tmp_path / "once"), "--out", str(tmp_path / "exported")]) == 0
    assert load_decoder(tmp_path / "exported").seen == after.seen

    task = Interrupted(few, after.config, start=before.as_start)
    settings = replace(recorded_settings(tmp_path / "once").train, steps=12)
    with pytest.raises(RuntimeError, match="killed"):
        train(task, settings, tmp_path / "killed", quiet=True)
    assert main(["train", "--resume", "--out", str(tmp_path / "killed")]) == 0
    train(SpeechTask(few, after.config, start=before.as_start), settings, tmp_path / "straight", quiet=True)
    for part in ("model", "optimizer"):
        one, other = (read_part(checkpoint_path(tmp_path / run, 12), part) for run in ("killed", "straight"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert load_json(tmp_path / "killed/config.json")["task"] == load_json(tmp_path / "straight/config.json")["task"]
    signal = replace(S2, participant="s4", num_features=640)
    both = [folders[0], tiny_recordings(tmp_path / "wider", sessions=1, trials=8, signal=signal)]
    mixed = replace(SPEECH, read_in=0, model=replace(before.config.model, num_days=None, num_features=None),
                    batches=replace(SPEECH.batches, set_shares=(0.3, 0.7)))
    wide = SpeechTask(both, mixed, start=before.as_start)
    started = wide.build_model().state_dict()
    assert wide.new == ["read_in.of_t15", "read_in.of_s4"] and wide.config.read_in == 512
    assert started["read_in.of_s4"].shape == (640, 512) and all(
        torch.equal(started[name], value) for name, value in known.items() if not name.startswith("day_layer"))
    with pytest.raises(KitError, match="its weights do not fit"):
        SpeechTask(few, replace(SPEECH, model=TransformerConfig(blocks=1)), start=before.as_start).build_model()


@pytest.mark.parametrize("model", [replace(MODEL, num_layers=2, day_matrix="diagonal"), TransformerConfig(
    blocks=2, width=16, heads=2, head_width=8, inner=32)])
def test_a_read_in_for_each_participant(folders: list[Path], tmp_path: Path, model: ModelConfig) -> None:
    """Two sets of one width and a wider one: matrices apart, the same bits after a stop, and every verb afterwards."""
    run, s3 = tmp_path / "run", replace(S2, participant="s3")
    every = [*folders, tiny_recordings(tmp_path / "s3", sessions=1, trials=8, seed=2, signal=s3)]
    config = replace(SPEECH, model=model, read_in=48)
    task = SpeechTask(every, config)
    assert task.config.read_ins == ("t15=512", "t15=512", "s2=64", "s3=64") and "each to 48" in task.plan()["read-ins"]
    with open_device("cpu", "float32") as device:
        drawn = [micro for _, (micro,) in zip(range(24), task.batches(STEPS, device, 0))]
    assert len({one.features.shape for one in drawn}) == 2, "two numbers of features share two programs"
    network, moved = task.build_model().train(), set[tuple[str, ...]]()
    for one in drawn:
        network.zero_grad()
        task.compute_loss(network, one).sum.backward()
        grads = {name: weight.grad for name, weight in network.read_in.named_parameters()}
        moved.add(tuple(name for name, grad in grads.items() if grad is not None and grad.any()))
        assert all(grad is not None for grad in grads.values())
    assert moved == {("of_t15",), ("of_s2",), ("of_s3",)}
    train(task, STEPS, tmp_path / "straight", quiet=True)
    with pytest.raises(RuntimeError, match="killed"):
        train(Interrupted(every, config), STEPS, run, quiet=True)
    assert main(["train", "--resume", "--out", str(run), "--data", *map(str, every)]) == 0
    for part in ("model", "ema", "optimizer"):
        one, other = (read_part(checkpoint_path(place, 12), part) for place in (tmp_path / "straight", run))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "exported")]) == 0
    decoder = load_decoder(tmp_path / "exported")
    assert decoder.digest == load_decoder(run).digest
    scored = next(row for row in read_metrics(run) if row["kind"] == "eval" and row["step"] == read_best(run).step)
    for name, folder in zip(("t15", "s2", "s3"), every):
        assert evaluate_run(run, folder, device="cpu").per.rate == pytest.approx(scored[f"per/{name}"], abs=1e-5)
        with open_device("cpu", "float32") as device, Recordings(folder, "val") as recordings:
            day, (wanted,) = recordings.infos[0].session, logits_in(decoder, recordings, device)
            assert decoder.features_on(day) == recordings.signal.num_features
            frames, windows = Windows(decoder.config), steps_on(decoder, day)
            pieces = [*frames.push(torch.from_numpy(recordings.features(0))), *frames.finish()]
        found = np.stack([windows.frame(one) for one in pieces])
        assert np.allclose(found, wanted, atol=1e-4)
    said = show_text(run_state(run))
    assert f"s3           {scored['per/s3']:6.1%}  1 days, 64 features, simulated" in said, said
    with pytest.raises(KitError, match="select: 'per/s9' is of none of the sets: t15, s2, s3"):
        train(SpeechTask(every, config), replace(STEPS, select="per/s9"), tmp_path / "other", quiet=True)


def logits_in(decoder: Decoder, recordings: Recordings, device: Any) -> list[np.ndarray]:
    """Logits of the first trial."""
    batch = single_trial(recordings.features(0), 0, framing(decoder.config.model))
    fitted = fit_days(decoder.model, decoder.sessions, decoder.trained, [recordings.infos[0].session])
    with torch.no_grad():
        logits, count = logits_of(fitted, batch, decoder.config)
    return [logits[0, : int(count[0])].numpy()]


LETTERS = replace(S2, participant="t5", num_features=32, labels="a b c d e f g h", dataset="handwriting")


def written_recordings(folder: Path) -> Path:
    """Recordings labelled with eight characters; each raises features of its own, so that they can be learnt."""
    source, generator = tiny_recordings(folder, sessions=1, trials=24, seed=2, signal=LETTERS), np.random.default_rng(0)
    for split in ("train", "val"):
        with Recordings(source, split) as recordings:
            trials = list(recordings)
        with SessionWriter(source / trials[0].session, split, overwrite=True) as writer:
            for trial in trials:
                labels = generator.integers(1, 9, 4)
                features = 0.1 * generator.standard_normal((96, 32), dtype=np.float32)
                for place, label in enumerate(labels):
                    features[24 * place : 24 * place + 16, 4 * label - 4 : 4 * label] += 3
                sentence = "".join(" abcdefgh"[one] for one in labels)
                writer.write(replace(trial, features=features, labels=labels, sentence=sentence))
    return source


def test_a_head_for_each_label_set(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Characters and phonemes in one run: heads of their own, scores by set, words from the phonemes alone."""
    letters, run = written_recordings(tmp_path / "letters"), tmp_path / "run"
    config = replace(SPEECH, model=replace(MODEL, num_layers=2, patch=8), read_in=512)
    task, plain = SpeechTask([letters, folders[0]], config), replace(STEPS, select="per")
    assert task.config.model.num_classes == 41 + 9 and task.train.heads[LETTERS.labels] == slice(41, 50)
    with open_device("cpu", "float32") as device:
        drawn = [micro for _, (micro,) in zip(range(12), task.batches(plain, device, 0))]
        shapes = task.shapes(plain, device)[0]
    assert {(one.features.shape[2], one.head.stop) for one in drawn} == {(32, 50), (512, 41)}
    assert {(one[0].features.shape, one[0].head.stop) for one in shapes} >= {
        (one.features.shape, one.head.stop) for one in drawn}
    model = task.build_model().train()
    task.compute_loss(model, next(one for one in drawn if one.head.start)).sum.backward()
    assert not model.out.weight.grad[:41].any() and model.out.weight.grad[41:].any(), "only the head of the set is trained"
    steps = replace(STEPS, steps=32, eval_every=16, lr=0.02, select="loss/t5")
    with pytest.raises(RuntimeError, match="killed"):
        train(Interrupted([letters, folders[0]], config), steps, run, quiet=True)
    train(SpeechTask([letters, folders[0]], config), steps, run, resume=True, quiet=True)
    first, last = (one for one in read_metrics(run) if one["kind"] == "eval")
    assert all(last[f"loss/{name}"] < first[f"loss/{name}"] for name in ("t5", "t15"))
    for name, folder in (("t5", letters), ("t15", folders[0])):
        best = read_best(run).step
        scored = next(one for one in read_metrics(run) if one["kind"] == "eval" and one["step"] == best)
        assert evaluate_run(run, folder, device="cpu").per.rate == pytest.approx(scored[f"per/{name}"], abs=1e-5)
    assert main(["eval", "--run", str(run), "--data", str(letters), "--device", "cpu"]) == 0
    assert "label error rate" in capsys.readouterr().out
    assert set((run / "eval/val/trials.csv").read_text().splitlines()[1].split(",")[5].split()) <= set("abcdefgh")
    assert main(["decode", "--run", str(run), "--data", str(folders[0]), "--device", "cpu"]) == 0
    assert main(["decode", "--run", str(run), "--data", str(letters), "--device", "cpu"]) == 2
    assert "here its labels are 8 classes (a b c d e ...)" in capsys.readouterr().err
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "exported")]) == 0
    assert load_decoder(tmp_path / "exported").heads == load_decoder(run).heads
    assert "41 classes: blank, 39 phonemes, silence; then logits of 9" in (tmp_path / "exported/README.md").read_text()


def test_characters_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single set with other labels is trained and scored; what needs phonemes says so in a line."""
    letters, run = written_recordings(tmp_path / "letters"), tmp_path / "run"
    task = SpeechTask(letters, replace(SPEECH, model=GRUConfig(hidden=32, num_layers=1, patch=8, day_dropout=0.0),
                                       batches=replace(SPEECH.batches, batch_size=12)))
    assert task.config.model.num_classes == 9 and task.train.head_of(0) is None
    train(task, replace(STEPS, steps=60, eval_every=30, lr=0.02, select="per"), run, quiet=True)
    assert evaluate_run(run, letters, device="cpu").per.rate < 0.6
    assert main(["decode", "--run", str(run), "--data", str(letters), "--device", "cpu"]) == 2
    assert "words are decoded from phonemes only" in capsys.readouterr().err
    with pytest.raises(KitError, match="words: are decoded from phonemes"):
        SpeechTask(letters, replace(SPEECH, words=WordsConfig("default")), WordCounter)
