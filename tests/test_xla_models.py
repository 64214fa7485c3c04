"""The GRU and the CTC loss on eight simulated XLA devices: the numbers of the CPU, in one program."""
import re

import pytest

from commands import TESTS, python

pytestmark = [pytest.mark.torch_xla, pytest.mark.second_tier]


def test_models_on_eight_devices() -> None:
    """The tests of xla_models.py, in a process of their own, because importing torch_xla changes torch."""
    words = "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--confcutdir", TESTS, TESTS / "xla_models.py"
    done = python("-m", "pytest", *words, chips=8, status=None, cwd=TESTS, PYTEST_ADDOPTS="")
    assert done.returncode == 0 and re.search(r"^13 passed", done.stdout, re.M), done.stdout[-5000:] + done.stderr[-2000:]
