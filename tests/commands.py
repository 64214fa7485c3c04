"""What tests of commands share: processes of their own, folders that must not change, and what runs leave."""
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
FOREIGN = ("XLA_", "PJRT_", "ACCELERATE_", "USE_TORCH_XLA", "TF_CPP_MIN_LOG_LEVEL")


def environment(chips: int = 0, **added: str) -> dict[str, str]:
    """Variables of a process on one thread that imports this checkout, with so many simulated chips, whose programs run for
    seconds and are compiled with the least effort."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join([str(ROOT), str(TESTS), *filter(None, sys.path)])
    simulated = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(chips), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    chosen = simulated if chips else {}
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **chosen, **added}


def start(*words: object, chips: int = 0, variables: dict[str, str] | None = None, **options: object) -> subprocess.Popen:
    """An interpreter of its own whose output and errors are piped."""
    return subprocess.Popen([sys.executable, *map(str, words)], env=environment(chips, **variables or {}), text=True,
                            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


def python(*words: object, chips: int = 0, status: int | None = 0, timeout: float = 900, cwd: Path | None = None,
           **added: str) -> subprocess.CompletedProcess:
    """What an interpreter of its own prints; its exit status must be this one, unless that is None."""
    done = subprocess.run([sys.executable, *map(str, words)], env=environment(chips, **added), capture_output=True, text=True,
                          timeout=timeout, cwd=cwd)
    assert status is None or done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-3000:])
    return done


def torchrun(program: str | Path, *words: object) -> list[str]:
    """Run a file of tests, or another, as a program in two processes; what each printed."""
    with tempfile.TemporaryDirectory() as logs:
        done = python(*TORCHRUN, "--log-dir", logs, "--redirects", "3", TESTS / program, *words, status=None, ACCELERATE_USE_CPU="true")
        outputs, errors = ([path.read_text() for path in sorted(Path(logs).rglob(f"{name}.log"))] for name in ("stdout", "stderr"))
    if done.returncode:
        raise RuntimeError(f"{done.stderr[-2000:]}\n" + "\n".join(one[-2000:] for one in [*outputs, *errors]))
    return outputs


def interrupted(words: str, number: signal.Signals, seconds: float) -> int:
    """The status of a command in this process that a signal reaches after so many seconds."""
    from b2t_kit.cli import main
    handler = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return main(words.split())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def dot(figure: object, file: object, **options: object) -> None:
    """In place of a figure's `savefig`."""
    from PIL import Image
    Image.new("RGB", (1, 1)).save(file, "PNG")


def tree(folder: Path = Path()) -> dict[str, int]:
    """Every file, folder and link below a folder, with its content; not the hashes that a run remembers, nor its lock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in ("fingerprint.json", ".lock"):
            found[str(path.relative_to(folder))] = hash(path.read_bytes() if path.is_file() else str(path.lstat().st_mode))
    return found


def newest(run: Path) -> int:
    """The step of a run's newest checkpoint, -1 if there is none."""
    from b2t_kit.training.checkpoint import checkpoint_steps
    return max(checkpoint_steps(run), default=-1)


def bits(run: Path) -> dict[str, bytes]:
    """The files of tensors of a run's newest checkpoint."""
    from b2t_kit.training.checkpoint import checkpoint_path
    return {path.name: path.read_bytes() for path in checkpoint_path(run, newest(run)).glob("*.safetensors")}


def tensors(run: Path, *parts: str) -> "dict[str, torch.Tensor]":
    """The same as tensors: weights, average and moments."""
    from b2t_kit.training.checkpoint import checkpoint_path, read_part
    return {f"{part}/{name}": value for part in parts or ("model", "ema", "optimizer")
            for name, value in read_part(checkpoint_path(run, newest(run)), part).items()}
