"""The recorded tables that search benchmarks replay: their best cells have several seeds."""

import importlib
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks/search"
SEEDS = 5


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("recorded")


@pytest.fixture
def grids(recorded):
    return importlib.import_module("table_grids").GRIDS


def test_the_new_tables_have_five_seeds_of_their_best_tenth(recorded, grids) -> None:
    best = importlib.import_module("table_best")
    new = [name for name in grids if not name.startswith("mnist")]
    for name in new:
        table = recorded.Table(name)
        for cell in best.by_seconds(table, table.default_target()):
            seeds = int((~np.isnan(table.accuracy[cell][:, 0])).sum())
            assert seeds >= SEEDS, (name, cell)
