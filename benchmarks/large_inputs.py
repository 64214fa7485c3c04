"""Large inputs: `b2t validate` on 45 days, a report of 10,000 sentences, `b2t doctor` on a log of a gigabyte.

    python benchmarks/large_inputs.py --folder DIR            # needs 3 GB of disk; writes benchmarks/large_inputs.md

Each runs in a process of its own, so that its peak memory can be told. The inputs are made first, in processes of
their own.
"""
import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()


def recordings(folder: Path) -> None:
    "45 days of 167 training, 41 validation and 41 test trials of 40 bins."
    from b2t_kit.data.convert import tiny_recordings
    tiny_recordings(folder / "data", sessions=45, trials=167, min_bins=40, max_bins=41)


def validate(folder: Path) -> str:
    from b2t_kit.data.dataset import faults
    assert not list(faults(folder / "data/hdf5_data_final"))
    return f"{sum(path.stat().st_size for path in (folder / 'data').rglob('*.hdf5')) / 1e9:.2f} GB"


def log(folder: Path) -> None:
    "Lines as training prints them, and one message near the end."
    draw = random.Random(1)
    words = ("step loss train val per 0.123 INFO warning tensor device compile epoch batch memory shape float32 line "
             "in forward").split()
    block = "".join(f"{number} {' '.join(draw.choice(words) for _ in range(9))}\n" for number in range(200_000))
    with open(folder / "log.txt", "w") as file:
        while file.tell() < 10**9:
            file.write(block)
        file.write("RuntimeError: Attempted to allocate 12.00G. That was not possible. There are 3.41G free.\n")
        file.write(block[:10**6])


def doctor(folder: Path) -> str:
    from b2t_kit.doctor import diagnose_file
    found = diagnose_file(folder / "log.txt")
    assert [one.failure.name for one in found] == ["chip_memory_full"]
    return f"{(folder / 'log.txt').stat().st_size / 1e9:.2f} GB"


def report(folder: Path) -> str:
    "Six words and ten hypotheses a sentence, on 45 days, without pictures."
    from b2t_kit.decode.hypotheses import Hypothesis
    from b2t_kit.output.report import Report, Sentence, report_html
    draw, rows, count = random.Random(1), [], 10_000
    vocabulary = ["".join(draw.choice("abcdefghijklmnop") for _ in range(5)) for _ in range(2000)]
    for number in range(count):
        words = [draw.choice(vocabulary) for _ in range(6)]
        lists = tuple(Hypothesis(tuple(word if draw.random() > 0.1 else draw.choice(vocabulary) for word in words),
                                 -3.0 - rank, -2.0, -5.0 - rank) for rank in range(10))
        sounds = [draw.randrange(1, 40) for _ in range(27)]
        heard = [one if draw.random() > 0.1 else 3 for one in sounds]
        place = f"t15.2023.{number * 45 // count:02d}.01", 1, number
        rows.append(Sentence(place, " ".join(words), lists, (sounds, heard),
                             draw.choice(["Switchboard", "Freq words"]), seen=draw.random() < 0.1))
    made = Report("decoder", "val", rows)
    page = report_html(made)
    return f"{len(page) / 1e6:.1f} MB, {len(made.to_dict()['days'])} days, {len(str(made).splitlines())} lines"


MAKERS = {"recordings": recordings, "log": log}
MEASURED = {"validate": ("`b2t validate`: 45 days of 249 trials of 40 bins", validate),
            "doctor": ("`b2t doctor --log`", doctor), "report": ("page of `b2t report`: 10,000 sentences", report)}


def own_process(name: str, folder: Path) -> str:
    command = [sys.executable, str(HERE), "--folder", str(folder), "--part", name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", choices=[*MAKERS, *MEASURED])
    parser.add_argument("--out", type=Path, default=HERE.with_suffix(".md"))
    options = parser.parse_args()
    if options.part in MAKERS:
        MAKERS[options.part](options.folder)
        return
    if options.part:
        title, work = MEASURED[options.part]
        start, used = time.monotonic(), time.process_time()
        note = work(options.folder)
        taken, cpu = time.monotonic() - start, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {title} | {note} | {taken:.0f} | {cpu:.0f} | {peak:,.0f} |")
        return
    folder = Path(tempfile.mkdtemp(dir=options.folder, prefix="large_"))
    try:
        for name in MAKERS:
            own_process(name, folder)
        rows = [own_process(name, folder) for name in MEASURED]
    finally:
        shutil.rmtree(folder)
    lines = ["# Large inputs", "", "```", "python benchmarks/large_inputs.py --folder DIR", "```", "",
             __doc__.split("\n\n")[2].strip(), "",
             "| what | size | seconds | CPU seconds | peak MiB |", "|---|---|---:|---:|---:|"]
    options.out.write_text("\n".join([*lines, *map(str.strip, rows)]) + "\n", encoding="utf-8")
    print("".join(rows))


if __name__ == "__main__":
    main()
