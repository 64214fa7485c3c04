"""The house in numbers, and a drawing of who imports whom.

    python benchmarks/house.py                                    # this checkout
    python benchmarks/house.py ../old --task b2t_kit.tasks.speech  # another one, by another name of its speech task
    python benchmarks/house.py --draw benchmarks/results/house.png --title "The house"
    python benchmarks/house.py ../old --draw old.png --title "Before"
    python benchmarks/house.py --notebooks                        # cells and outputs, notebook by notebook
    python benchmarks/house.py --density                          # how dense each folder is, and what the path reaches

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
import textwrap
from collections import Counter
from collections.abc import Iterator
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


def cells(root: Path) -> list[tuple[str, int, list[int], int]]:
    "Name, cells, lines of each code cell without blanks, and code cells with an output of each notebook."
    rows = []
    for path in sorted((root / "nbs").rglob("*.ipynb")):
        found = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in found if cell["cell_type"] == "code"]
        lines = [sum(bool(line.strip()) and not line.startswith("#|") for line in cell["source"]) for cell in code]
        name = path.relative_to(root / "nbs").with_suffix("").as_posix()
        rows.append((name, len(found), lines, sum(bool(cell["outputs"]) for cell in code)))
    return rows


PATH = (  # what takes one from recordings to a submission; the rest follows
    "train", "speech.train", "speech.evaluate", "speech.recipes", "speech.sentences",
    "decode.decode", "decode.combine", "decode.submission",
)


def density(path: Path) -> dict[str, int]:
    "What one file holds, by counts that do not depend on how its lines are broken, and by two that do."
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    documented: set[int] = set()
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code = [line for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in documented]
    tuples = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
              and isinstance(node.targets[0], ast.Tuple)]
    return {"files": 1, "lines": len(text.splitlines()), "code": len(code), "nodes": len(nodes), "tuples": len(tuples),
            "statements": sum(isinstance(node, ast.stmt) for node in nodes),
            "long": sum(len(line) > 100 for line in code)}


def density_table(root: Path) -> Iterator[str]:
    "A row a folder: files, lines, statements, syntax nodes a code line; tuple assignments and long lines in 1,000."
    yield "| folder | files | lines | statements | nodes a line | tuple assignments | over 100 characters |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    folders: dict[str, Counter[str]] = {}
    for path in sorted((root / "b2t_kit").rglob("*.py")):
        if path.name not in ("_modidx.py", "__init__.py"):
            folders.setdefault(path.parent.name, Counter()).update(density(path))
            folders.setdefault("all", Counter()).update(density(path))
    folders["all"] = folders.pop("all")
    for name, row in folders.items():
        nodes = row["nodes"] / row["code"]
        tuples = 1000 * row["tuples"] / row["code"]
        long = 1000 * row["long"] / row["code"]
        yield (f"| `{name}` | {row['files']} | {row['lines']:,} | {row['statements']:,} | {nodes:.1f} | {tuples:.0f} "
               f"| {long:.0f} |")


def reached(root: Path) -> str:
    "The modules that the path imports, also inside functions."
    graph = imports(root)
    names = {f"b2t_kit.{name}" for name in PATH} & set(graph)
    found = names.union(*(networkx.descendants(graph, name) for name in names))
    files = [root.joinpath(*name.split(".")).with_suffix(".py") for name in found]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    rooms = sorted({room_of(name) for name in found})
    return f"the path: {len(found)} modules, {lines:,} lines, in {', '.join(rooms)}"


def import_cost(root: Path, task: str) -> tuple[float, list[str]]:
    "Seconds to import the speech task, median of five, and what is loaded: number of modules, then the kit's."
    runs = [subprocess.run([sys.executable, "-c", TIMED.format(task=task)], cwd=root, capture_output=True, text=True,
                           check=True).stdout.split() for _ in range(5)]
    return statistics.median(float(run[0]) for run in runs), runs[0][1:]


def lines_by_folder(root: Path) -> dict[str, int]:
    "Lines of each folder of the package, `_modidx.py` left out; the package's own modules are under its name."
    found: dict[str, int] = {}
    for path in sorted((root / "b2t_kit").rglob("*.py")):
        if path.name != "_modidx.py":
            lines = len(path.read_text(encoding="utf-8").splitlines())
            found[path.parent.name] = found.get(path.parent.name, 0) + lines
    return found


def measure(root: Path, task: str) -> dict[str, str]:
    "The rows of the table."
    graph, notebooks = imports(root), cells(root)
    circles = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    folders = lines_by_folder(root)
    lines, shown = [count for row in notebooks for count in row[2]], sum(row[3] for row in notebooks)
    seconds, loaded = import_cost(root, task)
    words = len(re.findall(r"\S+", (root / "README.md").read_text(encoding="utf-8")))
    return {
        "notebooks": str(len(notebooks)), "modules": str(len(graph)),
        "lines of the package": f"{sum(folders.values()):,}",
        "lines by folder": ", ".join(f"`{name}` {lines:,}" for name, lines in folders.items()),
        "floors of modules": str(max(floors(graph).values())),
        "circles of imports": f"{len(circles)} ({sum(map(len, circles))} modules)",
        "folders that import each other": str(arrows_back_up(graph)),
        "cells": str(sum(row[1] for row in notebooks)),
        "code cells with an output": f"{shown} of {len(lines)} ({shown / len(lines):.0%})",
        "lines of a code cell, median": f"{statistics.median(lines):g}",
        "notebooks with code and no output": str(sum(bool(row[2]) and not row[3] for row in notebooks)),
        "importing the speech task, s": f"{seconds:.2f}",
        "modules it loads (the kit's)": f"{loaded[0]} ({len(loaded) - 1})",
        "of decode/ and matplotlib": f"{sum(name.startswith('b2t_kit.decode') for name in loaded)} modules",
        "words of README.md": f"{words:,}",
    }


def rooms_of(graph: networkx.DiGraph) -> networkx.DiGraph:
    "The folders of a checkout, each with its modules; an edge counts the imports between two of them."
    rooms = networkx.DiGraph()
    for name in sorted(graph):
        rooms.add_node(room_of(name))
        rooms.nodes[room_of(name)].setdefault("modules", []).append(name)
    for one, other in graph.edges:
        pair = room_of(one), room_of(other)
        if pair[0] != pair[1]:
            rooms.add_edge(*pair, count=rooms.get_edge_data(*pair, {"count": 0})["count"] + 1)
    return rooms


def shown_edges(rooms: networkx.DiGraph) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    "Imports between folders that follow from no others, and those that are part of a circle of folders."
    whole = networkx.condensation(rooms)
    part = whole.graph["mapping"]
    circles = {(one, other) for one, other in rooms.edges if part[one] == part[other]}
    least = networkx.transitive_reduction(whole)
    down = {(one, other) for one, other in rooms.edges if (part[one], part[other]) in least.edges}
    return down, circles


def places_of(rooms: networkx.DiGraph, per_line: int) -> dict[str, tuple[float, int, float]]:
    "Left end, row and width of each folder's box: above what it imports, and a row that is too long continues above."
    floor, place, height = floors(rooms), {}, 0
    for level in range(1, max(floor.values()) + 1):
        def middle(room: str) -> float:
            below = [place[other][0] + place[other][2] / 2 for other in rooms.successors(room) if other in place]
            return statistics.fmean(below) if below else 0.5

        row = sorted((room for room in rooms if floor[room] == level), key=lambda room: (middle(room), room))
        for start in range(0, len(row), per_line):
            part = row[start:start + per_line]
            sizes = [1.6 if len(rooms.nodes[room]["modules"]) > 1 else 1.0 for room in part]
            gap = 0.25
            unit = 1 / (sum(sizes) + gap * (len(part) + 1)) if len(part) > 3 else 1 / 8
            left = (1 - unit * (sum(sizes) + gap * (len(part) - 1))) / 2
            for room, size in zip(part, sizes):
                place[room] = (left, height, unit * size)
                left += unit * (size + gap)
            height += 1
    return place


def box_text(rooms: networkx.DiGraph, room: str, in_circle: set[str]) -> str:
    "The folder's name, and its modules; a star marks one that is part of a circle."
    names = rooms.nodes[room]["modules"]
    marked = [name.rpartition(".")[2] + ("*" if name in in_circle else "") for name in names]
    if len(names) == 1 and room == names[0].rpartition(".")[2]:
        return marked[0]
    return "\n".join([f"{room}/", *textwrap.wrap(", ".join(marked), 27, break_long_words=False)])


def draw(graph: networkx.DiGraph, path: Path, title: str) -> None:
    "Folders as boxes above what they import. An import that follows from others is left out; circles are red."
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    rooms = rooms_of(graph)
    place = places_of(rooms, per_line=9)
    in_circle = {name for part in networkx.strongly_connected_components(graph) if len(part) > 1 for name in part}
    down, circles = shown_edges(rooms)
    words = {room: box_text(rooms, room, in_circle) for room in rooms}
    tall = {room: 0.26 + 0.155 * text.count("\n") for room, text in words.items()}  # inches
    rows = [max(tall[room] for room in rooms if place[room][1] == row)
            for row in range(1 + max(row for _, row, _ in place.values()))]
    middle = [sum(rows[:row]) + 0.55 * row + high / 2 for row, high in enumerate(rows)]
    total = sum(rows) + 0.55 * len(rows)
    figure, axis = plt.subplots(figsize=(14, total + 0.6), dpi=80, layout="constrained")
    for edges, colour in ((down, "0.5"), (circles, "crimson")):
        for one, other in edges:
            (x, row, w), (u, below, z) = place[one], place[other]
            level = below >= row  # two boxes side by side: the arrow is bent around what lies between
            start = (x + w / 2, middle[row] - (0 if level else tall[one] / 2))
            end = (u + z / 2, middle[below] + (0 if level else tall[other] / 2))
            style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0,
                     "connectionstyle": f"arc3,rad={0.18 if level else 0}"}
            axis.annotate("", end, start, arrowprops=style, zorder=1)
    for room, (x, row, w) in place.items():
        several = len(rooms.nodes[room]["modules"]) > 1
        box = FancyBboxPatch((x, middle[row] - tall[room] / 2), w, tall[room], boxstyle="round,pad=0.003",
                             facecolor="#e8f0fa" if several else "#f3f3f3", edgecolor="0.4", zorder=2)
        axis.add_patch(box)
        axis.text(x + w / 2, middle[row], words[room], ha="center", va="center", fontsize=8, zorder=3)
    axis.set(xlim=(-0.01, 1.01), ylim=(-0.3, total))
    axis.axis("off")
    found = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    axis.set_title(f"{title}: {len(graph)} modules, {len(found)} circles of modules (*), "
                   f"{arrows_back_up(graph)} pairs of folders that import each other (red)", fontsize=11)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--task", default="b2t_kit.speech.task", help="module of the speech task")
    parser.add_argument("--draw", type=Path, metavar="PNG", help="draw who imports whom")
    parser.add_argument("--title", default="Who imports whom", help="of the drawing")
    parser.add_argument("--notebooks", action="store_true", help="cells and outputs of each notebook")
    parser.add_argument("--density", action="store_true", help="how dense each folder is, and what the path reaches")
    options = parser.parse_args()
    if options.density:
        print(*density_table(options.root), "", reached(options.root), sep="\n")
    elif options.draw:
        draw(imports(options.root), options.draw, options.title)
    elif options.notebooks:
        print("| notebook | cells | code | lines, median and most | with output |\n|---|---|---|---|---|")
        for name, total, lines, shown in cells(options.root):
            most = f"{statistics.median(lines or [0]):g}, {max(lines, default=0)}"
            print(f"| {name} | {total} | {len(lines)} | {most} | {shown} |")
    else:
        print("\n".join(f"| {name} | {value} |" for name, value in measure(options.root, options.task).items()))


if __name__ == "__main__":
    main()
