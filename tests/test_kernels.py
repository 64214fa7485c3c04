"""A kernel's folder as Kaggle accepts it: metadata, wheel, translations; and how notebooks install the kit."""
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import b2t_kit
from b2t_kit.all import simulate
from b2t_kit.core import KitError, load_json
from b2t_kit.kaggle import build_kernel, kernel_names, kernels_folder, slug

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {  # what `kaggle kernels push` reads, and its type
    "id": str, "title": str, "code_file": str, "language": str, "kernel_type": str, "is_private": bool,
    "enable_gpu": bool, "enable_tpu": bool, "enable_internet": bool, "machine_shape": str, "dataset_sources": list,
    "competition_sources": list, "kernel_sources": list, "model_sources": list,
}
MACHINES = {"b2t-eit-tpu": "TpuV5E8", "b2t-gpu": "NvidiaTeslaT4", "b2t-tpu-ensemble": "TpuV5E8",
            "b2t-tpu-v5e8": "TpuV5E8"}  # as kaggle 2.2.5 names them


def cells_of(notebook: Path, kind: str = "code") -> list[str]:
    """The sources of its cells of a kind."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.mark.parametrize("kernel", MACHINES)
def test_metadata_has_every_field(tmp_path: Path, kernel: str) -> None:
    """The fields that Kaggle reads are there, and their names and paths agree."""
    build_kernel(tmp_path / "push", kernel, user="ada")
    content = load_json(tmp_path / "push/kernel/kernel-metadata.json")
    assert {name: type(content.get(name)) for name in FIELDS} == FIELDS and kernel_names() == sorted(MACHINES)
    assert content["id"] == f"ada/{slug(content['title'])}" and 5 <= len(content["title"]) <= 50
    assert content["machine_shape"] == MACHINES[kernel] and content["is_private"]
    assert (content["enable_gpu"], content["enable_tpu"]) == (kernel == "b2t-gpu", kernel != "b2t-gpu")
    assert content["competition_sources"] == ([] if kernel == "b2t-eit-tpu" else ["brain-to-text-25"])
    assert (tmp_path / "push/kernel" / content["code_file"]).is_file()
    about = load_json(tmp_path / "push/wheel/dataset-metadata.json")
    assert content["dataset_sources"] == [about["id"]] == ["ada/b2t-kit-wheel"] and len(about["licenses"]) == 1
    assert 6 <= len(about["title"]) <= 50 and about["id"] == f"ada/{slug(about['title'])}"


def test_wheel_installs_without_index_or_checkout(tmp_path: Path) -> None:
    """Install the wheel in a fresh environment with this one's libraries, and build the kernel again from there."""
    build_kernel(tmp_path / "push", user="ada")
    (wheel,), python = (tmp_path / "push/wheel").glob("*.whl"), tmp_path / "env/bin/python"
    venv.create(tmp_path / "env", with_pip=False)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> str:
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    where = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(where, "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(tmp_path / "env/bin/b2t", "--version") == f"b2t_kit {b2t_kit.__version__}\n"
    used = run(python, "-c", "import b2t_kit.kaggle as kernels; print(kernels.kernels_folder())").strip()
    assert Path(used).is_relative_to(tmp_path / "env")
    run(tmp_path / "env/bin/b2t", "kernel", "build", "--out", "again", "--user", "ada", "--kernel", "b2t-gpu")
    (again,) = (tmp_path / "again/wheel").glob("*.whl")
    assert again.stat().st_size == pytest.approx(wheel.stat().st_size, rel=0.01)


@pytest.mark.parametrize("translation", sorted(kernels_folder().glob("*/*-zh.ipynb")), ids=lambda path: path.stem)
def test_translation_runs_the_same_code(translation: Path) -> None:
    """Every code cell equals the original's, and every Markdown cell is in Chinese."""
    original = translation.with_name(translation.name.replace("-zh", ""))
    assert cells_of(translation) == cells_of(original)
    ours = cells_of(translation, "markdown")
    assert len(ours) == len(cells_of(original, "markdown")) and all(re.search("[\u4e00-\u9fff]", text) for text in ours)


NOTEBOOKS = [kernels_folder() / kernel / f"{kernel}.ipynb" for kernel in MACHINES]


def decide(notebook: Path, rehearse: str = "None", until: str = "must_rehearse(") -> dict[str, object]:
    """The variables of a kernel after the cell that decides whether to rehearse, or a later one."""
    cells, names = cells_of(notebook), dict[str, object]()
    last = next(number for number, code in enumerate(cells) if until in code)
    for code in cells[1:last + 1]:  # without the one that installs
        exec(code.replace("rehearse = None", f"rehearse = {rehearse}"), names)
    return names


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_a_watched_session_rehearses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], notebook: Path
) -> None:
    """Without accelerator and recordings: a pushed run fails with one line, unless a rehearsal was asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("b2t_kit.devices.torch.tpu_chips", list)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for kind, rehearse in itertools.product(("Interactive", "Batch"), ("None", "False", "True")):
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", kind)
        if rehearse == "True" or rehearse == "None" and kind == "Interactive":
            names = decide(notebook, rehearse)
            assert names["rehearsal"] is True and names["home"] == Path("/kaggle/working/rehearsal")
        else:
            with pytest.raises(KitError, match="^this session has no [GT]PU[^\n]*rehearse = True$"):
                decide(notebook, rehearse)
    assert "a rehearsal" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_two_copies_of_the_data_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: Path) -> None:
    """Which of them was meant is for the user to say, in any session."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)
    if "eit" in notebook.stem:
        for name in ("one", "other"):
            (tmp_path / name / "train").mkdir(parents=True)
            (tmp_path / name / "train/0.npz").touch()
        monkeypatch.setattr("b2t_kit.devices.torch.tpu_chips", lambda: ["chip"] * 8)
        with pytest.raises(KitError, match="several data sets are attached; detach all but one of .*one, .*other"):
            decide(notebook, until="attached(")
        return
    for name in ("one", "other"):
        simulate(tmp_path / name, sessions=1, trials=1)
    with pytest.raises(KitError, match="several recordings found, name one: .*one.*, .*other"):
        decide(notebook)
    assert decide(notebook, "True")["rehearsal"] is True


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_kernel_promises(notebook: Path) -> None:
    """Every cell that draws stamps its figure; each language says first what rehearses and what fails."""
    drawing = [code for code in cells_of(notebook) if re.search(r"^ *[^#\n]*\b(plot|show)_\w+\(", code, re.M)]
    assert len(drawing) >= 2 and [code for code in drawing if not re.search(r"\bstamp\(.*, rehearsal\)", code)] == []
    for path in notebook.parent.glob("*.ipynb"):
        introduction = cells_of(path, "markdown")[0]
        assert all(f"`{value}`" in introduction for value in ("rehearse = None", "True", "False", "rehearsal/")), path


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("kaggle/*/*.ipynb")) + sorted(ROOT.glob("nbs/tutorials/*.ipynb")),
                         ids=lambda path: path.stem)
def test_every_name_is_defined(notebook: Path) -> None:
    """Nobody runs a kernel for nine hours to find a missing import."""
    code = "\n".join(re.sub(r"^( *)[%!].*$", r"\1pass", cell, flags=re.M)
                     for cell in cells_of(notebook) if not cell.startswith("%%"))
    found = subprocess.run(["ruff", "check", "--isolated", "--select=F821", "--output-format=concise", "-"], input=code,
                           capture_output=True, text=True).stdout
    assert set(re.findall("Undefined name `(.*)`", found)) <= {"_exit_code"}


RECORDING_PIP = """
import sys
from pathlib import Path
print(*sys.argv[1:], file=open(Path(__file__).with_name("asked"), "a"))
"""
RUN_CELL = """
import importlib.util, sys
from IPython.core.interactiveshell import InteractiveShell
if sys.argv[2] == "missing":
    importlib.util.find_spec = lambda name: None
InteractiveShell.instance().run_cell(sys.argv[1]).raise_error()
"""
INSTALLING = {path: cells for path in sorted([*ROOT.glob("nbs/**/*.ipynb"), *ROOT.glob("kaggle/*/*.ipynb")])
              if (cells := [code for code in cells_of(path) if re.search(r'%pip|"pip", "install"', code)])}


def test_notebooks_install_by_the_same_cell() -> None:
    """Of five lines, in every notebook that is opened on a service."""
    assert {path.stem for path in INSTALLING} == {
        "index", "first_decoder", "colab", "own_model", "live", "b2t-gpu", "b2t-tpu-v5e8", "b2t-tpu-v5e8-zh", "b2t-eit-tpu",
        "b2t-tpu-ensemble"}
    cells = {re.sub(r"^#\|.*\n", "", cell, flags=re.M) for cells in INSTALLING.values() for cell in cells}
    assert len(cells) == 1 and len(cells.pop().splitlines()) == 5


def asked_of_pip(place: Path, kit: str = "missing") -> list[str]:
    """What the cell asks of pip in a folder, where the kit is missing or installed."""
    library = place / "library"
    library.mkdir(parents=True)
    (library / "pip.py").write_text(RECORDING_PIP)
    cell = re.sub(r"^#\|.*\n", "", next(iter(INSTALLING.values()))[0], flags=re.M)
    search = os.pathsep.join([str(library), str(ROOT)])
    done = subprocess.run([sys.executable, "-c", RUN_CELL, cell, kit], cwd=place, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": search, "IPYTHONDIR": str(place / "ipython")})
    assert done.returncode == 0, done.stderr
    asked = library / "asked"
    return asked.read_text().splitlines() if asked.exists() else []


def test_a_wheel_comes_before_a_clone_and_no_index_is_asked_for_the_kit(tmp_path: Path) -> None:
    """A stranger who registers the name on an index must not run code in a notebook."""
    assert asked_of_pip(tmp_path / "there", "installed") == []
    assert asked_of_pip(tmp_path / "empty") == ["install -qq --retries 1 --find-links . ./b2t_kit"]
    (tmp_path / "uploaded").mkdir()
    (tmp_path / "uploaded/b2t_kit-0.2.0-py3-none-any.whl").touch()
    assert asked_of_pip(tmp_path / "uploaded") == [
        "install -qq --retries 1 --find-links . ./b2t_kit-0.2.0-py3-none-any.whl"]
    (tmp_path / "offline").mkdir()  # what `--offline` attaches has all wheels, and no index can be reached
    for name in ("b2t_kit-0.2.0", "numba-0.61.0"):
        (tmp_path / f"offline/{name}-py3-none-any.whl").touch()
    assert asked_of_pip(tmp_path / "offline") == ["install -qq --no-index --find-links . ./b2t_kit-0.2.0-py3-none-any.whl"]
