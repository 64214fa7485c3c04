"""One GRU layer on XLA: the kit's loop compared with torch_xla's nn.GRU.

    python benchmarks/xla_gru.py            # in an environment with torch_xla; a quarter of an hour

Forward and backward of one layer in float32, gradients of all parameters and of the input. Memory is
from XLA's buffer assignment, arguments included. Results go to
benchmarks/results/xla_gru.json, and as a table to the terminal.
"""

import argparse
import json

from xla_measure import ROOT, compared, first_run, in_turns, run_case, table

BATCH, WIDTH = 16, 256
STEPS = (64, 128, 256, 512)
OURS = "b2t_kit"


def measure(steps: int, rounds: int) -> dict:
    "All alternatives at one length."
    import torch

    own_gru = torch.nn.GRU
    import torch_xla

    from b2t_kit.models.model import GRU

    torch_xla.device()
    torch.manual_seed(0)
    reference = own_gru(WIDTH, WIDTH, batch_first=True)
    made = {OURS: GRU(WIDTH, WIDTH), "b2t_kit, recompute": GRU(WIDTH, WIDTH, recompute=True),
            "torch_xla's nn.GRU": torch.nn.GRU(WIDTH, WIDTH, batch_first=True)}
    values = torch.randn(BATCH, steps, WIDTH)
    exact = gradients(reference.double(), values.double())
    report = {}
    actions = {}
    for name, layer in made.items():
        layer.load_state_dict(reference.state_dict())
        layer.to("xla")
        inputs = values.to("xla")
        actions[name] = lambda layer=layer, inputs=inputs: gradients(layer, inputs)
        report[name] = first_run(actions[name])
        found = actions[name]()
        torch_xla.sync(wait=True)  # else each tensor that is read would be a program of its own
        pairs = zip([one.cpu().double() for one in found], exact)
        worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        report[name]["gradient_error"] = float(f"{worst:.1e}")
    for name, found in compared(in_turns(actions, rounds), OURS).items():
        report[name] |= found
    return report


def gradients(layer, inputs) -> list:
    "Of the input and of all parameters."
    import torch

    inputs = inputs.detach().requires_grad_()
    loss = layer(inputs)[0].square().sum()
    return list(torch.autograd.grad(loss, [inputs, *layer.parameters()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="steps of each alternative, in turns")
    parser.add_argument("--case", type=int, help="one length only, for the program itself")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.rounds)))
        return
    from b2t_kit.core import save_json

    found = {}
    for steps in STEPS:
        found[str(steps)] = run_case(__file__, str(steps))
        save_json(ROOT / "benchmarks/results/xla_gru.json", found)
    rows = [{"T": steps, "layer": name} | entry for steps, case in found.items()
            for name, entry in case.items()]
    columns = ["T", "layer", "compile_s", "program_mb", "step_ms", "times_ours", "quartiles", "transfers",
               "gradient_error"]
    print(table(rows, columns))


if __name__ == "__main__":
    main()
