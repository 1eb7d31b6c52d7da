"""Conversion of tables to a dataset: rows to splits, columns to inputs and labels."""

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
    """A split of a dataset, given by rows of a table."""

    split: str
    """Name of the split."""
    table: Table
    """Table that contains the rows of the split."""
    rows: Rows
    """Numbers of the rows in the table, in the order of the split."""

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of the split in batches (`pyarrow.RecordBatch`), in the order of the
        table.

        Args:
            columns: Names of the columns.
        """
        is_member = np.zeros(self.table.num_rows, bool)
        is_member[self.rows] = True
        start = 0
        for batch in self.table.batches(columns):
            yield batch.filter(pa.array(is_member[start : start + batch.num_rows]))
            start += batch.num_rows

    def column(self, name: str) -> Any:
        """Return a column for the rows of the split, in the order of the table, as a
        `pyarrow.Array`."""
        return pa.concat_arrays([batch.column(0) for batch in self.batches([name])])


class Features:
    """Encodes columns of numbers and names as inputs: one float32 vector of features per row."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, inputs: Sequence[str], train: Member, note: Note) -> None:
        """Fit an encoder to each input column.

        Args:
            spec: The dataset spec.
            inputs: Names of the input columns.
            train: The training split.
            note: Function that shows sentences about columns that are left out.
        """
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
        """Encoders as plain data; see `Dataset.encoding`."""
        self.shape: tuple[int, ...] = (sum(len(encoder.features) for encoder in self.encoders),)
        """Shape of one sample."""

    def write(self, batch: Any) -> Array:
        """Return the inputs for a batch of rows, (rows, features) float32."""
        return np.hstack([encoder.encode(batch.column(encoder.name)) for encoder in self.encoders])


def _fit_encoder(spec: DatasetSpec, name: str, train: Member) -> encode.Encoder:
    """Fit the encoder of a column to the training rows; raise ColumnLeftOut if nothing can be
    learned from the column."""
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
        note: Function that shows sentences about how the data are read and what is left out.
        writer: Writer of the store entry, which creates the arrays of inputs (`train-inputs`, ...).
        advance: Function that is called with the number of rows after each batch, to show progress.

    Raises:
        UserError: The data are invalid; the message names the first invalid row and its column.
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
    weights_by_split = {"train": weights}
    splits: dict[str, Any] = {
        member.split: Split(arrays[member.split], split_labels, weights_by_split.get(member.split))
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

    Args:
        spec: The dataset spec.
        tables: Tables by split.
        note: Function that shows sentences about how the data are read and what is left out.

    Returns:
        Labels of the tables; the splits `train`, `validation` and `test`; and the encoding of the
        inputs, which is fitted to the training rows.

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
    """Choose the rows of the splits train, validation and test.

    Args:
        spec: The dataset spec.
        tables: Tables by split; missing splits are cut from the training table.
        labels: Labels, by whose classes random splits are stratified; None if there are no classes.
    """
    is_class = labels is not None and labels.task == "classification"
    classes = labels.values["train"] if labels is not None and is_class else None
    train = tables["train"]
    rows = {split: np.arange(table.num_rows) for split, table in tables.items()}
    rows["train"], keys = row_order(spec, train, classes)
    # `cut` is applied to row numbers in place of samples.
    numbers = {split: Split(order, order) for split, order in rows.items()}
    parts = cut(numbers, spec, source=train.source, keys=keys)
    return [
        Member(split, tables.get(split, train), part.array)
        for split, part in zip(SPLITS, parts, strict=True)
    ]


def row_order(
    spec: DatasetSpec, table: Table, classes: Array | None
) -> tuple[Rows, npt.NDArray[np.int64] | None]:
    """Return the order of the rows from which splits are cut, and the keys of the rows.

    By default, the order is random and stratified by classes. With `split_by`, the latest rows come
    first, or rows are ordered group by group.

    Args:
        spec: The dataset spec.
        table: The training table.
        classes: Class numbers of the rows, (rows,); None if there are no classes.

    Returns:
        A permutation of the rows; and the key of each row in this order, where rows with equal keys
        must be in the same split (see `cut`). Without `split_by`, the keys are None.
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
"""Fraction of the changes between successive rows that must have the same sign for rows to count as
sorted by a column."""
MIN_STEPS = 10  # minimum number of changes for rows to count as sorted


def note_time_order(spec: DatasetSpec, tables: Tables, note: Note) -> None:
    """Show the user a note if rows are sorted by a date column but are split at random."""
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
    encoding: Features | texts.Tokens,
    members: list[Member],
    writer: Writer,
    advance: Callable[[int], None],
) -> dict[str, Array]:
    """Encode the inputs of each split into a new array of the store; return the arrays by split."""
    arrays: dict[str, Array] = {}
    for member in members:
        shape = (len(member.rows), *encoding.shape)
        array = writer.array(f"{member.split}-inputs", shape, encoding.dtype)
        arrays[member.split] = array
        # Index in the array of each row, in the order of the table.
        indices, start = np.argsort(member.rows), 0
        for batch in member.batches(encoding.columns):
            array[indices[start : start + batch.num_rows]] = encoding.write(batch)
            start += batch.num_rows
            advance(batch.num_rows)
    return arrays
