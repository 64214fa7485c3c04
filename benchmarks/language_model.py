"""Measure building, storing, opening and querying language models. Nothing is decoded: no case of decoding.py.

    python benchmarks/language_model.py [--words 20000000] [--json FILE] [--keep FOLDER] [--lmplz PROGRAM]

A synthetic text of everyday proportions (60,000 words, Zipf frequencies, sentences of 17 words, each word with
favourite successors) is made. Then, each in its own process:

1. models are built: CPU seconds, and the peak memory of the process above its start;
2. the model is written and read in each format: bytes per n-gram, seconds to open;
3. words of running text are queried, by the compiled walk and the plain one;
4. with `--lmplz`, KenLM's own program (built from the sources in its package) makes the same 3-gram, and
   both must find the same text equally likely.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from decoding_cases.task import alone, make_text, memory_now, save

from b2t_kit.lm import END, LanguageModel, build_language_model, convert_language_model, perplexity
from b2t_kit.lm import read_language_model, step, write_arpa
from b2t_kit.text.phonemes import normalise

SETTINGS = {"3-gram": (3, ()), "4-gram, singletons dropped": (4, (0, 0, 1))}
MAIN = "3-gram"  # the one that is stored and asked


def measured(name: str, folder: Path) -> dict:
    "Build one model in this process; returns its time and memory."
    import threading

    order, prune = SETTINGS[name]
    start, peak, done = memory_now(), [0.0, 0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            now = memory_now()
            peak[0] = max(peak[0], now[0])
            peak[1] = max(peak[1], sum(now))

    watcher = threading.Thread(target=watch)
    watcher.start()
    clock, cpu = time.perf_counter(), time.process_time()
    built = build_language_model([folder / "text.txt"], folder / f"{name}.b2tlm", order, prune)
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    done.set()
    watcher.join()
    return {"model": name, "words": built.origin["words"], "ngrams": list(built.counts),
            "cpu_seconds": round(cpu, 1), "wall_seconds": round(clock, 1),
            "peak_own_mb": round(peak[0] - start[0]), "peak_with_mapped_mb": round(peak[1] - sum(start)),
            "bytes_per_ngram": round(built.path.stat().st_size / sum(built.counts), 2)}


def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    "Median CPU time."
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def formats(path: Path, folder: Path) -> dict:
    "Size and opening time of each format."
    model = read_language_model(path)
    total, found = sum(model.counts), {}
    for name in ("model.b2tlm", "model.arpa", "model.arpa.gz"):
        if not name.endswith(".b2tlm"):
            write_arpa(model, folder / name)
        file = path if name.endswith(".b2tlm") else folder / name
        rounds = 5 if name.endswith(".b2tlm") else 1
        found[name.partition(".")[2]] = {"bytes_per_ngram": round(file.stat().st_size / total, 2)}
        if name != "model.arpa.gz":
            opening = seconds(lambda: read_language_model(file), rounds)
            found[name.partition(".")[2]]["cpu_seconds_to_open"] = round(opening, 4)
    (folder / "model.arpa.gz").unlink()
    start = time.process_time()
    convert_language_model(folder / "model.arpa", folder / "again.b2tlm")
    found["arpa to b2tlm"] = {"cpu_seconds": round(time.process_time() - start, 1), "ngrams": total}
    return found


def opened(path: Path, text: Path) -> dict:
    "Memory of a process that opens a model and queries a million words."
    start = sum(memory_now())
    clock = time.perf_counter()
    model = read_language_model(path)
    clock = time.perf_counter() - clock
    after_opening = sum(memory_now())
    numbers = running_text(model, text, 1_000_000)
    step(model.arrays, model.start, 3)
    compiled = sum(memory_now())
    walk_compiled()(model.arrays, model.start, numbers)
    return {"open_wall_ms": round(clock * 1e3, 1), "opened_mb": round(after_opening - start),
            "after_a_million_words_mb": round(sum(memory_now()) - compiled), "file_mb": path.stat().st_size // 10**6}


def running_text(model: LanguageModel, text: Path, count: int) -> np.ndarray:
    "Numbers of the first words of a text."
    words: list[str] = []
    with open(text) as file:
        for line in file:
            words += [*line.split(), "</s>"]
            if len(words) >= count:
                break
    return np.resize(model.numbers(words[:count]), count)


def walk_compiled() -> Callable:
    "A loop over words in compiled code."
    import numba

    from b2t_kit.lm import step as compiled_step

    @numba.njit
    def walk(arrays, start, numbers):
        state, total = start, 0.0
        for number in numbers:
            ln_p, state = compiled_step(arrays, state, number)
            total += ln_p
            if number == 2:
                state = start
        return total

    return walk


def walk_plain(model: LanguageModel, numbers: np.ndarray) -> float:
    "The same in Python."
    state, total = model.start, 0.0
    for number in numbers.tolist():
        ln_p, state = step.py_func(model.arrays, state, number)
        total += float(ln_p)  # a sum of numpy's float32 would stay one
        state = model.start if number == END else state
    return total


def ask(path: Path, folder: Path) -> dict:
    "Words per CPU second in running text."
    model = read_language_model(path)
    numbers, few = running_text(model, folder / "text.txt", 2_000_000), 200_000
    walk = walk_compiled()
    total = walk(model.arrays, model.start, numbers[:few])
    found = {"compiled": round(len(numbers) / seconds(lambda: walk(model.arrays, model.start, numbers)))}
    assert math.isclose(walk_plain(model, numbers[:few]), total, rel_tol=1e-9)
    found["plain"] = round(few / seconds(lambda: walk_plain(model, numbers[:few]), 3))
    return found


def kenlm_builds(program: Path, folder: Path, ours: Path) -> dict:
    "Build the same 3-gram with `lmplz`: its time and memory, and whether it is equal."
    import resource

    normal = folder / "normal.txt"  # lmplz takes words as they stand
    with open(folder / "text.txt") as source, open(normal, "w") as target:
        target.writelines(f"{normalise(line, True)}\n" for line in source)
    command = [str(program), "-o", "3", "-S", "1G", "-T", str(folder / "lmplz"), "--text", str(normal),
               "--arpa", str(folder / "lmplz.arpa")]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    convert_language_model(folder / "lmplz.arpa", folder / "lmplz.b2tlm")
    (folder / "lmplz.arpa").unlink()
    theirs, mine = read_language_model(folder / "lmplz.b2tlm"), read_language_model(ours)
    lines = [normalise(line, True) for line in (folder / "few.txt").read_text().splitlines()[:2000]]
    found = [perplexity(model, lines)[0] for model in (mine, theirs)]
    assert theirs.counts == mine.counts and math.isclose(*found, rel_tol=1e-4), (theirs.counts, mine.counts, found)
    return {"cpu_seconds": round(used.ru_utime + used.ru_stime, 1), "peak_mb": round(used.ru_maxrss / 1024),
            "perplexity": [round(one, 4) for one in found]}


def everything(folder: Path, num_words: int, lmplz: Path | None) -> dict:
    "All measurements."
    make_text(folder / "text.txt", num_words)
    builds = [alone(measured, name, folder) for name in SETTINGS]
    with open(folder / "text.txt") as file:
        (folder / "few.txt").write_text("".join(file.readline() for _ in range(20_000)))
    path = folder / f"{MAIN}.b2tlm"
    kenlm = {"lmplz": alone(kenlm_builds, lmplz.resolve(), folder, path)} if lmplz else {}
    return {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
                       f"numpy {np.__version__}", "text_mb": (folder / "text.txt").stat().st_size // 10**6,
            "build": builds, "formats": alone(formats, path, folder),
            "opened": alone(opened, path, folder / "text.txt"),
            "words_per_cpu_second": alone(ask, path, folder), **kenlm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--words", type=int, default=20_000_000)
    for name in ("keep", "lmplz", "json"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        results = everything(options.keep or Path(folder), options.words, options.lmplz)
    print(json.dumps(results, indent=1))
    save(options.json, results)


if __name__ == "__main__":
    main()
