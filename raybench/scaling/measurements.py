"""Measured steps: cells, the CSV file that they are read from, and repeats taken together."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raybench.spec.errors import UserError
from raybench.spec.text import clean

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Cell:
    """Where and on what an optimizer step runs."""

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

    @property
    def one_worker(self) -> "Cell":
        """The cell of one worker that sees as many samples in a pass."""
        return Cell(1, 1, self.batch_size_per_worker, self.accumulate)


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
        columns = [
            (cell.num_workers, cell.num_nodes, cell.batch_size_per_worker, cell.accumulate)
            for cell in cells
        ]
        return cls(*np.array(columns, dtype=float).reshape(-1, 4).T)

    @property
    def workers_per_node(self) -> Floats:
        """Workers on the average node."""
        return self.workers / self.nodes


CELL_COLUMNS = ("num_workers", "num_nodes", "batch_size_per_worker")
GROUP_COLUMNS = ("model", "gpu_type")
MAX_BYTES = 100_000_000
MAX_COUNT = 1_000_000_000

Group = tuple[str, str]
"""Model and GPU type, each "" where the file has no such column: one fit for each pair."""


@dataclass(frozen=True)
class Row:
    """A row of the file, numbered as a spreadsheet does: the head is row 1."""

    source: str
    number: int
    texts: dict[str, str]

    @property
    def group(self) -> Group:
        """The pair it belongs to."""
        model, gpu_type = (self.texts.get(column, "") for column in GROUP_COLUMNS)
        return model, gpu_type

    @property
    def cell(self) -> Cell:
        """Where the row's step runs."""
        workers, nodes, batch = (self._count(column) for column in CELL_COLUMNS)
        if nodes > workers:
            raise self.wrong(
                "num_nodes", f"is more than its num_workers, {workers}; a node has one at least"
            )
        return Cell(workers, nodes, batch, self._count("accumulate", missing="1"))

    def seconds(self, column: str) -> float:
        """Return a number of seconds, above 0."""
        value = self._number(column, self.texts[column])
        if not value > 0:
            raise self.wrong(column, "must be seconds, more than 0")
        return value

    def wrong(self, column: str, problem: str) -> UserError:
        """Return the error of a value."""
        value = clean(self.texts.get(column, ""))[:40]
        return UserError(f"{self.source}, row {self.number}: {column} {value!r} {problem}.")

    def _count(self, column: str, *, missing: str = "") -> int:
        value = self._number(column, self.texts.get(column) or missing)
        if not 1 <= value <= MAX_COUNT or value != int(value):
            raise self.wrong(column, f"must be a whole number, 1 to {MAX_COUNT:,}")
        return int(value)

    def _number(self, column: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, "must be a number") from None
        if not math.isfinite(value):
            raise self.wrong(column, "must be a number that is finite")
        return value


def read_rows(path: Path, *, columns: tuple[str, ...]) -> list[Row]:
    """Return a CSV file's rows, one at least.

    Raises UserError where the file cannot be read, is empty, lacks one of `columns`, or has a row
    of another length than its head. Columns that nobody asked for are left alone.
    """
    source = clean(str(path))
    lines = _lines(path, source)
    head = [name.strip() for name in lines[0][1]] if lines else []
    if not head:
        raise UserError(f"{source}: is empty; its first line must name columns: {_list(columns)}.")
    missing = [column for column in columns if column not in head]
    if missing:
        raise UserError(
            f"{source}: has no column {_list(missing)}; its first line must name "
            f"{_list(columns)}, separated by commas."
        )
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise UserError(f"{source}: names column {_list(twice)} twice; keep one of them.")
    rows = []
    for number, values in lines[1:]:
        if len(values) != len(head):
            raise UserError(
                f"{source}, row {number}: has {len(values)} values, the first line names "
                f"{len(head)} columns."
            )
        texts = (value.strip() for value in values)
        rows.append(Row(source, number, dict(zip(head, texts, strict=True))))
    if not rows:
        raise UserError(f"{source}: has no rows below the names of its columns.")
    return rows


def _lines(path: Path, source: str) -> list[tuple[int, list[str]]]:
    """Return a file's numbered lines, split at commas; blank ones are left out."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{source}: has more than {MAX_BYTES:,} bytes; is it the right file?")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise UserError(f"{source}: is not a text file in UTF-8; save it as CSV UTF-8.") from None
    reader = csv.reader(io.StringIO(text))
    try:
        return [(reader.line_num, line) for line in reader if any(map(str.strip, line))]
    except csv.Error as error:
        raise UserError(f"{source}: is not valid CSV ({error}).") from None


def _list(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(clean(name) for name in names)


STEP = "step_s"


@dataclass(frozen=True)
class Measurements:
    """What was measured of each pair of a model and a GPU type, in the file's order."""

    source: str
    groups: dict[Group, list[tuple[Cell, float]]] = field(default_factory=dict)
    """Cells and the seconds of a step in them; a cell that comes again is a repeat."""


def read_measurements(path: Path) -> Measurements:
    """Return the measurements of a CSV file.

    Columns num_workers, num_nodes, batch_size_per_worker and step_s (seconds of an optimizer
    step); where they are there, accumulate (passes of a step), model and gpu_type. Raises
    UserError where a value is none.
    """
    rows = read_rows(path, columns=(*CELL_COLUMNS, STEP))
    if len(rows) == 1:
        raise UserError(
            f"{rows[0].source}: has one row, which says nothing of how a training scales; measure "
            "another number of workers or another batch size, too."
        )
    measured = Measurements(rows[0].source)
    for row in rows:
        measured.groups.setdefault(row.group, []).append((row.cell, row.seconds(STEP)))
    return measured


def name_of(group: Group) -> str:
    """Return a pair's name for people; "" for a file without such columns."""
    return " on ".join(part for part in group if part)


USUAL_NOISE = 0.03
"""Relative spread from repeat to repeat that is expected, and how many repeats that weighs."""
USUAL_WEIGHT = 4
STALL = 4.0
"""A repeat further from its cell's median than so many times the usual counts as that far."""


@dataclass(frozen=True)
class Observed:
    """What was measured."""

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
        more = sum(len(values) - 1 for values in logs.values())
        apart = [abs(value - medians[i]) for i, cell in enumerate(cells) for value in logs[cell]]
        squares = float(np.sum(np.minimum(apart, _bound(apart)) ** 2))
        noise = (squares + USUAL_WEIGHT * USUAL_NOISE**2) / (more + USUAL_WEIGHT) if more else 0.0
        return cls(cells, medians, np.array([len(logs[c]) for c in cells], float), float(noise))

    def without(self, index: int) -> "Observed":
        """Return the measurements without those of a cell."""
        cells = self.cells[:index] + self.cells[index + 1 :]
        kept = [np.delete(values, index) for values in (self.log_seconds, self.repeats)]
        return Observed(cells, kept[0], kept[1], self.noise)


def _bound(apart: list[float]) -> float:
    """Return how far a repeat counts: a stall of hours is no sign that all are noisy."""
    usual = [value for value in apart if value > 0]
    return STALL * float(np.median(usual)) if usual else 0.0
