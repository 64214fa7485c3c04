"""Run Kaggle kernels on the versions of Kaggle's image, without internet, in two sessions of which the second resumes.

    python tools/kernels.py --image PYTHON --work DIR [--kernels b2t-gpu,b2t-eit-tpu]
    python tools/kernels.py --image PYTHON --work DIR --recordings DEMO/data
    python tools/kernels.py --image PYTHON --work DIR --kernels colab

PYTHON belongs to an environment like Kaggle's: it has what `tpu/requirements.in` of Kaggle/docker-python asks for
and the kit needs, but neither b2t_kit nor what the image lacks. Each kernel is built with `b2t kernel build --offline`
(the second time with `--resume`), and runs from its first to its last cell with nbclient, as Kaggle runs it: in
`/kaggle/working`, with the dataset of wheels and the earlier output under `/kaggle/input`. It runs in namespaces of its
own (Linux's `unshare`, as root): there is no network but the loopback, and what it writes outside `/kaggle` is gone
after the session. There is no accelerator, so an interactive session rehearses; the third is a pushed one, and must
fail with one line.

`colab` is the page for Colab instead: once, in `/content` with the wheel that a user uploads, trained in full, and with
the network, since pip gets from there what Colab's image lacks.
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

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mkdir -p "$1/root/$5"
mount --bind "$2" "$1/root/$5"
for place in dev proc sys; do mount --rbind "/$place" "$1/root/$place"; done
exec chroot "$1/root" "$3" -c "$4" "$5" "$6"
"""
INSIDE = """
import fcntl, os, socket, struct, sys
with socket.socket() as opened:  # the loopback is down in a new namespace
    fcntl.ioctl(opened, 0x8914, struct.pack("16sh14x", b"lo", 1))
home, work = sys.argv[1:]
os.chdir(work)
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(f"{home}/kernel.ipynb", 4)
try:
    NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
finally:
    nbformat.write(notebook, f"{home}/executed.ipynb")
import importlib.metadata as packages
print(*(f"{name} {packages.version(name)}" for name in ("torch", "torch_xla", "numpy")), sep=", ")
"""

LACKING = 'missing = [name for name, found in {"TPU": chips, "recordings": data}.items() if not found]'
SMALL = {  # kernel -> (cell's line, the line instead); STEPS are those of this session and the ones before
    "b2t-gpu": [
        (LACKING.replace("TPU", "GPU").replace("chips", "gpus"), "missing = []"),
        ('"config": recipe, "hours": hours', '"config": "tiny", "hours": hours, "steps": STEPS, "new_schedule": True'),
    ],
    "b2t-tpu-v5e8": [
        (LACKING, "missing = []"),
        ('recipe, device = "tpu_v5e8", "tpu"', 'recipe, device = "tiny", "cpu"'),
        ('{"hours": 8.0, "steps": 30_000,', '{"hours": 8.0, "steps": STEPS, "new_schedule": True,'),
        ('{"units": {"hours": 0.4}, "none": {"hours": 0.4}}', '{"units": {"steps": 10}, "none": {"steps": 20}}'),
    ],
    "b2t-tpu-ensemble": [
        (LACKING, "missing = []"),
        ("[1, 2] if rehearsal else list(range(1, len(chips) + 1))", "[1, 2]"),
        ('recipe, device = "transformer", "tpu"', 'recipe, device = "tiny", "cpu"'),
        ('{"keep_checkpoints": 2, "cache": "float16"}', '{"cache": "float16", "steps": STEPS, "new_schedule": True}'),
    ],
    "b2t-words": [("missing = [name for name, found in have.items() if not found]", "missing = []")],
}
STEPS = 110  # a session


def make_small(path: Path, kernel: str, number: int) -> None:
    "Change a kernel's settings, each of which must be there, to those for a CPU."
    notebook = json.loads(path.read_text())
    for line, instead in SMALL[kernel]:
        cells = [cell for cell in notebook["cells"] if line in "".join(cell["source"])]
        assert len(cells) == 1, f"{kernel}: {line} stands in {len(cells)} cells"
        cells[0]["source"] = "".join(cells[0]["source"]).replace(line, instead.replace("STEPS", str(number * STEPS)))
    path.write_text(json.dumps(notebook))


def attach_words(
    inputs: Path,  # /kaggle/input
    recordings: Path,
) -> None:
    "Attach lists of three decoders, and a tiny model as Kaggle Models mounts one."
    sys.path.insert(0, str(ROOT / "tests"))
    from tiny_models import write_causal

    from b2t_kit.data.dataset import Recordings
    from b2t_kit.decode.submission import write_table

    write_causal(inputs / "models/ada/small/transformers/default/1", positions=1024)
    for number, misheard in enumerate((("the", "a"), ("is", "his"), ("to", "two"))):
        for split in ("val", "test"):
            with Recordings(recordings, split) as opened:
                places = [info.key for info in opened.infos]
                said = [opened[row].sentence or "is it to the left" for row in range(len(places))]
            words = [[misheard[1] if word == misheard[0] else word for word in one.split()] for one in said]
            path = inputs / f"datasets/ada/lists/{split}/decoder_{number}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_table(path, dict(zip(places, map(" ".join, words))))


def session(
    image: str,  # the image's Python
    work: Path,  # folder of the kernel
    number: int,  # 1, 2, ...
    kernel: str,
    kind: str = "Interactive",  # or "Batch", a pushed run
    recordings: Path | None = None,  # attached, instead of a rehearsal
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
    if recordings is not None:
        shutil.copytree(recordings, kaggle / "input/competitions/brain-to-text-25/recordings")
        make_small(kaggle / "kernel.ipynb", kernel, number)
        if kernel == "b2t-words":
            attach_words(kaggle / "input", recordings)
    if number > 1:
        shutil.copytree(work / f"kaggle{number - 1}/working", kaggle / "input/notebooks/ada" / kernel)
    variables = {"KAGGLE_KERNEL_RUN_TYPE": kind, "ISTPUVM": "1", "TPU_PROCESS_ADDRESSES": "local"}
    return *inside(image, work / f"log{number}.txt", scratch, kaggle, "/kaggle", "/kaggle/working", variables), kaggle


def inside(
    image: str,  # the image's Python
    log: Path,
    scratch: Path,  # an empty folder, for the file system
    folder: Path,  # with kernel.ipynb
    home: str,  # where it is found inside
    work: str,  # the notebook's folder
    variables: dict[str, str],  # what tells the platform
    network: bool = False,
) -> tuple[int, float]:  # exit status, seconds
    "Run a notebook from its first to its last cell in a file system of its own."
    common = {"HOME": "/root", "PATH": f"{Path(image).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    common |= {name: value for name, value in os.environ.items()
               if network and name.startswith("PIP_") and name != "PIP_CONSTRAINT"}
    own = ["--mount"] if network else ["--mount", "--net"]
    command = ["unshare", *own, "sh", "-c", NAMESPACE, "sh", scratch, folder, image, INSIDE, home, work]
    start = time.monotonic()
    done = subprocess.run(command, env=common | variables, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode and variables.get("KAGGLE_KERNEL_RUN_TYPE") != "Batch":
        print("\n".join(log.read_text().splitlines()[-30:]), file=sys.stderr)
    return done.returncode, time.monotonic() - start


def run_colab(
    image: str,  # the image's Python
    work: Path,  # folder of the page
) -> bool:  # whether it ran to the end
    "Run the page for Colab as there, and print a row."
    content, scratch = work / "content", work / "scratch"
    content.mkdir()
    scratch.mkdir()
    program = "import sys; from b2t_kit.publish.kaggle import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, content], check=True)
    page = json.loads((ROOT / "nbs/tutorials/colab.ipynb").read_text())
    page["cells"] = [cell for cell in page["cells"] if "nbdev_export(" not in "".join(cell["source"])]
    (content / "kernel.ipynb").write_text(json.dumps(page))
    status, seconds = inside(image, work / "log1.txt", scratch, content, "/content", "/content",
                             {"COLAB_RELEASE_TAG": "release-colab"}, network=True)
    result = f"ran to the end, {printed(content, 'colab, device .*')}" if status == 0 else "FAILED"
    last = printed(content, r"step ([0-9]+)/\1 +validation.*")
    print("installing the kit left", (work / 'log1.txt').read_text().partition("\n")[0] + "\n")
    print(f"| colab | 1 | {result} | {last} | {seconds:.0f} |")
    return status == 0


def steps_of(
    kaggle: Path,  # the folder that was /kaggle
) -> int:
    "The last step of the runs in the output."
    metrics = (kaggle / "working").rglob("metrics.jsonl")
    rows = (json.loads(line) for path in metrics for line in path.read_text().splitlines())
    return max((row.get("step") or 0 for row in rows), default=0)


def printed(
    kaggle: Path,  # the folder that was /kaggle
    pattern: str,  # regular expression
) -> str:
    "The first match in what the cells printed or raised; a dash if there is none."
    executed = kaggle / "executed.ipynb"  # not there where the session did not begin
    cells = json.loads(executed.read_text())["cells"] if executed.exists() else []
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [one.get("text") or one.get("evalue") or one.get("data", {}).get("text/plain", "") for one in outputs]
    said = "\n".join("".join(text) for text in texts)
    found = re.search(pattern, said)
    return found[0] if found else "–"


def main() -> int:  # exit status
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--kernels", default="b2t-eit-tpu,b2t-gpu,b2t-tpu-v5e8,b2t-tpu-ensemble,b2t-words")
    parser.add_argument("--recordings", type=Path)
    options = parser.parse_args()
    image, right = os.path.abspath(options.image), []  # as it is called: links lead out of the environment
    asked = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in " \
            "('torch', 'torch_xla', 'libtpu', 'numpy', 'accelerate')), sep=', ')"
    versions = subprocess.run([image, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    python = subprocess.run([image, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{python}, {versions}\n")
    print("| kernel | session | result | run | seconds |\n|---|---|---|---|---|")
    kernels = options.kernels.split(",")
    for kernel in kernels if options.recordings is None else [one for one in SMALL if one in kernels]:
        work = options.work.resolve() / kernel
        work.mkdir(parents=True)
        if kernel == "colab":
            right.append(run_colab(image, work))
            continue
        for number in (1, 2):
            status, seconds, kaggle = session(image, work, number, kernel, recordings=options.recordings)
            right.append(status == 0)
            outputs = list(kaggle.glob("working/rehearsal/*" if options.recordings is None else "working/*"))
            result = f"{len(outputs)} outputs" if status == 0 else "FAILED"
            if options.recordings is not None:
                rates = printed(kaggle, "phoneme error rate.*"), printed(kaggle, "word error rate.*")
                check = ["check-submission", kaggle / "working/submission.csv", "--data", options.recordings]
                checked = subprocess.run([sys.executable, "-m", "b2t_kit.cli", *check], capture_output=True, text=True)
                right.append(checked.returncode == 0)
                result += f", {rates[0]}, {rates[1]}, submission: {checked.stdout.strip() or checked.stderr.strip()}"
            words = printed(kaggle, "a new run|new runs|(continuing|resuming) (/kaggle/input/\\S+|[0-9]+ of .*)")
            print(f"| {kernel} | {number}, interactive | {result} | {words}, step {steps_of(kaggle)} | {seconds:.0f} |",
                  flush=True)
        if options.recordings is not None:
            continue
        status, seconds, kaggle = session(image, work, 3, kernel, "Batch")
        line = printed(kaggle, "this session has no .*")
        left = "nothing written" if not any((kaggle / "working").iterdir()) else "WROTE SOMETHING"
        result = f"fails: {line}" if status else "RAN"
        right.append(status != 0 and left == "nothing written" and line != "–")
        print(f"| {kernel} | 3, pushed | {result} | {left} | {seconds:.0f} |", flush=True)
    return int(not all(right))


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
