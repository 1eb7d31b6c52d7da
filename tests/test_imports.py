"""Import rules: layers import only lower layers, and libraries only in their folders."""

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raybench"
LAYERS = (
    "spec",
    "stats",
    "data",
    "models",
    "training",
    "cluster",
    "results",
    "scaling",
    "report",
    "loggers",
    "runs",
    "search",
    "commands",
)
READERS = ("results", "report", "loggers")
"""Layers that only read files and must not import training code."""
TRAINERS = ("data", "models", "training", "cluster")
HOMES = {  # a library or package: the folders below which it may be imported
    "torch": ("training.torch",),
    "torchvision": ("training.torch",),
    "timm": ("training.torch",),
    "transformers": ("training.torch",),
    "tensorflow": ("training.tensorflow",),
    "keras": ("training.tensorflow",),
    "ray": ("cluster", "runs", "search"),
    "ray.tune": ("search.ray_tune",),
    "ray.train": ("cluster",),
    "optuna": ("search.sampling",),
    "tensorboardX": ("loggers",),
    "mlflow": ("loggers",),
    "wandb": ("loggers",),
    "tensorflow.python": ("training.tensorflow.internals",),  # private despite their names
    "keras.src": ("training.tensorflow.internals",),
    "raybench.training.torch": ("training.torch",),  # backends, found by name only
    "raybench.training.tensorflow": ("training.tensorflow",),
}
INTERNALS = ("training.torch.internals", "training.tensorflow.internals", "cluster.ray_internals")
"""Places that may import what is private in libraries; ruff (SLF001) checks attributes."""


@functools.cache
def imports(code):
    """Return the imported names, also those imported in functions; `from a import b` is `a.b`.

    What stands under `if TYPE_CHECKING` is left out.
    """
    names, nodes = [], [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        nodes += node.orelse if is_typing else ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names += [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    return names


def is_below(name, folder):
    return name == folder or name.startswith(f"{folder}.")


def layer_of(module):
    """Return the index in LAYERS of a raybench module; public names of the package itself that
    every module may import count as the lowest layer."""
    name, *rest = module.removeprefix("raybench.").split(".")
    if name in ("raybench", "UserError", "load", "load_model"):
        return 0
    is_command = rest[-1:] == ["__main__"] or (PACKAGE / f"{name}.py").exists()
    return LAYERS.index("commands" if is_command else {"Workload": "models"}.get(name, name))


def violations(code, module):
    """Return messages about forbidden imports of a module."""
    problems = []
    importer = LAYERS.index("commands") if module == "raybench" else layer_of(module)
    for name in imports(code):
        where = f"{module} imports {name}"
        rules = [folders for known, folders in HOMES.items() if is_below(name, known)]
        if rules and re.search(r"\._(?!_)", name):
            rules.append(INTERNALS)
        if any(not any(is_below(module, f"raybench.{f}") for f in folders) for folders in rules):
            problems.append(where)
        if not is_below(name, "raybench"):
            continue
        imported = layer_of(name)
        is_reading = LAYERS[importer] in READERS and LAYERS[imported] in TRAINERS
        if imported > importer or is_reading:
            problems.append(f"{where}: {LAYERS[importer]} must not import {LAYERS[imported]}")
    return problems


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("raybench.spec.run", "from raybench.stats.record import RunRecord"),
        ("raybench.data.load", "def f():\n    from raybench.models import base"),
        ("raybench.training.run", "from raybench.training.torch.loop import Trainer"),
        ("raybench.training.tensorflow.loop", "import importlib\nimportlib.import_module('torch')"),
        ("raybench.cluster.worker_pool", "from ray import tune"),
        ("raybench.cluster.session", "from ray._private import utils"),
        ("raybench.training.tensorflow.loop", "from tensorflow.python.framework import ops"),
        ("raybench.results.study", "from raybench.data import load"),
        ("raybench.report.answer", "import raybench.cluster.signals"),
        ("raybench", "import torch"),
    ],
)
def test_the_checker_sees_a_violation(module, code):
    assert len(violations(code, module)) == 1


def test_the_architecture_page_lists_packages_in_order_and_existing_files():
    page = (ROOT / "docs/architecture.md").read_text()
    picture = page.split("```")[1]
    assert tuple(re.findall(r"^([a-z]+) ", picture, re.MULTILINE)) == LAYERS[::-1]
    for name in re.findall(r"`([a-z_]+/[\w/]+(?:\.\w+)?)`", page):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name


def test_the_package_keeps_its_layers():
    known = modules()
    assert len(known) > 50, "the package was not found"
    problems = [violations(file.read_text(), module) for module, file in known.items()]
    assert list(filter(None, problems)) == []


def modules():
    """Return every module of the package with its file."""
    by_name = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        names = file.relative_to(ROOT).with_suffix("").parts
        by_name[".".join(names[:-1] if names[-1] == "__init__" else names)] = file
    return by_name


def test_modules_have_no_circular_imports():
    known, graph = modules(), {}
    for module, file in known.items():
        names = imports(file.read_text())
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        graph[module] = (targets & known.keys()) - {module, "raybench"}
    graphlib.TopologicalSorter(graph).prepare()  # a CycleError names a circle


def test_tests_with_ray_are_in_the_folders_of_the_makefile():
    folders = re.search(r"^WITH_RAY = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    marked = [
        file
        for file in (ROOT / "tests").rglob("*.py")
        if re.search(r"mark\.ray\b", file.read_text())
    ]
    assert marked
    for file in marked:
        assert any(file.is_relative_to(ROOT / folder) for folder in folders.split()), file


def in_new_process(code):
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    return result.stdout.strip()


def test_importing_raybench_imports_no_heavy_library():
    heavy = {"torch", "tensorflow", "keras", "ray", "optuna", "numpy", "pandas", "matplotlib"}
    code = "import sys, raybench.api, raybench.commands.cli"
    assert in_new_process(f"{code}; print({heavy} & sys.modules.keys())") == "set()"


def test_an_unknown_name_is_no_attribute():
    import raybench

    assert not hasattr(raybench, "Wrokload")


def test_public_commands_stay_functions_after_any_import():
    checks = "import raybench.api; print(raybench.COMMAND is raybench.api.COMMAND)"
    for before in (
        "import raybench",
        "import raybench.COMMAND",
        "from raybench import COMMAND; import raybench.COMMAND",
    ):
        code = f"{before}; {checks}".replace("COMMAND", "tune")
        assert in_new_process(code) == "True", before


DANGLING = re.compile(r'^\s*(?:r|f)?"""(?:Of|As|So|That|Those|By|In) (?!order )', re.MULTILINE)
"""Beginnings of docstrings that cannot stand alone, because they have no noun."""


def test_docstrings_begin_with_a_description():
    dangling = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in PACKAGE.rglob("*.py")
        for line in file.read_text().splitlines()
        if DANGLING.match(line)
    ]
    assert dangling == []


MIRRORS = ("training/", "integrations.py")
"""Places that may define a class name once per framework."""


def test_class_names_are_unique():
    places = {}
    for file in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(str(file.relative_to(PACKAGE)))
    doubled = {
        name: sorted(files)
        for name, files in places.items()
        if len(files) > 1 and not all(file.startswith(MIRRORS) for file in files)
    }
    assert doubled == {}
