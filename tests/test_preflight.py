"""Preflight: sizes counted by hand, models compiled by the real compiler, named errors."""
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.devices.slices import find_slice
from b2t_kit.plan.failures import diagnose
from b2t_kit.plan.configs import configurations
from b2t_kit.plan.cost import SENT, matrix_flops, moved_bytes, read_hlo
from b2t_kit.plan.preflight import ON_CPU, compile_program, preflight
from commands import ROOT, TESTS, python
from preflight_models import CLASSES, INPUTS, LABELS, ROWS, TIME, UNITS, WORDS, Scored, total

pytestmark = [pytest.mark.torch_xla, pytest.mark.second_tier]
compiler = pytest.mark.skipif(not find_spec("libtpu"), reason="needs the extra 'preflight'")


PRODUCT = 2 * TIME * ROWS * 3 * UNITS  # of all time steps with one number per unit and gate
BY_HAND = {
    # output and gradient of the weight; the features need none
    "dense": 2 * (2 * ROWS * INPUTS * UNITS),
    # W x, W h forward, W' at the gates backward, and the gradients of both weights
    "gru": PRODUCT * INPUTS * 2 + PRODUCT * UNITS * 3,
    # from classes to states, and back
    "ctc": 2 * (2 * TIME * ROWS * CLASSES * (2 * LABELS + 1)),
}


@pytest.fixture(scope="module")
def lowered() -> dict[str, dict]:
    """What preflight_models.py reports of its models."""
    done = python(TESTS / "preflight_models.py", chips=1, status=None, XLA_IR_DEBUG="1", XLA_HLO_DEBUG="1")
    reports = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("REPORT")]
    return {name: found for one in reports for name, found in one.items()}


@compiler
@pytest.mark.parametrize("name", BY_HAND)
def test_products_are_counted_as_by_hand(name: str, lowered: dict[str, dict]) -> None:
    """All rounds of loops count; every updated tensor donates its memory to its new value."""
    assert matrix_flops(read_hlo(lowered[name]["hlo"])) == pytest.approx(BY_HAND[name], rel=0.01)
    results = [one["result"] for one in lowered[name]["arguments"] if one["role"] in ("parameter", "moment")]
    assert results and None not in results and len(set(results)) == len(results)


@pytest.mark.parametrize("name, word", [("item", "_local_scalar_dense"), ("rows", "nonzero")])
def test_steps_that_wait_are_refused_with_their_line(name: str, word: str, lowered: dict[str, dict]) -> None:
    """Reading a value, and a shape that depends on values."""
    told = lowered[name]["refused"]
    assert "preflight_models.py:" in told and word in told


@compiler
def test_operations_on_the_host_are_named_with_their_line() -> None:
    """torch's CTC loss, which XLA does not have."""
    with pytest.raises(KitError, match="preflight_models.py:.*aten::_ctc_loss"):
        preflight(Scored(theirs=True), WORDS, loss=total, where="v5e-1")


@compiler
def test_a_model_compiles_for_eight_chips() -> None:
    """Sizes by hand: 4 bytes for each weight and moment, moments shared by eight."""
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    report = preflight(model, torch.zeros(64, 256), loss=lambda model, batch: model(batch).square().mean(),
                       where="v5e-8", shard="moments")
    (program,), weights = report.programs, 2 * 256 * 512 + 512 + 256
    states, sizes, bound = program.states, program.bytes, program.roofline
    assert report.fits and states["parameter"] == 4 * weights and states["batch"] == 4 * 64 * 256 / 8
    assert states["moment"] == 2 * 4 * (2 * 256 * 512 / 8 + 512 + 256)
    assert sizes["arguments"] == pytest.approx(sum(states.values()), rel=0.1)
    assert sizes["total"] == sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]
    assert bound.flops == pytest.approx(2 * 64 * 256 * 512 * 5, rel=0.01) and bound.links > 0


def on_eight(folder: Path, *words: str) -> dict:
    """What the command reports of a configuration's largest step on a v5e-8."""
    target = folder / "found.json"
    assert main(["preflight", *words, "--slice", "v5e-8", "--json", str(target)]) == 0
    return json.loads(target.read_text())


@compiler
def test_micro_batches_are_compiled_once_and_all_take_time(tmp_path: Path) -> None:
    """Four per step: a program for the first three, another for the last, which ends with the update; kept by content."""
    words = "linear", "--global-batch", "64", "--accumulation", "4", "--cache-dir", str(tmp_path / "kept")
    found = on_eight(tmp_path, *words)
    assert found["by_program"] == on_eight(tmp_path, *words)["by_program"]
    assert len(list((tmp_path / "kept").iterdir())) == 2, "the same program is compiled once"
    assert found["fits"] and found["config"] == "linear" and found["slice"] == "v5e-8"
    seconds = {one["kind"]: one["roofline"]["seconds"] for one in found["by_program"]}
    assert [one["kind"] for one in found["by_program"]] == ["accumulate", "train"]
    assert found["step_seconds_at_least"] == pytest.approx(3 * seconds["accumulate"] + seconds["train"])
    assert found["trials_per_second_at_most"] == pytest.approx(64 / found["step_seconds_at_least"])


@compiler
def test_the_lines_for_a_model_from_elsewhere() -> None:
    """The lines of `nbs/tutorials/before_the_tpu.ipynb`, here of a smaller model, which compiles in half of the time: a BERT with
    random weights. Transformers imports Accelerate, which starts torch_xla."""
    cells = json.loads((ROOT / "nbs/tutorials/before_the_tpu.ipynb").read_text())["cells"]
    text = "".join(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.S)
    smaller = lines.replace("hidden_size=256, num_hidden_layers=2", "hidden_size=64, num_hidden_layers=1, vocab_size=500")
    assert smaller != lines
    done = python("-c", smaller, status=None)
    assert "BertForSequenceClassification on v5e-8, 64 trials per step: fits" in done.stdout, done.stderr[-2000:]


@compiler
def test_c11_an_array_larger_than_a_chip() -> None:
    """The compiler gives C11's message when attention holds all scores of 256 rows; the doctor knows it."""
    def all_scores(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        query = model(batch).unflatten(-1, (2, 64)).transpose(1, 2)
        return (query @ query.mT).softmax(-1).square().sum()

    report = preflight(nn.Linear(128, 128), torch.zeros(256, 4096, 128), loss=all_scores, where="v5e-1", precision="float32")
    error = report.largest.error
    assert [one.failure.number for one in diagnose(error)] == ["C11"]
    assert "would exceed memory (size=17179869184)" in error


@compiler
def test_a_layer_divided_by_units_keeps_its_weights_on_the_chips(tmp_path: Path) -> None:
    """Two layers of 5,120 units, 64 trials in two groups of chips: in four loops only states and partial sums travel."""
    steps, rows, units, chips, groups = 24, 64, 5120, 4, 2
    done = python(TESTS / "preflight_models.py", tmp_path, status=None, **ON_CPU)
    assert (tmp_path / "job.json").exists(), done.stderr[-2000:]
    where = find_slice("v5e-8")
    assert compile_program(tmp_path, where, sys.executable).bytes
    program = read_hlo((tmp_path / "after.hlo").read_text())
    loops = [one for one in program.entry.instructions.values() if one.operation == "while" and program.trips(one) == steps]
    assert len(loops) == 4
    for loop in loops:
        weights = [one.space for one in loop.arrays if one.dims == (3, units // chips, units)]
        assert 1 in weights, f"{loop.name}: weights in memory spaces {weights}"
    moved = sum(times * moved_bytes(one, within, program) for within, one, times in program.executed() if times >= steps) / steps
    assert moved < 1_500_000, f"{moved:,.0f} HBM bytes of a time step: gates, states; a chip has 39,321,600 of weights"
    passed = [(within, one, times) for within, one, times in program.executed() if times >= steps
              and one.operation.removesuffix("-start") in (*SENT, "collective-permute")]
    assert {one.operation for _, one, _ in passed} == {"collective-permute-start"}, "nothing waits for an exchange"
    part = rows // groups * units // chips
    sent = sum(times * sum(each.bytes for each in within.inputs(one)) for within, one, times in passed) / steps
    assert sent == 2 * part * (3 * 2 + 5 * 4)  # by both layers, bfloat16 forward, float32 backward
    ways = [where.way(int(start), int(end)) for _, one, _ in passed for start, end in re.findall(r"{(\d+),(\d+)}", one.more)]
    assert {len(way) for way in ways} == {1}, "each to a neighbour, since the chips of a group form a ring"


PLACES = """
import json, os, sys
from b2t_kit.plan.compile import _QUIET
os.environ.update(_QUIET)
from jax.experimental import topologies
for name in sys.argv[1:]:
    found = topologies.get_topology_desc(name, platform="tpu").devices
    print("FOUND", json.dumps({one.id: one.coords[:2] for one in found}))
"""


@compiler
def test_chips_lie_where_the_compiler_has_them() -> None:
    """Links are counted by the chips' numbers, so these must have the compiler's places."""
    slices = [find_slice(name) for name in ("v5e-4", "v5e-8", "v5e-16", "v6e-8")]
    done = python("-c", PLACES, *(one.topology for one in slices), status=None)
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND")]
    ours = [{str(chip): list(one.coordinates(chip)) for chip in range(one.chips)} for one in slices]
    assert found == ours, done.stderr[-2000:]


KNOWN = json.loads((ROOT / "benchmarks/results/lowered.json").read_text())
LARGE = [name for name in ("baseline", "tpu_v5e8", "transformer", "eit_cdeit") if name in configurations()]  # some are a wing's


@pytest.fixture(scope="module")
def sizes_now() -> dict[str, dict[str, int]]:
    """The sizes of the large configurations, by one process."""
    done = python(ROOT / "benchmarks/preflight.py", "--sizes", *LARGE, timeout=1500)
    return {name: found for line in done.stdout.splitlines() for name, found in json.loads(line).items()}


@compiler
@pytest.mark.parametrize("name", LARGE)
def test_what_fitted_has_not_grown_since_recorded(name: str, sizes_now: dict[str, dict[str, int]]) -> None:
    """The largest step before compiling: arguments, what loops carry, the largest array.

    If a change makes one of them larger, compile the step to see whether it still fits, and record it.
    """
    found, known = sizes_now[name], KNOWN[name]
    grown = [f"{part}: {found[part]} bytes, were {known[part]}" for part in known if found[part] > 1.005 * known[part]]
    assert not grown, f"{grown}; does it still fit? b2t preflight {name}; then benchmarks/preflight.py --sizes"


def test_every_shipped_configuration_is_recorded() -> None:
    """All configurations of `b2t preflight --list` are recorded, and the compiled ones fit."""
    elsewhere = {"noise_gru_687m", "eit_tiny", "transformer_short"}  # tpu_v5e8, eit_cdeit and transformer are recorded
    assert set(KNOWN) >= set(configurations()) - elsewhere
    compiled = json.loads((ROOT / "benchmarks/results/preflight.json").read_text())
    fitting = {one["config"] for one in compiled.values() if one["fits"] and one["slice"] == "v5e-8"}
    assert {"tpu_v5e8", "eit_cdeit", "linear", "tiny", "noise_gru_tiny", "baseline"} <= fitting
