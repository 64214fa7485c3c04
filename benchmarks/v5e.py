"""Which division of the 687M step is fastest, by latency and speed of a link: results/v5e_divisions.png.

    python benchmarks/v5e.py            # from results/v5e.json, the figures of v5e.md
    python benchmarks/v5e.py --table    # rows of v5e.md, from results/preflight.json
"""
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from b2t_kit.devices.slices import find_slice

RESULTS = Path(__file__).resolve().parent / "results"


def seconds(one: dict, latency: np.ndarray, speed: np.ndarray) -> np.ndarray:
    "At best, for a latency of a hop in seconds and a speed of a link in bytes per second."
    return np.maximum(max(one["products_s"], one["hbm_s"]), one["busiest_bytes"] / speed + one["hops"] * latency)


def limit(slow: dict, fast: dict, speed: float = 45e9) -> float:
    "The latency of a hop in seconds up to which `fast` is faster."
    return (max(slow["products_s"], slow["hbm_s"]) - fast["busiest_bytes"] / speed) / fast["hops"]


def table() -> str:
    "A row for each recorded program of the large model by units whose links are counted."
    lines = ["| `b2t preflight ...` | program | memory, GiB | products, s | HBM, s | busiest link, GB | s | hops "
             "| at best, s | nothing overlaps, s |", "|---|---|" + "--:|" * 8]
    for case, one in json.loads((RESULTS / "preflight.json").read_text()).items():
        for program in one["by_program"] if "--shard units" in case else []:
            bound = program["roofline"]
            if not bound or not bound.get("busiest"):
                continue
            busiest = bound["links"] * find_slice(one["slice"]).chip.link_speed / 1e9
            name = program["name"].removesuffix(" x 512")
            name += f", {program['times']} times a step" if program["times"] > 1 else ""
            times = " | ".join(f"{bound[part]:.3f}" for part in ("matrix", "memory"))
            lines.append(f"| {case} | {name} | {program['bytes']['total'] / 2**30:.2f} | {times} | {busiest:.2f} "
                         f"| {bound['links']:.3f} | {bound['hops']:,} | {bound['seconds']:.3f} "
                         f"| {bound['apart']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:] == ["--table"]:
        print(table())
        return
    known = json.loads((RESULTS / "v5e.json").read_text())
    latency, speed = np.meshgrid(np.geomspace(0.1, 1000, 300), np.geomspace(5, 100, 200))  # us, GB/s
    times = np.stack([seconds(one, latency * 1e-6, speed * 1e9) for one in known.values()])
    figure, axes = plt.subplots(figsize=(6.4, 3.4), dpi=90, layout="constrained")
    colours = ["#c0504d", "#d9b44a", "#3b6ea5"]
    best = len(times) - 1 - times[::-1].argmin(0)  # of equal ones the last
    axes.pcolormesh(latency, speed, best, cmap=ListedColormap(colours), vmin=0, vmax=2, alpha=0.6, rasterized=True)
    levels = [0.105, 0.15, 0.2, 0.4, 0.8]  # seconds
    lines = axes.contour(latency, speed, times.min(0), levels=levels, colors="black", linewidths=0.8)
    axes.clabel(lines, fmt="%g s", fontsize=8)
    axes.plot(1, 45, "k*", markersize=9)
    axes.annotate("assumed", (1, 45), (4, 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="latency of a hop, microseconds", ylabel="speed of a link, GB/s")
    axes.set_yticks([5, 10, 20, 45, 100], ["5", "10", "20", "45", "100"])
    for colour, name in zip(colours, known):
        wins = (best == list(known).index(name)).any()
        axes.plot([], [], "s", color=colour, alpha=0.6, label=name + ("" if wins else ": nowhere"))
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(RESULTS / "v5e_divisions.png")
    names = list(known)
    print(f"{names[2]} beats {names[0]} up to {limit(known[names[0]], known[names[2]]) * 1e6:.0f} us a hop, "
          f"{names[1]} up to {limit(known[names[0]], known[names[1]]) * 1e6:.0f}")


if __name__ == "__main__":
    main()
