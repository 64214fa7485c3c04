"""Simulation in separate processes: killed half-way, and with different numbers of threads."""
import hashlib
import signal
import subprocess
import time
from pathlib import Path

import pytest

from b2t_kit.core import KitError
from b2t_kit.data.dataset import check_folder, find_recordings
from commands import start


def simulate(out: Path, trials: int, threads: int = 1) -> subprocess.Popen:
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return start("-m", "b2t_kit", "simulate", "--out", out, "--sessions", 2, "--trials", trials, "--bins-per-phoneme", 8,
                 variables=variables, stdout=None, stderr=None)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob("*.hdf5"))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_killed_and_with_other_threads(tmp_path: Path) -> None:
    """No reader takes what a killed simulation leaves, a second try succeeds, and one thread and two give the same bytes."""
    out = tmp_path / "out"
    process = simulate(out, 150)
    deadline = time.monotonic() + 600
    while not (out / ".hdf5_data_final.partial/t15.2023.08.11/data_train.hdf5").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL and not (out / "hdf5_data_final").exists()
    with pytest.raises(KitError):
        find_recordings(out)
    assert simulate(out, 4).wait(600) == 0
    assert list(check_folder(out)) == [] and not list(out.glob(".*"))
    assert simulate(tmp_path / "again", 4, threads=2).wait(600) == 0
    assert len(digests(out)) == 4 and digests(out) == digests(tmp_path / "again")
