"""The table of reported failures: its tests exist; and two failures at the start of a run.

The other failures have tests where the table says: test_failures.py, test_xla_failures.py, and cells
of notebooks.
"""
import ast
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from b2t_kit.doctor import SHOWN, diagnose, failures_table, known_failures

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600  # seconds
TESTS = sorted({test for failure in known_failures() for test in failure.tests})


def child(code: str, *paths: Path, statuses: tuple[int, ...] = (0,), **added: str) -> str:
    """The output of a fresh interpreter with more import folders; it must exit with one of `statuses`."""
    search = os.pathsep.join([*map(str, paths), str(ROOT), *filter(None, sys.path)])
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment.update(PYTHONPATH=search, PJRT_DEVICE="CPU", OMP_NUM_THREADS="1", **added)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode in statuses, done.stderr[-2000:]
    return done.stdout + done.stderr


# What the table promises


def functions(script: Path) -> set[str]:
    """The functions at the top of a test file."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("test", TESTS)
def test_tests_of_the_table_exist(test: str) -> None:
    """A renamed or deleted test must not stay in the table; a notebook tests in its cells."""
    path, _, name = test.partition("::")
    assert (ROOT / path).exists() and (path.endswith(".ipynb") or name in functions(ROOT / path)), test


def test_the_table_is_complete() -> None:
    """Both languages, one line each; what was reported has a number, a test, and what the kit does about it."""
    for failure in known_failures():
        symptom = failure.symptom if isinstance(failure.symptom, dict) else {"en": failure.symptom, "zh": failure.symptom}
        texts = [symptom, failure.cause, failure.cure, *filter(None, (failure.kit, failure.checked))]
        assert all(set(text) == {"en", "zh"} and "\n" not in "".join(text.values()) for text in texts), failure.name
        assert (failure.number and failure.kit and failure.shown in SHOWN and failure.section and failure.tests
                or failure.link.startswith("https://") and failure.versions), failure.name
        assert failure.compiled or failure.number, failure.name
    names = [failure.number.lower() or failure.name for failure in known_failures()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("reported", [True, False], ids=["reported", "threads"])
@pytest.mark.parametrize("language, name", [("en", "failures"), ("zh", "failures_zh")])
def test_the_page_holds_the_table(language: str, name: str, reported: bool) -> None:
    """The page that people search is made from the data that the doctor uses."""
    assert failures_table(language, reported) in (ROOT / f"nbs/tutorials/{name}.md").read_text(encoding="utf-8")


# The doctor on an error that has just happened


GRU_UNDER_XLA_USE_BF16 = """
import torch, torch_xla
device = torch_xla.device()
gru = torch.nn.GRU(24, 48).to(device)
try:
    gru(torch.randn(10, 64, 24).to(device), torch.zeros(1, 64, 48).to(device))
finally:
    import sys, traceback
    traceback.print_exc()
    sys.exit(0)
"""


@pytest.mark.torch_xla
def test_the_doctor_knows_the_original_error(tmp_path: Path) -> None:
    """Run the recipe of C4 and pipe its output into `b2t doctor`: it names the error and the variable that causes it."""
    log = tmp_path / "train.log"
    either = (0, -signal.SIGABRT)  # torch_xla 2.9 raises, 2.8 ends the process with the same words
    log.write_text(child(GRU_UNDER_XLA_USE_BF16, statuses=either, XLA_USE_BF16="1"))
    command = [sys.executable, "-m", "b2t_kit.cli", "doctor", "--log", "-", "--json"]
    with log.open("rb") as piped:
        done = subprocess.run(command, stdin=piped, capture_output=True, text=True, timeout=PATIENCE)
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and set(found) == {"C4", "C24"}, done.stdout
    assert "XLA_USE_BF16" in found["C4"]["cause"]["en"] and "XLA_USE_BF16" in found["C4"]["cause"]["zh"]


# C16: a backslash that escapes nothing


def warnings_of(source: str) -> list[str]:
    """What Python says when it compiles a source; a module that is compiled already says nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compile(source, "module.py", "exec")
    return [str(one.message) for one in caught]


def test_c16_no_module_has_a_bad_escape() -> None:
    """Python warns of the reported escape, and of nothing in the kit's sources."""
    (said,) = warnings_of("pattern = '\\_'")
    assert "invalid escape sequence" in said
    sources = sorted((ROOT / "b2t_kit").rglob("*.py"))
    assert len(sources) > 50
    for path in sources:
        assert warnings_of(path.read_text(encoding="utf-8")) == [], path


# C17a: tensorflow beside torch_xla


@pytest.mark.torch_xla
def test_c17a_tensorflow_beside_torch_xla(tmp_path: Path) -> None:
    """torch_xla warns about a package by name; the doctor does so before anything is imported."""
    metadata = tmp_path / "tensorflow-2.20.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.0\n")
    said = child("import torch_xla", tmp_path)
    assert "`tensorflow` can conflict with `torch-xla`" in said
    assert [finding.failure.number for finding in diagnose(said)] == ["C17a"]

    code = """
import sys
import b2t_kit.train, b2t_kit.speech.task
from b2t_kit.doctor import inspect_machine
print(*[check for check in inspect_machine() if check.name == "tensorflow"])
print("imported", {"tensorflow", "torch_xla"} & set(sys.modules))
"""
    said = child(code, tmp_path)
    assert "note     tensorflow" in said and "(C17a)" in said and "imported set()" in said
    assert "tensorflow   " not in child(code), "without the package there is nothing to say"


# C17b: Kaggle's addresses


PORT = ("E0000 00:00:1785940598.615268      73 common_lib.cc:943] Could not set metric server port: INVALID_ARGUMENT: "
        "Could not find SliceBuilder port 8471 in any of the 0 ports provided in `tpu_process_addresses`=\"local\"\n"
        "=== Source Location Trace: ===\nlearning/45eac/tfrc/runtime/common_lib.cc:239\n")


def test_c17b_is_not_taken_for_the_cause() -> None:
    """libtpu's line in Kaggle logs is harmless and listed after real causes."""
    (finding,) = diagnose(PORT)
    assert finding.failure.number == "C17b" and finding.failure.harmless
    log = PORT + "AttributeError: module 'torch_xla.core.xla_model' has no attribute 'get_world_size'\n"
    assert [finding.failure.number for finding in diagnose(log)] == ["C20", "C17b"]


@pytest.mark.torch_xla
def test_c17b_kaggles_addresses_do_no_harm() -> None:
    """The line appears only on a TPU; the variable that causes it does not disturb one process with all chips."""
    code = """
from b2t_kit.devices.select import open_device
with open_device("xla") as device:
    print("opened", device.chips)
"""
    assert "opened 8" in child(code, TPU_PROCESS_ADDRESSES="local", ISTPUVM="1", CPU_NUM_DEVICES="8")
