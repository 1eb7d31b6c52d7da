"""Predicted throughput as tables: for a CSV file, for people, and for a picture."""

from collections.abc import Sequence

import pandas as pd

from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import Group
from raybench.scaling.fit import ThroughputModel


def prediction_table(model: ThroughputModel, cells: Sequence[Cell], group: Group) -> pd.DataFrame:
    """Return a row for each cell.

    | column | holds |
    |---|---|
    | model, gpu_type | the pair, "" where the measurements do not name it |
    | num_workers, num_nodes, batch_size_per_worker, accumulate | the cell |
    | step_s | predicted seconds of an optimizer step |
    | low_s, high_s | nine of ten measurements are between them |
    | samples_per_s | of all workers together |
    | efficiency | samples/s a worker over those of one worker with the same batch, predicted too |
    | extrapolated | whether more workers, more nodes or another batch than any measured |
    """
    rows = [
        {
            "model": group[0],
            "gpu_type": group[1],
            **vars(found.cell),
            "step_s": found.step_s,
            "low_s": found.low_s,
            "high_s": found.high_s,
            "samples_per_s": found.samples_per_s,
            "efficiency": efficiency,
            "extrapolated": is_beyond(model, found.cell),
        }
        for found, efficiency in zip(model.predict(cells), model.efficiency(cells), strict=True)
    ]
    return pd.DataFrame(rows)


def is_beyond(model: ThroughputModel, cell: Cell) -> bool:
    """Say whether a cell is outside of what was measured."""
    seen = model.observed.cells
    batches = [one.batch_size_per_worker for one in seen]
    return (
        cell.num_workers > max(one.num_workers for one in seen)
        or cell.num_nodes > max(one.num_nodes for one in seen)
        or not min(batches) <= cell.batch_size_per_worker <= max(batches)
    )
