"""A table as a dataset: rows into splits, columns into inputs and labels.

What the inputs of a sample are made of: rows of a table, texts, or images.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import Rows
from raybench.data.sources.cut import cut, held_out_line, mixed_order
from raybench.data.sources.encode import (
    Column,
    Names,
    NotUsed,
    Quantity,
    document_of,
    require_numbers,
)
from raybench.data.sources.label_columns import Labels, read_labels, read_weights
from raybench.data.sources.table import (
    Roles,
    Say,
    Table,
    Tables,
    as_texts,
    find_roles,
    first_place,
    is_no_number,
    is_number_type,
    require_sizes,
)
from raybench.data.sources.texts import Tokens
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import UserError


class RowInputs(Protocol):
    """Makes the inputs: first `see` of all training rows, then `finish`, then `write`."""

    columns: list[str]

    @property
    def dtype(self) -> npt.DTypeLike:
        """Of the inputs."""
        ...

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens by their ids, of texts."""
        ...

    @property
    def encoding(self) -> dict[str, Any]:
        """How they are made, as `Dataset.encoding` has it; there after `finish`."""
        ...

    def see(self, batch: Any) -> None:
        """Take some training rows, a `pyarrow.RecordBatch`."""
        ...

    def finish(self, say: Say) -> None:
        """Be ready to write."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        ...

    def write(self, batch: Any, table: Table, start: int) -> Array:
        """Return the inputs of any rows; `start` is the number of the first in its table."""
        ...


class Features:
    """Numbers and names of a row: one vector of float32."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, roles: Roles, table: Table) -> None:
        """`table`: the training one."""
        self.columns = roles.inputs
        self._table, self._not_used = table, roles.not_used
        self._is_asked = spec.columns is not None
        categories = set(spec.categories or [])
        self._made = [self._column(name, categories) for name in self.columns]

    def _column(self, name: str, categories: set[str]) -> Column:
        kind = self._table.schema.field(name).type
        if name in categories or not is_number_type(kind):
            return Names(name, is_asked=self._is_asked or name in categories)
        if pa.types.is_boolean(kind):
            return Quantity(name, is_flag=True)
        # Only of whole numbers: dates that go up are worth learning from.
        limit = self._table.num_rows if pa.types.is_integer(kind) and not self._is_asked else 0
        return Quantity(name, counted_rows=limit)

    def see(self, batch: Any) -> None:
        """See `RowInputs`."""
        for column in self._made:
            values = batch.column(column.name)
            if isinstance(column, Quantity):
                require_sizes(self._table, column.name, values)
            column.see(values)

    def finish(self, say: Say) -> None:
        """See `RowInputs`."""
        used = []
        for sentence in self._not_used:
            say(sentence)
        for column in self._made:
            if isinstance(column, Names) and column.num_not_numbers():
                place, value = first_place(self._table, column.name, is_no_number)
                require_numbers(column, place, value)
            try:
                column.finish()
            except NotUsed as reason:
                say(f"column '{column.name}' is left out: it {reason}.")
            else:
                used.append(column)
        if not used:
            raise UserError(
                f"{self._table.source}: none of the columns {', '.join(self.columns)} says "
                "anything of a row (all are constant, empty or numbers of rows); name others in "
                "dataset.columns."
            )
        self._made = used
        self.columns = [column.name for column in used]

    @property
    def encoding(self) -> dict[str, Any]:
        """See `RowInputs`."""
        return {"columns": [document_of(column.encoder) for column in self._made]}

    @property
    def made(self) -> list[Column]:
        """The columns that are used, with what is known of them."""
        return list(self._made)

    @property
    def names(self) -> list[str]:
        """Names of the features, in order."""
        return [feature for column in self._made for feature in column.features]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `RowInputs`."""
        return (len(self.names),)

    def write(self, batch: Any, table: Table, start: int) -> Array:
        """See `RowInputs`."""
        del start
        out = np.empty((batch.num_rows, *self.shape), np.float32)
        begin = 0
        for column in self._made:
            end = begin + len(column.features)
            values = batch.column(column.name)
            if not isinstance(column, Names) and not is_number_type(values.type):
                values = _no_texts(table, column.name, values)
            if not isinstance(column, Names):
                require_sizes(table, column.name, values)
            column.write(values, out[:, begin:end])
            begin = end
        return out


def _no_texts(table: Table, column: str, values: Any) -> Any:
    """Return numbers that another file holds as text; UserError where they are none."""
    if is_no_number(values).any():
        place, value = first_place(table, column, is_no_number)
        raise UserError(
            f"{place}: column '{column}' holds numbers in the training rows, and '{value}' there; "
            "correct it, or list the column in dataset.categories."
        )
    return as_texts(values).cast(pa.float64())


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
