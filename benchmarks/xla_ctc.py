"""The CTC loss and its gradient on XLA: the kit's device loops compared with torch's loss on the host.

    python benchmarks/xla_ctc.py            # in an environment with torch_xla; some minutes

64 trials of up to 60 labels, 41 classes, at several numbers of frames. torch's own loss is not lowered to
XLA: torch_xla sends its inputs to the host and its gradient back. Results go to
benchmarks/results/xla_ctc.json, and as a table to the terminal.
"""

import argparse
import json

from xla_measure import ROOT, compared, first_run, in_turns, run_case, table

BATCH, CLASSES, LABELS = 64, 41, 60
FRAMES = (64, 128, 250, 512)
OURS = "b2t_kit"


def measure(frames: int, rounds: int) -> dict:
    "Both losses at one number of frames."
    import torch
    import torch.nn.functional as F
    import torch_xla

    from b2t_kit.models.model import ctc_losses

    def host_losses(logits, num_patches, labels, num_labels):
        log_probs = logits.log_softmax(dim=-1).transpose(0, 1)
        return F.ctc_loss(log_probs, labels, num_patches, num_labels, reduction="none")

    def loss_and_gradient(function, logits, *lengths):
        logits = logits.detach().requires_grad_()
        losses = function(logits, *lengths)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), logits)]

    torch_xla.device()
    generator = torch.Generator().manual_seed(0)
    most = min(LABELS, frames // 3)
    labels = torch.randint(1, CLASSES, (BATCH, most), generator=generator)
    counts = torch.randint(most // 2, most + 1, (BATCH,), generator=generator)
    lengths = torch.randint(3 * frames // 4, frames + 1, (BATCH,), generator=generator)
    logits = 3 * torch.randn(BATCH, frames, CLASSES, generator=generator)
    options = lengths, labels, counts
    exact = loss_and_gradient(host_losses, logits.double(), *options)
    there = [one.to("xla") for one in (logits, *options)]
    functions = {OURS: ctc_losses, "torch's, on the host": host_losses}
    actions = {name: lambda function=function: loss_and_gradient(function, *there)
               for name, function in functions.items()}
    report = {}
    for name, action in actions.items():
        report[name] = first_run(action)
        found = action()
        torch_xla.sync(wait=True)  # else the gradient alone would be a program of its own
        error = (found[1].cpu() - exact[1]).abs().max()
        report[name]["gradient_error"] = float(f"{float(error):.1e}")
    for name, found in compared(in_turns(actions, rounds), OURS).items():
        report[name] |= found
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="steps of each alternative, in turns")
    parser.add_argument("--case", type=int, help="one number of frames only, for the program itself")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.rounds)))
        return
    from b2t_kit.core import save_json

    found = {}
    for frames in FRAMES:
        found[str(frames)] = run_case(__file__, str(frames))
        save_json(ROOT / "benchmarks/results/xla_ctc.json", found)
    rows = [{"T": frames, "loss": name} | entry for frames, case in found.items()
            for name, entry in case.items()]
    columns = ["T", "loss", "compile_s", "programs", "transfers", "program_mb", "step_ms", "times_ours",
               "quartiles", "gradient_error"]
    print(table(rows, columns))


if __name__ == "__main__":
    main()
