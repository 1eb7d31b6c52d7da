"""Splits that are cut from the samples of a dataset, or from the rows of a table.

To cut splits, the samples are put in an order, of which each split is a contiguous part. The order
is random or, with `split_by`, by time or by group. Images and arrays are written to the store in
this order, so every split is a slice of a stored array. Cutting a split then does not copy samples,
and splits of other sizes use the same files. The rows of a table without images are assigned to
splits before they are written, because its columns are encoded by statistics of the training rows.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Rows, Split, num_of, split_of_arrays
from raybench.data.sources.table import (
    Labels,
    Note,
    Table,
    Tables,
    as_numbers,
    as_texts,
    is_number_type,
    split_column,
)
from raybench.data.store import Source, Writer, stored
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError


def standardized(labels: Sequence[Array]) -> tuple[list[Array], Array, Array]:
    """Standardize labels to mean 0 and standard deviation 1 over the training split.

    Args:
        labels: Labels of each split, the training split first.

    Returns:
        The standardized labels of each split; the divisor (standard deviation) and the offset
        (mean) of the original labels, each of shape () or (outputs,).
    """
    train = labels[0].astype(np.float64)
    offset, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)  # the standard deviation is 0 if all labels are equal
    scaled = [((values - offset) / scale).astype(np.float32) for values in labels]
    return scaled, np.asarray(scale, np.float32), np.asarray(offset, np.float32)


def stored_and_cut(
    source: Source, build: Callable[[Writer], Mapping[str, Any]], spec: DatasetSpec
) -> Dataset:
    """Return a stored dataset, cut into splits; labels of a regression are standardized.

    Args:
        source: Files and options of the dataset.
        build: Function that writes the samples in the order from which splits are cut. It is called
            only if the dataset is not stored yet.
        spec: The dataset spec, which sets the sizes of the splits.
    """
    entry, path = stored(source, build), str(source.path)
    splits = {
        split: split_of_arrays(entry.arrays, split)
        for split in SPLITS
        if f"{split}-labels" in entry.arrays
    }
    keys = entry.arrays.get(KEYS)
    parts, known = cut(splits, spec, source=path, keys=keys), dict(entry.about)
    known["class_names"] = tuple(known["class_names"])
    if known["task"] == "regression":
        labels = [part.labels for part in parts]
        labels, known["label_scale"], known["label_offset"] = standardized(labels)
        parts = [replace(part, labels=scaled) for part, scaled in zip(parts, labels, strict=True)]
    num_classes = known.pop("num_classes", None) or len(known["class_names"]) or None
    train, validation, test = parts
    return Dataset(spec.name, num_classes, train, validation, test, **known)


KEYS = "train-keys"
"""Name of the stored array of keys for `split_by`, (N,) int64. Neighboring samples with equal keys
must be in the same split."""
TYPICAL_SHARE = 0.1  # default size of the validation and of the test split, as a fraction


def mixed_order(
    labels: npt.NDArray[np.int64] | None, number: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """Return a random permutation of samples that depends only on the arguments.

    Args:
        labels: Class numbers of the samples, (N,), to stratify the permutation: every contiguous
            part of the permutation then contains each class in proportion, to within two samples.
            None for a permutation that is not stratified.
        number: Number of samples N.
        seed: Seed of the permutation.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(number)
    if labels is None:
        return order
    shuffled = labels[order]
    by_class = np.argsort(shuffled, kind="stable")
    counts = np.bincount(shuffled)
    starts = np.cumsum(counts) - counts
    rank = np.arange(number) - starts[shuffled[by_class]]
    position = np.empty(number)
    position[by_class] = (rank + 0.5) / counts[shuffled[by_class]]
    # A stable sort keeps samples with equal positions in the random order.
    return order[np.argsort(position, kind="stable")]


def group_order(codes: npt.NDArray[np.int64], *, seed: int) -> npt.NDArray[np.int64]:
    """Return an order of samples in which all samples of a group are neighbors.

    Groups are in random order, but large groups come last, so that they are in the training split.
    They would not fit into the smaller validation and test splits.

    Args:
        codes: Number of the group of each sample, (N,).
        seed: Seed of the random order.
    """
    counts = np.bincount(codes)
    large = np.where(counts > TYPICAL_SHARE / 2 * len(codes), counts, 0)
    chance = np.random.default_rng(seed).permutation(len(counts))
    rank = np.empty(len(counts), np.int64)
    rank[np.lexsort((chance, large))] = np.arange(len(counts))
    return np.argsort(rank[codes], kind="stable")


def _whole_groups(sizes: Mapping[str, int], keys: Array, source: str) -> dict[str, int]:
    """Return sizes of the test and validation splits that divide no group of samples.

    A group consists of neighboring samples with equal keys. Each split ends at the boundary between
    groups that is closest to its requested size.

    Args:
        sizes: Requested sizes of the splits `test` and `validation`.
        keys: Key of each sample, (N,).
        source: Name of the data in error messages.

    Raises:
        UserError: There are too few groups.
    """
    ends = np.flatnonzero(np.diff(keys)) + 1
    wanted = [part for part in ("test", "validation") if sizes[part]]
    if not wanted:
        raise UserError(
            f"dataset.split_by: {source} already has all splits; remove the key.",
            ErrorCode.CONFLICT,
        )
    if len(ends) < len(wanted):
        raise UserError(
            f"dataset.split_by: {len(wanted) + 1} splits need at least as many distinct values in "
            f"the column, but {source} has {len(ends) + 1}.",
            ErrorCode.TOO_FEW,
        )
    rounded, begin = dict.fromkeys(sizes, 0), 0
    for left, part in zip(range(len(wanted) - 1, -1, -1), wanted, strict=True):
        free = ends[ends > begin]
        free = free[: len(free) - left]  # leave one end for each of the splits that follow
        end = int(free[np.abs(free - (begin + sizes[part])).argmin()])
        rounded[part], begin = end - begin, end
    return rounded


def held_out_sizes(
    spec: DatasetSpec, total: int, existing: Container[str], source: str
) -> dict[str, int]:
    """Return how many samples to cut for the splits `validation` and `test`.

    By default, the test split gets the same size as the validation split.

    Args:
        spec: The dataset spec.
        total: Number of samples from which splits are cut.
        existing: Names of the splits that the data already have; their size is 0.
        source: Name of the data in error messages.

    Raises:
        UserError: The spec sets the size of a split that the data already have.
    """
    typical = max(1, round(TYPICAL_SHARE * total))
    sizes = {"validation": 0, "test": 0}
    for split, size in (("validation", spec.validation_size), ("test", spec.test_size)):
        if split not in existing:
            sizes[split] = num_of(size, total, typical=sizes["validation"] or typical)
        elif size is not None:
            raise UserError(
                f"dataset.{split}_size {size}: {source} already has this split; remove the key.",
                ErrorCode.CONFLICT,
            )
    return sizes


def cut(
    splits: Mapping[str, Split], spec: DatasetSpec, *, source: str, keys: Array | None = None
) -> list[Split]:
    """Return the splits train, validation and test, after cutting missing ones from train.

    They are cut from the start of train: first the test split, then the validation split.

    Args:
        splits: Splits that the data already have, always including `train`.
        spec: The dataset spec, which sets the sizes of the splits as numbers of samples or as
            fractions of the training samples.
        source: Name of the data in error messages.
        keys: Keys of the training samples, (N,). Neighboring samples with equal keys are put into
            the same split, so the sizes of the splits are only approximate. None if samples may be
            separated.

    Raises:
        UserError: No samples remain to train on, or the spec sets the size of a split that the data
            already have.
    """
    train, total = splits["train"], len(splits["train"])
    sizes = held_out_sizes(spec, total, splits, source)
    held_out = sum(sizes.values())
    if held_out >= total:
        raise UserError(
            f"dataset: {source} has {total:,} samples; {sizes['validation']:,} for validation and "
            f"{sizes['test']:,} for the test leave none to train on; choose smaller sizes.",
            ErrorCode.TOO_FEW,
        )
    if keys is not None:
        sizes = _whole_groups(sizes, keys, source)
        held_out = sum(sizes.values())
    parts = {
        "train": train.take(slice(held_out, None)),
        "validation": train.take(slice(sizes["test"], held_out)),
        "test": train.take(slice(sizes["test"])),
    }
    return list((parts | dict(splits) | {"train": parts["train"]}).values())


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
        table."""
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


def choose_split_rows(spec: DatasetSpec, tables: Tables, labels: Labels | None) -> list[Member]:
    """Choose the rows of the splits train, validation and test.

    Args:
        spec: The dataset spec.
        tables: Tables by split; missing splits are cut from the training table.
        labels: Labels of the tables; random splits are stratified by their classes, if there are
            any. None for a language model.
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
    if (not is_number_type(kind)) if is_time else pa.types.is_nested(kind):
        raise UserError(
            f"dataset.split_by: column '{column}' of {table.source} holds {kind}, not "
            f"{'times' if is_time else 'names or numbers'}; name another column.",
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
