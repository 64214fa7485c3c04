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
from b2t_kit.core.errors import KitError
from b2t_kit.core.files import load_json
from b2t_kit.publish.kaggle import build_kernel, kernel_names, kernels_folder, slug

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {  # what `kaggle kernels push` reads, and its type
    "id": str, "title": str, "code_file": str, "language": str, "kernel_type": str, "is_private": bool,
    "enable_gpu": bool, "enable_tpu": bool, "enable_internet": bool, "machine_shape": str, "dataset_sources": list,
    "competition_sources": list, "kernel_sources": list, "model_sources": list,
}
MACHINES = {"b2t-eit-tpu": "TpuV5E8", "b2t-gpu": "NvidiaTeslaT4", "b2t-tpu-ensemble": "TpuV5E8",
            "b2t-tpu-v5e8": "TpuV5E8", "b2t-words": "NvidiaTeslaT4"}  # as kaggle 2.2.5 names them


def cells_of(notebook: Path, kind: str = "code") -> list[str]:
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
    gpu = MACHINES[kernel].startswith("Nvidia")
    assert (content["enable_gpu"], content["enable_tpu"]) == (gpu, not gpu)
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
    used = run(python, "-c", "import b2t_kit.publish.kaggle as kernels; print(kernels.kernels_folder())").strip()
    assert Path(used).is_relative_to(tmp_path / "env")
    run(tmp_path / "env/bin/b2t", "kernel", "build", "--out", "again", "--user", "ada", "--kernel", "b2t-gpu")
    (again,) = (tmp_path / "again/wheel").glob("*.whl")
    assert again.stat().st_size == pytest.approx(wheel.stat().st_size, rel=0.01)


def test_translations_run_the_same_code() -> None:
    """Every code cell equals the original's, and every Markdown cell is in Chinese."""
    translations = sorted(kernels_folder().glob("*/*-zh.ipynb"))
    for translation in translations:
        original = translation.with_name(translation.name.replace("-zh", ""))
        ours = cells_of(translation, "markdown")
        assert cells_of(translation) == cells_of(original) and len(ours) == len(cells_of(original, "markdown"))
        assert translations and all(re.search("[\u4e00-\u9fff]", text) for text in ours)


NOTEBOOKS = [kernels_folder() / kernel / f"{kernel}.ipynb" for kernel in MACHINES]


def decide(notebook: Path, rehearse: str = "None", until: str = "must_rehearse(") -> dict[str, object]:
    """The variables of a kernel after the cell that decides whether to rehearse, or a later one."""
    cells, names = cells_of(notebook), dict[str, object]()
    last = next(number for number, code in enumerate(cells) if until in code)
    for code in cells[1:last + 1]:  # without the one that installs
        exec(code.replace("rehearse = None", f"rehearse = {rehearse}"), names)
    return names


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_when_a_kernel_rehearses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: Path) -> None:
    """Without accelerator or recordings a pushed run fails in one line unless a rehearsal was asked for; with two sets of
    recordings any session does: which was meant is for the user to say."""
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
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE")
    tomography = "eit" in notebook.stem
    for name in ("one", "other"):
        if tomography:
            (tmp_path / name / "train").mkdir(parents=True)
            (tmp_path / name / "train/0.npz").touch()
        else:
            simulate(tmp_path / name, sessions=1, trials=1)
    monkeypatch.setattr("b2t_kit.devices.torch.tpu_chips", lambda: ["chip"] * 8)
    with pytest.raises(KitError, match="several (data sets are attached; detach all but one|recordings found, name one).*one.*, .*other"):
        decide(notebook, until="attached(" if tomography else "must_rehearse(")


def test_every_figure_of_a_kernel_is_stamped() -> None:
    """With "rehearsal", so that nobody takes it for a result."""
    for notebook in NOTEBOOKS:
        drawing = [code for code in cells_of(notebook) if re.search(r"^ *[^#\n]*\b(plot|show)_\w+\(", code, re.M)]
        assert len(drawing) >= 2 and [code for code in drawing if not re.search(r"\bstamp\(.*, rehearsal\)", code)] == []


def test_every_name_is_defined() -> None:
    """Nobody runs a kernel for nine hours to find a missing import."""
    notebooks = [*ROOT.glob("kaggle/*/*.ipynb"), *ROOT.glob("nbs/tutorials/*.ipynb")]
    done = subprocess.run(["ruff", "check", "--isolated", "--select=F821", "--output-format=concise", *map(str, notebooks)],
                          capture_output=True, text=True)
    assert set(re.findall("Undefined name `(.*)`", done.stdout)) <= {"_exit_code"} and len(notebooks) > 10, done.stdout


RECORDING_PIP = """
import sys
from pathlib import Path
print(*sys.argv[1:], file=open(Path(__file__).with_name("asked"), "a"))
"""
RUN_CELL = """
import importlib.util, sys
from IPython.core.interactiveshell import InteractiveShell
if sys.argv[2] != "installed":
    importlib.util.find_spec = lambda name: None
InteractiveShell.instance().run_cell(sys.argv[1]).raise_error()
"""
INSTALLING = {path: cells for path in sorted([*ROOT.glob("nbs/**/*.ipynb"), *ROOT.glob("kaggle/*/*.ipynb")])
              if (cells := [code for code in cells_of(path) if re.search(r'%pip|"pip", "install"', code)])}


def test_notebooks_install_by_the_same_cell(tmp_path: Path) -> None:
    """A wheel comes before a clone, and no index is asked for the kit: who registers its name there must not run code here."""
    assert {path.stem for path in INSTALLING} == {
        "index", "first_decoder", "first_hour", "colab", "own_model", "own_recordings", "before_the_tpu", "cluster", "live",
        "b2t-gpu", "b2t-tpu-v5e8", "b2t-tpu-v5e8-zh", "b2t-eit-tpu", "b2t-tpu-ensemble",
        "b2t-words"}
    (cell,) = {re.sub(r"^#\|.*\n", "", cell, flags=re.M) for cells in INSTALLING.values() for cell in cells}
    assert len(cell.splitlines()) == 5
    binary = "--only-binary pocketsphinx --find-links ."
    asked = f"install -qq --retries 1 {binary} ./b2t_kit"
    for attached, expected in (
            ("", asked), ("b2t_kit-0.2.0", f"{asked}-0.2.0-py3-none-any.whl"), ("installed", None),
            # what `--offline` attaches has all wheels, and no index can be reached
            ("b2t_kit-0.2.0 numba-0.61.0", f"install -qq --no-index {binary} ./b2t_kit-0.2.0-py3-none-any.whl")):
        place = tmp_path / f"with {attached}"
        (place / "library").mkdir(parents=True)
        (place / "library/pip.py").write_text(RECORDING_PIP)
        for name in attached.split() if attached != "installed" else ():
            (place / f"{name}-py3-none-any.whl").touch()
        done = subprocess.run([sys.executable, "-c", RUN_CELL, cell, attached or "missing"], cwd=place, capture_output=True, text=True, env={
            **os.environ, "PYTHONPATH": os.pathsep.join([str(place / "library"), str(ROOT)]), "IPYTHONDIR": str(place / "ipython")})
        assert done.returncode == 0, done.stderr
        found = place / "library/asked"
        asked_for = found.read_text().splitlines() if found.exists() else []
        english = f"{expected.rpartition(' ')[0]} pocketsphinx" if expected else ""  # by itself: the kit works without
        assert asked_for == ([expected, english] if expected else []), attached
