"Repository rules: generated files are current, rooms import downwards, pages resolve, built packages install."
import ast
import functools
import graphlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted([*ROOT.glob("nbs/**/*.ipynb"), *ROOT.glob("kaggle/*/*.ipynb")])
MODULES = sorted(ROOT.glob("b2t_kit/**/*.py"))
MAX_FIGURE_BYTES = 60_000
# What users may add; `dev` and `docs` are for those who change the kit.
EXTRAS = ("tracker", "fetch", "rescore", "merge", "english", "live", "lsl", "redis", "tpu",
          "preflight", "preflight-kaggle")
PACKAGING = ("settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md")
PROJECT = ("README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "conftest.py", ".gitignore",
           ".pre-commit-config.yaml", "LEADERBOARD.md")
WITHOUT_WINGS = runpy.run_path(str(ROOT / "tools/without_wings.py"))

settings = ConfigParser(delimiters=["="])
settings.read(ROOT / "settings.ini", encoding="utf-8")


def run(*command, **options) -> str:
    done = subprocess.run([str(word) for word in command], **{"capture_output": True, "text": True, "cwd": ROOT, **options})
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def cells_of(notebook: Path, kind: str = "code") -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_generated_files_are_in_step():
    run(sys.executable, "tools/in_step.py")


def test_lines_are_at_most_120_characters_wide():
    sources = {path: "\n".join(cell for cell in cells_of(path) if re.match(r"#\s*\|\s*export", cell)) for path in NOTEBOOKS}
    sources |= {path: path.read_text(encoding="utf-8") for name in ("tools", "benchmarks") for path in ROOT.glob(f"{name}/*.py")}
    assert not [f"{by_name(path)}: {line}" for path, source in sources.items() for line in source.splitlines() if len(line) > 120]


def test_saved_outputs_are_small_and_portable():
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        figures = [len(output.get("data", {}).get("image/png", "")) * 3 // 4 for output in outputs]  # of base64
        assert max(figures, default=0) <= MAX_FIGURE_BYTES, notebook
        assert not [output["ename"] for output in outputs if output["output_type"] == "error"], notebook
        traces = re.findall(r"/tmp/\w+|/root/|/home/\w+|0x[0-9a-f]{8,}", json.dumps(outputs))
        assert not traces, f"{notebook}: outputs that tell of one machine: {traces}"


FRONT = {"01_dataset": "data.dataset", "02_models": "models.gru", "03_precision": "precision", "04_training": "train",
         "main": "__main__"}  # nbdev leaves out notebooks whose name begins with "_"


def test_notebook_carries_the_name_of_its_module():
    "A notebook lies in the folder of its module; the four in front are named by topic."
    for notebook in ROOT.glob("nbs/**/*.ipynb"):
        found = re.search(r"^#\s*\|\s*default_exp (\S+)", "\n".join(cells_of(notebook)), re.M)
        place = notebook.relative_to(ROOT / "nbs").with_suffix("").as_posix()
        assert not found or found[1] == FRONT.get(place, place.replace("/", ".")), notebook


# Imports


def module_name(module: Path) -> str:
    return by_name(module).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(module: Path) -> set[str]:
    "Every module that a module imports, also inside functions and conditions."
    name, known = module_name(module), set(map(module_name, MODULES))
    package, found = name if module.name == "__init__.py" else name.rpartition(".")[0], set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            found |= {f"{source}.{alias.name}" for alias in node.names} & known or {source}
    return found - {"b2t_kit"}


EVERY_IMPORT = {module_name(module): imports_of(module) for module in MODULES}
IMPORTS = {name: {one for one in found if one.startswith("b2t_kit.")} for name, found in EVERY_IMPORT.items()}


def within(name: str, *parents: str) -> bool:
    return any(f"{name}.".startswith(f"b2t_kit.{parent}.") for parent in parents)


def test_no_imports_run_in_a_circle():
    "Imports inside functions count too."
    try:
        assert len(list(graphlib.TopologicalSorter(IMPORTS).static_order())) >= len(MODULES)
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]), pytrace=False)


PATH = ("core", "text", "lm", "lexicon", "data", "models", "devices", "training", "speech", "decode")
EVERY_WING = sorted({module.parent.name for module in MODULES} - {*PATH, "b2t_kit"})
FORBIDDEN = [  # who, what they must not import, why
    ("core", "text lm lexicon data models devices training speech decode", "the ground floor"),
    ("text", "lm lexicon data models devices training speech decode", "words know no models"),
    ("lm", "lexicon data models devices training speech decode", "models of sentences know no recordings"),
    ("lexicon", "data models devices training speech decode", "pronunciations know no recordings"),
    ("data", "models devices training speech decode", "data comes first"),
    ("models", "lm lexicon data training speech devices decode", "models take tensors"),
    ("training", "lm lexicon data speech decode", "what the loop needs is handed to it"),
    ("speech", "decode", "the word scorer is handed to the task"),
]


@pytest.mark.parametrize("who, what, why", FORBIDDEN, ids=[one[0] for one in FORBIDDEN])
def test_imports_follow_the_data(who, what, why):
    found = [f"{name} imports {one}" for name in IMPORTS if within(name, who) for one in IMPORTS[name] if within(one, *what.split())]
    assert not found, f"{found}: {why}"


def test_the_path_imports_no_wing_and_the_loop_only_training():
    "A wing's folder can be left out; its verbs are found by the folder. Inside functions counts; annotations do not."
    def wing_of(name: str) -> str | None:
        return next((wing for wing in EVERY_WING if within(name, wing)), None)

    assert not [f"{name} imports {one}" for name, others in IMPORTS.items() for one in others
                if wing_of(one) and wing_of(name) != wing_of(one)]
    assert {name for name in IMPORTS["b2t_kit.train"] if not within(name, "training")} == {"b2t_kit.core.files"}


ONLY_HERE = """
import sys  # an editable install would find the folder that was left out
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""
WITHOUT_ONE = """
import importlib, pathlib
from importlib.util import find_spec
assert find_spec(f"b2t_kit.{sys.argv[1]}") is None
for path in sorted(pathlib.Path("b2t_kit").rglob("[!_]*.py")):
    importlib.import_module(".".join(path.with_suffix("").parts))
from b2t_kit.cli import WING_OF, main
assert main(["--help"]) == 0 and main(["decode", "--help"]) == 0 and main(["train", "--help"]) == 0
for verb, wing in WING_OF.items():
    assert wing != sys.argv[1] or main([verb]) == 2, verb
import b2t_kit.all
for name, (place, _) in b2t_kit.all.EXPORTS.items():
    assert hasattr(b2t_kit.all, name) == (place.split(".")[0] != sys.argv[1]), name
"""


SECOND = [pytest.param(wing, marks=pytest.mark.second_tier) for wing in EVERY_WING[1:]]  # five seconds each


@pytest.mark.parametrize("wing", [EVERY_WING[0], *SECOND])
def test_a_wing_can_be_left_out(wing, tmp_path):
    "Every other module is imported, the command line answers, and only the wing's own verbs are gone."
    shutil.copytree(ROOT / "b2t_kit", tmp_path / "b2t_kit", ignore=shutil.ignore_patterns("__pycache__", "machine_code*"))
    shutil.rmtree(tmp_path / "b2t_kit" / wing)
    run(sys.executable, "-c", ONLY_HERE + WITHOUT_ONE, wing, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})


def test_no_help_text_names_an_exception(capsys):
    "A help text says what an option does, its unit and its default."
    from b2t_kit.cli import all_verbs, main

    for verb in all_verbs():
        assert main([*verb.split(), "--help"]) == 0
    assert "KitError" not in capsys.readouterr().out


@pytest.mark.second_tier
def test_the_core_works_without_its_wings(tmp_path):
    "A copy without their folders: every module and every test's module is imported, and the command line answers."
    WITHOUT_WINGS["copy_core"](tmp_path)
    code = (f"{ONLY_HERE}import importlib, pathlib\n"
            "for path in sorted(pathlib.Path('b2t_kit').rglob('[!_]*.py')):\n"
            "    importlib.import_module('.'.join(path.with_suffix('').parts))\n"
            "from b2t_kit.cli import main\n"
            "assert main(['--help']) == 0 and main(['plan', 'tiny']) == 0\n"
            "assert main('fetch --help'.split()) == main('fetch --set t12 --out new'.split()) == main('convert arrays mine --out new'.split()) == 2\n"
            "import pytest\n"
            "assert pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider', 'tests', 'nbs']) == 0")
    run(sys.executable, "-c", code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})


IMPORT_ALL = """
import os, sys
before = dict(os.environ)
import b2t_kit.speech.task
assert not [name for name in sys.modules if name.startswith(("b2t_kit.decode", "numba", "matplotlib"))]
for name in sys.argv[1:]:
    __import__(name)
    heavy = {"torch_xla", "accelerate", "websockets", "zmq", "pylsl", "redis"} & sys.modules.keys()
    assert not heavy, f"importing {name} imports {heavy}"
    assert dict(os.environ) == before, f"importing {name} changes the environment"
    torch = sys.modules.get("torch")
    assert not torch or not torch.cuda.is_initialized(), f"importing {name} opens CUDA"
"""


def test_imports_are_light(tmp_path):
    "No module imports torch_xla or accelerate (both can be imported here), and the speech task no search."
    (tmp_path / "torch_xla.py").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    run(sys.executable, "-c", IMPORT_ALL, *map(module_name, MODULES), cwd=tmp_path, env=environment)


def test_package_needs_only_its_requirements():
    "Every imported package, also inside functions, is a requirement or in a run-time extra."
    keys = ("requirements", *(f"{extra}_requirements" for extra in EXTRAS))
    known = {re.split("[<>=]", one)[0].lower() for key in keys for one in settings["DEFAULT"][key].split()}
    known |= {name.replace("-", "_") for name in known}
    foreign = {one.partition(".")[0] for found in EVERY_IMPORT.values() for one in found} - sys.stdlib_module_names - {"b2t_kit"}
    provided = packages_distributions()
    assert not {name for name in foreign if not known & {name, *map(str.lower, provided.get(name, []))}}


# Names and pages


def public_names(module: Path) -> list[str]:
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


PUBLIC = {module_name(module): public_names(module) for module in MODULES if module.name != "_modidx.py"}


PAGES = sorted([*NOTEBOOKS, *(path for place in ("", "nbs/", "benchmarks/", "tests/**/", ".github/") for path in ROOT.glob(f"{place}*.md"))])
ANCHOR = re.compile(r"\]\(((?!\w+:)[^)#\s]+\.ipynb)#([^)]+)\)")
TEST_NAME = re.compile(r"`((?:nbs|tests)/[\w/.-]+\.(?:ipynb|py))`")
LOCAL_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
FOLDER_NAMES = "|".join(sorted(path.parent.name for path in ROOT.glob("b2t_kit/*/__init__.py")))
MODULE_NAME = re.compile(rf"`(?:b2t_kit\.)?((?:{FOLDER_NAMES})(?:\.\w+)+)(?:\(\))?`")


@functools.cache
def anchors_of(notebook: Path) -> set[str]:
    "The anchors of a notebook's headings."
    headings = re.findall(r"^#+ (.*)$", "\n".join(cells_of(notebook, "markdown")), re.M)
    return {re.sub(r"\s+", "-", heading.strip()).lower() for heading in headings}


def test_references_resolve():
    "Local links, and the tests, modules and names that a page mentions, exist."
    known, missing = {*PUBLIC, *(f"{module}.{name}" for module, names in PUBLIC.items() for name in names)}, []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.suffix == ".md" else "\n".join(cells_of(page, "markdown"))
        missing += [f"{by_name(page)}: {link}" for link in LOCAL_LINK.findall(text) if not (page.parent / link).exists()]
        missing += [f"{by_name(page)}: {link}#{anchor}" for link, anchor in ANCHOR.findall(text)
                    if anchor.lower() not in anchors_of((page.parent / link).resolve())]
        missing += [f"{by_name(page)}: {name}" for name in TEST_NAME.findall(text) if not (ROOT / name).exists()]
        missing += [f"{by_name(page)}: {name}" for name in MODULE_NAME.findall(text)
                    if f"b2t_kit.{name}" not in known and f"b2t_kit.{name.rpartition('.')[0]}" not in known - {"b2t_kit"}]
    assert not missing


def test_readme_has_its_two_commands():
    "`.ci/run` reads its commands from the README, so it checks what the README promises."
    ci = runpy.run_path(str(ROOT / "tools/ci.py"))
    demo, tests = ci["COMMAND"].findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert demo == "pip install . && b2t demo --out demo"
    assert tests.startswith('pip install -e ".[dev]" && pytest')
    assert ci["COMMAND"].findall((ROOT / "README.zh.md").read_text(encoding="utf-8")) == [demo, tests]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert {*ci["PYTHONS"].values()} <= {*re.findall(r"\b3\.\d+\b", workflow)} and "run: .ci/run" in workflow


def test_settings_agree():
    "Both nbdevs read the same; an extra has no underscore, which pip before 23.3 does not find; one version everywhere."
    project, old = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")), settings["DEFAULT"]
    assert project["tool"]["nbdev"]["tst_flags"] == old["tst_flags"]
    assert project["tool"]["nbdev"]["allowed_metadata_keys"] == old["allowed_metadata_keys"].split()
    assert project["project"]["name"] == old["lib_name"] and project["project"]["requires-python"] == f">={old['min_python']}"
    extras = {key.removesuffix("_requirements") for key in old if key.endswith("_requirements")}
    assert extras == {"dev", "docs", *EXTRAS} and not [extra for extra in extras if "_" in extra]
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("CITATION.cff", *PROJECT[:3], "README.md", "b2t_kit/__init__.py")}
    assert f"\nversion: {old['version']}\n" in texts["CITATION.cff"] and f"\n## [{old['version']}]" in texts["CHANGELOG.md"]
    assert texts["b2t_kit/__init__.py"].strip() == f'__version__ = "{old["version"]}"'
    for page in ("README.md", "README.zh.md", "CONTRIBUTING.md"):
        assert {*re.findall(r"b2t_kit[ =@v]+(\d+\.\d+\.\d+)", texts[page])} <= {old["version"]}, page


def test_the_site_has_every_notebook():
    "In the order of nbs/README.md; the front page is the site's own."
    docs = runpy.run_path(str(ROOT / "tools/docs.py"))
    pages = [page for found in docs["sections"]().values() for page in found]
    notebooks = {by_name(path) for path in ROOT.glob("nbs/**/*.ipynb")} - {"nbs/index.ipynb", "nbs/index_zh.ipynb"}
    assert len(pages) == len(set(pages)) and notebooks == {page for page in pages if page.endswith(".ipynb")}
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"} <= set(pages)


# The built package


def files_of(folder: Path, *names: str) -> set[str]:
    "The files below some folders, without hidden and compiled ones."
    paths = [path.relative_to(folder) for name in names for path in (folder / name).rglob("*") if path.is_file()]
    return {path.as_posix() for path in paths if path.suffix != ".pyc" and not path.name.startswith(".")}


@pytest.mark.second_tier
def test_package_builds_and_installs_offline(tmp_path):
    "Build the sdist, the wheel from it, and install from the folder that holds both; a few tests run beside the unpacked sdist."
    source, dist, env, folders = tmp_path / "source", tmp_path / "dist", tmp_path / "env", (
        "b2t_kit", "kaggle", "nbs", "tests", "tools", "benchmarks", "leaderboard")
    for name in (*folders, ".github"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*(ROOT / name for name in (*PACKAGING, *PROJECT)), *filter(Path.is_file, (ROOT / ".ci").iterdir())):
        (source / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, source / path.relative_to(ROOT))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    installed = set(zipfile.ZipFile(wheel).namelist())
    shipped = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    package = files_of(source, "b2t_kit")
    assert "b2t_kit/py.typed" in package and package <= installed
    assert not {*files_of(source, *folders), *PACKAGING, *PROJECT, ".ci/run", ".github/workflows/ci.yml"} - shipped
    kernels = {f"b2t_kit/kernels/{path.relative_to(source / 'kaggle').as_posix()}" for path in source.glob("kaggle/*/*")}
    assert kernels and kernels <= installed

    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    last = run(sys.executable, "-m", "pytest", "-q", "nbs/text/phonemes.ipynb", "tests/test_house.py::test_readme_has_its_two_commands",
               cwd=unpacked, env=environment).splitlines()[-1]
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed, 0 skipped", last), last

    venv.create(env, with_pip=False)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # or pip finds a checkout there
    run(sys.executable, "-m", "pip", "--python", env / "bin/python", "install", "--no-index", "--find-links", dist, "--no-deps",
        "b2t_kit", env=bare)
    report = "import b2t_kit, importlib.metadata; print(importlib.metadata.metadata('b2t_kit'))"
    metadata = run(env / "bin/python", "-c", report, cwd=tmp_path, env=bare)
    assert f"Version: {settings['DEFAULT']['version']}\n" in metadata
    assert all(f"Provides-Extra: {extra}\n" in metadata for extra in ("dev", "docs", *EXTRAS))
    assert (env / "bin/b2t").exists()


def test_a_verb_imports_the_verbs_of_its_own_wing() -> None:
    """Besides those of the path; others, with what they need, wait until a first word is not understood."""
    code = (
        "import sys\n"
        "from b2t_kit.cli import find_verb\n"
        "find_verb(['kernel', 'build'])\n"
        "print(*(name for name in sys.modules if name.endswith('.verbs')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "b2t_kit.verbs b2t_kit.publish.verbs\n"
