"""All checks that a change must pass: `.ci/run`. `python tools/ci.py job kaggle` (or colab) is not among them.

Nothing is installed into the caller's environment. Three environments are built under .ci/envs, and
kept until their sources change:

    base     no torch_xla: tests that need it are reported as skipped
    xla      torch_xla, which changes parts of torch, and the TPU compiler:
             a skip is a failure
    nbdev3   the current nbdev, over base's libraries

README.md's second command, the first tier of the tests, runs in base first, then the second tier. In xla run the tests
and notebooks that need torch_xla, and those of models and training, with an older torch. Each keeps two processors
busy. Of the steps after them, those of nbdev 3 run beside the others.
Chromium, for the tests of the live page, is installed by apt-get where it is missing; where that fails, they are
reported as skipped.
pytest runs all notebooks. One folder of them runs under nbdev 2's test command too, and two under nbdev 3's, whose
shell runs cells in a thread with an event loop: those of signals, processes and servers. For all notebooks
tools/same_cells.py checks that nbdev 3 would run the same cells. tools/leaderboard.py reproduces one row of the
leaderboard, whose turn it is by the date of the commit. README.md's first command runs in base; ruff and mypy
run once. The last line sums the tests of base and xla; any other failed step counts as one failure, and .ci/last.json
keeps the sums for the badge of the front page, which is drawn again.

Seconds are printed below each step and in tables at the end: those of the steps, and of the slowest files of tests.
.ci/envs/seconds.json has those of every file; copied to .ci/seconds.json, they decide which files begin first.

A job runs the notebooks of a service on the versions of its TPU image, in an environment that has what the image has
and neither b2t_kit nor [dev]; then the failures on XLA, with what they need besides. Its versions are in
.ci/kaggle.txt and .ci/colab.txt; results are recorded in benchmarks/LOG.md. It takes about a quarter of an hour
on two idle cores, and 8 GB in .ci/envs.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVS = ROOT / ".ci/envs"
PYTHONS = {"base": "3.11", "xla": "3.12", "nbdev3": "3.11"}
IMAGES = {"kaggle": "3.12", "colab": "3.13"}  # TPU images
OVER = {"nbdev3": "base", "kaggle-tests": "kaggle", "colab-tests": "colab"}  # finds there what it lacks itself
REQUIREMENTS = ("settings.ini", "setup.py", "pyproject.toml")
OLDER_TORCH = ("nbs/models,nbs/training/run.ipynb,nbs/training/begin.ipynb,nbs/training/meter.ipynb,"
               "nbs/training/checkpoint.ipynb,nbs/training/optim.ipynb,nbs/training/task.ipynb,nbs/training/toy.ipynb,"
               "nbs/03_precision.ipynb,nbs/04_training.ipynb")
COMMAND = re.compile(r"^```sh\n(pip install .*)\n```$", re.M)
LAST = ROOT / ".ci/last.json"  # for the badge of the front page, which tools/readme.py draws
SECONDS = ENVS / "seconds.json"  # of each file of tests, in the environment where it took longer
TOTALS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
STEP_LIMIT = 60 * 60  # seconds; beside two trainings the longest took 27 minutes


def find_python(version: str) -> str:
    "An interpreter of this version: the one on PATH, or one that pyenv keeps off it."
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    for candidate in filter(None, [shutil.which(f"python{version}"), *kept]):
        # A pyenv shim is on PATH even where its version is switched off.
        if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return str(candidate)
    raise SystemExit(f"error: .ci/envs needs Python {version}, which is not installed")


def variables(name: str) -> dict[str, str]:
    "The variables of commands in an environment: its programs and its pins."
    places = [name, "base"] if name == "nbdev3" else [name]  # notebooks also start base's programs
    pins = OVER[name] if name.endswith("-tests") else name
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,  # compiled modules are kept: hundreds of processes import the kit
        "PATH": os.pathsep.join([*(str(ENVS / one / "bin") for one in places), os.environ["PATH"]]),
        "VIRTUAL_ENV": str(ENVS / name),
        "PIP_CONSTRAINT": str(ROOT / f".ci/{pins}.txt"),
        "PIP_QUIET": "2",
        "PYTEST_ADDOPTS": "--durations=15" + (" --no-skips" if name == "xla" else ""),
        "CI": "true",
    }


def run(name: str, command: str, beside: bool = False) -> tuple[bool, str]:
    """Run a command in an environment and log it; returns whether it succeeded, and its last line.

    What runs beside another command is printed when it has ended.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        return run_in(scratch, name, command, beside)


def run_in(scratch: str, name: str, command: str, beside: bool) -> tuple[bool, str]:
    "The same with a temporary folder for files of the command."
    free = shutil.disk_usage(ROOT).free / 1e9
    start, last, printed = time.monotonic(), "", [f"\n=== {name}: {command}\n=== {free:.0f} GB of disk free\n"]
    if not beside:
        print(printed.pop(), end="", flush=True)
    limited = ["timeout", "--kill-after=30", str(STEP_LIMIT), "bash", "-c", command]
    with subprocess.Popen(
        limited,
        cwd=ROOT,
        env=variables(name) | {"TMPDIR": scratch},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout:
            printed.append(line)
            if not beside:
                print(printed.pop(), end="", flush=True)
            last = line.strip() or last
    print("".join(printed) + f"=== status {process.returncode}, {time.monotonic() - start:.0f} s", flush=True)
    return process.returncode == 0, last


def build(name: str, python: str = "", command: str = "") -> bool:
    "Build an environment, unless it exists and was built from the same files."
    python, command = python or PYTHONS[name], command or f"pip install -r .ci/{name}.txt"
    pins = OVER[name] if name.endswith("-tests") else name
    sources = [ROOT / path for path in (*REQUIREMENTS, f".ci/{pins}.txt")]
    stamp = ENVS / name / "made-from"
    made_from = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    if stamp.exists() and stamp.read_text() == made_from:
        return True
    shutil.rmtree(ENVS / name, ignore_errors=True)
    subprocess.run([find_python(python), "-m", "venv", ENVS / name], check=True)
    if name in OVER:  # where the checkout is only linked to
        (libraries,) = (ENVS / OVER[name]).glob("lib/python*/site-packages")
        (own,) = (ENVS / name).glob("lib/python*/site-packages")
        (own / "base.pth").write_text(f"{libraries}\n{ROOT}\n")
    succeeded, _ = run(name, command, beside=True)
    if name == "xla":  # the last version with the message of a reported failure, for one test
        shutil.rmtree(ENVS / "accelerate-1.13", ignore_errors=True)
        command = "PIP_CONSTRAINT= pip install --no-deps --target .ci/envs/accelerate-1.13 accelerate==1.13.0"
        succeeded = run(name, command, beside=True)[0] and succeeded
    if succeeded:
        stamp.write_text(made_from)
    return succeeded


def install_programs() -> None:
    "Chromium, its driver and Redis, if they are missing and this is a Debian machine where that is allowed."
    if all(map(shutil.which, ("chromium", "chromedriver", "redis-server"))):
        return
    programs = "chromium chromium-driver redis-server"
    command = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {programs}"
    print(f"\n=== {command}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["timeout", "600", "bash", "-c", command], env=environment)
    print(f"=== status {done.returncode}", flush=True)


def job(name: str) -> int:  # exit status
    "Notebooks and failures on XLA on the versions of a TPU image."
    if not build("base") or not run("base", "pip install -e .")[0] or not build(name, IMAGES[name]):
        return 1
    if not build(f"{name}-tests", IMAGES[name], "pip install pytest numba rapidfuzz tyro fastcore"):
        return 1
    kernels = " --kernels colab" if name == "colab" else ""
    notebooks = f"python tools/kernels.py --image .ci/envs/{name}/bin/python --work $TMPDIR/kernels{kernels}"
    failures = "python -m pytest -q -c /dev/null --rootdir . --confcutdir tests tests/test_xla_failures.py"
    return int(not all([run("base", notebooks)[0], run(f"{name}-tests", failures)[0]]))


def record_seconds() -> dict[str, float]:  # the slowest first
    "Merge the seconds that each file of tests took in both environments and tiers."
    found: dict[str, float] = {}
    for path in ENVS.glob("*/seconds-*.json"):
        for file, seconds in json.loads(path.read_text(encoding="utf-8")).items():
            found[file] = max(seconds, found.get(file, 0))
    found = dict(sorted(found.items(), key=lambda one: -one[1]))
    SECONDS.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    return found


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "job" and sys.argv[2] in IMAGES:
        return job(sys.argv[2])
    demo, tests = COMMAND.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    shutil.rmtree(ROOT / "demo", ignore_errors=True)
    suites = [
        ("base", f"{tests} --seconds {ENVS}/base/seconds-first.json"),
        ("base", f"{tests} --tier second --seconds {ENVS}/base/seconds-second.json"),
        ("xla", f"{tests} --tier all --library torch_xla --also {OLDER_TORCH} "
                f"--seconds {ENVS}/xla/seconds-all.json"),
    ]
    lanes = [
        [("base", "ruff check && mypy --cache-dir=/dev/null"), ("base", "nbdev_test --path nbs/core"),
         ("nbdev3", "python tools/in_step.py && python tools/same_cells.py")],
        [("nbdev3", "nbdev-test nbs/core && nbdev-test nbs/live")],
    ]
    install_programs()
    with ThreadPoolExecutor(2) as both:
        built = dict(one for lane in both.map(lambda names: [(name, build(name)) for name in names],
                                              (("base", "nbdev3"), ("xla",))) for one in lane)

    def timed(name: str, command: str, beside: bool) -> tuple[float, bool, str, str, str]:
        start = time.monotonic()
        succeeded, last = run(name, command, beside) if built[name] else (False, "")
        return time.monotonic() - start, succeeded, name, command, last

    begun = time.monotonic()
    took = [timed(*step, beside=False) for step in suites]
    with ThreadPoolExecutor(2) as both:
        for lane in both.map(lambda steps: [timed(*step, beside=True) for step in steps], lanes):
            took += lane
    took.append(timed("base", "python tools/leaderboard.py reproduce", beside=False))
    took.append(timed("base", demo, beside=False))  # installs another copy
    in_all = time.monotonic() - begun
    passed, failed, skipped = 0, 0, 0
    for _, succeeded, _, command, last in took:
        totals = TOTALS.fullmatch(last) if command.startswith(tests) else None
        counts = tuple(map(int, totals.groups())) if totals else (0, 0, 0)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
        if not succeeded and not counts[1]:
            failed += 1
        elif command.startswith(tests) and not counts[0]:
            failed += 1
    files = record_seconds()
    print("\n=== seconds of the slowest files of tests")
    for file in list(files)[:30]:
        print(f"{files[file]:6.0f} s  {file}")
    print("\n=== seconds of each step")
    for seconds, succeeded, name, command, _ in took:
        print(f"{seconds:6.0f} s  {'' if succeeded else 'FAILED':<6}  {name:<6}  {command}")
    print(f"{in_all:6.0f} s  in all\n")
    LAST.write_text(json.dumps({"passed": passed, "failed": failed, "skipped": skipped}) + "\n", encoding="utf-8")
    run("base", "python tools/readme.py")  # a test compares the badge
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
