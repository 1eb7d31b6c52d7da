"""Columns of labels: what is to be learnt from them, as classes or numbers.

A column of classes: their names and numbers, and slips of the pen among them.

A column of weights of training samples.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    column_of,
    first_place,
    is_no_number,
    is_number,
    is_number_type,
    is_text,
    require_sizes,
)
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import UserError

MAX_CLASS_SHARE = 0.5
"""Share of rows with a class of their own beyond which labels are no classes."""
CLOSE = 0.8
"""How much alike two names are of which the rare one is a slip of the pen (difflib's ratio)."""
RARE = 2
"""Rows of a class that can be a slip of the pen."""


def read_classes(
    tables: Tables, column: str
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Return the numbers of the classes, by split, and the names of the classes.

    Numbers of texts are in the order of the names, found in the training table. UserError, with
    the row, for what cannot be learnt or judged.
    """
    train = tables.train
    names: Sequence[str]
    if column in train.class_names:
        names = train.class_names[column]
        read = {split: _numbered(table, column, len(names)) for split, table in tables.items()}
        _require_learnable(read["train"], names, train, column)
        return read, tuple(names)
    texts = {split: as_texts(column_of(table, column)) for split, table in tables.items()}
    found = pc.unique(texts["train"]).to_pylist()
    names = sorted(found, key=_class_order)
    if len(names) > max(2, MAX_CLASS_SHARE * train.num_rows):
        if is_text(train, column) and 2 * sum(map(is_number, names)) > len(names):
            numbers_of_texts(train, column)  # a UserError where one is none
        are_numbers = all(map(is_number, names))
        raise UserError(
            f"{train.source}: label column '{column}' has {len(names):,} different values in "
            f"{train.num_rows:,} rows (such as '{names[0]}'), too many for classes; name another "
            "column, or "
            + (
                "set dataset.task: regression."
                if are_numbers
                else "write numbers as 1234.5 if they are such, for a regression."
            )
        )
    for split, table in tables.items():
        _require_known(table, column, names, texts[split], train)
    values = {
        split: np.asarray(pc.index_in(one, value_set=pa.array(names))).astype(np.int64)
        for split, one in texts.items()
    }
    _require_learnable(values["train"], names, train, column)
    return values, tuple(names)


def _class_order(name: str) -> tuple[bool, float, str]:
    """Numbers by their size, before texts."""
    return (False, float(name), name) if is_number(name) else (True, 0.0, name)


def _numbered(table: Table, column: str, num_classes: int) -> npt.NDArray[np.int64]:
    values = as_numbers(column_of(table, column)).astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= num_classes))
    if len(wrong):
        raise UserError(
            f"{table.place(int(wrong[0]))}: label column '{column}' is {values[wrong[0]]} there "
            f"({len(wrong):,} such rows), and its classes go from 0 to {num_classes - 1}; leave "
            "these rows out."
        )
    return values


def _require_known(
    table: Table, column: str, names: Sequence[str], texts: Any, train: Table
) -> None:
    """Raise UserError for a class that is in another split and not in the training split."""
    unknown = sorted(set(pc.unique(texts).to_pylist()) - set(names))
    if not unknown:
        return
    wanted = unknown[0]
    rows = np.flatnonzero(np.asarray(pc.equal(texts, wanted)))
    close = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "; add rows of it there, or remove these."
    raise UserError(
        f"{table.place(int(rows[0]))}: the class '{wanted}' ({_rows(len(rows))}) is not in "
        f"column '{column}' of {train.source}{hint}"
    )


def _require_learnable(values: Array, names: Sequence[str], table: Table, column: str) -> None:
    """Raise UserError for one class only, and for a class that must be a slip of the pen."""
    counts = np.bincount(values, minlength=len(names))
    if np.count_nonzero(counts) < 2:
        only = names[int(counts.argmax())]
        raise UserError(
            f"{table.source}: label column '{column}' is '{only}' in every row; there is "
            "nothing to tell apart, name another column or add rows of other classes."
        )
    for number in np.flatnonzero((counts > 0) & (counts <= RARE)):
        close = _meant(names, counts, int(number))
        if close is not None:
            row = int(np.flatnonzero(values == number)[0])
            raise UserError(
                f"{table.place(row)}: the class '{names[int(number)]}' of column "
                f"'{column}' stands in {_rows(int(counts[number]))} only; did you mean "
                f"'{names[close]}' ({_rows(int(counts[close]))})? Correct it, or "
                "leave it out: so few rows can be neither learnt nor judged."
            )


def _meant(names: Sequence[str], counts: Array, number: int) -> int | None:
    """Return the frequent class whose name is much like that of a rare one; None if none is."""
    given = names[int(number)]
    for other in np.argsort(-counts):
        name = names[int(other)]
        if counts[other] < 10 * RARE or int(other) == number:
            continue
        if _without_digits(name) == _without_digits(given) and name.lower() != given.lower():
            continue  # class_1 and class_7 are two
        alike = difflib.SequenceMatcher(None, name.lower(), given.lower()).ratio()
        if alike >= CLOSE:
            return int(other)
    return None


def _without_digits(name: str) -> str:
    return "".join(character for character in name if not character.isdigit())


def _rows(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"


def numbers_of_texts(table: Table, column: str) -> npt.NDArray[np.float64]:
    """Return numbers that a column holds as texts; UserError, with the row, where one is none."""
    texts = as_texts(column_of(table, column)).to_pylist()
    if not all(map(is_number, texts)):
        raise _no_number(table, column)
    return np.array(texts, np.float64)


def _no_number(table: Table, column: str) -> UserError:
    """Return the error for labels that are texts where numbers are needed: the first of them."""
    place, value = first_place(table, column, is_no_number)
    return UserError(
        f"{place}: label column '{column}' has the text '{value}', and a regression needs numbers; "
        "correct it, or set dataset.task: classification."
    )


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


def read_weights(table: Table, column: str) -> npt.NDArray[np.float32]:
    """Return the weights of all rows; UserError, with the row, for what is no number from 0."""
    kind = table.schema.field(column).type
    if not is_number_type(kind):
        raise UserError(
            f"dataset.weight: column '{column}' of {table.source} holds {kind}, no numbers; name "
            "another one."
        )
    weights = as_numbers(column_of(table, column))
    wrong = np.flatnonzero(~(weights >= 0))
    if len(wrong):
        found = weights[wrong[0]]
        raise UserError(
            f"{table.place(int(wrong[0]))}: weight column '{column}' is "
            f"{'empty' if np.isnan(found) else f'{found:g}'} there ({len(wrong):,} such rows); "
            "weights are numbers from 0."
        )
    if not weights.any():
        raise UserError(f"{table.source}: weight column '{column}' is 0 in every row.")
    return weights.astype(np.float32)
