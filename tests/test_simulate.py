"""Simulation in separate processes: killed half-way, and with different numbers of threads."""
import hashlib
import signal
import time
from pathlib import Path

import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.data.dataset import find_recordings
from b2t_kit.data.validate import check_folder
from commands import start


def simulate(out: Path, trials: int) -> list[str]:
    return f"simulate --out {out} --sessions 2 --trials {trials} --bins-per-phoneme 8".split()


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.hdf5"))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_killed_and_with_other_threads(tmp_path: Path) -> None:
    """No reader takes what a killed simulation leaves, a second try succeeds, and one thread and two give the same bytes."""
    out = tmp_path / "out"
    process = start("-m", "b2t_kit", *simulate(out, 150), stdout=None, stderr=None)
    deadline = time.monotonic() + 600
    while not list(out.glob(".hdf5_data_final.*.partial/t15.2023.08.11/data_train.hdf5")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL and not (out / "hdf5_data_final").exists()
    with pytest.raises(KitError):
        find_recordings(out)
    assert main(simulate(out, 4)) == 0  # with this process's threads
    assert list(check_folder(out)) == [] and not list(out.glob(".*"))
    others = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2" if torch.get_num_threads() == 1 else "1")
    assert start("-m", "b2t_kit", *simulate(tmp_path / "again", 4), variables=others, stdout=None, stderr=None).wait(600) == 0
    assert len(digests(out)) == 4 and digests(out) == digests(tmp_path / "again")
