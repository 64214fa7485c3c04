"Repository rules: generated files are current, sources keep the style, built packages install."
import ast
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
FOLDERS = ("tests", "tools", "benchmarks")
SCRIPTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
MAX_FIGURE_BYTES = 60_000
MAX_WIDTH, MAX_TABLE_WIDTH = 120, 160  # characters; 100 is the aim, tests have tables of cases
# What users may add; `dev` and `docs` are for those who change the kit.
EXTRAS = ("tracker", "fetch", "rescore", "live", "lsl", "redis", "tpu", "preflight", "preflight-kaggle")
PACKAGING = ("settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md")
PROJECT = ("README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "conftest.py", ".gitignore",
           ".pre-commit-config.yaml")

settings = ConfigParser(delimiters=["="])
settings.read(ROOT / "settings.ini", encoding="utf-8")


def run(*command, **options) -> str:
    "The output of a command; if it fails, the test fails with that output."
    options = {"capture_output": True, "text": True, "cwd": ROOT, **options}
    done = subprocess.run([str(word) for word in command], **options)
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def copy(target: Path, *names: str) -> None:
    "Copy files and folders of the checkout into a folder."
    target.mkdir(exist_ok=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target)


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_cells(notebook: Path) -> list[str]:
    "The source of each code cell that is plain Python, without magics."
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if not re.search(r"^\s*[%!]", source, re.M)]


def complaints(source: str, max_width: int = MAX_WIDTH) -> list[str]:
    "The style rules that a piece of code breaks."
    wide = (line for line in source.splitlines() if len(line) > max_width)
    found = [f"wider than {max_width}: {line}" for line in wide]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            found.append(f"line {node.lineno} imports * from {node.module}")
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"line {node.lineno} has an except that catches everything")
    return found


def test_generated_files_are_in_step():
    run(sys.executable, "tools/in_step.py")


def test_out_of_step_is_seen(tmp_path):
    "An edited module, a module without a notebook and an old README are each named."
    copy(tmp_path, "b2t_kit", "nbs", "tools", *PACKAGING)
    with (tmp_path / "b2t_kit/core.py").open("a") as module:
        module.write("edited = True\n")
    (tmp_path / "b2t_kit/orphan.py").write_text("left = True\n")
    (tmp_path / "README.md").write_text("old\n")
    command = [sys.executable, "tools/in_step.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    named = done.stdout.splitlines()[-1]
    assert all(name in named for name in ("b2t_kit/core.py", "b2t_kit/orphan.py", "README.md"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=by_name)
def test_notebook_keeps_the_rules(notebook):
    found = []
    for source in code_cells(notebook):
        exported = re.match(r"#\s*\|\s*export", source)
        found += complaints(source, MAX_WIDTH if exported else MAX_TABLE_WIDTH)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=by_name)
def test_saved_outputs_are_small_and_portable(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    figures = [output.get("data", {}).get("image/png", "") for output in outputs]
    largest = max(map(len, figures), default=0) * 3 // 4  # base64 holds 3 bytes in 4 characters
    assert largest <= MAX_FIGURE_BYTES, f"a figure of {largest} bytes"
    assert not [output["ename"] for output in outputs if output["output_type"] == "error"]
    traces = re.findall(r"/tmp/\w+|/root/|/home/\w+|0x[0-9a-f]{8,}", json.dumps(outputs))
    assert not traces, f"outputs that tell of one machine: {traces}"


FRONT = {"01_dataset": "data.dataset", "02_models": "models.gru", "03_precision": "precision", "04_training": "train",
         "main": "__main__"}  # nbdev leaves out notebooks whose name begins with "_"


def exported_module(notebook: Path) -> str | None:
    "The module that a notebook exports, without the package's name."
    found = re.search(r"^#\s*\|\s*default_exp (\S+)", "\n".join(code_cells(notebook)), re.M)
    return found and found[1]


@pytest.mark.parametrize("notebook", [one for one in NOTEBOOKS if one.is_relative_to(ROOT / "nbs")], ids=by_name)
def test_notebook_carries_the_name_of_its_module(notebook):
    "A notebook lies in the folder of its module; the four in front are named by topic."
    module = exported_module(notebook)
    place = notebook.relative_to(ROOT / "nbs").with_suffix("").as_posix()
    assert module in (None, FRONT.get(place, place.replace("/", ".")))


def module_name(module: Path) -> str:
    "The dotted name of a file of the package."
    return by_name(module).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def kit_imports(module: Path) -> set[str]:
    "Every module of the package that a module imports, also inside functions and conditions."
    name, known = module_name(module), set(map(module_name, MODULES))
    package = name if module.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            inside = {f"{source}.{alias.name}" for alias in node.names} & known
            found |= inside or {source}
    return {one for one in found if one.split(".")[0] == "b2t_kit"} - {"b2t_kit"}


IMPORTS = {module_name(module): kit_imports(module) for module in MODULES}


def test_no_imports_run_in_a_circle():
    "Imports inside functions count too."
    try:
        order = list(graphlib.TopologicalSorter(IMPORTS).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]), pytrace=False)
    assert len(order) >= len(MODULES)


FORBIDDEN = [  # who, what they must not import, why
    ("b2t_kit.lm", "decode llm", "models of sentences know no search"),
    ("b2t_kit.decode", "llm", "large models come after the search"),
    ("b2t_kit.training", "memory tpu decode speech", "what the loop needs is handed to it"),
    ("b2t_kit.models", "data training speech devices", "models take tensors"),
    ("b2t_kit.speech.task", "decode", "the word scorer is handed to the task"),
    ("b2t_kit.data", "models training speech decode simulate", "data comes first"),
    ("b2t_kit.core", "data models training speech devices text", "the ground floor"),
]


@pytest.mark.parametrize("who, what, why", FORBIDDEN, ids=[one[0] for one in FORBIDDEN])
def test_imports_follow_the_data(who, what, why):
    def within(name: str, parent: str) -> bool:
        return name == parent or name.startswith(parent + ".")

    found = [f"{name} imports {one}" for name in IMPORTS if within(name, who)
             for one in IMPORTS[name] if any(within(one, f"b2t_kit.{parent}") for parent in what.split())]
    assert not found, f"{found}: {why}"


WITHOUT_WINGS = runpy.run_path(str(ROOT / "tools/without_wings.py"))


def test_the_core_imports_no_wing():
    "A wing's folder can be left out; its verbs are found by the folder."
    def wing_of(name: str) -> str | None:
        return next((wing for wing in WITHOUT_WINGS["WINGS"] if f"{name}.".startswith(f"b2t_kit.{wing}.")), None)

    found = [f"{name} imports {one}" for name, others in IMPORTS.items() for one in others
             if wing_of(one) and wing_of(name) != wing_of(one)]
    assert not found


def test_the_core_works_without_its_wings(tmp_path):
    "A copy without their folders: every module and every test's module is imported, and the command line answers."
    WITHOUT_WINGS["copy_core"](tmp_path)
    code = ("import importlib, pathlib\n"
            "for path in sorted(pathlib.Path('b2t_kit').rglob('[!_]*.py')):\n"
            "    importlib.import_module('.'.join(path.with_suffix('').parts))\n"
            "from b2t_kit.cli import main\n"
            "assert main(['--help']) == 0 and main(['fetch', '--help']) == 0 and main(['plan', 'tiny']) == 0\n"
            "assert main('fetch --set t12 --out new'.split()) == main('convert arrays mine --out new'.split()) == 2")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for words in (["-c", code], ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests", "nbs"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_loop_imports_only_training():
    "The loop imports only `training`."
    assert {name for name in IMPORTS["b2t_kit.train"] if not name.startswith("b2t_kit.training.")} == {
        "b2t_kit.core"}


def test_importing_the_speech_task_does_not_load_the_search():
    code = ("import sys, b2t_kit.speech.task\n"
            "print([name for name in sys.modules if name.startswith(('b2t_kit.decode', 'numba', 'matplotlib'))])")
    assert run(sys.executable, "-c", code).splitlines() == ["[]"]


def public_names(module: Path) -> list[str]:
    "What a module lists in `__all__`."
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_no_public_name_is_defined_in_two_modules():
    places = {}
    for module in MODULES:
        for name in public_names(module):
            places.setdefault(name, []).append(module_name(module))
    assert not {name: where for name, where in places.items() if len(where) > 1 and name != "VERBS" and "b2t_kit.all" not in where}


NAMES_MEAN_THE_SAME = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
for name, public in json.loads(sys.argv[2]).items():
    module = sys.modules[name]
    for one in public:
        assert type(getattr(module, one)).__name__ != "module", f"{name}.{one} is a module"
    parent, _, last = name.rpartition(".")
    assert not parent or getattr(sys.modules[parent], last) is module, f"{name} is hidden by something else"
"""


def test_names_do_not_depend_on_what_was_imported_before():
    "With every submodule imported, no public name is hidden by a module of the same name."
    names = [module_name(module) for module in MODULES if module.name != "_modidx.py"]
    public = {module_name(module): public_names(module) for module in MODULES if module.name != "_modidx.py"}
    for order in (names, names[::-1]):
        run(sys.executable, "-c", NAMES_MEAN_THE_SAME, json.dumps(order), json.dumps(public))


PLACES = ("", "nbs/", "benchmarks/", "tests/**/", ".github/")
PAGES = sorted([*NOTEBOOKS, *(path for place in PLACES for path in ROOT.glob(f"{place}*.md"))])
LOCAL_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)]*)?\)")
FOLDER_NAMES = "|".join(sorted(path.parent.name for path in ROOT.glob("b2t_kit/*/__init__.py")))
MODULE_NAME = re.compile(rf"`(?:b2t_kit\.)?((?:{FOLDER_NAMES})(?:\.\w+)+)(?:\(\))?`")
KNOWN = set(map(module_name, MODULES)) | {f"{module_name(module)}.{name}" for module in MODULES
                                          for name in public_names(module)}


def prose(page: Path) -> str:
    "The text of a page, without code."
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_references_resolve(page):
    "Local links, and the modules and names that the text mentions, exist."
    text = prose(page)
    missing = [link for link in LOCAL_LINK.findall(text) if not (page.parent / link).exists()]
    missing += [name for name in MODULE_NAME.findall(text)
                if f"b2t_kit.{name}" not in KNOWN and f"b2t_kit.{name.rpartition('.')[0]}" not in KNOWN - {"b2t_kit"}]
    assert not missing


@pytest.mark.parametrize("module", MODULES, ids=by_name)
def test_module_holds_no_directives(module):
    "nbdev 2 leaves `#| eval: false` in a module and nbdev 3 does not; `#| notest` both take out."
    assert not re.findall(r"^#\s*\|.*", module.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / "conftest.py", ROOT / "setup.py"], ids=by_name)
def test_script_keeps_the_rules(script):
    wide = MAX_TABLE_WIDTH if "tests" in script.parts else MAX_WIDTH
    found = complaints(script.read_text(encoding="utf-8"), wide)
    assert not found, "\n".join(found)


IMPORT_ALL = """
import os, sys
from pathlib import Path
before = dict(os.environ)
for name in sys.argv[1:]:
    __import__(name)
    heavy = {"torch_xla", "accelerate", "starlette", "uvicorn", "websockets", "zmq", "pylsl", "redis"} & sys.modules.keys()
    assert not heavy, f"importing {name} imports {heavy}"
    assert dict(os.environ) == before, f"importing {name} changes the environment"
    torch = sys.modules.get("torch")
    assert not torch or not torch.cuda.is_initialized(), f"importing {name} opens CUDA"
"""


def test_imports_are_light(tmp_path):
    "No module imports torch_xla or accelerate; both can be imported here, so trying would succeed."
    (tmp_path / "torch_xla.py").touch()
    paths = [by_name(module).removesuffix(".py").removesuffix("/__init__") for module in MODULES]
    names = [path.replace("/", ".") for path in paths]
    search = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": search}
    run(sys.executable, "-c", IMPORT_ALL, *names, cwd=tmp_path, env=environment)


def imported_by(source: str) -> set[str]:
    "The first names of the packages that a piece of code imports, wherever in it."
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def distributions(*keys: str) -> set[str]:
    "The names of the distributions that these keys of settings.ini ask for."
    requirements = " ".join(settings["DEFAULT"][key] for key in keys).split()
    return {re.split("[<>=]", requirement)[0].lower() for requirement in requirements}


def test_package_needs_only_its_requirements():
    "Every imported package, also inside functions, is a requirement or in a run-time extra."
    imported = set().union(*(imported_by(module.read_text(encoding="utf-8")) for module in MODULES))
    known = distributions("requirements", *(f"{extra}_requirements" for extra in EXTRAS))
    known |= {name.replace("-", "_") for name in known}
    provided = packages_distributions()
    foreign = imported - sys.stdlib_module_names - {"b2t_kit"}
    unknown = {
        name for name in foreign if not known & {name, *map(str.lower, provided.get(name, []))}
    }
    assert not unknown, f"settings.ini does not require {unknown}"


def test_readme_has_its_two_commands():
    "`.ci/run` reads its commands from the README, so it checks what the README promises."
    ci = runpy.run_path(str(ROOT / "tools/ci.py"))
    demo, tests = ci["COMMAND"].findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert demo == "pip install . && b2t demo --out demo"
    assert tests.startswith('pip install -e ".[dev]" && pytest')
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    assert ci["COMMAND"].findall(chinese) == [demo, tests]


def test_both_nbdevs_read_the_same_settings():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    old, new = settings["DEFAULT"], project["tool"]["nbdev"]
    assert new["tst_flags"] == old["tst_flags"]
    assert new["allowed_metadata_keys"] == old["allowed_metadata_keys"].split()
    assert project["project"]["name"] == old["lib_name"]
    assert project["project"]["requires-python"] == f">={old['min_python']}"


QUICK_TESTS = ("nbs/core.ipynb", "tests/test_house.py::test_readme_has_its_two_commands")


def check_own_tests(sdist: Path, folder: Path) -> None:
    "Run a few tests of an unpacked source distribution, with the package next to them."
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
    (unpacked,) = folder.iterdir()
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    last = run(sys.executable, "-m", "pytest", "-q", *QUICK_TESTS, cwd=unpacked, env=environment).splitlines()[-1]
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed, 0 skipped", last), last


def files_of(folder: Path, *names: str) -> set[str]:
    "The files below some folders, without hidden and compiled ones."
    paths = [path.relative_to(folder) for name in names for path in (folder / name).rglob("*") if path.is_file()]
    return {path.as_posix() for path in paths if path.suffix != ".pyc" and not path.name.startswith(".")}


def test_package_builds_and_installs_offline(tmp_path):
    "Build the sdist, the wheel from it, and install from the folder that holds both."
    source, dist, env = tmp_path / "source", tmp_path / "dist", tmp_path / "env"
    copy(source, "b2t_kit", "kaggle", "nbs", "tests", "tools", "benchmarks", ".github", *PACKAGING, *PROJECT)
    (source / ".ci").mkdir()
    for path in filter(Path.is_file, (ROOT / ".ci").iterdir()):
        shutil.copy(path, source / ".ci")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    installed = set(zipfile.ZipFile(wheel).namelist())
    shipped = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    package = files_of(source, "b2t_kit")
    assert "b2t_kit/py.typed" in package and package <= installed
    assert not files_of(source, "b2t_kit", "kaggle", "nbs", "tests", "tools", "benchmarks") - shipped
    assert not {*PACKAGING, *PROJECT, ".ci/run", ".github/workflows/ci.yml"} - shipped
    kernels = {f"b2t_kit/kernels/{path.relative_to(source / 'kaggle').as_posix()}" for path in source.glob("kaggle/*/*")}
    assert kernels and kernels <= installed
    check_own_tests(sdist, tmp_path / "unpacked")

    venv.create(env, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", env / "bin/python"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # or pip finds a checkout there
    run(*pip, "install", "--no-index", "--find-links", dist, "--no-deps", "b2t_kit", env=bare)
    report = "import b2t_kit, importlib.metadata; print(importlib.metadata.metadata('b2t_kit'))"
    metadata = run(env / "bin/python", "-c", report, cwd=tmp_path, env=bare)
    assert f"Version: {settings['DEFAULT']['version']}\n" in metadata
    for extra in ("dev", "docs", *EXTRAS):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert (env / "bin/b2t").exists()


def test_extras_are_spelled_without_underscore():
    "pip before 23.3 does not find an extra whose name has an underscore."
    extras = {key.removesuffix("_requirements") for key in settings["DEFAULT"] if key.endswith("_requirements")}
    assert extras == {"dev", "docs", *EXTRAS} and not [extra for extra in extras if "_" in extra]


def test_version_is_the_same_everywhere():
    version = settings["DEFAULT"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (ROOT / "b2t_kit/__init__.py").read_text(encoding="utf-8").strip() == f'__version__ = "{version}"'
    for page in ("README.md", "README.zh.md", "CONTRIBUTING.md"):
        named = re.findall(r"b2t_kit[ =@v]+(\d+\.\d+\.\d+)", (ROOT / page).read_text(encoding="utf-8"))
        assert set(named) <= {version}, page


def test_the_site_has_every_notebook():
    "In the order of nbs/README.md; the front page is the site's own."
    docs = runpy.run_path(str(ROOT / "tools/docs.py"))
    pages = [page for found in docs["sections"]().values() for page in found]
    notebooks = {by_name(path) for path in ROOT.glob("nbs/**/*.ipynb")} - {"nbs/index.ipynb", "nbs/index_zh.ipynb"}
    assert len(pages) == len(set(pages)) and notebooks == {page for page in pages if page.endswith(".ipynb")}
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"} <= set(pages)
    text = docs["with_links"]("[a](01_dataset.ipynb) [b](../tests/test_house.py) [c](index.ipynb#x)", "nbs/cli.ipynb", set(pages))
    assert text == ("[a](01_dataset.ipynb) [b](https://github.com/b2t-kit/b2t_kit/blob/main/tests/test_house.py) "
                    "[c](../index.md#x)")


def test_the_workflow_has_the_pythons_that_ci_needs():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    pythons = set(runpy.run_path(str(ROOT / "tools/ci.py"))["PYTHONS"].values())
    assert pythons <= set(re.findall(r"\b3\.\d+\b", workflow)) and "run: .ci/run" in workflow
