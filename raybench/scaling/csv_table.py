"""A CSV file of cells, read with the row and the column of what is wrong in it."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.scaling.cells import Cell

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
