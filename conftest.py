"""Collect notebooks with pytest: every cell that asserts is one test.

The cells of a notebook run in order in one IPython shell, as `nbdev_test` (`nbdev-test` in nbdev 3) runs them: in the
notebook's folder (a Kaggle kernel in a temporary one), with `IN_TEST` set. A test is an asserting cell
with the plain cells that lead up to it, so a plain cell that fails fails the test below it; plain cells
at the end are one test more. Once a cell has failed, the rest of its notebook is reported as skipped. A
notebook must leave the process as it found it, since the next one shares it.

Left out, as by `nbdev_test`: cells with `#| eval: false`, cells that call `nbdev_export(`, and
cells that carry one of settings.ini's `tst_flags` as a directive, unless `--flags` names it (both
commands have that option):

    #| notest      only runs by hand
    #| slow        takes minutes
    #| cuda        needs a CUDA device
    #| torch_xla   needs torch_xla. pytest runs it wherever torch_xla is installed, and elsewhere
                   reports it as skipped; `nbdev_test` runs it only under `--flags torch_xla`

With `-n`, files begin in the order of the seconds that `.ci/seconds.json` has of them, the longest first, so that
no processor waits for the other at the end. `--seconds FILE` writes those of a run.

A test in `tests/` says the same with `@pytest.mark.torch_xla`. Under `--no-skips` a skip is a
failure.

There are two tiers. `pytest` alone runs the first: every promise once, in minutes. `--tier second` runs
the campaigns and the heavy pages, `--tier all` both; naming files or folders runs all of them. Of the
second tier are tests marked `second_tier` (alone, or by `pytestmark` as a file, from which
`first_tier` takes a test out), notebooks whose metadata have `"second_tier": true`, Kaggle's kernels
and research/.

The last line of a run is `N passed, M failed, K skipped`; what pytest calls an error is a
failure there.
"""
import gc
import json
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from execnb.shell import CaptureShell

ROOT = Path(__file__).parent
SECONDS = ROOT / ".ci/seconds.json"  # of each file; a copy of what `--seconds` wrote
ASSERTS = re.compile(r"^\s*(assert\b|test_\w+\(|expect_fail\()", re.M)
DIRECTIVE = re.compile(r"^#\s*\|\s*(\w+):?[ \t]*(.*)$", re.M)
EXPORTS = {"export", "exporti", "exports", "default_exp"}
collect_ignore_glob = ["kaggle/*/*-zh.ipynb"]  # translations; a test compares their code
LIBRARIES = {"torch_xla"}  # flags that stand for a library
SECOND_TIER = ("kaggle", "research")  # folders of notebooks that take long
# Variables that libraries and pytest set for themselves.
FOREIGN = ("GOMP_SPINCOUNT", "PYTEST_", "TORCHINDUCTOR_", "XLA_", "PJRT_", "TPU_", "PTXLA_", "TF_", "GRPC_")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or no command that a test starts would hear Ctrl-C
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup does that
    signal.signal(signal.SIGHUP, lambda *_: None)  # ignored here as before, and heard by the commands that tests start
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores


def pytest_addoption(parser):
    parser.addoption("--flags", default="", help="tst_flags to run all the same, as nbdev_test's")
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure")
    parser.addoption("--seconds", default="", help="a JSON file that gets the seconds of each file of tests")
    parser.addoption("--tier", choices=("first", "second", "all"), help="which tests run where no files are named: first")
    parser.addoption("--library", default="", help="only tests that need this library, such as torch_xla, and whole notebooks that do")
    parser.addoption("--also", default="", help="with --library: files and folders that run whole, with commas between")


def pytest_configure(config):
    if config.option.tier is None:  # a worker of xdist inherits what is decided here
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        config.option.tier = "all" if named else "first"


def in_second_tier(item) -> bool:
    "Whether a test, or its whole file, is of the second tier."
    return bool(item.get_closest_marker("second_tier") and not item.get_closest_marker("first_tier"))


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".ipynb" and not file_path.name.startswith(("_", ".")):
        return Notebook.from_parent(parent, path=file_path)


def pytest_collection_modifyitems(config, items):
    tier = config.option.tier
    if tier != "all":
        tiers = {True: [], False: []}
        for item in items:
            tiers[in_second_tier(item)].append(item)
        config.hook.pytest_deselected(items=tiers[tier == "first"])
        items[:] = tiers[tier == "second"]
    if library := config.getoption("--library"):
        notebooks = {item.path for item in items if item.get_closest_marker(library) and isinstance(item, Cells)}
        also = [ROOT / path for path in config.getoption("--also").split(",") if path]
        kept = [item for item in items if item.get_closest_marker(library) or item.path in notebooks
                or any(item.path.is_relative_to(path) for path in also)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    if "PYTEST_XDIST_WORKER" in os.environ and SECONDS.exists():
        seconds = {ROOT / name: taken for name, taken in json.loads(SECONDS.read_text(encoding="utf-8")).items()}
        items.sort(key=lambda item: -seconds.get(item.path, 0.0))  # tests of a file stay together, in their order


def pytest_collection_finish(session):
    gc.freeze()  # imported modules: each collection, and closing a device is one, went through all of them


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    gc.collect()
    gc.freeze()  # what a test leaves, such as modules, stays
    if nextitem is None or nextitem.path != item.path:
        if "tqdm" in sys.modules:  # an interrupted bar may keep the lock of all, and other threads wait for ever
            sys.modules["tqdm"].tqdm.set_lock(threading.RLock())
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    gc.freeze()  # what fixtures have made and imported


def pytest_runtest_setup(item):
    for library in LIBRARIES:
        if item.get_closest_marker(library) and not find_spec(library):
            pytest.skip(f"needs {library}, which is not installed")


def flags_left_out(config) -> set[str]:
    "The tst_flags of settings.ini whose cells this run does not even collect."
    settings = ConfigParser(delimiters=["="])
    settings.read(ROOT / "settings.ini", encoding="utf-8")
    flags = set(settings["DEFAULT"]["tst_flags"].split())
    return flags - LIBRARIES - set(config.getoption("--flags").split())


def shared_state() -> dict[str, object]:
    "What notebooks could change under each other's feet."
    ours = {name for name in os.environ if not name.startswith(FOREIGN)}
    state = {name: os.environ[name] for name in ours} | {"working folder": os.getcwd()}
    torch = sys.modules.get("torch")
    state["torch's default dtype"] = str(torch.get_default_dtype()) if torch else "torch.float32"
    state["torch's grad mode"] = torch.is_grad_enabled() if torch else True
    return state


class Notebook(pytest.File):
    "A notebook, whose test cells share one shell."

    def collect(self):
        left_out = flags_left_out(self.config)
        self.sources, end, heading = [], 0, self.path.stem
        notebook = json.loads(self.path.read_text(encoding="utf-8"))
        by_folder = any(self.path.is_relative_to(ROOT / folder) for folder in SECOND_TIER)
        if by_folder or notebook["metadata"].get("second_tier"):
            self.add_marker("second_tier")
        for number, cell in enumerate(notebook["cells"], 1):
            source = "".join(cell["source"])
            directives = dict(DIRECTIVE.findall(source))
            if cell["cell_type"] == "markdown" and source.startswith("#"):
                heading = source.splitlines()[0].strip("# ").replace("`", "")
            if cell["cell_type"] != "code" or "nbdev_export(" in source:
                continue
            if directives.get("eval") == "false" or left_out & directives.keys():
                continue
            asserts = ASSERTS.search(source) and not EXPORTS & directives.keys()
            missing = {name for name in LIBRARIES & directives.keys() if not find_spec(name)}
            if not missing:
                self.sources.append(source)
            if asserts:
                end = len(self.sources)
                test = Cells.from_parent(self, name=f"{heading} [{number}]", end=end)
                for library in LIBRARIES & directives.keys():
                    test.add_marker(library)
                yield test
        if end < len(self.sources):
            yield Cells.from_parent(self, name=f"to the end [{number}]", end=len(self.sources))

    def setup(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("IN_TEST", "1")
        self.patch.syspath_prepend(ROOT)
        self.scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        kernel = self.path.is_relative_to(ROOT / "kaggle")  # writes into the folder that it starts in
        self.patch.chdir(self.scratch.name if kernel else self.path.parent)
        self.patch.setenv("TMPDIR", self.scratch.name)  # what a notebook leaves goes with it
        self.patch.setattr(tempfile, "tempdir", self.scratch.name)
        self.state = shared_state()
        self.shell = CaptureShell(self.path, mpl_format="png")
        self.number_run, self.failed = 0, False

    def teardown(self):
        after = shared_state()
        changed = [name for name in self.state | after if self.state.get(name) != after.get(name)]
        self.shell.user_ns.clear()  # IPython keeps every shell until exit
        self.patch.undo()
        self.scratch.cleanup()
        if changed:
            names = ", ".join(sorted(changed))
            pytest.fail(f"{self.path.name} leaves changed: {names}", pytrace=False)


class Cells(pytest.Item):
    "A cell that asserts, with whatever cells above it have not been run yet."

    def __init__(self, *, end: int, **kwargs):
        super().__init__(**kwargs)
        self.end = end  # index in the notebook's sources, one past this cell

    def runtest(self):
        notebook = self.parent
        if notebook.failed:
            pytest.skip("an earlier cell of this notebook failed")
        for source in notebook.sources[notebook.number_run:self.end]:
            notebook.number_run += 1
            notebook.shell.run(source)
            if notebook.shell.exc:
                notebook.failed = True
                raise notebook.shell.exc

    def repr_failure(self, excinfo, style=None):
        *lines, message = traceback.format_exception(excinfo.value)
        in_cell = (at for at, line in enumerate(lines) if "<ipython-input" in line)
        return "".join([f"{self.path.name}: {message}", *lines[next(in_cell, 0):]])

    def reportinfo(self):
        return self.path, None, self.name


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter:  # xdist's workers have none
        number = {outcome: len(reports) for outcome, reports in reporter.stats.items()}
        failed = number.get("failed", 0) + number.get("error", 0) + number.get("xpassed", 0)
        skipped = number.get("skipped", 0) + number.get("xfailed", 0)
        if session.config.getoption("--no-skips") and skipped:
            failed, skipped, session.exitstatus = failed + skipped, 0, pytest.ExitCode.TESTS_FAILED
        if session.config.getoption("--seconds"):
            seconds = Counter()
            for report in (one for reports in reporter.stats.values() for one in reports if hasattr(one, "duration")):
                seconds[report.nodeid.partition("::")[0]] += report.duration
            text = json.dumps({name: round(taken) for name, taken in seconds.most_common()}, indent=0)
            Path(session.config.getoption("--seconds")).write_text(text + "\n", encoding="utf-8")
        reporter.write_line(f"{number.get('passed', 0)} passed, {failed} failed, {skipped} skipped")
    return result
