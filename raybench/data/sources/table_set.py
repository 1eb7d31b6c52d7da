"""Conversion of tables to datasets: rows to splits, columns to inputs and labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import Rows
from raybench.data.sources import encode, texts
from raybench.data.sources.cut import cut, group_order, mixed_order, standardized
from raybench.data.sources.label_columns import Labels, read_labels, read_weights
from raybench.data.sources.table import (
    MAX_SHOWN,
    Note,
    Table,
    Tables,
    as_numbers,
    as_texts,
    find_roles,
    is_number_type,
    split_column,
)
from raybench.data.store import Writer
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError


@dataclass(frozen=True)
class Member:
    """A split: the table that holds it, and its row numbers there."""

    split: str
    table: Table
    rows: Rows

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the split's rows in the order of the table, in batches (`pyarrow.RecordBatch`)."""
        is_own = np.zeros(self.table.num_rows, bool)
        is_own[self.rows] = True
        start = 0
        for batch in self.table.batches(columns):
            yield batch.filter(pa.array(is_own[start : start + batch.num_rows]))
            start += batch.num_rows

    def column(self, name: str) -> Any:
        """Return a column of the split's rows as a `pyarrow.Array`."""
        return pa.concat_arrays([batch.column(0) for batch in self.batches([name])])


class Features:
    """Encodes columns of numbers and names as inputs: a float32 vector of features for each row."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, inputs: Sequence[str], train: Member, note: Note) -> None:
        """Fit an encoder to each column in `inputs`; call `note` for columns that are left out."""
        self.encoders: list[encode.Encoder] = []
        reasons = []
        for name in inputs:
            try:
                self.encoders.append(_fit_encoder(spec, name, train))
            except encode.ColumnLeftOut as reason:
                reasons.append(f"column '{name}' is left out: it {reason}.")
        if not self.encoders:
            more = f" ({len(reasons) - MAX_SHOWN} more)" if len(reasons) > MAX_SHOWN else ""
            raise UserError(
                f"{train.table.source}: no column is left to learn from: "
                f"{' '.join(reasons[:MAX_SHOWN])}{more}",
                ErrorCode.INVALID_DATA,
            )
        for sentence in reasons:
            note(sentence)
        self.columns = [encoder.name for encoder in self.encoders]
        self.encoding = {"columns": [asdict(encoder) for encoder in self.encoders]}
        """See `Dataset.encoding`."""
        self.shape: tuple[int, ...] = (sum(len(encoder.features) for encoder in self.encoders),)
        """Shape of one sample."""

    def write(self, batch: Any) -> Array:
        """Return the inputs for a batch of rows, (rows, features) float32."""
        return np.hstack([encoder.encode(batch.column(encoder.name)) for encoder in self.encoders])


def _fit_encoder(spec: DatasetSpec, name: str, train: Member) -> encode.Encoder:
    """Fit the encoder of a column; raise ColumnLeftOut if nothing can be learned from it."""
    table, kind = train.table, train.table.kind(name)
    is_category = name in (spec.categories or [])
    is_listed = spec.columns is not None
    if is_number_type(kind) and not is_category:
        # Only integers can be mere row numbers; dates in increasing order may be useful.
        counted_rows = table.num_rows if pa.types.is_integer(kind) and not is_listed else 0
        return encode.fit_number_encoder(
            name,
            as_numbers(train.column(name)),
            is_flag=pa.types.is_boolean(kind),
            counted_rows=counted_rows,
        )
    if not is_category:
        table.require_names(name, "list the column in dataset.categories")
    return encode.fit_name_encoder(name, train.column(name), keep_ids=is_listed or is_category)


def table_dataset(
    spec: DatasetSpec, tables: Tables, note: Note, writer: Writer, advance: Callable[[int], None]
) -> Dataset:
    """Convert tables to a dataset, reading the inputs one batch of rows at a time.

    Args:
        spec: The dataset spec.
        tables: Tables by split.
        note: Called with sentences on how the data are read and what is left out.
        writer: Creates the arrays of inputs (`train-inputs`, ...).
        advance: Called with the number of rows after each batch, to show progress.

    Raises:
        UserError: The data are invalid; the message names the first wrong row and its column.
    """
    labels, members, inputs = prepare(spec, tables, note)
    arrays = _write_inputs(inputs, members, writer, advance)
    train = tables["train"]
    weights = read_weights(train, spec.weight)[members[0].rows] if spec.weight else None
    values = [
        labels.values["train" if member.table is train else member.split][member.rows]
        for member in members
    ]
    known: dict[str, Any] = {}
    if labels.task == "regression":
        values, known["label_scale"], known["label_offset"] = standardized(values)
    weights_of = {"train": weights}
    splits: dict[str, Any] = {
        member.split: Split(arrays[member.split], split_labels, weights_of.get(member.split))
        for member, split_labels in zip(members, values, strict=True)
    }
    return Dataset(
        spec.name,
        len(labels.class_names) or None,
        **splits,
        task=labels.task,
        class_names=labels.class_names,
        vocabulary=inputs.vocabulary,
        encoding=inputs.encoding,
        **known,
    )


def prepare(
    spec: DatasetSpec, tables: Tables, note: Note
) -> tuple[Labels, list[Member], Features | texts.Tokens]:
    """Read the labels, choose the rows of the splits, and fit the encoding of the inputs.

    Returns:
        The labels of the tables; the splits `train`, `validation` and `test`; and the encoding of
        the inputs, fitted to the training rows.

    Raises:
        UserError: The data are invalid.
    """
    columns, inputs = find_roles(spec, tables, note)
    labels = read_labels(tables, columns, spec.task, allow_many_classes=spec.text is not None)
    members = choose_split_rows(spec, tables, labels)
    note_time_order(spec, tables, note)
    if spec.text is None:
        return labels, members, Features(spec, inputs, members[0], note)
    texts.require_text(members[0].table, spec.text)
    training_texts = (
        text for batch in members[0].batches([spec.text]) for text in texts.texts_of(batch)
    )
    return labels, members, texts.Tokens(spec, tables["train"].source, training_texts, note)


def choose_split_rows(spec: DatasetSpec, tables: Tables, labels: Labels | None) -> list[Member]:
    """Return the rows of train, validation and test; random splits are stratified by classes."""
    is_class = labels is not None and labels.task == "classification"
    classes = labels.values["train"] if labels is not None and is_class else None
    train = tables["train"]
    rows = {split: np.arange(table.num_rows) for split, table in tables.items()}
    rows["train"], keys = row_order(spec, train, classes)
    # Row numbers take the place of samples.
    numbers = {split: Split(order, order) for split, order in rows.items()}
    parts = cut(numbers, spec, source=train.source, keys=keys)
    return [
        Member(split, tables.get(split, train), part.array)
        for split, part in zip(SPLITS, parts, strict=True)
    ]


def row_order(
    spec: DatasetSpec, table: Table, classes: Array | None
) -> tuple[Rows, npt.NDArray[np.int64] | None]:
    """Return the order of rows from which splits are cut, and keys for `split_by` (see `cut`).

    Returns:
        A permutation of the rows, and a key for each row in this order. By default, the order is
        random and stratified by `classes`, and the keys are None. With `split_by`, the latest rows
        come first, or rows are ordered group by group; those with equal keys must not be separated.
    """
    if spec.split_by is None:
        return mixed_order(classes, table.num_rows, seed=spec.split_seed), None
    column = split_column(spec)
    kind = table.kind(column)
    if isinstance(spec.split_by, str) and not pa.types.is_temporal(kind):
        raise UserError(
            f"dataset.split_by: column '{column}' of {table.source} holds {kind}, not dates; write "
            f"{{time: {column}}} to order rows by numbers, or {{group: {column}}}.",
            ErrorCode.INVALID_DATA,
        )
    is_time = isinstance(spec.split_by, str) or "time" in spec.split_by
    values = table.column(column)
    if is_time and not is_number_type(kind):
        raise UserError(
            f"dataset.split_by: column '{column}' of {table.source} holds {kind}, not times; name "
            "another column.",
            ErrorCode.INVALID_DATA,
        )
    numbers = -as_numbers(values) if is_time else None  # the latest first
    texts = as_texts(values)
    table.require_none(
        texts.is_null() if numbers is None else np.isnan(numbers),
        f"column '{column}' of dataset.split_by is empty",
        "fill in its cells, or remove these rows",
    )
    known = np.array(texts.to_pylist()) if numbers is None else numbers
    codes = np.unique(known, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    if not is_time:
        order = group_order(codes, seed=spec.split_seed)
    return order, codes[order]


ORDERED = 0.95
"""Fraction of the steps between successive rows that must go in the same direction for rows to
count as sorted by a column."""
MIN_STEPS = 10


def note_time_order(spec: DatasetSpec, tables: Tables, note: Note) -> None:
    """Call `note` if rows are in the order of a date column but are split at random."""
    train = tables["train"]
    is_cut = "validation" not in tables or ("test" not in tables and spec.test_size != "none")
    for column in train.schema if is_cut and spec.split_by is None else ():
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            continue
        steps = np.diff(as_numbers(train.column(column.name)))
        steps = steps[np.abs(steps) > 0]  # without NaN
        if len(steps) >= MIN_STEPS and not 1 - ORDERED < np.mean(steps > 0) < ORDERED:
            note(
                f"rows are sorted by column '{column.name}' but split at random, so validation "
                "rows lie between training rows; to evaluate on the latest rows, set "
                f"dataset.split_by: {column.name}."
            )
            return


def _write_inputs(
    maker: Features | texts.Tokens,
    members: list[Member],
    writer: Writer,
    advance: Callable[[int], None],
) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for member in members:
        shape = (len(member.rows), *maker.shape)
        arrays[member.split] = array = writer.array(f"{member.split}-inputs", shape, maker.dtype)
        places, start = np.argsort(member.rows), 0  # of rows in the order of the table
        for batch in member.batches(maker.columns):
            array[places[start : start + batch.num_rows]] = maker.write(batch)
            start += batch.num_rows
            advance(batch.num_rows)
    return arrays
