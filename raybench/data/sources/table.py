"""A table that a user has: columns by name, read in batches of rows."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raybench.core.errors import UserError
from raybench.data.sources.values import is_too_large

BATCH_ROWS = 65_536
"""Rows that are read together: of a table larger than memory no more are held."""
MAX_SHOWN = 20
"""Names of columns that a sentence lists."""


class Table(Protocol):
    """Rows of a file, of several, or of a Hugging Face set."""

    @property
    def source(self) -> str:
        """What it was read from, for sentences."""
        ...

    @property
    def folder(self) -> str:
        """Where paths in its cells begin."""
        ...

    @property
    def schema(self) -> Any:
        """Names (without spaces at their ends) and types of its columns: a `pyarrow.Schema`."""
        ...

    @property
    def num_rows(self) -> int:
        """Without the line of names."""
        ...

    @property
    def class_names(self) -> Mapping[str, Sequence[str]]:
        """Names of the classes of columns that hold them as numbers; of most tables none."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield `pyarrow.RecordBatch`es of these columns, from the first row to the last."""
        ...

    def place(self, row: int) -> str:
        """Return where a row (from 0) is, as a user finds it: `line 7 of flowers.csv`."""
        ...


@dataclass(frozen=True)
class Tables:
    """The tables of a dataset, by its splits; None of a split that is cut from `train`."""

    train: Table
    validation: Table | None = None
    test: Table | None = None

    def items(self) -> list[tuple[str, Table]]:
        """Return those that there are by the names of their splits, `train` first."""
        found = {"train": self.train, "validation": self.validation, "test": self.test}
        return [(name, table) for name, table in found.items() if table is not None]


def require_columns(table: Table, columns: Sequence[str], key: str) -> None:
    """Raise UserError for a column that is not there; `key` of the dataset names it."""
    names = table.schema.names
    for column in columns:
        if column in names:
            continue
        lower = {name.lower(): name for name in names}
        close = difflib.get_close_matches(column.lower(), lower, n=1)
        shown = ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")
        hint = f"; did you mean '{lower[close[0]]}'?" if close else "."
        raise UserError(
            f"dataset.{key}: {table.source} has no column '{column}'; its columns are {shown}{hint}"
        )


def require_same_columns(tables: Tables, columns: Sequence[str]) -> None:
    """Raise UserError where a split lacks a column, or has another kind of values in it."""
    train = tables.train
    for _, table in tables.items():
        for column in columns:
            if column not in table.schema.names:
                raise UserError(
                    f"{table.source} has no column '{column}', which {train.source} has; give "
                    "both the same columns, or name those to use in dataset.columns."
                )
            if is_text(table, column) != is_text(train, column):
                text, other = (table, train) if is_text(table, column) else (train, table)
                if not pa.types.is_null(other.schema.field(column).type):
                    raise UserError(
                        f"Column '{column}' is text in {text.source}, and "
                        f"{other.schema.field(column).type} in {other.source}; make them the same."
                    )


def column_of(table: Table, name: str) -> Any:
    """Return a whole column as a `pyarrow.Array`."""
    parts = [batch.column(0) for batch in table.batches([name])]
    if not parts:
        return pa.array([], type=table.schema.field(name).type)
    return pa.chunked_array(parts).combine_chunks() if len(parts) > 1 else parts[0]


def first_place(table: Table, column: str, is_wrong: Callable[[Any], Any]) -> tuple[str, Any]:
    """Return the place and the value of the first row of a column that is wrong.

    `is_wrong`: (`pyarrow.Array`) -> booleans, one a value, of which at least one is true.
    """
    start = 0
    for batch in table.batches([column]):
        wrong = np.flatnonzero(is_wrong(batch.column(0)))
        if len(wrong):
            return table.place(start + int(wrong[0])), batch.column(0)[int(wrong[0])].as_py()
        start += batch.num_rows
    raise AssertionError(f"nothing is wrong in column {column}")


def require_sizes(table: Table, column: str, values: Any) -> None:
    """Raise UserError for infinite numbers, and such as only look finite, in part of a column."""
    if is_too_large(values).any():
        place, value = first_place(table, column, is_too_large)
        raise UserError(
            f"{place}: column '{column}' holds {value:g} there, and nothing can be computed with "
            "that; correct it, or leave the cell empty."
        )


def is_text(table: Table, column: str) -> bool:
    """Whether a column holds texts."""
    return is_text_type(table.schema.field(column).type)


def is_text_type(kind: Any) -> bool:
    """Whether a type of pyarrow is text, written once each (`dictionary`) or not."""
    if pa.types.is_dictionary(kind):
        return is_text_type(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
