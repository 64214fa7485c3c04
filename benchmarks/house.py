"""The house in numbers, and a drawing of who imports whom.

    python benchmarks/house.py                                    # this checkout
    python benchmarks/house.py ../old --task b2t_kit.tasks.speech  # another one, by another name of its speech task
    python benchmarks/house.py --draw benchmarks/results/house.png
    python benchmarks/house.py --notebooks                        # cells and outputs, notebook by notebook

A module's floor is one above the highest module that it imports; modules in a circle share one. An import counts
wherever it stands, also inside a function. Recorded in benchmarks/house.md.
"""
import argparse
import ast
import json
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import networkx

TIMED = """
import sys, time
start = time.perf_counter()
import {task}
print(time.perf_counter() - start, len(sys.modules), *(name for name in sys.modules if name.startswith("b2t_kit.")))
"""


def module_name(root: Path, module: Path) -> str:
    "The dotted name of a file of the package."
    return ".".join(module.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(root: Path) -> networkx.DiGraph:
    "The modules of a checkout, with an edge from each to every module of the kit that it imports."
    files = {module_name(root, path): path for path in (root / "b2t_kit").rglob("*.py") if path.name != "_modidx.py"}
    graph = networkx.DiGraph()
    graph.add_nodes_from(name for name, path in files.items() if path.name != "__init__.py")
    for name, path in files.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            for alias in node.names:
                target = f"{source}.{alias.name}" if f"{source}.{alias.name}" in files else source
                if target in graph and target != name:
                    graph.add_edge(name, target)
    return graph


def floors(graph: networkx.DiGraph) -> dict[str, int]:
    "The floor of each module, from 1."
    whole = networkx.condensation(graph)
    height: dict[int, int] = {}
    for one in reversed(list(networkx.topological_sort(whole))):
        height[one] = 1 + max((height[other] for other in whole.successors(one)), default=0)
    return {name: height[part] for name, part in whole.graph["mapping"].items()}


def room_of(name: str) -> str:
    "The folder of a module, or the module itself where it lies in none."
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


def arrows_back_up(graph: networkx.DiGraph) -> int:
    "Pairs of folders that import each other: one of the two arrows runs back up."
    pairs = {(room_of(one), room_of(other)) for one, other in graph.edges} - {(room_of(one),) * 2 for one in graph}
    return sum((other, one) in pairs for one, other in pairs) // 2


def cells(root: Path) -> list[tuple[str, int, int, int]]:
    "Name, cells, code cells and code cells with an output of each notebook in nbs/."
    rows = []
    for path in sorted((root / "nbs").rglob("*.ipynb")):
        found = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in found if cell["cell_type"] == "code"]
        name = path.relative_to(root / "nbs").with_suffix("").as_posix()
        rows.append((name, len(found), len(code), sum(bool(cell["outputs"]) for cell in code)))
    return rows


def import_cost(root: Path, task: str) -> tuple[float, list[str]]:
    "Seconds to import the speech task, median of five, and what is loaded: number of modules, then the kit's."
    runs = [subprocess.run([sys.executable, "-c", TIMED.format(task=task)], cwd=root, capture_output=True, text=True,
                           check=True).stdout.split() for _ in range(5)]
    return statistics.median(float(run[0]) for run in runs), runs[0][1:]


def measure(root: Path, task: str) -> dict[str, str]:
    "The rows of the table."
    graph, notebooks = imports(root), cells(root)
    circles = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "b2t_kit").rglob("*.py")
                if path.name != "_modidx.py")
    code, shown = sum(row[2] for row in notebooks), sum(row[3] for row in notebooks)
    seconds, loaded = import_cost(root, task)
    words = len(re.findall(r"\S+", (root / "README.md").read_text(encoding="utf-8")))
    return {
        "notebooks": str(len(notebooks)), "modules": str(len(graph)), "lines of the package": f"{lines:,}",
        "floors of modules": str(max(floors(graph).values())),
        "circles of imports": f"{len(circles)} ({sum(map(len, circles))} modules)",
        "folders that import each other": str(arrows_back_up(graph)),
        "cells": str(sum(row[1] for row in notebooks)),
        "code cells with an output": f"{shown} of {code} ({shown / code:.0%})",
        "notebooks with code and no output": str(sum(row[2] > 0 and not row[3] for row in notebooks)),
        "importing the speech task, s": f"{seconds:.2f}",
        "modules it loads (the kit's)": f"{loaded[0]} ({len(loaded) - 1})",
        "of decode/ and matplotlib": f"{sum(name.startswith('b2t_kit.decode') for name in loaded)} modules",
        "words of README.md": f"{words:,}",
    }


def draw(graph: networkx.DiGraph, path: Path, title: str) -> None:
    "Every module on its floor, ordered and coloured by folder; imports that run back up in red."
    import matplotlib.pyplot as plt

    floor = floors(graph)
    rooms = sorted({room_of(name) for name in graph})
    colours = {room: plt.get_cmap("tab20")(number % 20) for number, room in enumerate(rooms)}
    rows = defaultdict(list)
    for name in sorted(graph, key=lambda one: (room_of(one), one)):
        rows[floor[name]].append(name)
    place = {name: ((number + 0.5) / len(row), height) for height, row in rows.items()
             for number, name in enumerate(row)}
    figure, axis = plt.subplots(figsize=(15, 0.75 * max(rows) + 1.5), dpi=80, layout="constrained")
    for one, other in graph.edges:
        back = floor[one] <= floor[other]
        (x, y), (u, v) = place[one], place[other]
        axis.annotate("", (u, v + 0.12), (x, y - 0.12), arrowprops={
            "arrowstyle": "-", "color": "crimson" if back else "0.6", "alpha": 0.9 if back else 0.25, "linewidth": 0.8})
    for name, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.25", "facecolor": colours[room_of(name)], "edgecolor": "none", "alpha": 0.85}
        words = name.removeprefix("b2t_kit.").replace(".", "\n")
        axis.text(x, y, words, ha="center", va="center", fontsize=6.5, bbox=box)
    axis.set(xlim=(0, 1), ylim=(0.4, max(rows) + 0.6), yticks=range(1, max(rows) + 1), xticks=[], ylabel="floor")
    axis.set_title(title, fontsize=11)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--task", default="b2t_kit.speech.task", help="module of the speech task")
    parser.add_argument("--draw", type=Path, metavar="PNG", help="draw who imports whom")
    parser.add_argument("--title", default="Who imports whom", help="of the drawing")
    parser.add_argument("--notebooks", action="store_true", help="cells and outputs of each notebook")
    options = parser.parse_args()
    if options.draw:
        draw(imports(options.root), options.draw, options.title)
    elif options.notebooks:
        print("| notebook | cells | code | with output |\n|---|---|---|---|")
        print("\n".join(f"| {name} | {total} | {code} | {shown} |" for name, total, code, shown in cells(options.root)))
    else:
        print("\n".join(f"| {name} | {value} |" for name, value in measure(options.root, options.task).items()))


if __name__ == "__main__":
    main()
