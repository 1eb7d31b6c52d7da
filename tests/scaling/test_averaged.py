"""Laws averaged by their errors on the largest cells, and the coverage of intervals beyond them."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from raybench.scaling import averaged
from raybench.scaling.averaged import HeldOutErrors, ThroughputModel, pollux
from raybench.scaling.measurements import Cell, Observed


def affine(cell: Cell) -> float:
    """Return seconds of a step by Ernest's law, which ours does not contain."""
    return 0.05 + 0.001 * cell.batch_size_per_worker + 0.02 * cell.num_workers


def cells(*workers: int) -> list[Cell]:
    return [Cell(k, math.ceil(k / 8), b) for k in workers for b in (16, 64, 256)]


@cache
def fit(*workers: int) -> ThroughputModel:
    return ThroughputModel.fit(Observed.of([(cell, affine(cell)) for cell in cells(*workers)]))


def errors(law: ThroughputModel, new_cells: list[Cell]) -> list[float]:
    return [
        abs(prediction.step_s / affine(prediction.cell) - 1)
        for prediction in law.predict(new_cells)
    ]


def test_a_law_that_predicts_the_largest_cells_well_moves_the_prediction():
    model = fit(1, 2, 4, 8, 16)
    _, ernests, _ = model.held_out.weights(averaged.TRUSTED)
    assert ernests > 0.5
    none = HeldOutErrors(np.zeros((3, 0)), np.zeros(0))
    new_cells = cells(32)
    alone = np.median(errors(replace(model, held_out=none), new_cells))
    assert np.median(errors(model, new_cells)) < 0.7 * alone


def test_other_laws_move_predictions_beyond_the_measured_cells_by_a_limited_amount(monkeypatch):
    """Our law keeps the residuals of measured cells, which the others do not."""
    model, measured, beyond = fit(1, 2, 4, 8, 16), cells(1, 2, 4, 8, 16), cells(64)
    before = model.predict(measured)
    monkeypatch.setattr(
        averaged, "PUBLISHED_LAWS", (lambda rows, some: np.full(len(some), 1e6),) * 2
    )
    assert model.predict(measured) == before
    _, middle, _ = model.law.quantiles(beyond)
    moved = np.log([prediction.step_s for prediction in model.predict(beyond)]) - middle
    assert (moved > 0).all()
    assert (moved <= averaged.LARGEST_MOVE).all()


def test_intervals_are_wider_after_held_out_misses():
    widths = []
    for distance, widening in ((0.0, averaged.LEAST_WIDTH), (3.0, 3.32)):
        held_out = HeldOutErrors(np.zeros((3, 6)), np.full(6, distance))
        assert held_out.widening == pytest.approx(widening, abs=0.01)
        predictions = replace(fit(1, 2, 4, 8), held_out=held_out).predict(cells(4, 16))
        widths.append(np.log([each.high_s / each.low_s for each in predictions]))
    good, bad = widths
    assert bad[:3] == pytest.approx(good[:3]), "intervals of measured cells stay equal"
    assert min(bad[3:] / good[3:]) > 2


def test_pollux_finds_a_law_of_its_form():
    def law(cell: Cell) -> float:
        compute = 0.02 + 0.001 * cell.batch_size_per_worker
        if cell.num_workers == 1:
            return cell.accumulate * compute
        wire = 0.03 + 0.002 * (cell.num_workers - 2)
        wire *= 2 if cell.num_nodes > 1 else 1
        return (cell.accumulate - 1) * compute + math.hypot(compute, wire)

    rows = [(cell, law(cell)) for cell in cells(1, 2, 4, 8, 16)]
    new_cells = [*cells(32), Cell(16, 2, 64, 4)]
    assert pollux(rows, new_cells) == pytest.approx([law(cell) for cell in new_cells], rel=0.15)
