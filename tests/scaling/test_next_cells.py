"""Suggested measurements: cells that narrow the least certain prediction."""

import json
import math
from pathlib import Path

import pytest

from raybench.commands import cli
from raybench.scaling.averaged import NUM_STEPS, ThroughputModel, least_sure, next_cells
from raybench.scaling.measurements import Cell, Observed

pytestmark = pytest.mark.usefixtures("without_pollux")


def step(cell: Cell) -> float:
    """Return seconds of a step; communication between hosts is three times slower."""
    k = cell.num_workers
    wire = 0.0 if k == 1 else 0.03 * (3 if cell.num_nodes > 1 else 1) * 2 * (k - 1) / k
    return math.hypot(0.01 + cell.batch_size_per_worker / 1000, wire)


def fit(*cells: Cell) -> ThroughputModel:
    return ThroughputModel.fit(Observed.of([(cell, step(cell)) for cell in cells]))


ONE_HOST = [Cell(k, 1, batch) for k in (1, 2, 4) for batch in (16, 64)]
ASKED = Cell(64, 16, 16)


def half(model: ThroughputModel) -> float:
    (prediction,) = model.predict([ASKED])
    return math.log(prediction.high_s / prediction.low_s) / 2


def test_an_unmeasured_network_is_measured_first() -> None:
    model = fit(*ONE_HOST)
    first, second = next_cells(model, ASKED)
    assert first.cell.num_nodes > 1
    assert first.cell not in ONE_HOST
    assert second.cell != first.cell
    assert second.spread <= first.spread < 0.6 * math.expm1(half(model))


def test_a_suggested_cell_narrows_the_interval_as_predicted() -> None:
    first, _ = next_cells(fit(*ONE_HOST), ASKED)
    spread = math.expm1(half(fit(*ONE_HOST, first.cell)))
    assert 0.5 * first.spread < spread < 2 * first.spread


def test_the_least_certain_requested_cell_is_found() -> None:
    model = fit(*ONE_HOST)
    assert least_sure(model, [Cell(8, 2, 64), ASKED, Cell(4, 1, 32)]) == ASKED


def test_fit_prints_suggested_cells_and_json_contains_them(tmp_path: Path, capsys) -> None:
    file = tmp_path / "steps.csv"
    head = "num_workers,num_nodes,batch_size_per_worker,step_s"
    rows = [f"{c.num_workers},1,{c.batch_size_per_worker},{step(c)}" for c in ONE_HOST]
    file.write_text("\n".join([head, *rows]) + "\n")
    call = ["scale", "--fit", str(file), "--predict", "32"]
    assert cli.main([*call, "--json"]) == cli.DONE
    document = json.loads(capsys.readouterr().out)
    first, second = document["details"]["measure_next"]
    assert first["for"]["num_workers"] == 32
    assert first["num_nodes"] > 1
    assert first["steps"] == NUM_STEPS
    assert second["spread_after"] <= first["spread_after"]
    names = "32 workers on 8", f"{first['num_workers']} workers on {first['num_nodes']}"
    assert any(all(name in line for name in names) for line in document["answer"])
    assert cli.main([*call[:3], "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["details"]["measure_next"] == []
