"""The body of `raybench scale --fit`: measurements in, models and predictions out, and how far a
model is off where it did not see the cell that it predicts.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.scaling.asked import cells_asked
from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import Group
from raybench.scaling.fit import Prediction, ThroughputModel
from raybench.scaling.measurements import Measurements, read_measurements
from raybench.scaling.observed import Observed
from raybench.scaling.predictions import prediction_table

MOST = 40
"""Cells that are left out, one after the other: enough to tell the median error."""


@dataclass(frozen=True)
class LeftOut:
    """A measured cell, predicted from all others."""

    measured_s: float
    """Median of its repeats."""
    predicted: Prediction

    @property
    def error(self) -> float:
        """Relative: 0.1 is predicted 10 % too slow."""
        return self.predicted.step_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


def leave_one_out(model: ThroughputModel) -> list[LeftOut]:
    """Return measured cells as the others predict them; nothing for a single one.

    Of more than MOST cells, so many are left out, evenly from the first to the last: each of them
    is a fit.
    """
    observed = model.observed
    number = len(observed.cells)
    if number < 2:
        return []
    seconds = np.exp(observed.log_seconds)
    chosen = np.unique(np.linspace(0, number - 1, min(number, MOST)).round().astype(int))
    return [
        LeftOut(float(seconds[i]), model.without(i).predict([observed.cells[i]])[0])
        for i in map(int, chosen)
    ]


def median_error(cells: list[LeftOut]) -> float:
    """Return the median of the relative errors' sizes."""
    return float(np.median([abs(cell.error) for cell in cells]))


@dataclass(frozen=True)
class FittedGroup:
    """One pair of a model and a GPU type: its fit, how good it is, what was asked."""

    group: Group
    num_rows: int
    model: ThroughputModel
    left_out: list[LeftOut]
    asked: list[Cell]

    @property
    def predictions(self) -> pd.DataFrame:
        """The table of what was asked; see `prediction_table`."""
        return prediction_table(self.model, self.asked, self.group)

    def words(self) -> list[str]:
        """Return what to know of the fit, in sentences."""
        cells = self.model.observed.cells
        workers = sorted({cell.num_workers for cell in cells})
        nodes = max(cell.num_nodes for cell in cells)
        lines = [
            f"{self.num_rows} rows, {len(cells)} cells: {_numbers(workers)} workers, "
            f"{f'up to {nodes} nodes' if nodes > 1 else 'one node'}.",
            _quality(self.left_out, len(cells)),
        ]
        if any(cell.num_workers > 1 for cell in self.asked) and workers == [1]:
            lines.append(
                "Never measured on more than one worker: what the exchange costs is a guess from "
                "what is usual, and the intervals are as wide."
            )
        elif any(cell.num_nodes > 1 for cell in self.asked) and nodes == 1:
            lines.append(
                "Never measured on more than one node: what the network costs is a guess from what "
                "is usual, and the intervals are as wide; a run of two workers on two nodes helps."
            )
        return lines


def fit_groups(file: Path, predict: str | None) -> Iterator[FittedGroup]:
    """Fit each group of a file's measurements, one after the other.

    Mistakes in the file or in what is asked are raised before the first fit.
    """
    measured = read_measurements(file)
    asked = cells_asked(predict, measured) if predict is not None else {}
    return fits(measured, asked)


def fits(measured: Measurements, asked: dict[Group, list[Cell]]) -> Iterator[FittedGroup]:
    """Fit each group of measurements, with what is asked of it."""
    for group, rows in measured.groups.items():
        model = ThroughputModel.fit(Observed.of(rows))
        yield FittedGroup(group, len(rows), model, leave_one_out(model), asked.get(group, []))


def check_out(out: Path, file: Path) -> None:
    """Refuse a place for the predictions where no file can be written, before the work."""
    if out.resolve() == file.resolve():
        raise UserError(f"--out {_shown(out)}: is the file of measurements; name another one.")
    if out.is_dir():
        raise UserError(f"--out {_shown(out)}: is a folder; name a file in it.")
    if not out.parent.is_dir():
        raise UserError(f"--out {_shown(out)}: there is no folder {_shown(out.parent)}; make it.")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {_shown(out)}: cannot be written there; name another place.")


def write_predictions(out: Path, tables: Iterable[pd.DataFrame]) -> None:
    """Write a CSV file of all groups' predictions, whole or not at all."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    pd.concat(list(tables)).to_csv(partial, index=False, float_format="%.6g")
    partial.replace(out)


def _quality(left_out: list[LeftOut], num_cells: int) -> str:
    if not left_out:
        return "Leave-one-out error: none, there is one cell; the prediction is what is usual."
    worst = max(left_out, key=lambda one: abs(one.error))
    cell = worst.predicted.cell
    inside = np.mean([one.is_inside for one in left_out])
    of = f" ({len(left_out)} of the cells)" if len(left_out) < num_cells else ""
    return (
        f"Leave-one-out error{of}: median {median_error(left_out):.1%}, worst {worst.error:+.1%} "
        f"({cell.num_workers} workers, batch {cell.batch_size_per_worker} a worker); "
        f"{inside:.0%} of the measured steps in their 90 % interval."
    )


def _numbers(values: list[int]) -> str:
    shown = values if len(values) <= 8 else [*values[:3], "...", values[-1]]
    return ", ".join(map(str, shown))


def _shown(path: Path) -> str:
    return clean(str(path))
