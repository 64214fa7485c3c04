"""The cell with which a notebook installs the kit where it is missing: `python tools/install_cell.py` writes it.

Nobody else may have its name on an index, or its repository's address: a notebook that asked there first would run a
stranger's code. `OWNED` is therefore empty until the release list in CONTRIBUTING was followed, and until then a
notebook installs only what its user has attached, uploaded or cloned.
"""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWNED: list[str] = []  # what pip may be asked for over the internet
NOTEBOOKS = sorted(path for pattern in ("nbs/**/*.ipynb", "kaggle/*/*.ipynb") for path in ROOT.glob(pattern))
BEGINNING = "# Installs b2t_kit where it is missing"


def code(owned: list[str] = OWNED) -> str:
    "The cell."
    return f'''{BEGINNING}: the same cell in all notebooks, written by tools/install_cell.py
import importlib.util
import subprocess
import sys
from pathlib import Path

if not importlib.util.find_spec("b2t_kit"):
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    folders = [Path.cwd(), *Path.cwd().parents, Path("/content"), *Path("/content").glob("*")]
    wheels = sorted([*Path("/kaggle/input").rglob("b2t_kit-*.whl"),
                     *(wheel for folder in folders for wheel in folder.glob("b2t_kit-*.whl"))],
                    key=lambda wheel: wheel.name, reverse=True)
    checkouts = [folder for folder in folders if (folder / "b2t_kit/__init__.py").exists()]
    sources = [source for wheel in wheels
               for source in (["--no-index", f"--find-links={{wheel.parent}}", wheel], [wheel])]
    for source in [*sources, *([folder] for folder in checkouts), *([name] for name in {owned})]:
        done = subprocess.run([*pip, *source], capture_output=True, text=True)
        print(f"pip install {{source[-1]}}:", done.stderr or "done")
        if done.returncode == 0:
            break
    else:
        raise SystemExit("b2t_kit could not be installed. On Kaggle, attach the dataset that `b2t kernel build` "
                         "writes; on Colab, upload the file b2t_kit-*.whl in it, or clone the repository")'''


def installs(cell: dict) -> bool:
    "Whether this cell installs the kit."
    return cell["cell_type"] == "code" and any(line.startswith(BEGINNING) for line in cell["source"])


def main() -> None:
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in filter(installs, notebook["cells"]):
            flags = [line for line in cell["source"] if line.startswith("#|")]
            cell["source"] = flags + code().splitlines(keepends=True)
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        if text != path.read_text(encoding="utf-8") and any(map(installs, notebook["cells"])):
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
