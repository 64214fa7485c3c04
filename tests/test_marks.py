"""A score of trials on which something was chosen says so wherever it is shown; of other trials, nothing is said."""
import json
import shutil
from pathlib import Path

import h5py
import pytest

from b2t_kit.cli import main
from b2t_kit.core.files import load_json
from b2t_kit.decode.lists import read_nbest
from test_words import DAY, train_legible

pytestmark = pytest.mark.second_tier

WEIGHTS, CHECKPOINT = "weights tuned on these trials", "checkpoint chosen on these trials"
FITTED, TRAINED = "temperature fitted on these trials", "trained on these trials"
FAIR = "; tuned on one half and scored on the other: "
DECODE = "decode --run run --data data --lm model.b2tlm --device cpu --beam 10 --n-best 4"
EVAL = "eval --run run --data data --device cpu"


@pytest.fixture(scope="module")
def good(legible: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    "A legible day, a run whose best step was chosen, and one without that choice."
    folder = shutil.copytree(legible, tmp_path_factory.mktemp("marks") / "good")
    (folder / "run").rename(folder / "other")
    train_legible(folder / "data", folder / "run", "--eval-every 20")
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture):
    def run(words: str) -> str:
        capsys.readouterr()
        assert main(words.split()) == 0, capsys.readouterr().err
        return capsys.readouterr().out
    return run


def marks(path: str) -> list[str]:
    return [one["text"] for one in load_json(Path(path))["marks"]]


def test_decode(here: Path, said, capsys: pytest.CaptureFixture) -> None:
    "Where it is tuned, and ever after on these trials, with the fair estimate while that is of the same search."
    assert CHECKPOINT in (plain := said(DECODE)) and "tuned" not in plain
    assert marks("run/decode/val/result.json") == [CHECKPOINT, FITTED]
    tuned = said(f"{DECODE} --tune")
    record = load_json(Path("run/decoding.json"))
    fair = f"{WEIGHTS}{FAIR}{100 * record['held_out']:.1f} %"
    for found in (tuned, said(DECODE), said(DECODE.partition(" --beam")[0])):
        assert f"({CHECKPOINT}; {FITTED}; {fair})" in found
    assert marks("run/decode/val/result.json") == [CHECKPOINT, FITTED, fair]
    other = said(f"{DECODE} --temperature 1.5")
    assert WEIGHTS in other and FAIR not in other and FITTED not in other  # other than those of the estimate
    said(f"{DECODE} --split train")
    assert marks("run/decode/train/result.json") == []
    with h5py.File(f"data/{DAY}/data_val.hdf5", "r+") as file:
        file["trial_0002"].attrs["sentence_label"] = "We can hear you now."
    assert "(temperature fitted on 3 of these 4 trials; weights tuned on 3 of these 4 trials)" in said(DECODE)
    del record["chose"]
    Path("run/decoding.json").write_text(json.dumps(record))
    assert main(DECODE.split()) == 2 and "decoding.json: is not a record of tuned weights" in capsys.readouterr().err
    Path("run/decode/val/logits.hdf5").rename("theirs.h5")  # of another program: no checkpoint was chosen here
    command = "decode --logits theirs.h5 --lm model.b2tlm --beam 10"
    assert "chosen" not in (plain := said(command)) and "tuned" not in plain
    assert WEIGHTS + FAIR in said(f"{command} --tune") and WEIGHTS + FAIR in said(command)


def test_eval_export_and_report(here: Path, said) -> None:
    "Phoneme errors of the trials that chose the checkpoint, and words also of those that tuned the search."
    assert f"({CHECKPOINT})" in said(EVAL) and marks("run/eval/val/result.json") == [CHECKPOINT]
    assert "chosen" not in said(f"{EVAL} --split train") and "chosen" not in said(EVAL.replace("--run run", "--run other"))
    card = said("export --run run --out exported")
    assert f"; {CHECKPOINT} |" in card and card.count("chosen") == 1
    assert load_json(Path("exported/config.json"))["scores"]["val"]["marks"] == [CHECKPOINT]
    assert CHECKPOINT in said(EVAL.replace("--run run", "--run exported"))
    said(f"{DECODE} --tune")
    report = "report --run run --data data --device cpu --pictures 0"
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in said(report)
    assert [one.partition(";")[0] for one in marks("run/report/val.json")] == [CHECKPOINT, FITTED, WEIGHTS]
    words, phonemes = Path("run/report/val.html").read_text().partition("word error rate")[2].partition("phoneme error rate")[::2]
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in words.partition("</div>")[0]
    assert f"({CHECKPOINT})" in phonemes.partition("</div>")[0]
    assert "chosen" not in said(f"{report} --split train")
    with h5py.File(f"data/{DAY}/data_val.hdf5", "r+") as file:
        file["trial_0002/input_features"][0, 0] += 1
    assert "chosen" not in said(EVAL)  # other trials than those of the training


@pytest.mark.first_tier
def test_a_run_on_all_labelled_trials(here: Path, said, capsys: pytest.CaptureFixture) -> None:
    "`--splits train val`: no checkpoint is chosen, what was fitted is the validated run's, and scores of val say trained on."
    said(f"{DECODE} --tune")
    train = "train --config run/config.json --splits train val --data data --device cpu --out final"
    alone = said(train.replace("run/config.json", "linear --steps 2").replace("final", "alone"))
    assert "--config RUN/config.json" in alone and not Path("alone/temperature.json").exists()
    printed = said(train)
    assert "trained on as well" in printed and "--eval-every 0, the last step counts" in printed
    assert "trained_per" in printed and "fitted on" not in printed
    assert load_json(Path("final/config.json"))["data"]["train"]["trials"] == 12
    assert f"({TRAINED})" in said(EVAL.replace("--run run", "--run final"))
    assert f"({TRAINED}; {FITTED}; {WEIGHTS})" in said(command := DECODE.replace("--run run", "--run final"))
    for name in ("temperature.json", "decoding.json"):
        assert load_json(Path("final") / name) == load_json(Path("run") / name)
    shown = said("show final")
    assert "no validation: trained on train and val" in shown and "validation trained_per" in shown
    assert "of the validation of another run, run, step" in shown and "CTC loss" not in shown
    for verb in (EVAL, DECODE):
        printed = said(verb.replace("--run run", "--run final"))
        assert "that of run, step" in printed and "CTC loss" not in printed
    card = said("export --run final --out exported")
    assert "no validation: trained on train and val" in card and f"; {TRAINED}" in card
    assert f"({TRAINED})" in said(EVAL.replace("--run run", "--run exported"))
    Path("final/temperature.json").unlink()
    assert "estimated from the logits alone" in said(command)


def test_ensemble(here: Path, said) -> None:
    "What was chosen for one of the runs was chosen for all together."
    said(f"{DECODE} --tune")
    both = "--runs run other --data data --device cpu"
    for combine in ("average", "pool"):
        found = said(f"decode {both} --combine {combine} --lm model.b2tlm --beam 10")
        assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS})" in found and FAIR not in found
        assert marks(f"ensemble/{combine}/val/result.json") == [CHECKPOINT, FITTED, WEIGHTS]
    assert said(f"eval {both}").count(f"({CHECKPOINT})") == 2  # of the first run, and of the average


def test_rescore(here: Path, said) -> None:
    "Lists tell what was chosen on their trials, before rescoring and after it; other lists do not."
    said(DECODE)
    said(f"{DECODE} --split train")
    command = "rescore run/decode/val/nbest.jsonl --llm causal --device cpu --out"
    found = said(f"{command} new.jsonl --tune")
    assert f"({CHECKPOINT}; {FITTED}) before, " in found and f"({CHECKPOINT}; {FITTED}; {WEIGHTS}{FAIR}" in found
    assert {one.selected for one in read_nbest("new.jsonl")} == {("checkpoint", "temperature", "weights")}
    assert f"{CHECKPOINT}; {FITTED}; {WEIGHTS}) now" in said(f"{command} again.jsonl --weights new.weights.json")
    there = said(f"{command.replace('val', 'train')} train.jsonl --weights new.weights.json")
    assert "before" in there and "chosen on" not in there and "tuned on" not in there
    said(f"{DECODE} --tune")
    found = said(f"{command} third.jsonl --tune")
    assert f"({CHECKPOINT}; {FITTED}; {WEIGHTS}) before" in found and FAIR not in found  # the other half tuned the search
