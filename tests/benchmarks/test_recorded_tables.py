"""The recorded tables that search benchmarks replay, and which of their cells get more seeds."""

import importlib
import json
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


@pytest.fixture
def table(recorded, tmp_path):
    """One optimizer, ten rates, batches 8 to 64; rate r is right after 20 |r - 3| + 20 samples,
    and never for the largest batch but at rate 5."""
    batches = [8, 16, 32, 64]
    correct = np.full((1, 10, 4, 1, 10), 50)
    for rate in range(10):
        for b in range(3):
            correct[0, rate, b, 0, min(abs(rate - 3), 9) :] = 90
    correct[0, 5, 3, 0, 7:] = 90
    np.savez(tmp_path / "made_up.npz", correct=correct, samples=[list(range(20, 201, 20))] * 4)
    meta = {
        "optimizers": ["sgd"],
        "rates": {"sgd": [10.0**r for r in range(10)]},
        "batches": batches,
        "num_validation": 100,
        "baseline_value": 0.5,
        "step_s": [
            {"optimizer": "sgd", "batch": 8, "workers": workers, "median": seconds}
            for workers, seconds in ((1, 0.010), (2, 0.015))
        ],
    }
    (tmp_path / "made_up.json").write_text(json.dumps(meta))
    (tmp_path / "slow.json").write_text(json.dumps(meta | {"curves": "made_up"}))
    return recorded.Table("made_up", tmp_path)


def test_a_table_says_its_own_batches_and_chance(recorded, table) -> None:
    assert table.batches_per_worker == (8,)  # 16 on eight workers is not recorded
    task = recorded.Task(table, 0.9)
    assert task.space.baseline_value == 0.5
    assert task.space.batch_sizes_per_worker == (8,)


def test_a_throttled_table_has_the_curves_of_another(recorded, table, tmp_path) -> None:
    slow = recorded.Table("slow", tmp_path)
    assert np.array_equal(slow.accuracy, table.accuracy)


def test_the_best_of_every_batch_size_get_more_seeds_first(recorded, table) -> None:
    best = importlib.import_module("table_best")
    chosen = best.by_samples(table, 0.9)
    assert chosen[:4] == [(0, 3, 0), (0, 3, 1), (0, 3, 2), (0, 5, 3)]
    assert set(chosen[4:]) == {(0, r, b) for b in range(3) for r in (2, 4)} | {(0, 4, 3), (0, 6, 3)}


def test_with_step_times_the_soonest_get_them(table) -> None:
    best = importlib.import_module("table_best")
    # 20 samples: 2.5 steps of 8, 10 ms each; 1.25 of 16, 15 ms; 0.6 of 32, 26 ms.
    assert best.by_seconds(table, 0.9)[:3] == [(0, 3, 2), (0, 3, 1), (0, 3, 0)]


def test_the_new_tables_have_five_seeds_of_their_best_tenth(recorded, grids) -> None:
    best = importlib.import_module("table_best")
    new = [name for name in grids if not name.startswith("mnist")]
    for name in new:
        table = recorded.Table(name)
        for cell in best.by_seconds(table, table.default_target()):
            seeds = int((~np.isnan(table.accuracy[cell][:, 0])).sum())
            assert seeds >= SEEDS, (name, cell)


def test_where_steps_are_throttled_several_workers_are_best(recorded) -> None:
    assert recorded.Task(recorded.Table("docstrings_throttled")).best_config.num_workers > 1


def test_throttled_samples_wait_in_training_alone(monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    workloads = importlib.import_module("benchmarks.search.table_workloads")
    waited: list[float] = []
    monkeypatch.setattr(workloads.time, "sleep", waited.append)
    model = workloads.ThrottledText().build_torch()
    tokens = torch.zeros((5, 64), dtype=torch.int64)
    model.train()(tokens)
    assert waited == [pytest.approx(5 * workloads.WAIT_S)]
    model.eval()(tokens)
    assert len(waited) == 1
