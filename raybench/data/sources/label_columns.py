"""Columns of labels: what is to be learnt from them, as classes or numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.core.dataset_spec import Task
from raybench.core.errors import UserError
from raybench.data.dataset import Array
from raybench.data.sources.class_columns import numbers_of_texts, read_classes
from raybench.data.sources.table import (
    Table,
    Tables,
    column_of,
    first_place,
    is_text,
    require_sizes,
)
from raybench.data.sources.values import as_numbers, as_texts, is_number_type

MAX_NUMBERED_CLASSES = 20
"""Different whole numbers that are taken for classes; more are quantities."""
MAX_NUMBERED_PICTURES = 1000
"""The same of labels of pictures and texts."""


@dataclass(frozen=True)
class Labels:
    """Labels of every table, and what they are."""

    task: Task
    values: dict[str, Array]
    """By split: (rows,) int64 classes, or (rows,) or (rows, columns) float64 in their own unit."""
    class_names: tuple[str, ...] = ()


def read_labels(
    tables: Tables, columns: Sequence[str], task: Task | None, *, are_pictures: bool = False
) -> Labels:
    """Read the columns of labels whole, and tell the task where none is given.

    Texts, yes and no, and few whole numbers are classes; `are_pictures` (or texts) allows more of
    these. UserError for labels that are missing, or that cannot be learnt.
    """
    for _, table in tables.items():
        for column in columns:
            _require_label_type(table, column)
    if task is None:
        limit = MAX_NUMBERED_PICTURES if are_pictures else MAX_NUMBERED_CLASSES
        task = told_task(tables.train, columns, limit)
    for _, table in tables.items():
        for column in columns:
            for batch in [] if is_text(table, column) else table.batches([column]):
                require_sizes(table, column, batch.column(0))
            _require_all(table, column, is_class=task == "classification")
    if task == "classification":
        if len(columns) > 1:
            raise UserError(
                f"dataset.label: {' and '.join(columns)} are several columns, and classes stand in "
                "one; name one, or set dataset.task: regression."
            )
        return Labels("classification", *read_classes(tables, columns[0]))
    return _quantities(tables, columns)


def told_task(table: Table, columns: Sequence[str], max_classes: int) -> Task:
    """Return what labels look like: `classification` or `regression`."""
    if len(columns) > 1 or columns[0] in table.class_names:
        return "regression" if len(columns) > 1 else "classification"
    kind = table.schema.field(columns[0]).type
    if is_text(table, columns[0]) or pa.types.is_boolean(kind):
        return "classification"
    if pa.types.is_temporal(kind):
        return "regression"
    numbers = np.unique(as_numbers(column_of(table, columns[0])))
    numbers = numbers[~np.isnan(numbers)]
    are_whole = bool((numbers == np.round(numbers)).all())
    # Of quantities that happen to be whole and few there are hardly more rows than values.
    are_few = len(numbers) <= max_classes and 2 * len(numbers) <= table.num_rows
    return "classification" if are_whole and are_few else "regression"


def _require_label_type(table: Table, column: str) -> None:
    kind = table.schema.field(column).type
    if not is_text(table, column) and not is_number_type(kind):
        raise UserError(
            f"{table.source}: label column '{column}' holds {kind}; labels are texts or numbers."
        )


def _require_all(table: Table, column: str, *, is_class: bool) -> None:
    """Raise UserError where labels are missing, naming the first one and how many."""

    def is_missing(values: Any) -> Array:
        if is_text(table, column) or is_class:
            return np.asarray(as_texts(values).is_null())
        return np.isnan(as_numbers(values))

    missing = sum(int(is_missing(batch.column(0)).sum()) for batch in table.batches([column]))
    if missing:
        place, _ = first_place(table, column, is_missing)
        of = f"{missing:,} of {table.num_rows:,} rows have" if missing > 1 else "one row has"
        raise UserError(
            f"{place}: label column '{column}' is empty there, or not a number ({of} no label); "
            "fill them in, or leave these rows out."
            if not is_class
            else f"{place}: label column '{column}' is empty there ({of} no label); fill them in, "
            "or leave these rows out."
        )


def _quantities(tables: Tables, columns: Sequence[str]) -> Labels:
    values = {}
    for split, table in tables.items():
        found = []
        for column in columns:
            if is_text(table, column):
                found.append(numbers_of_texts(table, column))
            else:
                found.append(as_numbers(column_of(table, column)))
        values[split] = found[0] if len(columns) == 1 else np.stack(found, axis=1)
    for number, column in enumerate(columns):
        one = values["train"] if len(columns) == 1 else values["train"][:, number]
        if one.min() == one.max():
            raise UserError(
                f"{tables.train.source}: label column '{column}' is {one[0]:g} in every row; there "
                "is nothing to learn from it, name another column."
            )
    return Labels("regression", values)
