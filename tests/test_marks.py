"""A score of trials on which something was chosen says so wherever it is shown; of other trials, nothing is said."""
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from b2t_kit.cli import main
from b2t_kit.core import load_json
from b2t_kit.data.convert import SessionWriter
from b2t_kit.decode.files import read_nbest
from tiny_models import write_causal
from test_words import SAID, legible_trial

DAY = "t15.2023.08.11"
WEIGHTS, CHECKPOINT = "weights tuned on these trials", "checkpoint chosen on these trials"
FITTED = "temperature fitted on these trials"
FAIR = "; tuned on one half and scored on the other: "


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    "A day of recordings, a run whose best step was chosen, one without that choice, a language model, and a large one."
    folder = tmp_path_factory.mktemp("marks")
    for index, (split, count) in enumerate({"train": 8, "val": 4, "test": 4}.items()):
        generator = np.random.default_rng(index)
        with SessionWriter(folder / "data" / DAY, split) as writer:
            for number in range(count):
                writer.write(legible_trial(generator, SAID[number % len(SAID)], DAY, 10 * index + number))
    train = "train --config linear --steps 40 --warmup-steps 2 --lr 0.02 --device cpu --data".split()
    for name, every in {"run": "20", "other": "0"}.items():
        assert main([*train, str(folder / "data"), "--out", str(folder / name), "--eval-every", every]) == 0
    (folder / "text.txt").write_text("\n".join([*SAID, "we can hear you now"] * 3))
    assert main(["lm", "build", str(folder / "text.txt"), "--out", str(folder / "model.b2tlm")]) == 0
    write_causal(folder / "causal")
    return folder


def said(capsys: pytest.CaptureFixture, words: str) -> str:
    "What a command prints."
    capsys.readouterr()
    assert main(words.split()) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def marks(path: str) -> list[str]:
    return [one["text"] for one in load_json(Path(path))["marks"]]


DECODE = "decode --run run --data data --lm model.b2tlm --device cpu --beam 10 --n-best 4"


def test_decode(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Where it is tuned, and ever after on these trials, with the fair estimate while that is of the same search."
    plain = said(capsys, DECODE)
    assert CHECKPOINT in plain and "tuned" not in plain and marks("run/decode/val/result.json") == [CHECKPOINT, FITTED]
    tuned = said(capsys, f"{DECODE} --tune")
    record = load_json(Path("run/decoding.json"))
    assert len(record["chose"]) == 4 and 0 <= record["held_out"] <= 1
    fair = f"{WEIGHTS}{FAIR}{100 * record['held_out']:.1f} %"
    assert f"({CHECKPOINT}; {FITTED}; {fair})" in tuned
    assert marks("run/decode/val/result.json") == [CHECKPOINT, FITTED, fair]
    assert f"({CHECKPOINT}; {FITTED}; {fair})" in said(capsys, DECODE) and fair in said(capsys, DECODE.partition(" --beam")[0])
    other = said(capsys, f"{DECODE} --temperature 1.5")
    assert WEIGHTS in other and FAIR not in other and FITTED not in other  # other than those of the estimate
    assert "chosen" not in (there := said(capsys, f"{DECODE} --split train")) and "tuned" not in there
    assert marks("run/decode/train/result.json") == []
    with h5py.File(f"data/{DAY}/data_val.hdf5", "r+") as file:
        file["trial_0002"].attrs["sentence_label"] = "We can hear you now."
    other = said(capsys, DECODE)  # recordings that changed are not those of the training
    assert "(temperature fitted on 3 of these 4 trials; weights tuned on 3 of these 4 trials)" in other
    del record["chose"]
    Path("run/decoding.json").write_text(json.dumps(record))
    assert main(DECODE.split()) == 2 and "decoding.json: is not a record of tuned weights" in capsys.readouterr().err


def test_decode_of_another_program(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Logits in a file have no checkpoint that was chosen here; weights tuned on them are."
    said(capsys, "decode --run other --data data --lm model.b2tlm --device cpu --beam 10")
    Path("other/decode/val/logits.hdf5").rename("theirs.h5")
    command = "decode --logits theirs.h5 --lm model.b2tlm --beam 10"
    assert "chosen" not in (plain := said(capsys, command)) and "tuned" not in plain
    assert WEIGHTS + FAIR in said(capsys, f"{command} --tune") and WEIGHTS + FAIR in said(capsys, command)


def test_eval_and_export(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Phoneme errors of the trials that chose the checkpoint; with adaptation also of those that tuned the words' search."
    command = "eval --run run --data data --device cpu"
    assert f"({CHECKPOINT})" in said(capsys, command) and marks("run/eval/val/result.json") == [CHECKPOINT]
    assert "chosen" not in said(capsys, f"{command} --split train") and marks("run/eval/train/result.json") == []
    assert "chosen" not in said(capsys, command.replace("run run", "run other"))
    card = said(capsys, "export --run run --out exported")
    assert f"; {CHECKPOINT} |" in card and card.count("chosen") == 1
    assert load_json(Path("exported/config.json"))["scores"]["val"]["marks"] == [CHECKPOINT]
    assert CHECKPOINT in said(capsys, command.replace("run run", "run exported"))
    with h5py.File(f"data/{DAY}/data_val.hdf5", "r+") as file:
        file["trial_0002/input_features"][0, 0] += 1
    assert "chosen" not in said(capsys, command)  # other trials than those of the training


def test_report(here: Path, capsys: pytest.CaptureFixture) -> None:
    said(capsys, f"{DECODE} --tune")
    command = "report --run run --data data --device cpu --pictures 0"
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in said(capsys, command)
    assert [one.partition(";")[0] for one in marks("run/report/val.json")] == [CHECKPOINT, FITTED, WEIGHTS]
    page = Path("run/report/val.html").read_text()
    words, phonemes = page.partition("word error rate")[2].partition("phoneme error rate")[::2]
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in words.partition("</div>")[0]
    assert f"({CHECKPOINT})" in phonemes.partition("</div>")[0]
    assert "chosen" not in said(capsys, f"{command} --split train") and marks("run/report/train.json") == []


def test_ensemble(here: Path, capsys: pytest.CaptureFixture) -> None:
    "What was chosen for one of the runs was chosen for all together."
    said(capsys, f"{DECODE} --tune")
    both = "--runs run other --data data --device cpu"
    for combine in ("average", "pool"):
        found = said(capsys, f"decode {both} --combine {combine} --lm model.b2tlm --beam 10")
        assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS})" in found and FAIR not in found
        assert marks(f"ensemble/{combine}/val/result.json") == [CHECKPOINT, FITTED, WEIGHTS]
    assert said(capsys, f"eval {both}").count(f"({CHECKPOINT})") == 2  # of the first run, and of the average
    assert "tuned" not in said(capsys, f"decode {both} --lm model.b2tlm --beam 10 --split train")


def test_rescore(here: Path, capsys: pytest.CaptureFixture) -> None:
    "Lists tell what was chosen on their trials, before rescoring and after it; other lists do not."
    said(capsys, DECODE)
    said(capsys, f"{DECODE} --split train")
    command = "rescore run/decode/val/nbest.jsonl --llm causal --device cpu --out"
    found = said(capsys, f"{command} new.jsonl --tune").splitlines()[-2:]
    assert any(f"({CHECKPOINT}; {FITTED}) before, " in line and
               f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in line for line in found), found
    assert {one.chose for one in read_nbest("new.jsonl")} == {("checkpoint", "temperature", "weights")}
    assert f"{CHECKPOINT}; {FITTED}; {WEIGHTS}) now" in said(capsys, f"{command} again.jsonl --weights new.weights.json")
    there = said(capsys, f"{command.replace('val', 'train')} train.jsonl --weights new.weights.json")
    assert "before" in there and "chosen on" not in there and "tuned on" not in there
    said(capsys, f"{DECODE} --tune")
    found = said(capsys, f"{command} third.jsonl --tune")
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}) before" in found and FAIR not in found  # the other half tuned the search
