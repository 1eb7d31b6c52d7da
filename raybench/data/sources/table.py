"""Tables that are read in batches of rows: the role of each column (label, input, ...), the labels,
and the sample weights."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from raybench.data.dataset import Array
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

Numbers = npt.NDArray[np.float64]
US_PER_DAY = 86.4e9
LARGEST_NUMBER = 1e100
"""Absolute value above which a number counts as missing, because such numbers are usually
placeholders for missing values, and because their squares overflow."""


def is_number_type(kind: Any) -> bool:
    """Return whether columns of a pyarrow type are read as numbers.

    Dates, times, durations and booleans are read as numbers, and so are columns without values.
    """
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_decimal)
    return any(test(kind) for test in (*tests, types.is_boolean, types.is_temporal, types.is_null))


def as_numbers(values: Any) -> Numbers:
    """Convert a `pyarrow.Array` to float64, with NaN for values that are missing or too large.

    Dates are converted to days since 1970, times of day and durations to days, booleans to 1 and 0.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_temporal(kind):
        type_in_us = pa.timestamp("us", tz=getattr(kind, "tz", None))
        if pa.types.is_duration(kind):
            type_in_us = pa.duration("us")
        elif pa.types.is_time(kind):
            type_in_us = pa.time64("us")
        microseconds = values.cast(type_in_us, safe=False).cast(pa.int64())
        values = pc.divide(microseconds.cast(pa.float64()), US_PER_DAY)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    is_valid = np.abs(numbers) <= LARGEST_NUMBER
    return numbers if is_valid.all() else np.where(is_valid, numbers, np.nan)


def as_texts(values: Any) -> Any:
    """Convert a `pyarrow.Array` to stripped strings; empty strings become null."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # pyarrow cannot compare 16-bit floats
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        whole = values.cast(pa.int64(), safe=False)
        # Integers in a column with missing values are read as floats; their strings must be "3",
        # not "3.0". This is decided for each value, so its string does not depend on other values.
        is_whole = pc.equal(whole.cast(values.type, safe=False), values)
        values = pc.if_else(is_whole, whole.cast(pa.string()), values.cast(pa.string()))
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def is_number(text: str) -> bool:
    """Return whether a string can be converted to a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


BATCH_ROWS = 65_536  # maximum rows per batch, to limit memory for large tables
MAX_SHOWN = 20  # maximum number of column names in a message
LOOKS_NUMERIC = (
    r"^[-+(]?\s*\p{Sc}?\s*(?:(?:\d{1,3}(?:[.,' ]\d{3})+|\d+)(?:[.,]\d*)?|[.,]\d+)\s*[\p{Sc}%]?\)?$"
    r"|^\d{1,2}[-/.]\d{1,2}[-/.](?:\d{2}|\d{4})(?:\D.*)?$|^\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:\D.*)?$"
)
"""Pattern of strings that look like a number or a date, such as `1.200,50`, `$5`, `12 %` and
`31/12/2017`."""
PLAIN_NUMBER = r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$"
LONG_TEXT = 40  # mean characters from which a column of strings contains texts, not names
SEEN_ROWS = 2000  # number of rows at the start by which the content of a column is judged

Note = Callable[[str], None]
"""Function that shows the user a sentence about how the data are read."""


class Table:
    """A table that is read in batches of rows, from files, a folder or a Hugging Face dataset."""

    def __init__(
        self,
        data: Any,
        source: str,
        *,
        folder: str = "",
        class_names: Mapping[str, Sequence[str]] | None = None,
        place: Callable[[int], str] | None = None,
    ) -> None:
        """Create a table.

        Args:
            data: Rows of the table, a `pyarrow.Table` or a `pyarrow.dataset.Dataset`.
            source: How error messages refer to the table, usually by its path.
            folder: Folder to which paths in the table are relative.
            class_names: For each column of class numbers, the names of the classes.
            place: Function that returns the description of a row for messages, such as "row 2 of
                data.csv", given its number from 0.

        Raises:
            UserError: There are no rows, or two columns have the same name.
        """
        self.source, self.folder, self.class_names = source, folder, class_names or {}
        self.place = place or (lambda row: f"row {row + 1} of {source}")
        self._data = data
        # pandas writes row numbers as a column without a name, and reads it as "Unnamed: 0".
        names = [
            name.strip() or f"Unnamed: {number}" for number, name in enumerate(data.schema.names)
        ]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise UserError(
                    f"{self.source}: two columns are named '{name}' (columns "
                    f"{names.index(name) + 1} and {number + 1}); rename one of them.",
                    ErrorCode.INVALID_FILE,
                )
        self._given = dict(zip(names, data.schema.names, strict=True))
        self.schema = pa.schema(list(zip(names, data.schema.types, strict=True)))
        """Names and types of the columns, a `pyarrow.Schema`; names are stripped of blanks."""
        is_file = isinstance(data, pa.dataset.Dataset)
        self.num_rows: int = data.count_rows() if is_file else data.num_rows
        if not self.num_rows:
            raise UserError(f"{self.source} has no rows; add some.", ErrorCode.INVALID_DATA)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of the given columns in order, in batches (`pyarrow.RecordBatch`)."""
        given = [self._given[name] for name in columns]
        try:
            if isinstance(self._data, pa.Table):
                batches = self._data.select(given).to_batches(max_chunksize=BATCH_ROWS)
            else:
                batches = self._data.to_batches(
                    columns=given, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1
                )
            for batch in batches:
                yield pa.record_batch(batch.columns, names=list(columns))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{self.source} cannot be read to the end ({error}); write it again.",
                ErrorCode.INVALID_FILE,
            ) from error

    def kind(self, name: str) -> Any:
        """Return the pyarrow type of a column."""
        return self.schema.field(name).type

    def is_text(self, name: str) -> bool:
        """Return whether a column contains strings."""
        return is_text_type(self.kind(name))

    def is_long_text(self, name: str) -> bool:
        """Return whether a column contains strings that are on average too long to be names."""
        if not self.is_text(name):
            return False
        length = pc.mean(pc.utf8_length(self.head(name).cast(pa.string()))).as_py()
        return length is not None and length >= LONG_TEXT

    def column(self, name: str) -> Any:
        """Return a whole column as a `pyarrow.Array`."""
        parts = [batch.column(0) for batch in self.batches([name])]
        return pa.chunked_array(parts, self.kind(name)).combine_chunks()

    def head(self, name: str) -> Any:
        """Return the first values of a column, at most SEEN_ROWS, as a `pyarrow.Array`."""
        return next(iter(self.batches([name]))).column(0).slice(0, SEEN_ROWS)

    def require_names(self, column: str, advice: str) -> None:
        """Raise UserError if the strings in a column seem to be numbers or dates, not names.

        Names are strings that stand for categories. A column is rejected if most of its first
        values look like numbers or dates. It is accepted, however, if all of its values consist of
        digits only, such as codes in a Parquet file, or if pandas wrote it as categorical.

        Args:
            column: Name of the column.
            advice: What the user can do if the strings are names, for the message.
        """
        if pa.types.is_dictionary(self.kind(column)):
            return
        first = as_texts(self.head(column))
        share = pc.mean(pc.match_substring_regex(first, LOOKS_NUMERIC)).as_py() or 0.0
        if share <= 0.5:
            return
        texts = as_texts(self.column(column))
        if pc.all(pc.match_substring_regex(texts, r"^\d+$")).as_py():
            return
        is_plain = np.asarray(pc.match_substring_regex(texts, PLAIN_NUMBER).fill_null(True))
        wrong = np.asarray(texts.is_valid()) if is_plain.all() else ~is_plain
        self.require_none(
            wrong,
            f"column '{column}' contains the text '{texts[int(np.argmax(wrong))]}', and most of "
            "its texts look like numbers or dates",
            "write numbers as 1200.5 and dates as 2017-12-31, set dataset.decimal or dataset.dates "
            f"for a CSV file, or {advice} if these are names",
        )

    def require_none(self, wrong: npt.ArrayLike, what: str, advice: str) -> None:
        """Raise UserError if any row is invalid.

        The message names the first invalid row and the number of invalid rows.

        Args:
            wrong: Whether each row is invalid, (num_rows,).
            what: Description of the problem, such as "column 'age' is empty".
            advice: What the user can do.
        """
        rows = np.flatnonzero(wrong)
        if len(rows):
            number = f"{len(rows):,} such rows" if len(rows) > 1 else "1 row"
            end = "" if advice.endswith("?") else "."
            raise UserError(
                f"{self.place(int(rows[0]))}: {what} ({number}); {advice}{end}",
                ErrorCode.INVALID_DATA,
            )


Tables = Mapping[str, Table]
"""Tables by split, always including `train`, from which missing splits are cut."""


def require_columns(table: Table, columns: Sequence[str], key: str) -> None:
    """Raise UserError if a table does not have one of the columns that a key of `dataset` names."""
    names = table.schema.names
    for column in columns:
        if column not in names:
            hint = did_you_mean(column, names, f"its columns are {listed(names)}.")
            raise UserError(
                f"dataset.{key}: {table.source} has no column '{column}'; {hint}",
                ErrorCode.UNKNOWN_NAME,
            )


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message, separated by commas; at most MAX_SHOWN names are
    shown."""
    return ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")


def _require_same_columns(tables: Tables, columns: Sequence[str]) -> None:
    """Raise UserError if a column is missing in a split, or contains strings only in some
    splits."""
    train = tables["train"]
    for table in tables.values():
        for column in columns:
            if column not in table.schema.names:
                raise UserError(
                    f"{table.source} has no column '{column}', but {train.source} has; add it, "
                    "or list the columns to use in dataset.columns.",
                    ErrorCode.UNKNOWN_NAME,
                )
            kinds = [train.kind(column), table.kind(column)]
            are_texts = [is_text_type(kind) for kind in kinds]
            if len(set(are_texts)) > 1 and not any(map(pa.types.is_null, kinds)):
                raise UserError(
                    f"Column '{column}' is {kinds[0]} in {train.source}, but {kinds[1]} in "
                    f"{table.source}; convert one of them.",
                    ErrorCode.INVALID_DATA,
                )


def is_text_type(kind: Any) -> bool:
    """Return whether a pyarrow type is a string type, or a dictionary type of strings."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text_type(kind.value_type)
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(kind) for test in tests)


ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""Pattern of the column names under which pandas saves row numbers (the index of a data frame)."""


def find_roles(spec: DatasetSpec, tables: Tables, note: Note) -> tuple[list[str], list[str]]:
    """Determine which columns are labels and which are inputs.

    Args:
        spec: The dataset spec, whose keys name columns.
        tables: Tables by split.
        note: Function that shows sentences about columns that are left out.

    Returns:
        Names of the label columns, and names of the input columns. The list of input columns is
        empty if the inputs are texts or images.

    Raises:
        UserError: A column is missing, or is used twice.
    """
    train = tables["train"]
    named: dict[str, list[str]] = {}
    uses: dict[str, str] = {}
    for key in ("label", "weight", "text", "image", "columns", "categories"):
        given = getattr(spec, key) or []
        columns = named[key] = [given] if isinstance(given, str) else given
        require_columns(train, columns, key)
        for column in columns:
            if key != "categories" and column in uses:
                raise UserError(
                    f"dataset.{key}: column '{column}' is already used as {uses[column]}.",
                    ErrorCode.CONFLICT,
                )
            uses.setdefault(column, f"dataset.{key}")
    if spec.split_by is not None:
        column = split_column(spec)
        require_columns(train, [column], "split_by")
        if column in named["label"]:
            raise UserError(
                f"dataset.split_by: column '{column}' is the label.", ErrorCode.CONFLICT
            )
        if column not in uses:
            uses[column] = "dataset.split_by"
            note(
                f"column '{column}' is left out, because dataset.split_by names it; to use it as "
                "an input too, list it in dataset.columns."
            )
    if [spec.text, spec.image, spec.columns].count(None) < 2:
        raise UserError(
            "dataset: text, image and columns exclude each other; keep one of them.",
            ErrorCode.CONFLICT,
        )
    is_table = spec.text is None and spec.image is None
    inputs = _input_columns(spec, train, set(uses), note) if is_table else []
    rest = [] if is_table else [name for name in train.schema.names if name not in uses]
    rest = [name for name in rest if not ROW_NUMBERS.fullmatch(name)]
    if rest:
        kind = "text" if spec.image is None else "image"
        note(f"columns that are not used, because dataset.{kind} is set: {listed(rest)}.")
    for table in tables.values():
        require_columns(table, named["label"], "label")
    _require_same_columns(tables, [*inputs, *named["text"], *named["image"]])
    return named["label"], inputs


def split_column(spec: DatasetSpec) -> str:
    """Return the name of the column in the key `split_by`, which must be set."""
    given = spec.split_by
    assert given is not None
    return given if isinstance(given, str) else next(iter(given.values()))


def _input_columns(spec: DatasetSpec, table: Table, used: set[str], note: Note) -> list[str]:
    """Return the names of the input columns.

    They are the columns in `spec.columns` or, by default, all columns that can be inputs and are
    not among the columns `used` for something else.
    """
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    if spec.columns is not None:
        for column in spec.columns:
            if not is_input_type(kinds[column]):
                raise UserError(
                    f"dataset.columns: column '{column}' contains {kinds[column]}; inputs are "
                    "numbers, dates and texts.",
                    ErrorCode.INVALID_DATA,
                )
        return spec.columns
    inputs = []
    for name, kind in kinds.items():
        if name in used - set(spec.categories or []):
            continue
        # Row numbers may reveal the label, if rows are sorted by label.
        if ROW_NUMBERS.fullmatch(name) and pa.types.is_integer(kind):
            note(
                f"column '{name}' is left out: it contains the row numbers of pandas; to use it "
                "anyway, list it in dataset.columns."
            )
        elif is_input_type(kind):
            inputs.append(name)
        else:
            note(f"column '{name}' is left out: it contains {kind}.")
    if not inputs:
        raise UserError(
            f"{table.source} has no input columns besides {', '.join(sorted(used))}.",
            ErrorCode.INVALID_DATA,
        )
    return inputs


def is_input_type(kind: Any) -> bool:
    """Return whether a column of this pyarrow type can be an input."""
    if pa.types.is_dictionary(kind):
        return is_input_type(kind.value_type)
    return is_text_type(kind) or is_number_type(kind)


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
        allow_many_classes: Whether up to MAX_NUMBERED_PICTURES distinct integers are classes,
            because the inputs are images or texts; otherwise, up to MAX_NUMBERED_CLASSES are.

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
        max_classes: Maximum number of distinct integers that count as classes.
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
        Class numbers, keyed by split; and the names of the classes, in the order of their numbers.

    Raises:
        UserError: There are too many classes, a class number is out of range, or another split has
            a class that the training split does not have.
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
