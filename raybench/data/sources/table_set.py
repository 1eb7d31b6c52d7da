"""A table as a dataset: rows into splits, columns into inputs and labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import Rows
from raybench.data.sources.cut import cut, held_out_line, mixed_order, standardised
from raybench.data.sources.encode import Encoder, Names, NotUsed, Quantity, document_of
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


class Features:
    """Makes inputs of numbers and names, a vector of float32 for each row: first `see` of all
    training rows, then `finish`, then `write`."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, roles: Roles, table: Table) -> None:
        """`table`: the training one."""
        self.columns = roles.inputs
        self._table, self._not_used = table, roles.not_used
        is_asked, categories = spec.columns is not None, set(spec.categories or [])
        self.made: list[Quantity | Names] = []
        """The columns that are used, with what is known of them."""
        self._encoders: list[Encoder] = []
        for name in self.columns:
            kind = table.schema.field(name).type
            if name in categories or not is_number_type(kind):
                self.made.append(Names(name, is_asked=is_asked or name in categories))
                continue
            # Only of whole numbers: dates that go up are worth learning from.
            limit = table.num_rows if pa.types.is_integer(kind) and not is_asked else 0
            is_flag = pa.types.is_boolean(kind)
            self.made.append(Quantity(name, is_flag=is_flag, counted_rows=limit))

    def see(self, batch: Any) -> None:
        """Take some training rows, a `pyarrow.RecordBatch`."""
        for column in self.made:
            values = batch.column(column.name)
            if isinstance(column, Quantity):
                require_sizes(self._table, column.name, values)
            column.see(values)

    def finish(self, say: Say) -> None:
        """Be ready to write; `say` takes sentences on columns that are left out."""
        used = []
        for sentence in self._not_used:
            say(sentence)
        for column in self.made:
            if isinstance(column, Names) and (number := column.num_not_numbers()):
                place, value = first_place(self._table, column.name, is_no_number)
                raise UserError(
                    f"{place}: column '{column.name}' holds numbers, and '{value}' there "
                    f"({number:,} such rows); leave such cells empty where nothing is known, or "
                    "list the column in dataset.categories if its values are names."
                )
            try:
                self._encoders.append(column.finish())
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
        self.made, self.columns = used, [column.name for column in used]

    @property
    def encoding(self) -> dict[str, Any]:
        """How inputs are made, as `Dataset.encoding` has it."""
        return {"columns": [document_of(one) for one in self._encoders]}

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return (sum(len(one.features) for one in self._encoders),)

    def write(self, batch: Any, table: Table) -> Array:
        """Return the inputs of any rows of a table."""
        out = np.empty((batch.num_rows, *self.shape), np.float32)
        begin = 0
        for column, encoder in zip(self.made, self._encoders, strict=True):
            end = begin + len(encoder.features)
            values = batch.column(column.name)
            if isinstance(column, Quantity):
                if not is_number_type(values.type):
                    values = _no_texts(table, column.name, values)
                require_sizes(table, column.name, values)
            encoder.write(values, out[:, begin:end])
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


@dataclass(frozen=True)
class Member:
    """The rows of a split, and the table they are in."""

    split: str
    table: Table
    rows: Rows


@dataclass(frozen=True)
class Prepared:
    """What is known of tables before their inputs are written."""

    labels: Labels
    members: list[Member]
    """Of `train`, `validation` and `test`, in that order."""
    inputs: Features | Tokens
    """Has seen the training rows."""


def table_dataset(
    spec: DatasetSpec,
    tables: Tables,
    *,
    name: str,
    say: Say,
    make: MakeArray = lambda name, shape, dtype: np.empty(shape, dtype),
    advance: Callable[[int], None] = lambda rows: None,
) -> Dataset:
    """Return the dataset of tables; of their inputs one batch of rows is held at a time.

    `make` gives the arrays of inputs (`train-inputs`, ...); `say` takes sentences on what was
    left out, `advance` the rows that are done. What is wrong with the tables is a UserError that
    names row and column.
    """
    ready = prepare(spec, tables, say)
    labels, members = ready.labels, ready.members
    arrays = _write_inputs(ready.inputs, members, make, advance)
    weights = None
    if spec.weight is not None:
        weights = read_weights(tables.train, spec.weight)[members[0].rows]
    values = [
        labels.values["train" if member.table is tables.train else member.split][member.rows]
        for member in members
    ]
    known: dict[str, Any] = {}
    if labels.task == "regression":
        values, known["label_scale"], known["label_offset"] = standardised(
            values, tables.train.source
        )
    train, validation, test = (
        Split(arrays[member.split], one, weights if member.split == "train" else None)
        for member, one in zip(members, values, strict=True)
    )
    return Dataset(
        name,
        len(labels.class_names) or None,
        task=labels.task,
        class_names=labels.class_names,
        train=train,
        validation=validation,
        test=test,
        vocabulary=ready.inputs.vocabulary,
        encoding=ready.inputs.encoding,
        **known,
    )


def prepare(spec: DatasetSpec, tables: Tables, say: Say) -> Prepared:
    """Read labels and training rows: all that is wrong with these is a UserError."""
    roles = find_roles(spec, tables)
    labels = read_labels(tables, roles.labels, spec.task, are_pictures=spec.text is not None)
    members = split_members(spec, tables, labels)
    if line := held_out_line(tables.train.num_rows, spec, dict(tables.items())):
        say(line)
    inputs: Features | Tokens
    if spec.text is not None:
        inputs = Tokens(spec, spec.text, tables.train)
    else:
        inputs = Features(spec, roles, tables.train)
    for batch in _training_batches(tables.train, inputs.columns, members[0]):
        inputs.see(batch)
    inputs.finish(say)
    return Prepared(labels, members, inputs)


def split_members(spec: DatasetSpec, tables: Tables, labels: Labels | None) -> list[Member]:
    """Return the rows of `train`, `validation` and `test`, in that order."""
    is_class = labels is not None and labels.task == "classification"
    classes = labels.values["train"] if labels is not None and is_class else None
    order = mixed_order(classes, tables.train.num_rows, seed=spec.split_seed)
    train, validation, test = (
        None if rows is None else Split(rows, rows)  # samples are their numbers
        for rows in (
            order,
            *(
                None if table is None else np.arange(table.num_rows)
                for table in (tables.validation, tables.test)
            ),
        )
    )
    assert train is not None
    found = []
    parts = cut(train, validation, test, spec, source=tables.train.source)
    for split, part in zip(SPLITS, parts, strict=True):
        found.append(Member(split, getattr(tables, split) or tables.train, part.array))
    return found


def _training_batches(table: Table, columns: Sequence[str], train: Member) -> Iterator[Any]:
    """Yield the training rows batch by batch, in the table's order."""
    is_training = np.zeros(table.num_rows, bool)
    is_training[train.rows] = True
    start = 0
    for batch in table.batches(columns):
        yield batch.filter(pa.array(is_training[start : start + batch.num_rows]))
        start += batch.num_rows


def _write_inputs(
    maker: Features | Tokens,
    members: list[Member],
    make: MakeArray,
    advance: Callable[[int], None],
) -> dict[str, Array]:
    arrays = {
        member.split: make(f"{member.split}-inputs", (len(member.rows), *maker.shape), maker.dtype)
        for member in members
    }
    for table in {id(member.table): member.table for member in members}.values():
        own = [member for member in members if member.table is table]
        places = np.full((len(own), table.num_rows), -1)
        for place, member in zip(places, own, strict=True):
            place[member.rows] = np.arange(len(member.rows))
        start = 0
        for batch in table.batches(maker.columns):
            inputs = maker.write(batch, table)
            for place, member in zip(places[:, start : start + batch.num_rows], own, strict=True):
                chosen = np.flatnonzero(place >= 0)
                arrays[member.split][place[chosen]] = inputs[chosen]
            start += batch.num_rows
            advance(batch.num_rows)
    return arrays
