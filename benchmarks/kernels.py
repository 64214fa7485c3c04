"""Run Kaggle kernels on the versions of Kaggle's image, without internet, in two sessions of which the second resumes.

    python benchmarks/kernels.py --image PYTHON --work DIR [--kernels b2t-gpu,b2t-eit-tpu]

PYTHON belongs to an environment like Kaggle's: it has what `tpu/requirements.in` of Kaggle/docker-python asks for
and the kit needs, but neither b2t_kit nor what the image lacks. Each kernel is built with `b2t kernel build --offline`
(the second time with `--resume`), and runs from its first to its last cell with nbclient, as Kaggle runs it: in
`/kaggle/working`, with the dataset of wheels and the earlier output under `/kaggle/input`. It runs in namespaces of its
own (Linux's `unshare`, as root): there is no network but the loopback, and what it writes outside `/kaggle` is gone
after the session. There is no accelerator, so an interactive session rehearses; the third is a pushed one, and must
fail with one line.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMESPACE = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mkdir -p "$1/root/kaggle"
mount --bind "$2" "$1/root/kaggle"
for place in dev proc sys; do mount --rbind "/$place" "$1/root/$place"; done
exec chroot "$1/root" "$3" -c "$4"
"""
INSIDE = """
import fcntl, os, socket, struct, sys
with socket.socket() as opened:  # the loopback is down in a new namespace
    fcntl.ioctl(opened, 0x8914, struct.pack("16sh14x", b"lo", 1))
os.chdir("/kaggle/working")
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read("/kaggle/kernel.ipynb", 4)
try:
    NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
finally:
    nbformat.write(notebook, "/kaggle/executed.ipynb")
"""


def session(
    image: str,  # the image's Python
    work: Path,  # folder of the kernel
    number: int,  # 1, 2, ...
    kernel: str,
    kind: str = "Interactive",  # or "Batch", a pushed run
) -> tuple[int, float, Path]:  # exit status, seconds, the folder that was /kaggle
    "Build a kernel and run it in a session of its own."
    push, kaggle, scratch = (work / f"{name}{number}" for name in ("push", "kaggle", "scratch"))
    words = ["--out", push, "--kernel", kernel, "--user", "ada", "--offline", *["--resume"] * (number > 1)]
    subprocess.run([sys.executable, "-m", "b2t_kit.cli", "kernel", "build", *words], check=True)
    for name in ("working", "temp", "input/datasets/ada", "input/notebooks/ada"):
        (kaggle / name).mkdir(parents=True)
    scratch.mkdir()
    shutil.move(push / "wheel", kaggle / "input/datasets/ada/b2t-kit-wheel")
    shutil.copy(push / "kernel" / f"{kernel}.ipynb", kaggle / "kernel.ipynb")
    if number > 1:
        shutil.copytree(work / f"kaggle{number - 1}/working", kaggle / "input/notebooks/ada" / kernel)
    variables = {"KAGGLE_KERNEL_RUN_TYPE": kind, "ISTPUVM": "1", "TPU_PROCESS_ADDRESSES": "local", "HOME": "/root",
                 "PATH": f"{Path(image).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    command = ["unshare", "--mount", "--net", "sh", "-c", NAMESPACE, "sh", scratch, kaggle, image,
               INSIDE]
    start = time.monotonic()
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    (work / f"log{number}.txt").write_text(done.stdout + done.stderr)
    return done.returncode, time.monotonic() - start, kaggle


def steps_of(
    kaggle: Path,  # the folder that was /kaggle
) -> int:
    "The last step of the run in the output."
    metrics = kaggle / "working/rehearsal/run/metrics.jsonl"
    rows = map(json.loads, metrics.read_text().splitlines() if metrics.exists() else [])
    return max((row.get("step") or 0 for row in rows), default=0)


def printed(
    kaggle: Path,  # the folder that was /kaggle
    pattern: str,  # regular expression
) -> str:
    "The first match in what the cells printed or raised."
    cells = json.loads((kaggle / "executed.ipynb").read_text())["cells"]
    said = "".join("".join(output.get("text", output.get("evalue", ""))) + "\n"
                   for cell in cells for output in cell.get("outputs", []))
    found = re.search(pattern, said)
    return found[0] if found else f"no {pattern}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--kernels", default="b2t-eit-tpu,b2t-gpu,b2t-tpu-v5e8")
    options = parser.parse_args()
    asked = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in " \
            "('torch', 'torch_xla', 'libtpu', 'numpy', 'accelerate')), sep=', ')"
    versions = subprocess.run([options.image, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    python = subprocess.run([options.image, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{python}, {versions}\n")
    print("| kernel | session | result | installed from | run | seconds |\n|---|---|---|---|---|---|")
    for kernel in options.kernels.split(","):
        work = options.work.resolve() / kernel
        work.mkdir(parents=True)
        for number in (1, 2):
            status, seconds, kaggle = session(options.image, work, number, kernel)
            outputs = list(kaggle.glob("working/rehearsal/*"))
            result = f"{len(outputs)} outputs" if status == 0 else "FAILED"
            words = printed(kaggle, "a new run|(continuing|resuming) /kaggle/input/\\S+")
            print(f"| {kernel} | {number}, interactive | {result} | {printed(kaggle, 'b2t_kit-[^:]*: .*')} | {words}, "
                  f"step {steps_of(kaggle)} | {seconds:.0f} |", flush=True)
        status, seconds, kaggle = session(options.image, work, 3, kernel, "Batch")
        line = printed(kaggle, "this session has no .*")
        left = "nothing written" if not any((kaggle / "working").iterdir()) else "WROTE SOMETHING"
        result = f"fails: {line}" if status else "RAN"
        print(f"| {kernel} | 3, pushed | {result} | {printed(kaggle, 'b2t_kit-[^:]*: .*')} | {left} | {seconds:.0f} |",
              flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    main()
