"""Simulation in separate processes: killed half-way, and with different numbers of threads."""
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from b2t_kit.core import KitError
from b2t_kit.data.dataset import check_folder, find_recordings

HOUSE = Path(__file__).resolve().parents[1]
PROGRAM = """
import sys
from b2t_kit.simulate import SimulateConfig, simulate
config = SimulateConfig(sessions=2, trials=int(sys.argv[2]), bins_per_phoneme=8.0)
simulate(sys.argv[1], config, progress=False)
"""


def start(out: Path, trials: int, threads: int = 1) -> subprocess.Popen:
    """A process that simulates two sessions."""
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, "-c", PROGRAM, str(out), str(trials)]
    return subprocess.Popen(command, cwd=HOUSE, env={**os.environ, **variables})


def digests(folder: Path) -> dict[str, str]:
    """A hash of every recording file."""
    files = sorted(folder.rglob("*.hdf5"))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_threads_do_not_change_a_byte(tmp_path: Path) -> None:
    """One thread and two give the same files."""
    for threads in (1, 2):
        assert start(tmp_path / str(threads), 4, threads).wait(600) == 0
    found = digests(tmp_path / "1")
    assert len(found) == 4 and found == digests(tmp_path / "2")


def test_killed_simulation_leaves_nothing_that_is_taken_for_recordings(tmp_path: Path) -> None:
    """After SIGKILL no reader accepts the partial recordings, and a second try succeeds."""
    out = tmp_path / "out"
    process = start(out, 150)
    first = out / ".hdf5_data_final.partial/t15.2023.08.11/data_train.hdf5"
    deadline = time.monotonic() + 600
    while not first.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not (out / "hdf5_data_final").exists()
    with pytest.raises(KitError):
        find_recordings(out)
    assert start(out, 4).wait(600) == 0
    assert list(check_folder(out)) == [] and not list(out.glob(".*"))
    assert start(tmp_path / "whole", 4).wait(600) == 0
    assert digests(out) == digests(tmp_path / "whole")
