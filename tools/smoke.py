"""Run each script in benchmarks/ at its smallest size: `python tools/smoke.py [NAME ...] [--keep DIR]`.

The numbers mean nothing: this finds scripts that no longer fit the package. It takes a quarter of an hour on two cores
and belongs to no other check. Scripts run in a copy of the checkout, so that no recorded result is overwritten. Exit
status 1 if one fails; what cannot run here is named with the reason.
"""
import argparse
import csv
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 600  # seconds of one script
B2T = "-m b2t_kit"
MAKE = {  # what scripts read, made once: name -> command that makes it
    "DATA": f"{B2T} simulate --out DATA --sessions 3 --trials 12 --bins-per-phoneme 20 --seed 3",
}
SMALLEST = {  # script, and case if it has a table of them -> arguments; several commands with ;
    "decoding hotwords": "LABELS --with-target 4 --without 4 --distractors 10 --flatness middle",
    "decoding large_vocabulary": "--words 20000 --trials 2 --beams 20",
    "decoding words": "LABELS --sentences 6 --tune-on 4 --beam 20",
    "eit": "lines",
    "gpu": "steps --device cpu --only tiny --count 3; curves",
    "house": "; --notebooks; --density",
    "labels": "DATA OUT.csv",
    "live": "calm --out OUT --trials 2",
    "months": "--figure",
    "plan": "--table",
    "preflight": "--table",
    "ruler": "LABELS --sentences 60 --seeds 1 --json OUT.json",
    "same_bits": "OUT.json",
    "same_decoding": "--trials 2",
    "v5e": "--table",
}
LEFT_OUT = {
    "certainty": "needs outputs of real decoders",
    "merge": "needs outputs of real decoders",
    "decoding flashlight": "needs flashlight-text",
    "estimate": "takes some minutes",
    "live_belief": "trains nine decoders",
    "live_faults": "needs a demo and Chromium",
    "live_kinds": "sends to live_faults",
    "live_pictures": "needs a demo and Chromium",
    "looks": "simulates for five minutes",
    "strict": "trains seven decoders",
}


def prepare(folder: Path) -> dict[str, str]:
    "Make what scripts read; returns the path of each."
    from b2t_kit.text.english import draw_sentence
    from b2t_kit.lexicon.g2p import sentence_to_phonemes

    paths = {name: str(folder / name.lower()) for name in (*MAKE, "LABELS", "OUT")}
    generator = np.random.default_rng(7)
    said = sorted({draw_sentence(generator, held_out=False) for _ in range(6000)})
    with open(paths["LABELS"], "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow("session block_num trial_num sentence_label phonemes".split())
        for number, sentence in enumerate(said):
            day, place = divmod(number, 100)
            table.writerow([f"t15.2024.{1 + day // 28:02}.{1 + day % 28:02}", place // 50 + 1, place % 50, sentence,
                            " ".join(sentence_to_phonemes(sentence))])
    return paths


def run(line: str, paths: dict[str, str], copy: Path) -> str:
    "Run one command; returns its fault, or nothing."
    words = [paths.get(word.partition(".")[0], word.partition(".")[0]) + "".join(word.partition(".")[1:])
             if word.partition(".")[0] in paths else word for word in line.split()]
    environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{copy / 'benchmarks'}"}
    try:
        done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True,
                              timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"took more than {LIMIT} s"
    return "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip())[-600:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; default: all")
    options = parser.parse_args()
    cases = {f"decoding {case}" for case in runpy.run_path(str(ROOT / "benchmarks/decoding.py"))["CASES"]}
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    known = scripts - {"decoding", "errors"} | cases
    if forgotten := sorted(known ^ {*SMALLEST, *LEFT_OUT}):
        print(f"not in the table, or no longer there: {' '.join(forgotten)}")
    failed = len(forgotten)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(".git", ".ci", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        paths = prepare(Path(folder))
        for name, line in MAKE.items():
            if fault := run(line, paths, copy):
                print(f"{name}: {fault}")
                return 1
        for name in options.names or sorted(SMALLEST):
            if name.startswith("xla") and not find_spec("torch_xla"):
                print(f"{name:25} left out: needs torch_xla", flush=True)
                continue
            script, _, case = name.partition(" ")
            start, mine = time.monotonic(), paths | {"OUT": f"{folder}/out_{script}_{case}"}
            faults = [run(f"benchmarks/{script}.py {case} {part}", mine, copy) for part in SMALLEST[name].split(";")]
            fault = next(filter(None, faults), "")
            failed += bool(fault)
            print(f"{name:25} {time.monotonic() - start:5.0f} s  {fault or 'ok'}", flush=True)
    for name, why in LEFT_OUT.items():
        print(f"{name:25} left out: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
