"""Measured steps: cells, the CSV file that they are read from, and repeats taken together."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from raybench.spec.documents import problem_of
from raybench.spec.errors import UserError
from raybench.spec.text import clean

Floats = npt.NDArray[np.float64]
NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution on each side of nine tenths of it."""


@dataclass(frozen=True, order=True)
class Cell:
    """Cell: where and on what an optimizer step runs."""

    num_workers: int
    num_nodes: int
    batch_size_per_worker: int
    """Samples that a worker sees in one pass (forward and backward)."""
    accumulate: int = 1
    """Passes of an optimizer step; gradients are exchanged in the last one alone."""

    @property
    def samples(self) -> int:
        """Samples of an optimizer step, over all workers."""
        return self.num_workers * self.batch_size_per_worker * self.accumulate


@dataclass(frozen=True)
class Layout:
    """Cells as arrays of the same length, for arithmetic on all of them at once."""

    workers: Floats
    nodes: Floats
    batch: Floats
    accumulate: Floats

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "Layout":
        """Return the arrays of some cells, in their order."""
        columns = [tuple(vars(cell).values()) for cell in cells]
        return cls(*np.array(columns, dtype=float).reshape(-1, 4).T)

    @property
    def workers_per_node(self) -> Floats:
        """Workers on the average node."""
        return self.workers / self.nodes


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Group = tuple[str, str]
"""Model and GPU type, each "" where the file has no such column: one fit for each pair."""


class Asked(BaseModel):
    """A row of a file of cells; columns that it does not have are left alone."""

    model_config = ConfigDict(frozen=True)

    num_workers: Count
    num_nodes: Count
    batch_size_per_worker: Count
    accumulate: Count = 1
    model: str = ""
    gpu_type: str = ""

    @model_validator(mode="after")
    def _enough_workers(self) -> "Asked":
        if self.num_nodes > self.num_workers:
            raise ValueError(
                f"num_nodes {self.num_nodes} is more than its num_workers, {self.num_workers}; a "
                "node has one at least"
            )
        return self

    @property
    def group(self) -> Group:
        """The pair it belongs to."""
        return self.model, self.gpu_type

    @property
    def cell(self) -> Cell:
        """Cell in which the row's step runs."""
        return Cell(self.num_workers, self.num_nodes, self.batch_size_per_worker, self.accumulate)


class MeasuredRow(Asked):
    """A row of a file of measurements."""

    step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Seconds of an optimizer step."""


Row = TypeVar("Row", bound=Asked)


def read_rows(path: Path, model: type[Row]) -> dict[int, Row]:
    """Return a CSV file's rows by their numbers, as a spreadsheet has them: the head is row 1.

    UserError where the file cannot be read, a column is missing or a value is none; blank lines
    and values of columns that may be left out are no mistakes.
    """
    source = clean(str(path))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, line) for line in reader if any(map(str.strip, line))]
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise UserError(f"{source}: is not a text file in UTF-8; save it as CSV UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"{source}: is not valid CSV ({error}).") from None
    head = [name.strip() for name in lines[0][1]] if lines else []
    needed = [name for name, one in model.model_fields.items() if one.is_required()]
    missing = [name for name in needed if head.count(name) != 1]
    if missing:
        raise UserError(
            f"{source}: its first line must name {', '.join(needed)}, each once and with commas "
            f"between them; {missing[0]} stands there {head.count(missing[0])} times."
        )
    if len(lines) < 2:
        raise UserError(f"{source}: has no rows below the names of its columns.")
    rows = {}
    for number, line in lines[1:]:
        where = f"{source}, row {number}"
        if len(line) != len(head):
            raise UserError(
                f"{where}: has {len(line)} values, the first line names {len(head)} columns."
            )
        texts = {name: one.strip() for name, one in zip(head, line, strict=True) if one.strip()}
        try:
            rows[number] = model.model_validate(texts)
        except ValidationError as error:
            detail = error.errors()[0]
            column = "".join(
                f"{name} {texts.get(str(name), '')[:40]!r}: " for name in detail["loc"]
            )
            raise UserError(f"{where}: {column}{problem_of(detail)}.") from None
    return rows


@dataclass(frozen=True)
class Measurements:
    """Measurements of each pair of a model and a GPU type, in the file's order."""

    source: str
    groups: dict[Group, list[tuple[Cell, float]]] = field(default_factory=dict)
    """Cells and the seconds of a step in them; a cell that comes again is a repeat."""


def read_measurements(path: Path) -> Measurements:
    """Return the measurements of a CSV file (`MeasuredRow`); UserError where a value is none."""
    rows = read_rows(path, MeasuredRow)
    measured = Measurements(clean(str(path)))
    if len(rows) == 1:
        raise UserError(
            f"{measured.source}: has one row, which says nothing of how a training scales; measure "
            "another number of workers or another batch size, too."
        )
    for row in rows.values():
        measured.groups.setdefault(row.group, []).append((row.cell, row.step_s))
    return measured


def name_of(group: Group) -> str:
    """Return a pair's name for people; "" for a file without such columns."""
    return " on ".join(part for part in group if part)


USUAL_NOISE = 0.03
"""Relative spread from repeat to repeat that is expected, and how many repeats that weighs."""
USUAL_WEIGHT = 4
STALL = 4.0
"""A repeat further from its cell's median than so many times the usual counts as that far: a stall
of hours is no sign that all are noisy."""


@dataclass(frozen=True)
class Observed:
    """Measured throughput."""

    cells: tuple[Cell, ...]
    log_seconds: Floats
    """Logarithm of each cell's median step."""
    repeats: Floats
    noise: float
    """Variance of a measurement's logarithm from repeat to repeat; 0 where none was repeated:
    then it is part of what the law leaves over."""

    @classmethod
    def of(cls, rows: Iterable[tuple[Cell, float]]) -> "Observed":
        """Return measurements (cell, seconds of a step) by cell; a median bears a stall."""
        logs: dict[Cell, list[float]] = {}
        for cell, seconds in rows:
            logs.setdefault(cell, []).append(float(np.log(seconds)))
        cells = tuple(sorted(logs))
        medians = np.array([np.median(logs[cell]) for cell in cells])
        repeats = np.array([len(logs[cell]) for cell in cells], dtype=float)
        more = repeats.sum() - len(cells)
        if not more:
            return cls(cells, medians, repeats, 0.0)
        apart = np.abs(
            np.concatenate([logs[cell] for cell in cells]) - np.repeat(medians, repeats.astype(int))
        )
        bound = STALL * float(np.median(apart[apart > 0])) if apart.any() else 0.0
        squares = np.sum(np.minimum(apart, bound) ** 2)
        noise = (squares + USUAL_WEIGHT * USUAL_NOISE**2) / (more + USUAL_WEIGHT)
        return cls(cells, medians, repeats, float(noise))

    def without(self, index: int) -> "Observed":
        """Return the measurements without those of a cell."""
        return self.chosen(np.arange(len(self.cells)) != index)

    def chosen(self, which: npt.NDArray[np.bool_]) -> "Observed":
        """Return the measurements of some cells."""
        cells = tuple(cell for cell, is_in in zip(self.cells, which, strict=True) if is_in)
        return Observed(cells, self.log_seconds[which], self.repeats[which], self.noise)
