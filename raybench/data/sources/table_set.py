"""A table as a dataset: rows into splits, columns into inputs and labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.core.dataset_spec import DatasetSpec
from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.on_demand import Rows
from raybench.data.sources.columns import Roles, find_roles
from raybench.data.sources.cut import cut, held_out_line, mixed_order
from raybench.data.sources.inputs_of_rows import Features, RowInputs, Say
from raybench.data.sources.label_columns import Labels, read_labels
from raybench.data.sources.table import Table, Tables
from raybench.data.sources.texts import Tokens
from raybench.data.sources.weights import read_weights

MakeArray = Callable[[str, tuple[int, ...], npt.DTypeLike], Array]
"""(name, shape, type) -> a new array to write to, in memory or a file."""
Advance = Callable[[int], None]
"""Takes the number of rows that are done."""


@dataclass(frozen=True)
class Member:
    """The rows of a split, and the table they are in."""

    split: str
    table: Table
    rows: Rows


@dataclass(frozen=True)
class Prepared:
    """What is known of tables before their inputs are written."""

    roles: Roles
    labels: Labels
    members: list[Member]
    """Of `train`, `validation` and `test`, in that order."""
    inputs: RowInputs
    """Has seen the training rows."""


def in_memory(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array in memory; see `MakeArray`."""
    del name
    return np.empty(shape, dtype)


def table_dataset(
    spec: DatasetSpec,
    tables: Tables,
    *,
    name: str,
    say: Say,
    make: MakeArray = in_memory,
    advance: Advance = lambda rows: None,
) -> Dataset:
    """Return the dataset of tables; of their inputs one batch of rows is held at a time.

    `make` gives the arrays of inputs (`train-inputs`, ...); `say` takes sentences on what was
    left out. What is wrong with the tables is a UserError that names row and column.
    """
    ready = prepare(spec, tables, say)
    labels, members = ready.labels, ready.members
    arrays = _write_inputs(ready.inputs, members, make, advance)
    weights = None
    if ready.roles.weight is not None:
        weights = read_weights(tables.train, ready.roles.weight)[members[0].rows]
        if weights.any():  # else it is said where all datasets are weighed
            weights /= weights.mean()
    of_split = {
        member.split: labels.values[_table_of(member, tables)][member.rows] for member in members
    }
    scale, offset = _label_scale(of_split["train"]) if labels.task == "regression" else (None, None)
    splits = {
        member.split: Split(
            arrays[member.split],
            _scaled(of_split[member.split], scale, offset),
            weights if member.split == "train" else None,
        )
        for member in members
    }
    return Dataset(
        name,
        len(labels.class_names) or None,
        task=labels.task,
        class_names=labels.class_names,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        label_scale=None if scale is None else np.asarray(scale, np.float32),
        label_offset=None if offset is None else np.asarray(offset, np.float32),
        vocabulary=ready.inputs.vocabulary,
        encoding=ready.inputs.encoding,
    )


def prepare(spec: DatasetSpec, tables: Tables, say: Say) -> Prepared:
    """Read labels and training rows: all that is wrong with these is a UserError."""
    roles = find_roles(spec, tables)
    labels = read_labels(tables, roles.labels, spec.task, are_pictures=roles.text is not None)
    members = split_members(spec, tables, labels)
    if told := held_out_line(tables.train.num_rows, spec, dict(tables.items())):
        say(told)
    inputs = row_inputs(spec, roles, tables.train)
    for batch, _ in training_batches(tables.train, inputs.columns, members):
        inputs.see(batch)
    inputs.finish(say)
    return Prepared(roles, labels, members, inputs)


def row_inputs(spec: DatasetSpec, roles: Roles, table: Table) -> RowInputs:
    """Return what makes inputs of the rows."""
    if roles.text is not None:
        return Tokens(spec, roles.text, table)
    return Features(spec, roles, table)


def split_members(spec: DatasetSpec, tables: Tables, labels: Labels | None) -> list[Member]:
    """Return the rows of `train`, `validation` and `test`, in that order."""
    is_class = labels is not None and labels.task == "classification"
    classes = labels.values["train"] if labels is not None and is_class else None
    order = mixed_order(classes, tables.train.num_rows, seed=spec.split_seed)
    validation, test = (
        None if table is None else _numbered(np.arange(table.num_rows))
        for table in (tables.validation, tables.test)
    )
    parts = cut(_numbered(order), validation, test, spec, source=tables.train.source)
    found = []
    for split, part in zip(SPLITS, parts, strict=True):
        table: Table | None = getattr(tables, split)
        found.append(Member(split, tables.train if table is None else table, part.array))
    return found


def _numbered(rows: Rows) -> Split:
    """Return rows as a split whose samples are their numbers."""
    return Split(rows, rows)


def training_batches(
    table: Table, columns: Sequence[str], members: list[Member]
) -> Iterator[tuple[Any, Rows]]:
    """Yield the training rows batch by batch, in the table's order, and their numbers."""
    is_training = np.zeros(table.num_rows, bool)
    is_training[members[0].rows] = True
    start = 0
    for batch in table.batches(columns):
        kept = is_training[start : start + batch.num_rows]
        yield batch.filter(pa.array(kept)), start + np.flatnonzero(kept)
        start += batch.num_rows


def _write_inputs(
    maker: RowInputs, members: list[Member], make: MakeArray, advance: Advance
) -> dict[str, Array]:
    arrays = {
        member.split: make(f"{member.split}-inputs", (len(member.rows), *maker.shape), maker.dtype)
        for member in members
    }
    tables = {id(member.table): member.table for member in members}
    for key, table in tables.items():
        own = [member for member in members if id(member.table) == key]
        split_of_row, place = _places(own, table.num_rows)
        start = 0
        for batch in table.batches(maker.columns):
            inputs = maker.write(batch, table, start)
            here = slice(start, start + batch.num_rows)
            for number, member in enumerate(own):
                chosen = np.flatnonzero(split_of_row[here] == number)
                arrays[member.split][place[here][chosen]] = inputs[chosen]
            start += batch.num_rows
            advance(batch.num_rows)
    return arrays


def _places(members: list[Member], num_rows: int) -> tuple[Array, Rows]:
    """Return, for each row of a table, its member's number and its place in that split."""
    split_of_row = np.full(num_rows, -1, np.int8)
    place = np.zeros(num_rows, np.int64)
    for number, member in enumerate(members):
        split_of_row[member.rows] = number
        place[member.rows] = np.arange(len(member.rows))
    return split_of_row, place


def _table_of(member: Member, tables: Tables) -> str:
    """Return the name of the table a member's rows are in."""
    return "train" if member.table is tables.train else member.split


def _label_scale(train: Array) -> tuple[Array, Array]:
    """Return the standard deviation and the mean of the training labels; a 0 becomes 1."""
    deviation = train.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0), train.mean(axis=0)


def _scaled(labels: Array, scale: Array | None, offset: Array | None) -> Array:
    if scale is None or offset is None:
        return labels
    return ((labels - offset) / scale).astype(np.float32)
