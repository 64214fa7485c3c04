"""The table of reported failures: its tests exist; and two failures at the start of a run.

The other failures have tests where the table says: test_failures.py, test_xla_failures.py, and cells
of notebooks.
"""
import ast
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from b2t_kit.doctor.doctor import diagnose
from b2t_kit.doctor.known_failures import FAILURES, FAILURE_KINDS, REPORTED, THREADS, Failure, table

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600  # seconds
TESTS = sorted({test for failure in FAILURES for test in failure.tests})


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


def headings_with_tests(notebook: Path) -> set[str]:
    """The headings of a notebook below which a cell asserts."""
    found, heading = set(), ""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        headings = re.findall(r"^#+ (.*)", source, re.M) if cell["cell_type"] == "markdown" else []
        if headings:
            heading = {name.replace("`", "") for name in headings}
        elif cell["cell_type"] == "code" and re.search(r"^\s*assert\b", source, re.M) and "| export" not in source:
            found |= set(heading)
    return found


@pytest.mark.parametrize("test", TESTS)
def test_tests_of_the_table_exist(test: str) -> None:
    """A renamed or deleted test must not stay in the table."""
    path, _, name = test.partition("::")
    known = headings_with_tests if path.endswith(".ipynb") else functions
    assert name in known(ROOT / path), f"{name} is not in {path}"


def test_every_failure_has_a_test() -> None:
    """Harmless failures need a test too."""
    assert [failure.name for failure in REPORTED if not failure.tests] == []


@pytest.mark.parametrize("entries", [REPORTED, THREADS, FAILURE_KINDS], ids=["reported", "threads", "kinds"])
@pytest.mark.parametrize("language, name", [("en", "failures"), ("zh", "failures_zh")])
def test_the_documentation_holds_the_table(language: str, name: str, entries: tuple[Failure, ...]) -> None:
    """The page that people search is made from the data that the doctor uses."""
    cells = json.loads((ROOT / f"nbs/tutorials/{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert table(language, entries) in ["".join(cell["source"]) for cell in cells]


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
from b2t_kit.doctor.machine import inspect_machine
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
