"""Import rules: layers import only lower layers, and libraries only in their folders."""

import ast
import functools
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
HOMES = {  # a library: the folders below which it may be imported
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
}
INTERNALS = {  # a library: the one file or folder that may use what is private in it
    "torch": "training.torch.internals",
    "tensorflow": "training.tensorflow.internals",
    "keras": "training.tensorflow.internals",
    "ray": "cluster.ray_internals",
}
PRIVATE = ("tensorflow.python", "keras.src")
"""Modules that are private despite their names."""
FRAMEWORKS = ("raybench.training.torch", "raybench.training.tensorflow")


def private_uses(code, imported):
    """Return (line, dotted name) of private parts of libraries in HOMES that the code imports or
    uses as attributes. `imported` lists the imports of the code."""
    uses = [(line, name) for line, name in imported if is_private(name)]
    libraries = {name.split(".")[0] for name in HOMES}
    names = {"tf": "tensorflow"} | {library: library for library in libraries}
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Attribute):
            root, _, rest = dotted(node).partition(".")
            name = f"{names.get(root)}.{rest}"
            if is_private(name) and (node.attr.startswith("_") or name in PRIVATE):
                uses.append((node.lineno, name))
    return uses


def dotted(node):
    """Return a.b.c of an attribute of an attribute of a name, or an empty string."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_private(name):
    parts = name.split(".")
    if not any(is_below(name, known) for known in HOMES):
        return False
    hidden = [part for part in parts if part.startswith("_") and not part.startswith("__")]
    return bool(hidden) or any(is_below(name, known) for known in PRIVATE)


@functools.cache
def imports(code, module, *, is_package=False):
    """Return (line, imported name) of all imports, also inside functions.

    `from a import b` is `a.b`. What stands under `if TYPE_CHECKING` is left out.
    """
    imported = []

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            imported.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            parts = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            imported.extend((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and dotted(node.func).endswith(("import_module", "__import__"))
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            imported.append((node.lineno, node.args[0].value))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(parsed(code))
    return imported


@functools.cache
def parsed(code):
    return ast.parse(code)


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


def violations(code, module, *, is_package=False):
    """Return messages about forbidden imports of a module."""
    problems = []
    importer = LAYERS.index("commands") if module == "raybench" else layer_of(module)
    statements = imports(code, module, is_package=is_package)
    for line, name in private_uses(code, statements):
        home = INTERNALS.get(name.split(".")[0])
        if home is None or not is_below(module, f"raybench.{home}"):
            problems.append(f"{module}:{line} uses {name}: private, in {home} alone")
    for line, name in statements:
        where = f"{module}:{line} imports {name}"
        homes = [home for library, home in HOMES.items() if is_below(name, library)]
        if any(not any(is_below(module, f"raybench.{h}") for h in home) for home in homes):
            problems.append(where)
        if not is_below(name, "raybench"):
            continue
        for framework in FRAMEWORKS:
            if is_below(name, framework) and not is_below(module, framework):
                problems.append(f"{where}: a framework's backend, found by name only")
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
        ("raybench.cluster.session", "import ray\nray._raylet.Config()"),
        ("raybench.training.tensorflow.loop", "from tensorflow.python.framework import ops"),
        ("raybench.training.tensorflow.loop", "import tensorflow as tf\ntf.keras._private.x()"),
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
    problems = []
    for module, file in known.items():
        problems += violations(file.read_text(), module, is_package=file.stem == "__init__")
    assert problems == []


def modules():
    """Return every module of the package with its file."""
    by_name = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        names = file.relative_to(ROOT).with_suffix("").parts
        by_name[".".join(names[:-1] if names[-1] == "__init__" else names)] = file
    return by_name


def arrows(known):
    """Return the imported modules of each module, including imports in functions."""
    result = {}
    for module, file in known.items():
        names = [
            n for _, n in imports(file.read_text(), module, is_package=file.stem == "__init__")
        ]
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        result[module] = sorted((targets & known.keys()) - {module, "raybench"})
    return result


def a_circle(graph):
    """Return modules that import each other circularly, or an empty list."""
    ended = set()

    def follow(module, path):
        if module in path:
            return path[path.index(module) :]
        if module in ended:
            return []
        for other in graph[module]:
            if circle := follow(other, [*path, module]):
                return circle
        ended.add(module)
        return []

    return next((circle for module in graph if (circle := follow(module, []))), [])


def test_modules_have_no_circular_imports():
    assert a_circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]
    assert a_circle(arrows(modules())) == []


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
        for node in parsed(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    doubled = {
        name: sorted(files)
        for name, files in places.items()
        if len(files) > 1 and not all(file.startswith(MIRRORS) for file in files)
    }
    assert doubled == {}
