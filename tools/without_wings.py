"""The core alone: a copy of the tree without importers/, live/ and tasks/, in which its tests run.

    python tools/without_wings.py                       # every test of the core, in a temporary copy
    python tools/without_wings.py tests/test_caches.py  # or what pytest is given
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WINGS = ("importers", "live", "tasks")  # left out together, with their pages and tests
PAGES = ("live", "own_recordings")  # tutorials about a wing


def copy_core(target: Path) -> Path:
    "Copy what git tracks, or would, without the wings' packages, pages and tests."
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split("\n")
    left_out = {f"{folder}/{wing}" for folder in ("b2t_kit", "nbs", "tests") for wing in WINGS}
    for name in filter(None, listed):
        if not any(f"{name}/".startswith(f"{place}/") for place in left_out) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        copy_core(Path(folder))
        words = sys.argv[1:] or ["tests", "nbs", "--deselect=tests/test_house.py",
                                 *(f"--ignore=nbs/tutorials/{page}.ipynb" for page in PAGES)]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words], cwd=folder,
                                env=environment).returncode)
