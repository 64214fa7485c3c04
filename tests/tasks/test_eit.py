"""Impedance tomography: tests that need processes, or the weights that come with the kit."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.devices.select import open_device
from b2t_kit.tasks.eit import SHIPPED_SCALE, Measurements, assess, load_reconstructor, reconstruct
from b2t_kit.tasks.eit_physics import PhantomConfig, simulate_folder
from b2t_kit.training.log import read_metrics
from commands import TORCHRUN, python

pytestmark = pytest.mark.second_tier

COUNT = 5  # measurements of the test set: with batches of two, the last one holds one
WITHOUT_SKFEM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "skfem":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Missing())
from b2t_kit.cli import main
for words in sys.argv[1:]:
    assert main(["eit", *words.split("|")]) == 0
    print("done")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eit")
    simulate_folder(folder / "test", PhantomConfig(count=COUNT, seed=3), quiet=True)
    return folder


def test_results_do_not_depend_on_processes(data: Path, tmp_path: Path) -> None:
    """`torchrun -m b2t_kit eit test`: three and two measurements, one file, the same numbers."""
    words = ["eit", "test", "--data-path", str(data), "--samplingsteps", "2", "--device", "cpu",
             "--global-batch-size", "4", "--draws", "2", "--out", str(tmp_path / "two")]
    python(*TORCHRUN, "-m", "b2t_kit", *words, ACCELERATE_USE_CPU="true")
    alone = assess(data, out=tmp_path / "one", steps=2, device="cpu", draws=2)
    with np.load(tmp_path / "two/predictions.npz") as two, np.load(tmp_path / "one/predictions.npz") as one:
        assert two["names"].tolist() == one["names"].tolist() and len(one["names"]) == COUNT
        assert abs(two["pred"] - one["pred"]).max() < 2e-4
    scores = json.loads((tmp_path / "two/scores.json").read_text())["scores"]["network"]
    assert scores["rmse"] == pytest.approx(alone.scores["network"].rmse, abs=1e-4)


def test_the_shipped_weights_are_small_and_see(data: Path) -> None:
    """At most 20 MB of float32, and better than an empty image on tanks that were not in training."""
    reconstructor = load_reconstructor()
    assert sum(one.numel() * 4 for one in reconstructor.model.state_dict().values()) < 20e6
    assert {one.dtype for one in reconstructor.model.state_dict().values()} == {torch.float32}
    tested = assess(data, device="cpu")
    network, nothing = tested.scores["network"], tested.scores["nothing"]
    assert network.rmse < nothing.rmse and network.cc > 0.5


def without_skfem(*commands: list[object]) -> str:
    """What the first of some commands `b2t eit` prints, in a process that cannot import scikit-fem."""
    lines = ["|".join(map(str, words)) for words in commands]
    done = python("-c", WITHOUT_SKFEM, *lines)
    assert done.stdout.count("done\n") == len(commands)
    return done.stdout.partition("done\n")[0]


def test_a_plain_install_tests_trains_and_simulates(data: Path, tmp_path: Path) -> None:
    """The shipped weights, a network with a classical hint, and new measurements, all without scikit-fem."""
    parts = (("train", 4), ("valid", 2), ("test", COUNT))
    said = without_skfem(
        ["test", "--data-path", data, "--device", "cpu", "--draws", 1, "--samplingsteps", 1, "--out", tmp_path / "found"],
        *(["simulate", "--out", tmp_path, "--part", part, "--count", count, "--seed", 1] for part, count in parts),
        ["train", "--data-path", tmp_path, "--device", "cpu", "--model", "tiny", "--global-batch-size", 2, "--epochs", 1,
         "--out", tmp_path / "run"])
    alone = assess(data, steps=1, device="cpu", draws=1)
    with open_device("cpu") as device:
        drawn = reconstruct(load_reconstructor(), Measurements(data / "test"), device, steps=1)
    assert np.allclose(alone.images, SHIPPED_SCALE * drawn, atol=1e-5)  # the shipped images are too strong
    assert str(alone) == said.strip() and (tmp_path / "found/DEIT.mat").stat().st_size > COUNT * 128**2 * 4
    with np.load(tmp_path / "test/000001.npz") as one, np.load(data / "test/000001.npz") as other:
        assert all((one[name] == other[name]).all() for name in ("xs", "ys"))
    assert load_reconstructor(tmp_path / "run").model.measurements.hints.any()


def test_the_originals_statistics_are_stored_in_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`--statistics`: mean.pth and std.pth normalise, and a test of the run needs neither."""
    for part, count in (("train", 4), ("valid", 2), ("test", 2)):
        simulate_folder(tmp_path / part, PhantomConfig(count=count, seed=count), quiet=True)
    generator = torch.Generator().manual_seed(0)
    given = {"mean": 1e-6 * torch.randn(1, 16, 13, generator=generator), "std": torch.full((1, 16, 13), 2e-5)}
    for name, values in given.items():
        torch.save(values, tmp_path / f"{name}.pth")
    words = ["eit", "train", "--data-path", str(tmp_path), "--device", "cpu", "--model", "tiny", "--epochs", "1",
             "--global-batch-size", "2", "--num-workers", "0", "--statistics", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert f"mean.pth and std.pth of {tmp_path}" in " ".join(capsys.readouterr().out.split())

    again = ["eit", "train", "--resume", "--out", str(tmp_path / "run")]
    assert main([*again, "--epochs", "2"]) == 0  # all else is in the run's folder
    assert main([*again, "--global-batch-size", "4"]) == 2
    assert "batch_size was 2 and is 4" in capsys.readouterr().err
    assert main(["eit", "train", "--run", str(tmp_path / "run"), "--epochs", "3"]) == 0
    assert read_metrics(tmp_path / "run")[-1]["step"] == 6
    note = (tmp_path / "run/resume.json").read_text()
    for broken in ("[]", '{"data_path": 5}', '{"data": "elsewhere"}'):
        (tmp_path / "run/resume.json").write_text(broken)
        assert main(again) == 2 and capsys.readouterr().err.startswith(f"error: {tmp_path / 'run/resume.json'}")
    (tmp_path / "run/resume.json").write_text(note)
    assert main([*again[:3], "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.startswith("error: data_path: give --data-path")

    for name in given:
        (tmp_path / f"{name}.pth").unlink()
    assert assess(tmp_path, run=tmp_path / "run", steps=1, device="cpu", draws=1).scores["network"].count == 2
    stored = load_reconstructor(tmp_path / "run").model.measurements
    assert all(torch.equal(getattr(stored, name), values) for name, values in given.items())
