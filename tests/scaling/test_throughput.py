"""The law of a step's time: its limits, its parts, and what its parameters do."""

import numpy as np
import pytest

from raybench.scaling.measurements import Cell, Layout
from raybench.scaling.throughput import NUM_PARAMETERS, PRIORS, Law, Scale

SCALE = Scale(batch=64.0, seconds=0.1)


def units(**values: float) -> np.ndarray:
    """A row of parameters, those not named at their priors' means."""
    row = [
        (values[name] - mean) / sd if name in values else 0.0 for name, (mean, sd) in PRIORS.items()
    ]
    assert set(values) <= set(PRIORS)
    return np.array([row])


def seconds(*cells: Cell, **values: float) -> np.ndarray:
    return np.exp(Law(SCALE, Layout.of(cells)).step(units(**values)))[0]


BARE = {"log_feed": -20.0, "straggling": 0.0}
"""Nothing but compute and exchange."""


def test_compute_is_affine_where_sharpness_is_least() -> None:
    cells = [Cell(1, 1, batch) for batch in (16, 32, 48)]
    step = seconds(*cells, sharpness=-30.0, **BARE)
    assert step[2] - step[1] == pytest.approx(step[1] - step[0])
    assert step[0] > 16 * (step[1] - step[0]) / 16


def test_a_sharp_floor_is_flat_and_then_linear() -> None:
    cells = [Cell(1, 1, batch) for batch in (1, 2, 512, 1024)]
    step = seconds(*cells, sharpness=3.0, log_floor=0.0, **BARE)
    assert step[1] == pytest.approx(step[0], rel=1e-6)
    assert step[3] == pytest.approx(2 * step[2], rel=1e-6)
    assert step[0] == pytest.approx(0.1)


def test_one_worker_exchanges_nothing() -> None:
    few = seconds(Cell(1, 1, 64), log_exchange=-5.0, **BARE)
    many = seconds(Cell(1, 1, 64), log_exchange=5.0, **BARE)
    assert few == pytest.approx(many)


def test_without_overlap_the_exchange_is_added_and_with_it_hidden() -> None:
    cells = (Cell(1, 1, 64), Cell(2, 1, 64))
    alone, added = seconds(*cells, overlap=-30.0, log_exchange=-1.0, log_floor=-30.0, **BARE)
    assert added == pytest.approx(alone * (1 + np.exp(-1.0)))
    alone, hidden = seconds(*cells, overlap=30.0, log_exchange=-1.0, log_floor=-30.0, **BARE)
    assert hidden == pytest.approx(alone, rel=1e-4)


def test_a_ring_without_growth_passes_at_most_twice_the_bytes_of_two() -> None:
    cells = [Cell(k, 1, 64) for k in (2, 4, 1000)]
    ring = {"log_exchange": 20.0, "growth": 0.0, "ringness": 30.0}
    step = seconds(*cells, **ring, **BARE)
    assert step / step[0] == pytest.approx([1.0, 1.5, 1.998])
    grown = seconds(*cells, **{**ring, "growth": 0.5}, **BARE)
    assert grown / step == pytest.approx(np.sqrt([1.0, 2.0, 500.0]))


def test_between_nodes_the_ring_has_from_n_to_k_ends() -> None:
    cells = [Cell(2, 2, 64), Cell(16, 2, 64), Cell(16, 4, 64)]
    ring = {"log_exchange": 20.0, "growth_nodes": 0.0, "growth_share": 0.0, "ringness": 30.0}
    from_nodes = seconds(*cells, flatness=-30.0, **ring, **BARE)
    assert from_nodes / from_nodes[0] == pytest.approx([1.0, 1.0, 1.5])
    flat = seconds(*cells, flatness=30.0, **ring, **BARE)
    assert flat / flat[0] == pytest.approx([1.0, 1.875, 1.875])


def test_a_network_slower_than_the_node_costs_its_factor() -> None:
    cells = (Cell(2, 1, 64), Cell(2, 2, 64))
    within, between = seconds(*cells, log_exchange=20.0, log_network=1.5, **BARE)
    assert between / within == pytest.approx(np.exp(1.5))


def test_accumulated_passes_exchange_once() -> None:
    plain = {"overlap": -30.0, "log_exchange": 0.0, "log_floor": -30.0, **BARE}
    once, four, alone = seconds(Cell(2, 1, 64), Cell(2, 1, 64, 4), Cell(1, 1, 64), **plain)
    assert four == pytest.approx(once + 3 * alone)


def test_workers_of_a_node_share_what_feeds_them() -> None:
    fed = {"log_feed": 3.0, "log_exchange": -20.0}
    one, eight, spread = seconds(Cell(1, 1, 64), Cell(8, 1, 64), Cell(8, 8, 64), **fed)
    assert eight == pytest.approx(8 * one, rel=0.01)
    assert spread == pytest.approx(one, rel=0.01)


def test_rows_of_parameters_do_not_mix() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5, NUM_PARAMETERS))
    law = Law(SCALE, Layout.of([Cell(1, 1, 8), Cell(8, 2, 32, 2), Cell(64, 16, 512)]))
    together = law.step(rows)
    assert together.shape == (5, 3)
    for row, expected in zip(rows, together, strict=True):
        assert law.step(row[None])[0] == pytest.approx(expected)


def test_the_share_of_compute_is_the_slope_of_the_last_pass() -> None:
    cells = (Cell(1, 1, 64), Cell(8, 2, 64))
    law = Law(SCALE, Layout.of(cells))
    assert law.sites(units(**BARE)[0]).compute_share[0] == pytest.approx(1.0)
    rise = 1e-4
    # Compute and exchange grow together with log_pass; taken back from the exchange.
    more = seconds(*cells, log_pass=rise, log_exchange=-2.0 - rise, **BARE)
    slope = np.log(more / seconds(*cells, log_exchange=-2.0, **BARE)) / rise
    shares = law.sites(units(log_exchange=-2.0, **BARE)[0]).compute_share
    assert shares == pytest.approx(slope, rel=1e-3)
