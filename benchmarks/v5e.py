"""The 687M training step, compiled for eight TPU v5e chips on a machine without a TPU.

    python benchmarks/v5e.py --compiler PYTHON [--batches 64,128,256,512] [--bins 1010]

To be run in an environment with torch_xla; PYTHON is the interpreter of another one, with jax 0.7.1 and
libtpu 0.0.21, the version that torch_xla 2.9 is made for. The step is the kit's: augmentation, the three-part
model under bfloat16 autocast, two CTC losses, backward, clipping, AdamW, and the average of the weights, with
the batch divided over eight chips. No tensor holds any numbers, so this needs neither the memory nor the
time of a step. Weights, moments and average, which a step updates in place, are donated as they are at run
time. Results go to benchmarks/results/v5e.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
CHIPS = 8
MEMORY_GIB = 15.75  # of a chip, as the compiler counts


def lower(batch: int, bins: int, recompute: bool, out: Path) -> dict:
    "Trace one step of the recipe, and write it as StableHLO. In a process of its own."
    import numpy as np
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xla_model
    import torch_xla.runtime as runtime
    from torch_xla import backends
    from torch_xla.core.xla_builder import create_placeholder_tensor
    from torch_xla.distributed import spmd

    from dataclasses import replace
    from types import SimpleNamespace

    from b2t_kit.backends.xla_optimizer import XlaAdamW
    from b2t_kit.data.batches import Batch
    from b2t_kit.models.loops import compiled_for
    from b2t_kit.models.noise_gru import build_speech_model
    from b2t_kit.recipes import tpu_v5e8
    from b2t_kit.tasks.speech import SpeechTask, speech_rules
    from b2t_kit.training.optim import group_parameters

    runtime.use_spmd()
    device = torch_xla.device()
    backends.set_mat_mul_precision("highest")
    mesh = spmd.Mesh(np.arange(CHIPS), (CHIPS,), ("chips",))

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.to(device)
        spmd.mark_sharding(there, mesh, ("chips", *[None] * (tensor.dim() - 1)))
        return there

    run = tpu_v5e8()
    config = replace(run.task, noise=replace(run.task.noise, recompute=recompute))
    with torch.device("meta"):
        model = build_speech_model(config.model, config.noise)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = create_placeholder_tensor(tuple(parameter.shape), torch.float32)
            setattr(module, name, torch.nn.Parameter(empty))
    held = {"params": list(model.parameters())}
    groups = group_parameters(model, speech_rules(run.train, config.day_lr))
    defaults = {"lr": 0.005, "betas": run.train.betas, "eps": run.train.eps, "weight_decay": 0.001}
    optimizer = XlaAdamW(groups, defaults, lambda tensor: tensor.to(device))
    for parameter, state in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = create_placeholder_tensor(tuple(parameter.shape), torch.float32)
    average = [create_placeholder_tensor(tuple(one.shape), torch.float32) for one in held["params"]]
    given = Batch(
        features=rows(torch.zeros(batch, bins, 512)), num_bins=rows(torch.full((batch,), bins)).int(),
        labels=rows(torch.ones(batch, 64, dtype=torch.int32)),
        num_labels=rows(torch.full((batch,), 40, dtype=torch.int32)),
        day=rows(torch.zeros(batch, dtype=torch.int32)), weight=rows(torch.ones(batch)),
        num_patches=rows(torch.full((batch,), (bins - 14) // 4 + 1, dtype=torch.int32)),
        noise_key=rows(torch.arange(batch)), trial=rows(torch.arange(batch)), step_rows=batch,
    )
    share = torch.tensor([0.001]).to(device)[0]
    torch_xla.sync()
    model.train()
    with compiled_for("TPU"):
        with torch.autocast("xla", torch.bfloat16):
            loss = SpeechTask.compute_loss(SimpleNamespace(config=config), model, given)
        (loss.sum / batch).backward()
        norm = torch.nn.utils.get_total_norm([one.grad for one in held["params"]])
        torch.nn.utils.clip_grads_with_norm_(held["params"], run.train.clip_norm, norm)
        optimizer.step()
        with torch.no_grad():
            for mean, current in zip(average, held["params"]):
                mean.lerp_(current, share)
        del given
        program = xla_model.get_stablehlo_bytecode(None)
    out.write_bytes(program)
    return {"parameters": sum(one.numel() for one in held["params"]), "bytes": len(program)}


def compile_program(path: Path) -> dict:
    "Compile a program for a v5e slice, and ask for its memory. In an environment with jax and libtpu."
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu", TPU_ACCELERATOR_TYPE="v5litepod-8",
        TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    topology = topologies.get_topology_desc("v5e:2x4", platform="tpu")
    client = topology.devices[0].client
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, CHIPS
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, CHIPS
    build.use_spmd_partitioning, build.use_shardy_partitioner = True, False
    build.device_assignment = xla_client.DeviceAssignment.create(np.arange(CHIPS).reshape(1, CHIPS))
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, path.read_bytes())
        donated = _donate(ir, module)
        started, worked = time.perf_counter(), time.process_time()
        try:
            program = client.compile(
                mlir.module_to_bytecode(module), _jax.DeviceList(tuple(topology.devices[:CHIPS])), options
            )
        except _jax.XlaRuntimeError as error:
            return {"compile_s": round(time.perf_counter() - started, 1), "error": str(error)[:600]}
    seconds, worked = (round(now - then, 1) for now, then in
                       ((time.perf_counter(), started), (time.process_time(), worked)))
    memory = program.get_compiled_memory_stats()
    sizes = {name: getattr(memory, f"{name}_size_in_bytes") / 2**30
             for name in ("argument", "output", "alias", "temp")}
    total = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    return {
        "compile_s": seconds, "compile_cpu_s": worked, "donated": donated,
        **{key: round(one, 2) for key, one in sizes.items()},
        "total_gib": round(total, 2), "spare_gib": round(MEMORY_GIB - total, 2),
    }


def _donate(ir, module) -> int:
    "Let as many arguments of each type as there are results of it give their memory to these."
    import collections

    for operation in module.body.operations:
        if str(operation.attributes["sym_name"]).strip('"') != "main":
            continue
        signature = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
        free = collections.Counter(map(str, signature.results))
        attributes, count = [], 0
        old = list(operation.attributes["arg_attrs"]) if "arg_attrs" in operation.attributes else []
        for place, kind in enumerate(map(str, signature.inputs)):
            own = {one.name: one.attr for one in old[place]} if old else {}
            if free[kind] > 0:
                own["jax.buffer_donor"] = ir.BoolAttr.get(True)
                count += 1
            free[kind] -= 1
            attributes.append(ir.DictAttr.get(own))
        operation.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    return count


def in_process(python: str, *arguments: str, **settings: str) -> dict:
    "The last line that this script prints when another interpreter runs it."
    done = subprocess.run([python, __file__, *arguments], env={**os.environ, **settings},
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", help="Python of the environment with jax and libtpu")
    parser.add_argument("--batches", default="64,128,256,512", help="trials in a step, over all chips")
    parser.add_argument("--bins", type=int, default=1010, help="20 ms bins of a trial; 1010 are 250 patches")
    parser.add_argument("--recompute", default="no,yes")
    parser.add_argument("--lower", type=int, help="for the program itself")
    parser.add_argument("--compile", type=Path, help="for the program itself")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/v5e.json")
    options = parser.parse_args()
    if options.lower:
        told = lower(options.lower, options.bins, options.recompute == "yes", options.out)
        print(json.dumps(told), flush=True)
        os._exit(0)  # nothing may run: the tensors are empty
    if options.compile:
        print(json.dumps(compile_program(options.compile)))
        return
    if not options.compiler:
        parser.error("--compiler is needed: a Python with jax 0.7.1 and libtpu 0.0.21")
    rows = []
    for batch in map(int, options.batches.split(",")):
        for recompute in options.recompute.split(","):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "step.bc"
                lowered = in_process(
                    sys.executable, "--lower", str(batch), "--bins", str(options.bins), "--recompute",
                    recompute, "--out", str(path), PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(CHIPS),
                )
                found = in_process(options.compiler, "--compile", str(path))
            rows.append({"batch": batch, "recompute": recompute, **lowered, **found})
            print(json.dumps(rows[-1]), flush=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
