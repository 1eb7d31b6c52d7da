"""Throughput fits to simulated clusters: accuracy, interval coverage and robustness; and the cells
that narrow the least certain prediction, if they are measured next."""

import math

import numpy as np
import pytest

from raybench.scaling.averaged import (
    NUM_STEPS,
    StepPrediction,
    ThroughputModel,
    least_sure,
    next_cells,
)
from raybench.scaling.fits import leave_one_out
from raybench.scaling.measurements import Cell, Observed
from tests.test_json import run_json

pytestmark = pytest.mark.usefixtures("without_pollux")

BATCHES = (16, 32, 64, 128, 256)
SMALL = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
LARGE = ((16, 4), (64, 16))

Rows = list[tuple[Cell, float]]


def true_step(cell: Cell) -> float:
    """Return seconds of a step with a partly hidden ring all-reduce of a typical cluster."""
    k, batch = cell.num_workers, cell.batch_size_per_worker
    compute = 0.02 + 0.001 * batch
    exchange = 0.0
    if k > 1:
        bandwidth, latency = (0.01, 1e-5) if cell.num_nodes == 1 else (0.03, 1e-4)
        exchange = 2 * (k - 1) / k * bandwidth + 2 * (k - 1) * latency
    last = math.hypot(compute, exchange)
    return (cell.accumulate - 1) * compute + last


def cells_of(placements: tuple[tuple[int, int], ...], batches=BATCHES) -> list[Cell]:
    return [Cell(k, n, batch) for k, n in placements for batch in batches]


def measured(cells: list[Cell], *, noise: float = 0.05, seed: int = 0, repeats: int = 1) -> Rows:
    rng = np.random.default_rng(seed)
    return [
        (cell, true_step(cell) * float(np.exp(noise * rng.standard_normal())))
        for cell in cells
        for _ in range(repeats)
    ]


def fit(rows: Rows) -> ThroughputModel:
    return ThroughputModel.fit(Observed.of(rows))


def error(prediction: StepPrediction) -> float:
    return abs(prediction.step_s / true_step(prediction.cell) - 1)


def width(prediction: StepPrediction) -> float:
    return math.log(prediction.high_s / prediction.low_s)


def test_up_to_four_workers_predict_16_and_64_within_ten_percent():
    """With noise of 5 % and three repeats per cell."""
    errors, inside = [], []
    for seed in range(3):
        model = fit(measured(cells_of(SMALL), seed=seed, repeats=3))
        for prediction in model.predict(cells_of(LARGE)):
            errors.append(error(prediction))
            inside.append(prediction.low_s <= true_step(prediction.cell) <= prediction.high_s)
    assert np.median(errors) < 0.05
    assert np.mean(np.array(errors) < 0.1) >= 0.9
    assert np.mean(inside) >= 0.9


def test_the_interval_covers_nine_of_ten_new_measurements():
    inside = []
    for seed in range(4):
        model = fit(measured(cells_of(SMALL), seed=seed, noise=0.08))
        later = measured(cells_of(SMALL, (24, 64, 200)), seed=100 + seed, noise=0.08)
        predictions = model.predict([cell for cell, _ in later])
        inside += [
            prediction.low_s <= step <= prediction.high_s
            for prediction, (_, step) in zip(predictions, later, strict=True)
        ]
    assert 0.84 <= np.mean(inside) <= 0.97


def test_the_interval_grows_with_the_distance():
    model = fit(measured(cells_of(SMALL)))
    placements = ((4, 1), (8, 2), (16, 4), (64, 16), (256, 64))
    widths = [width(prediction) for prediction in model.predict(cells_of(placements, (64,)))]
    assert widths == sorted(widths)
    assert widths[-1] > 2 * widths[0]


def test_a_stalled_repeat_changes_nothing():
    """A stall of hours in one of three repeats changes neither the step nor its interval."""
    rows = measured(cells_of(SMALL), repeats=3)
    stalled = [(cell, step * (10_000 if i == 7 else 1)) for i, (cell, step) in enumerate(rows)]
    cells = [Cell(16, 4, 64)]
    plain, with_stall = fit(rows).predict(cells)[0], fit(stalled).predict(cells)[0]
    assert with_stall.step_s == pytest.approx(plain.step_s, rel=0.05)
    assert width(with_stall) < 1.3 * width(plain)


def test_the_unit_of_time_does_not_matter():
    rows = measured(cells_of(SMALL))
    cells = [Cell(16, 4, 64)]
    seconds = fit(rows).predict(cells)[0]
    hours = fit([(cell, step / 3600) for cell, step in rows]).predict(cells)[0]
    assert hours.step_s * 3600 == pytest.approx(seconds.step_s, rel=1e-6)
    assert hours.high_s * 3600 == pytest.approx(seconds.high_s, rel=1e-6)


def test_accumulation_is_modeled():
    cells = [
        Cell(k, 1, batch, passes) for k in (1, 2, 4) for batch in (16, 64, 256) for passes in (1, 4)
    ]
    new_cells = [Cell(4, 1, 32, 2), Cell(4, 1, 128, 8)]
    for prediction in fit(measured(cells, noise=0.02)).predict(new_cells):
        assert error(prediction) < 0.1, prediction


@pytest.mark.parametrize(
    "cells", [[Cell(1, 1, 64)], [Cell(1, 1, 64), Cell(2, 1, 64)], [Cell(2, 2, 1, 16)]]
)
def test_few_cells_still_predict(cells):
    new_cells = [Cell(1, 1, 64), Cell(64, 8, 64), Cell(64, 64, 1)]
    for prediction in fit(measured(cells)).predict(new_cells):
        assert 0 < prediction.low_s < prediction.step_s < prediction.high_s < math.inf


def test_efficiency_is_against_one_worker_of_the_same_batch():
    model = fit(measured(cells_of(SMALL), noise=0.01))
    cells = [Cell(1, 1, 64), Cell(4, 2, 64), Cell(8, 2, 32)]
    for cell, efficiency in zip(cells, model.efficiency(cells), strict=True):
        assert efficiency == pytest.approx(
            true_step(Cell(1, 1, cell.batch_size_per_worker)) / true_step(cell), rel=0.1
        )
    samples = model.predict([Cell(4, 2, 64, 3)])[0]
    assert samples.samples_per_s == pytest.approx(4 * 64 * 3 / samples.step_s)


def test_an_outlying_cell_changes_no_other_prediction():
    """One cell is measured five times too slow."""
    rows = measured(cells_of(SMALL), noise=0.02)
    with_outlier = [(cell, step * (5 if i == 12 else 1)) for i, (cell, step) in enumerate(rows)]
    model = fit(with_outlier)
    others = [cell for i, (cell, _) in enumerate(rows) if i != 12]
    assert np.median([error(prediction) for prediction in model.predict(others)]) < 0.05
    left_out = {left.predicted.cell: left for left in leave_one_out(model)}
    outlier = left_out[rows[12][0]]
    assert outlier.error == pytest.approx(1 / 5 - 1, abs=0.05)
    assert not outlier.is_inside
    assert leave_one_out(fit(rows[:1])) == []


ONE_HOST = [Cell(k, 1, batch) for k in (1, 2, 4) for batch in (16, 64)]
ASKED = Cell(64, 16, 16)


def exchanging_step(cell: Cell) -> float:
    """Return seconds of a step with a slow exchange, three times slower between hosts."""
    k = cell.num_workers
    wire = 0.0 if k == 1 else 0.03 * (3 if cell.num_nodes > 1 else 1) * 2 * (k - 1) / k
    return math.hypot(0.01 + cell.batch_size_per_worker / 1000, wire)


def fit_exactly(*cells: Cell) -> ThroughputModel:
    return fit([(cell, exchanging_step(cell)) for cell in cells])


def test_an_unmeasured_network_is_measured_first():
    model = fit_exactly(*ONE_HOST)
    first, second = next_cells(model, ASKED)
    assert first.cell.num_nodes > 1
    assert first.cell not in ONE_HOST
    assert second.cell != first.cell
    assert second.spread <= first.spread < 0.6 * model.predict([ASKED])[0].spread


def test_a_suggested_cell_narrows_the_interval_as_predicted():
    first, _ = next_cells(fit_exactly(*ONE_HOST), ASKED)
    (narrowed,) = fit_exactly(*ONE_HOST, first.cell).predict([ASKED])
    assert 0.5 * first.spread < narrowed.spread < 2 * first.spread


def test_the_least_certain_requested_cell_is_found():
    model = fit_exactly(*ONE_HOST)
    assert least_sure(model, [Cell(8, 2, 64), ASKED, Cell(4, 1, 32)]) == ASKED


def test_suggested_cells_are_printed_only_with_predictions(tmp_path, capsys):
    file = tmp_path / "steps.csv"
    head = "num_workers,num_nodes,batch_size_per_worker,step_s"
    rows = [f"{c.num_workers},1,{c.batch_size_per_worker},{exchanging_step(c)}" for c in ONE_HOST]
    file.write_text("\n".join([head, *rows]) + "\n")
    document = run_json(capsys, "scale", "--fit", file, "--predict", "32")
    first, second = document["details"]["measure_next"]
    assert first["for"]["num_workers"] == 32
    assert first["num_nodes"] > 1
    assert first["steps"] == NUM_STEPS
    assert second["spread_after"] <= first["spread_after"]
    names = "32 workers on 8", f"{first['num_workers']} workers on {first['num_nodes']}"
    assert any(all(name in line for name in names) for line in document["answer"])
    assert run_json(capsys, "scale", "--fit", file)["details"]["measure_next"] == []
