"""The table of known failures: complete, shown on its pages, with tests that exist; and failures at the start of a run.

The other failures have tests where the table says: test_failures.py, test_xla_failures.py, and cells of notebooks.
"""
import ast
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from b2t_kit.cli import ELSEWHERE, NOT_HERE, parse
from b2t_kit.core.errors import KitError
from b2t_kit.plan.failures import diagnose, known_failures
from commands import ROOT, python

SHOWN = ("happens", "with more installed", "imitated", "cure only")  # what the tests of a reported failure show


def test_the_table_is_complete() -> None:
    """Both languages, one line each; what was reported has a number, what the kit does about it, and a test that exists.
    The page of the field reports counts them: how many happen in their tests, are imitated, or have only their cure tested."""
    for failure in known_failures():
        symptom = failure.symptom if isinstance(failure.symptom, dict) else {"en": failure.symptom, "zh": failure.symptom}
        texts = [symptom, failure.cause, failure.cure, *filter(None, (failure.kit, failure.checked))]
        assert all(set(text) == {"en", "zh"} and "\n" not in "".join(text.values()) for text in texts), failure.name
        assert (failure.number and failure.kit and failure.shown in SHOWN and failure.section and failure.tests
                or failure.link.startswith("https://") and failure.versions), failure.name
        assert failure.compiled or failure.number, failure.name
    names = [failure.number.lower() or failure.name for failure in known_failures()]
    assert len(set(names)) == len(names)
    for test in {test for failure in known_failures() for test in failure.tests}:
        path, _, name = test.partition("::")
        nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body if name else []
        assert (ROOT / path).is_file() and name in {getattr(node, "name", "") for node in nodes} | {""}, test
    said = re.search(r"Of the (\d+) rows, (\d+) happen in their tests, (\d+) happen where .*?, (\d+) are imitated, and of (\d+) only",
                     (ROOT / "benchmarks/field_reports.md").read_text(encoding="utf-8"), re.S)
    reports = [one.shown for one in known_failures() if one.number]
    assert [int(number) for number in said.groups()] == [len(reports), *(reports.count(kind) for kind in SHOWN)]


def test_c16_no_module_has_a_bad_escape() -> None:
    """Python warns of the reported escape, and of nothing in the kit's sources."""
    sources = {"reported": "pattern = '\\_'"} | {
        str(path): path.read_text(encoding="utf-8") for path in (ROOT / "b2t_kit").rglob("*.py")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, source in sources.items():
            compile(source, name, "exec")
    assert len(sources) > 50 and [one.filename for one in caught] == ["reported"]
    assert "invalid escape sequence" in str(caught[0].message)


@pytest.mark.torch_xla
def test_c17a_tensorflow_beside_torch_xla(tmp_path: Path) -> None:
    """torch_xla warns about a package by name; the doctor does so before anything is imported."""
    (tmp_path / "tensorflow-2.20.0.dist-info").mkdir()
    (tmp_path / "tensorflow-2.20.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.0\n")
    first = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
    said = python("-c", f"{first}import torch_xla", chips=1).stderr
    assert "`tensorflow` can conflict with `torch-xla`" in said
    assert [finding.failure.number for finding in diagnose(said)] == ["C17a"]
    said = python("-c", first + """
import b2t_kit.train, b2t_kit.speech.task
from b2t_kit.plan.doctor import inspect_machine
print(*[check for check in inspect_machine() if check.name == "tensorflow"])
print("imported", {"tensorflow", "torch_xla"} & set(sys.modules))
""", chips=1).stdout
    assert "note     tensorflow" in said and "(C17a)" in said and "imported set()" in said


def test_commands_of_the_page_can_be_read() -> None:
    """Every command in the last column of the field reports."""
    page = (ROOT / "benchmarks/field_reports.md").read_text(encoding="utf-8")
    commands = [shlex.split(row) for row in re.findall(r"\| `(?:b2t|torchrun [^`]*-m b2t_kit) ([^`]*)` \|$", page, re.M)]
    assert len(commands) >= 10 and page.count("| `torchrun ") == 1
    assert all(map(parse, commands))


# Of the reports, of the published baseline's settings and of usual programs: each once gave no answer, or a wrong one.
OPTIONS = {
    "--use-tpu --use_tpu --tpu --use-xla": "use --device tpu",
    "--tpu-cores --num-cores --num_tpu_cores": "use --device tpu (one process uses all chips)",
    "--use-amp --use_amp --mixed_precision --amp": "use --precision (auto",
    "--half --bf16": "use --precision bfloat16",
    "--fp16": "use --precision float16",
    "--mode --do_train": "there are no modes",
    "--global-seed --random_seed": "use --seed",
    "--num-dataloader-workers --num_workers": "use --readers",
    "--gradient-accumulation-steps --grad-accum": "use --accumulation",
    "--results-dir --output_dir --exp-dir": "use --out",
    "--global-batch --global-batch-size --train_batch_size": "use --batch-size",
    "--epochs --num_training_batches --max-epoch": "use --steps",
    "--num-processes --num_processes --nproc_per_node --world-size": "torchrun --nproc-per-node",
    "--gpus --num-gpus": "use --device cuda; several: torchrun",
    "--gpu-number --gpu_id": "CUDA_VISIBLE_DEVICES",
    "--lr_max --learning_rate": "use --lr",
    "--grad_norm_clip_value": "use --clip-norm",
    "--demo-every": "use --eval-every",
}


def test_options_of_the_reports_are_answered_by_name() -> None:
    """By the table that the page of the field reports shows. A likeness never leads to another device or precision."""
    page = (ROOT / "benchmarks/field_reports.md").read_text(encoding="utf-8")
    rows = [row for answers in (ELSEWHERE, NOT_HERE) for row in answers.items()]
    for answer, names in rows:
        assert f"| {', '.join(f'`{name}`' for name in names.split())} | {answer} |" in page, "python tools/readme.py"
    for names, answer in OPTIONS.items():
        for name in names.split():
            with pytest.raises(KitError) as refusal:
                parse(["train", "--out", "run", name, "2"])
            assert answer in str(refusal.value), refusal.value
    for name in ("--use-tpus", "--use-tpuu", "--use-gpuu", "--fp15", "--tpu-core"):
        with pytest.raises(KitError) as refusal:
            parse(["train", "--out", "run", name])
        assert "--device" not in str(refusal.value) and "--precision" not in str(refusal.value)


LINES = {  # a command line as somebody else's program would have it -> what is said
    "evaluate --run run": "did you mean `b2t eval`?",
    "predict --run run": "did you mean `b2t decode`?",
    "lm train text.txt": "did you mean `b2t lm build`?",
    "--data data train": "--data is no verb; the verb comes first",
    "-v": "-v is no verb",
    "decode logits.npz": "did you mean --logits logits.npz?",
    "decode run": "did you mean --run run?",
    "decode --tune=true --run run": "--tune: is a switch; leave out 'true'",
    "decode --tune False --run run": "--tune: is a switch; write --no-tune instead of --tune False",
    "combine a.csv b.csv -o c.csv": "-o: is no option here; names of options are written out",
    "score --hyp a.csv --ref b.csv": "--hyp: is no option here; use --hypothesis",
}


@pytest.mark.parametrize("line", LINES)
def test_lines_of_other_programs_are_answered(line: str) -> None:
    with pytest.raises(KitError) as refusal:
        parse(line.split())
    assert LINES[line] in str(refusal.value)


@pytest.mark.parametrize("closed, columns", [(">&-", 80), ("2>&-", 80), (">&- 2>&-", 80), ("", 3)])
def test_help_needs_neither_a_terminal_nor_a_wide_one(closed: str, columns: int, tmp_path: Path) -> None:
    "A stream that the shell closed, and a window of three columns."
    said = tmp_path / "said.csv"
    said.write_text("id,text\n0,hello\n")
    for verb in ("--help", "score --help", f"score {said} {said} --json {tmp_path / 'score.json'}"):
        line = f"{sys.executable} -m b2t_kit {verb} {closed}"
        done = subprocess.run(["sh", "-c", line], env={**os.environ, "COLUMNS": str(columns)}, capture_output=True, timeout=60)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "score.json").exists()


IDLE = {  # options that would do nothing in their command -> what is said
    "live --run run --keep-features": "--keep-features: needs --keep",
    "live --run run --host 0.0.0.0": "--host: needs --page",
    "live --run run --port 80": "--port: needs --page",
    "live --run run --origin https://b2t": "--origin: needs --page",
    "live --run run --source 127.0.0.1:5560 --trials 3": "--trials: is for a recording",
    "live --run run --source 127.0.0.1:5560 --pace 2": "--pace: is for what is played or simulated",
    "live --run run --source recording --say hello": "--say: is for a simulated participant",
    "live --run run --say hello --split test": "--split: is for a recording",
    "submit --nbest nbest.jsonl --out new.csv --device cpu": "--device: is for decoding",
    "lm build text.txt --leaks drop --out new.arpa": "--leaks: needs --exclude",
    "fetch --out new --lm t15-5gram --set t12": "--set: is for recordings, not for --lm",
    "fetch --out new --lm t15-5gram --baseline": "--baseline: is for recordings, not for --lm",
    "fetch --out new --set t12 --source kaggle": "--source: is for T15's copy task",
    "fetch --out new --source kaggle --token-file token": "--token-file: is for Dryad",
    "decode --run run --adapt-lr 0.1": "--adapt-lr: needs --adapt",
    "decode --run run --combine average": "--combine: needs --runs",
    "decode --run run --tokens tokens.txt": "--tokens: needs --logits",
    "decode --logits logits.npz --split test": "--split: is for a run",
}


@pytest.mark.parametrize("line", IDLE)
def test_an_option_that_would_do_nothing_is_refused(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    "A family that writes --keep-features without --keep believes that the recording is kept."
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KitError) as refusal:
        parse(line.split()).act()
    assert IDLE[line] in str(refusal.value) and not any(tmp_path.iterdir())
