"""How often the first vector function of a process gives other numbers than the second, with several threads.

    python benchmarks/first_call.py --beside 3               # torch alone
    python benchmarks/first_call.py --beside 3 --kit         # after `b2t_kit.core.one_thread_first`

Each process is a fork of one that has imported torch and started no threads. It computes the same numbers twice with
2, 3, 4 or 8 threads. Linux only.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
import subprocess
import sys

import torch

NAMES = ("erfinv", "exp", "tanh")


def differs(name: str, threads: int) -> bool:
    "Compute twice in a child process, and compare."
    child = os.fork()
    if child == 0:
        torch.set_num_threads(threads)
        numbers = torch.arange(1, 200_001) / 200_002 * 2 - 1
        first, second = (getattr(torch, name)(numbers) for _ in range(2))
        os._exit(int(not torch.equal(first, second)))
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--processes", type=int, default=1500, help="of each function, in each of those beside")
    parser.add_argument("--beside", type=int, default=1, help="this command so many times at once")
    options = parser.parse_args()
    if options.beside > 1:
        words = [sys.executable, __file__, f"--processes={options.processes}", *["--kit"][:options.kit]]
        with ThreadPoolExecutor(options.beside) as pool:
            list(pool.map(subprocess.run, [words] * options.beside))
        return
    if options.kit:
        from b2t_kit.core import one_thread_first

        one_thread_first()
    for name in NAMES:
        wrong = sum(differs(name, (2, 3, 4, 8)[number % 4]) for number in range(options.processes))
        print(f"{name}: {wrong} of {options.processes}", flush=True)


if __name__ == "__main__":
    main()
