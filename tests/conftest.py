"""What several files of tests share."""
import shutil
import sys
from pathlib import Path

import pytest
import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]


@pytest.fixture
def here(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a file's good input (its fixture `good`) in the current folder, without GPUs and torch_xla."""
    shutil.copytree(good, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    return tmp_path / "here"
