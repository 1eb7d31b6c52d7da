"""Reading of the label columns of tables, as classes or numbers, and of columns of sample
weights."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.dataset import Array
from raybench.data.sources.table import (
    Table,
    Tables,
    as_numbers,
    as_texts,
    is_number,
    is_number_type,
)
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

MAX_CLASS_SHARE = 0.5  # maximum number of classes, as a fraction of the number of rows
MAX_NUMBERED_CLASSES = 20  # columns with more distinct integers are quantities, not classes
MAX_NUMBERED_PICTURES = 1000  # the same limit if the inputs are images or texts


@dataclass(frozen=True)
class Labels:
    """Labels of all splits, and the learning task."""

    task: Task
    values: dict[str, Array]
    """Labels by split: int64 class numbers (rows,), or for a regression float64 numbers in the
    original unit, (rows,) or (rows, columns)."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty for a regression."""


def read_labels(
    tables: Tables, columns: Sequence[str], task: Task | None, *, allow_many_classes: bool = False
) -> Labels:
    """Read the label columns of all tables.

    Args:
        tables: Tables by split.
        columns: One label column, or several columns of numbers.
        task: The learning task. By default, strings, booleans and columns with few distinct
            integers are classes.
        allow_many_classes: Whether more distinct integers may be classes, because the inputs are
            images or texts.

    Raises:
        UserError: Labels are missing, or are invalid for the task.
    """
    train, pairs = tables["train"], list(itertools.product(tables.values(), columns))
    for table, column in pairs:
        if not table.is_text(column) and not is_number_type(table.kind(column)):
            kind = table.kind(column)
            raise UserError(
                f"{table.source}: label column '{column}' holds {kind}, not strings or numbers.",
                ErrorCode.INVALID_DATA,
            )
    if task is None:
        limit = MAX_NUMBERED_PICTURES if allow_many_classes else MAX_NUMBERED_CLASSES
        task = task_of(train, columns, limit)
        if train.is_text(columns[0]):
            train.require_names(columns[0], "set dataset.task: classification")
    for table, column in pairs:
        values, is_class = table.column(column), task == "classification"
        if table.is_text(column) and not is_class:
            table.require_names(column, "set dataset.task: classification")
            raise UserError(
                f"{table.source}: label column '{column}' holds strings, but a regression needs "
                "numbers; set dataset.task: classification.",
                ErrorCode.INVALID_DATA,
            )
        table.require_none(
            as_texts(values).is_null() if is_class else np.isnan(as_numbers(values)),
            f"label column '{column}' is {'empty' if is_class else 'empty, or not a number'}",
            "fill in the labels, or remove these rows",
        )
    if task == "classification":
        if len(columns) > 1:
            raise UserError(
                f"dataset.label: {', '.join(columns)}: name the single column that holds the "
                "classes, or set dataset.task: regression.",
                ErrorCode.CONFLICT,
            )
        return Labels("classification", *_classes(tables, columns[0]))
    values = {}
    for split, table in tables.items():
        numbers = [as_numbers(table.column(column)) for column in columns]
        values[split] = numbers[0] if len(columns) == 1 else np.stack(numbers, axis=1)
    return Labels("regression", values)


def task_of(table: Table, columns: Sequence[str], max_classes: int) -> Task:
    """Infer the learning task, `classification` or `regression`, from the label columns.

    Args:
        table: The training table.
        columns: Label columns.
        max_classes: Maximum number of distinct integers that are taken for classes.
    """
    if len(columns) > 1:
        return "regression"
    kind = table.kind(columns[0])
    if columns[0] in table.class_names or table.is_text(columns[0]) or pa.types.is_boolean(kind):
        return "classification"
    if pa.types.is_temporal(kind):
        return "regression"
    numbers = np.unique(as_numbers(table.column(columns[0])))
    numbers = numbers[~np.isnan(numbers)]
    are_whole = bool((numbers == np.round(numbers)).all())
    # Classes must have two rows on average, since quantities also have few distinct values in few
    # rows.
    are_few = len(numbers) <= max_classes and 2 * len(numbers) <= table.num_rows
    return "classification" if are_whole and are_few else "regression"


def _classes(
    tables: Tables, column: str
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Read a label column as classes.

    Returns:
        Class numbers by split, and the sorted names of the classes of the training split.

    Raises:
        UserError: There are too many classes, or another split has a class that the training split
            does not have.
    """
    train = tables["train"]
    if column in train.class_names:
        names = list(train.class_names[column])
        values = {split: _numbered(table, column, len(names)) for split, table in tables.items()}
        return values, tuple(names)
    texts = {split: as_texts(table.column(column)) for split, table in tables.items()}
    # Names that are numbers are sorted by value and come before other names.
    names = sorted(
        pc.unique(texts["train"]).to_pylist(),
        key=lambda name: (False, float(name), name) if is_number(name) else (True, 0.0, name),
    )
    if len(names) > max(2, MAX_CLASS_SHARE * train.num_rows):
        raise UserError(
            f"{train.source}: label column '{column}' has {len(names):,} values in "
            f"{train.num_rows:,} rows, too many for classes; set dataset.task: regression.",
            ErrorCode.INVALID_DATA,
        )
    for split, table in tables.items():
        unknown = sorted(set(pc.unique(texts[split]).to_pylist()) - set(names))
        if unknown:
            hint = did_you_mean(
                unknown[0], names, "add training rows of this class, or remove these rows"
            ).rstrip(".")
            table.require_none(
                pc.equal(texts[split], unknown[0]),
                f"the class '{unknown[0]}' is not in column '{column}' of {train.source}",
                hint,
            )
    values = {
        split: np.asarray(pc.index_in(cells, value_set=pa.array(names))).astype(np.int64)
        for split, cells in texts.items()
    }
    return values, tuple(names)


def _numbered(table: Table, column: str, num_classes: int) -> npt.NDArray[np.int64]:
    """Return a column of class numbers; raise UserError if a number is out of range."""
    values = as_numbers(table.column(column)).astype(np.int64)
    wrong = (values < 0) | (values >= num_classes)
    table.require_none(
        wrong,
        f"label column '{column}' is {values[np.argmax(wrong)]}",
        f"classes are numbered from 0 to {num_classes - 1}",
    )
    return values


def read_weights(table: Table, column: str) -> npt.NDArray[np.float32]:
    """Return the sample weights of all rows of a table, (rows,) float32.

    Raises:
        UserError: A weight is missing or negative; the message names the first such row.
    """
    kind = table.kind(column)
    if not is_number_type(kind):
        raise UserError(
            f"dataset.weight: column '{column}' of {table.source} holds {kind}, not numbers.",
            ErrorCode.INVALID_DATA,
        )
    weights = as_numbers(table.column(column))
    wrong = ~(weights >= 0)
    table.require_none(
        wrong,
        f"weight column '{column}' is {weights[np.argmax(wrong)]:g} or empty",
        "weights must be 0 or larger",
    )
    return weights.astype(np.float32)
