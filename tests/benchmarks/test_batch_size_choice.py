"""The bar of the benchmark that chooses batch sizes, on Zeus's traces."""

import importlib
import os
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks/scaling"
DATA = Path(os.environ.get("RAYBENCH_DATA", "nowhere"))


@pytest.fixture
def zeus(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("zeus")


@pytest.fixture
def benchmark(zeus):
    return importlib.import_module("samples_to_target")


@pytest.mark.skipif(not (DATA / "zeus").is_dir(), reason="RAYBENCH_DATA has no zeus")
def test_choices_are_within_10_percent_in_all_but_one_case(zeus, benchmark) -> None:
    cases = [
        c for task, target in benchmark.TARGETS.items() for c in zeus.cases_of(DATA, task, target)
    ]
    assert len(cases) == 24
    lost = [zeus.losses(case, "all")["raybench"][1] for case in cases]
    assert sum(loss > 0.1 for loss in lost) <= 1, lost
