"""Measured step times by cell (worker count, node count, batch size): read from a CSV file, and
pooled over repeats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from raybench.spec.documents import problem_of
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

Floats = npt.NDArray[np.float64]
NINE_OF_TEN = 1.645
"""Half-width of the central 90 % interval of a normal distribution, in standard deviations."""


class Predicted(NamedTuple):
    """A value with its 90 % interval. An end that is unbounded is 0 or infinite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, order=True)
class Cell:
    """Worker count, node count and batch size for which the time of an optimizer step is measured
    or predicted."""

    num_workers: int
    num_nodes: int
    batch_size_per_worker: int
    """Samples that a worker sees in one pass (forward and backward)."""
    accumulate: int = 1
    """Number of passes in an optimizer step; gradients are exchanged only in the last pass."""

    @property
    def samples(self) -> int:
        """Global batch size: samples per optimizer step over all workers."""
        return self.num_workers * self.batch_size_per_worker * self.accumulate


@dataclass(frozen=True)
class Layout:
    """Cells as arrays with one entry per cell, for vectorized arithmetic."""

    workers: Floats
    nodes: Floats
    batch: Floats
    accumulate: Floats

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "Layout":
        """Convert cells to arrays; the order is kept."""
        columns = [tuple(vars(cell).values()) for cell in cells]
        return cls(*np.array(columns, dtype=float).reshape(-1, 4).T)

    @property
    def workers_per_node(self) -> Floats:
        """Mean number of workers per node, shape [cells]."""
        return self.workers / self.nodes


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class SeriesKey(NamedTuple):
    """Key of a series, to which one throughput model is fitted; unknown fields are ""."""

    model: str = ""
    gpu_type: str = ""

    def __str__(self) -> str:
        return " on ".join(filter(None, self))


class CellRow(BaseModel):
    """Row of a CSV file that describes a cell (worker count, node count, batch size).

    Other columns are ignored.
    """

    model_config = ConfigDict(frozen=True)

    num_workers: Count
    num_nodes: Count
    batch_size_per_worker: Count
    accumulate: Count = 1

    @model_validator(mode="after")
    def _enough_workers(self) -> "CellRow":
        if self.num_nodes > self.num_workers:
            raise ValueError(
                f"num_nodes {self.num_nodes} is larger than num_workers {self.num_workers}; a "
                "node has at least one worker"
            )
        return self

    @property
    def cell(self) -> Cell:
        """The cell that the row describes."""
        return Cell(self.num_workers, self.num_nodes, self.batch_size_per_worker, self.accumulate)


class MeasuredRow(CellRow):
    """Row of a CSV file of measurements."""

    model: str = ""
    gpu_type: str = ""
    step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Seconds of an optimizer step."""


AnyRow = TypeVar("AnyRow", bound=CellRow)


def read_table(path: Path, needed: Sequence[str], names: Mapping[str, str]) -> pd.DataFrame:
    """Read a CSV file as a table of strings; missing values are NaN.

    Args:
        needed: Columns that the file must have.
        names: Names in the returned table, keyed by alternative names in the file.

    Raises:
        UserError: The file cannot be read, or a column is missing.
    """
    source = clean(str(path))
    try:
        table = pd.read_csv(
            path,
            dtype=str,
            index_col=False,
            encoding="utf-8-sig",
            keep_default_na=False,
            na_values=[""],
        )
    except OSError as error:
        raise UserError(
            f"{source}: cannot be read ({error.strerror}).", ErrorCode.NOT_FOUND
        ) from None
    except ValueError as error:
        reason = clean(str(error)).rstrip(".")
        raise UserError(
            f"{source}: is not CSV in UTF-8 ({reason}).", ErrorCode.INVALID_FILE
        ) from None
    table.columns = table.columns.str.strip()
    table = table.rename(
        columns={other_name: name for other_name, name in names.items() if name not in table}
    )
    if missing := [name for name in needed if name not in table]:
        raise UserError(
            f"{source}: has no column {', '.join(missing)}; it needs {', '.join(needed)}.",
            ErrorCode.INVALID_FILE,
        )
    return table


def read_rows(path: Path, model: type[AnyRow]) -> list[AnyRow]:
    """Read the rows of a CSV file, and check them against a model.

    Args:
        model: Class of the rows.

    Raises:
        UserError: The file cannot be read, a column is missing or a value is invalid.
    """
    source = clean(str(path))
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    table = read_table(path, needed, {})
    if table.empty:
        raise UserError(f"{source}: has no rows below its header.", ErrorCode.TOO_FEW)
    rows = []
    for number, row in enumerate(table.to_dict("records"), 2):
        try:
            rows.append(
                model.model_validate({k: field for k, field in row.items() if pd.notna(field)})
            )
        except ValidationError as error:
            detail = error.errors()[0]
            column = "".join(f"{name} {row.get(name)!r:.40}: " for name in detail["loc"])
            raise UserError(
                f"{source}, row {number}: {column}{problem_of(detail)}.", ErrorCode.INVALID_VALUE
            ) from None
    return rows


MeasuredSteps = Sequence[tuple[Cell, float]]
"""Pairs (cell, measured seconds of an optimizer step); pairs with the same cell are repeats."""


Measurements = dict[SeriesKey, list[tuple[Cell, float]]]
"""Measured step times, keyed by series."""


def read_measurements(path: Path) -> Measurements:
    """Read measurements from a CSV file with rows as in `MeasuredRow`; UserError if it is
    invalid."""
    rows = read_rows(path, MeasuredRow)
    if len(rows) == 1:
        raise UserError(
            f"{clean(str(path))}: has one row, which does not show how training scales; add "
            "another number of workers or another batch size.",
            ErrorCode.TOO_FEW,
        )
    measured: Measurements = {}
    for row in rows:
        key = SeriesKey(row.model, row.gpu_type)
        measured.setdefault(key, []).append((row.cell, row.step_s))
    return measured


PRIOR_NOISE = 0.03
"""Prior relative standard deviation between repeats; the prior has the weight of PRIOR_REPEATS
repeats."""
PRIOR_REPEATS = 4
STALL = 4.0
"""Deviations of repeats from the median of their cell are clipped to this multiple of the typical
deviation, so that a stall of hours does not raise the estimated noise of all cells."""


@dataclass(frozen=True)
class Observed:
    """Measured step times by cell, with the repeats of each cell pooled."""

    cells: tuple[Cell, ...]
    log_seconds: Floats
    """Logarithm of the median seconds of a step, shape [cells]."""
    repeats: Floats
    noise: float
    """Variance of log seconds between repeats of a cell. It is 0 if no cell was repeated; the noise
    is then part of the residuals of the law (`throughput`)."""

    @classmethod
    def of(cls, rows: MeasuredSteps) -> "Observed":
        """Pool repeats of a cell by the median of their step times, which is robust to stalls."""
        logs: dict[Cell, list[float]] = {}
        for cell, seconds in rows:
            logs.setdefault(cell, []).append(float(np.log(seconds)))
        cells = tuple(sorted(logs))
        medians = np.array([np.median(logs[cell]) for cell in cells])
        repeats = np.array([len(logs[cell]) for cell in cells], dtype=float)
        num_repeats = repeats.sum() - len(cells)
        if not num_repeats:
            return cls(cells, medians, repeats, 0.0)
        deviations = np.abs(
            np.concatenate([logs[cell] for cell in cells]) - np.repeat(medians, repeats.astype(int))
        )
        bound = STALL * float(np.median(deviations[deviations > 0])) if deviations.any() else 0.0
        squares = np.sum(np.minimum(deviations, bound) ** 2)
        noise = (squares + PRIOR_REPEATS * PRIOR_NOISE**2) / (num_repeats + PRIOR_REPEATS)
        return cls(cells, medians, repeats, float(noise))

    def without(self, index: int) -> "Observed":
        """Return the measurements of all cells except the one at `index`."""
        return self.chosen(np.arange(len(self.cells)) != index)

    def chosen(self, which: npt.NDArray[np.bool_]) -> "Observed":
        """Return the measurements of the cells for which `which` is True."""
        cells = tuple(cell for cell, is_in in zip(self.cells, which, strict=True) if is_in)
        return Observed(cells, self.log_seconds[which], self.repeats[which], self.noise)
