"""Check that nbdev 3's `nbdev-test` would run the cells that pytest runs: `python tools/same_cells.py`."""
import sys
from pathlib import Path

import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import nb_test_cells


class Collected:
    "The cells of each notebook that pytest would run."

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.cells = {item.path: item.parent.sources for item in session.items}


def main() -> int:
    collected = Collected()
    if status := pytest.main(["--collect-only", "-qqq", "nbs"], plugins=[collected]):
        return status
    flags = get_config().tst_flags.split()
    notebooks = sorted(Path(path).absolute() for path in nbglob())
    differ = [path.name for path in notebooks
              if [cell.source for cell in nb_test_cells(path, flags)] != collected.cells.get(path, [])]
    print(f"{len(differ)} of {len(notebooks)} notebooks have other cells under nbdev-test", *differ)
    return len(differ) > 0


if __name__ == "__main__":
    sys.exit(main())
