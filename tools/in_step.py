"""Check that generated files match their sources: `python tools/in_step.py`.

In a copy of the checkout, export the package from the notebooks, clean the notebooks and write
the READMEs, then list every file that differs from the checkout's. Works with nbdev 2 and 3.
"""
import difflib
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("b2t_kit", "nbs", "tools", "README.md", "README.zh.md", "settings.ini", "pyproject.toml")
GENERATED = ("b2t_kit/**/*.py", "nbs/**/*.ipynb", "nbs/README.md", "nbs/tutorials/*.md", "README*.md")
SHOWN = 20  # lines of each difference
# nbdev 2 lists a module without functions and classes in _modidx.py, nbdev 3 does not.
NO_SYMBOLS = re.compile(r"^ *'[\w.]+': \{\},?\n", re.M)
REBUILD = """
import runpy
from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export
nbdev_export()
nbdev_clean()
runpy.run_path("tools/readme.py", run_name="__main__")
"""


def copy_checkout(target: Path) -> None:
    "Copy the generated files and their sources."
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
        elif (ROOT / name).exists():  # one that is missing is out of step
            shutil.copy(ROOT / name, target / name)


def generated(folder: Path) -> dict[str, str]:
    "The text of each generated file in a checkout, by its path there."
    files = (path for pattern in GENERATED for path in folder.glob(pattern))
    return {
        path.relative_to(folder).as_posix(): NO_SYMBOLS.sub("", path.read_text(encoding="utf-8"))
        for path in files
        if ".ipynb_checkpoints" not in path.parts
    }


def rebuild(copy: Path) -> None:
    "Write all generated files of a copy again; modules that no notebook exports are removed."
    for module in copy.glob("b2t_kit/**/*.py"):
        if module.name != "__init__.py":  # holds nothing but the version, and is only ever updated
            module.unlink()
    subprocess.run([sys.executable, "-c", REBUILD], cwd=copy, check=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        copy_checkout(Path(folder))
        rebuild(Path(folder))
        here, rebuilt = generated(ROOT), generated(Path(folder))
    differing = sorted(name for name in here | rebuilt if here.get(name) != rebuilt.get(name))
    for name in differing:
        lines = [text.get(name, "").splitlines() for text in (here, rebuilt)]
        diff = difflib.unified_diff(*lines, name, f"{name} rebuilt", lineterm="", n=0)
        print(*islice(diff, SHOWN), sep="\n")
    print(f"{len(differing)} of {len(here | rebuilt)} generated files are out of step", *differing)
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
