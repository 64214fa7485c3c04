"""Compile every shipped configuration for TPU slices with `b2t preflight`, and record the results.

    python benchmarks/preflight.py                       # all cases that are not recorded yet
    python benchmarks/preflight.py "linear" "tiny"       # these, again
    python benchmarks/preflight.py --blocks              # a block of CDEIT, with the original's attention and the kit's
    python benchmarks/preflight.py --gru                 # a wide GRU layer: torch_xla's and the kit's
    python benchmarks/preflight.py --table               # from the results, for v5e.md
    python benchmarks/preflight.py --sizes               # no compiling: what tests/test_preflight.py compares

A case holds the words after `b2t preflight` on the command line. `benchmarks/results/preflight.json` has the command's
`--json` output, its wall-clock and processor time, the largest sum of its processes' resident memory, and the load of
the machine at its beginning and end. Run it in an environment with torch_xla, jax and libtpu.
`--sizes` writes `benchmarks/results/lowered.json`: sizes of the largest step of each configuration before
compiling. If a change makes these grow, compile the step to see whether it still fits, then record them again.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "benchmarks/results/preflight.json"
GIB = 2**30
UNET_SIZES = RESULTS.with_name("lowered.json")
STEPS = {"linear": 16, "tiny": 16, "noise_gru_tiny": 64, "gpu_16gb": 32, "baseline": 64, "tpu_v5e8": 64,
         "transformer": 64, "transformer_tiny": 16, "eit_cdeit": 64, "eit_small": 16,
         "codec_tiny": 16}  # rows of a step on a v5e-8
ONE = "--programs largest"
CASES = [  # what follows `b2t preflight`
    f"linear --slice v5e-8 {ONE}", f"tiny --slice v5e-8 {ONE}", f"noise_gru_tiny --slice v5e-8 --global-batch 64 {ONE}",
    f"gpu_16gb --slice v5e-8 {ONE}", f"baseline --slice v5e-8 {ONE}",
    "eit_cdeit --slice v5e-8 --global-batch 64", f"eit_cdeit --slice v5e-8 --global-batch 256 {ONE}",
    *(f"tpu_v5e8 --slice v5e-8 --global-batch 64 --shard {shard}" for shard in ("none", "units")),
    f"noise_gru_687m --slice v5e-8 --global-batch 64 --shard moments {ONE}",
    f"noise_gru_687m --slice v5e-8 --global-batch 64 --shard all {ONE}",
    f"noise_gru_687m --slice v5e-8 --global-batch 64 --shard units {ONE}",
    f"noise_gru_687m --slice v5e-8 --global-batch 64 --shard units --recompute {ONE}",
    f"noise_gru_687m --slice v5e-8 --global-batch 512 --max-bins 1010 --shard units --recompute {ONE}",
    f"noise_gru_687m --slice v5e-8 --global-batch 1024 --accumulation 4 --max-bins 1010 --shard units {ONE}",
    f"tpu_v5e8 --slice v5e-8 --global-batch 512 --shard moments --accumulation 4 {ONE}",
    f"noise_gru_687m --slice v5e-1 --global-batch 8 --recompute {ONE}",
    f"linear --slice v4-8 --global-batch 64 {ONE}", f"linear --slice v5p-8 --global-batch 64 {ONE}",
    f"linear --slice v6e-8 --global-batch 64 {ONE}",
]


def recorded() -> dict[str, dict]:
    "What is known, by case."
    return json.loads(RESULTS.read_text())


def record(case: str, found: dict) -> None:
    "Add a result, and keep the others."
    packages = str(Path(torch.__file__).parents[1])
    plain = json.dumps(recorded() | {case: found}, indent=1)
    RESULTS.write_text(plain.replace(f"{ROOT}/", "").replace(f"{packages}/", "") + "\n")


def measured(command: list[str]) -> tuple[subprocess.CompletedProcess, dict]:
    "Run a command; time and memory of it and its children."
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    load, peak, done = os.getloadavg()[0], [0], threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def watch() -> None:
        while not done.wait(0.3):
            total = 0
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                try:
                    total += one.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    said = []
    for line in process.stdout:
        said.append(line)
        print(line, end="", flush=True)
    done.set()
    watcher.join()
    status = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    told = {"wall_s": round(time.perf_counter() - started, 1), "processor_s": round(spent, 1),
            "peak_host_bytes": peak[0], "load": [round(load, 1), round(os.getloadavg()[0], 1)]}
    return subprocess.CompletedProcess(command, status, "".join(said)), told


def run(case: str, compiler: str | None = None) -> None:
    "Run the command and record its output; another environment's compiler is recorded as PYTHON."
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        more = ["--compiler", compiler] if compiler else []
        more += [] if "--programs" in case else ["--programs", "all"]
        done, told = measured([sys.executable, "-m", "b2t_kit.cli", "preflight", *shlex.split(case), *more,
                               "--json", str(target)])
        if done.returncode > 1:
            raise SystemExit(f"{case}: exit status {done.returncode}")
        case += " --compiler PYTHON" if compiler else ""
        record(case, json.loads(target.read_text()) | {"command": f"b2t preflight {case}", "whole": told})


class Scores(nn.Module):
    "Attention as the original computes it: all scores of all windows and heads at once."

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.ours = ours

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        ours, (images, count, width) = self.ours, tokens.shape
        side, window = round(count**0.5), ours.window or round(count**0.5)
        across = side // window
        cut = (images, across, window, across, window, 3, ours.heads, width // ours.heads)
        parts = ours.qkv(tokens).reshape(cut).permute(5, 0, 1, 3, 6, 2, 4, 7)
        query, key, value = parts.reshape(3, images, across**2, ours.heads, window**2, -1)
        scores = query * query.shape[-1] ** -0.5 @ key.mT
        if ours.bias is not None:
            scores = scores + ours.bias()
        found = torch.softmax(scores, -1) @ value
        found = found.reshape(images, across, across, ours.heads, window, window, -1)
        return ours.out(found.permute(0, 1, 4, 2, 5, 3, 6).reshape(images, count, width))


class OneBlock(nn.Module):
    "A block at the full size's finest image: 4,096 tokens that all attend to each other."

    def __init__(self, as_the_original: bool) -> None:
        from b2t_kit.tasks.eit_model import UNET_SIZES, Block

        super().__init__()
        full = UNET_SIZES["cdeit"]
        self.block = Block(full.width, full.heads)
        if as_the_original:
            self.block.attention = Scores(self.block.attention)

    def forward(self, tokens: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
        return self.block(tokens, moment)


def one_block(as_the_original: bool, rows: int, where: str, precision: str):
    "A training step of one block: forward, backward, clipping, AdamW, average."
    from b2t_kit.plan.preflight import preflight

    with torch.device("meta"):
        model = OneBlock(as_the_original).to("meta")
    width = model.block.steer.in_features
    batch = {"tokens": torch.zeros(rows, 4096, width), "moment": torch.zeros(rows, width)}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["tokens"], batch["moment"]).float().abs().mean()

    weights = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    return preflight(model, batch, weights, loss, where, precision=precision, ema_decay=0.995, say=print)


BLOCKS = [(True, 64, "v5e-8", "float32"), (True, 64, "v5e-8", "auto"), (False, 64, "v5e-8", "auto"),
          (False, 256, "v5e-8", "auto")]  # with the original's attention, images, slice, precision


def blocks(wanted: list[str]) -> None:
    "Compile one block with the original's attention and with the kit's."
    known = recorded()
    for as_the_original, rows, where, precision in BLOCKS:
        whose = "the original's" if as_the_original else "the kit's"
        case = f"one block, {whose} attention, {rows} images on {where}, {precision}"
        if wanted and case not in wanted or not wanted and case in known:
            continue
        report = one_block(as_the_original, rows, where, precision)
        print(case, report, sep="\n", flush=True)
        record(case, report.to_dict() | {"command": "python benchmarks/preflight.py --blocks"})


class OneGRU(nn.Module):
    "A layer of 2,048 units: what `import torch_xla` puts in the place of `torch.nn.GRU`, or the kit's."

    def __init__(self, stock: bool) -> None:
        import torch_xla  # noqa: F401

        from b2t_kit.models.layers import GRU

        super().__init__()
        self.gru = nn.GRU(512, 2048, batch_first=True) if stock else GRU(512, 2048)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.gru(inputs)[0]


def one_gru(stock: bool):
    "A training step on one chip: eight rows of 700 time steps."
    from b2t_kit.plan.preflight import preflight

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).float().square().mean()

    return preflight(OneGRU(stock), torch.zeros(8, 700, 512), loss=loss, where="v5e-1", say=print)


def grus() -> None:
    "Compile both layers and record the compiler's results."
    for stock, whose in ((True, "torch_xla's"), (False, "the kit's")):
        report = one_gru(stock)
        print(report, flush=True)
        record(f"{whose} GRU, 2048 units, 700 steps",
               report.to_dict() | {"command": "python benchmarks/preflight.py --gru"})


def sizes(name: str) -> dict[str, int]:
    "Bytes of a configuration's largest step before compiling: its arguments, what all loops carry, its largest array."
    from jaxlib import _jax

    from b2t_kit.devices.slices import find_slice
    from b2t_kit.plan.preflight import lower_in_child, request_of
    from b2t_kit.plan.configs import configuration
    from b2t_kit.plan.cost import read_hlo
    from b2t_kit.plan.preflight import argument_bytes

    with tempfile.TemporaryDirectory() as folder:
        request = request_of(configuration(name).with_rows(STEPS[name]), find_slice("v5e-8"), programs="largest")
        (place,) = lower_in_child(request, Path(folder))
        text = _jax.XlaComputation((place / "module.pb").read_bytes()).get_hlo_module().to_string()
        every = [one for part in read_hlo(text).computations.values() for one in part.instructions.values()]
        return {"arguments": sum(argument_bytes(json.loads((place / "job.json").read_text())).values()),
                "loops": sum(one.bytes for one in every if one.operation == "while"),
                "largest": max(array.bytes for one in every for array in one.arrays)}


def table() -> str:
    "A row for each case."
    lines = ["| `b2t preflight ...` | chip, GiB: arguments | temporaries | total | fits | compiler, s | processor s "
             "| command, s | load | host memory, GB | seconds at least | bound by |", "|" + "---|" * 12]
    for case, one in recorded().items():
        sizes, whole, first = one["bytes_per_chip"], one.get("whole", {}), one["by_program"][0]
        gib = [f"{sizes[name] / GIB:.2f}" if sizes.get(name) else "" for name in ("arguments", "temporaries", "total")]
        room = (sizes["available"] - (sizes["total"] or 0)) / GIB
        bound = first.get("roofline") or {}
        load = "-".join(f"{each:.0f}" for each in whole.get("load", []))
        host = f"{whole['peak_host_bytes'] / 1e9:.1f}" if "peak_host_bytes" in whole else ""
        lines.append(f"| {case} | {gib[0]} | {gib[1]} | {gib[2]} | "
                     f"{f'yes, {room:.2f} to spare' if one['fits'] else 'no'} | {one['compile_s']:.0f} | "
                     f"{one['compile_processor_s']:.0f} | {whole.get('wall_s', '')} | {load} | {host} | "
                     f"{bound.get('seconds', 0):.3g} | {bound.get('bound', '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="what follows `b2t preflight`")
    parser.add_argument("--compiler", metavar="PYTHON", help="of an environment with another jax and libtpu")
    parser.add_argument("--blocks", action="store_true", help="one block with the original's attention")
    parser.add_argument("--gru", action="store_true", help="torch_xla's GRU and the kit's")
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    parser.add_argument("--sizes", action="store_true", help="what a step needs before compiling")
    options = parser.parse_args()
    if options.sizes:
        for name in options.cases or STEPS:
            found = sizes(name)
            print(json.dumps({name: found}), flush=True)
            if not options.cases:
                known = json.loads(UNET_SIZES.read_text()) if UNET_SIZES.exists() else {}
                UNET_SIZES.write_text(json.dumps(known | {name: found}, indent=1) + "\n")
    elif options.table:
        print(table())
    elif options.gru:
        grus()
    elif options.blocks:
        blocks(options.cases)
    else:
        for case in options.cases or [one for one in CASES if one not in recorded()]:
            run(case, options.compiler)


if __name__ == "__main__":
    main()
