"""Modules of `benchmarks/`, imported by name as the scripts import each other, and their data."""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOLDERS = [folder for folder in sorted(BENCHMARKS.iterdir()) if list(folder.glob("*.py"))]
PEERS = ("syne_tune", "neps", "smac", "flaml", "chinchilla")
"""Modules that only benchmarks need: the extra `benchmarks`, or an environment of their own."""


@pytest.fixture
def data() -> Callable[[str], Path]:
    """Function that returns RAYBENCH_DATA, and skips the test if a folder is missing there."""

    def folder_with(name: str) -> Path:
        folder = Path(os.environ.get("RAYBENCH_DATA", "nowhere"))
        if not (folder / name).is_dir():
            pytest.skip(f"RAYBENCH_DATA has no {name}")
        return folder

    return folder_with


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Function that imports a module of the benchmarks by name."""
    for folder in (BENCHMARKS.parent, BENCHMARKS, *FOLDERS):
        monkeypatch.syspath_prepend(str(folder))
    # Some benchmarks call logging.disable, which is undone after the test.
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    return importlib.import_module


@pytest.fixture
def modules() -> list[str]:
    """Names of the modules in the folders of the benchmarks, and of those that they share."""
    names = [file.stem for folder in FOLDERS for file in folder.glob("*.py")]
    return ["benchmarks.installed", "benchmarks.output", *names]


@pytest.fixture
def bare(
    module: Callable[[str], ModuleType], modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], ModuleType]:
    """Function that imports a module of the benchmarks as if no other tool were installed."""
    pytest.importorskip("torch")  # the benchmarks train
    for name in modules:
        # Each test imports them anew; afterwards sys.modules is restored.
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)  # "not installed", to find_spec and import
    return module
