"""Tables: columns by name and type, read in batches of rows, and what each column is used for."""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError, did_you_mean

Numbers = npt.NDArray[np.float64]
US_PER_DAY = 86.4e9
LARGEST_NUMBER = 1e100
"""Larger numbers count as missing: they stand for it, and their squares exceed floats."""


def is_number_type(kind: Any) -> bool:
    """Return whether a type of pyarrow is read as numbers, as dates and booleans are too."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_decimal)
    return any(test(kind) for test in (*tests, types.is_boolean, types.is_temporal, types.is_null))


def as_numbers(values: Any) -> Numbers:
    """Return a `pyarrow.Array` of numbers as float64, NaN where a value is missing or too large.

    Dates become days since 1970; times of day and durations become days; booleans 1 and 0.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if pa.types.is_temporal(kind):
        wanted = pa.timestamp("us", tz=getattr(kind, "tz", None))
        if pa.types.is_duration(kind):
            wanted = pa.duration("us")
        elif pa.types.is_time(kind):
            wanted = pa.time64("us")
        microseconds = values.cast(wanted, safe=False).cast(pa.int64())
        values = pc.divide(microseconds.cast(pa.float64()), US_PER_DAY)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    is_sound = np.abs(numbers) <= LARGEST_NUMBER
    return numbers if is_sound.all() else np.where(is_sound, numbers, np.nan)


def as_texts(values: Any) -> Any:
    """Return a `pyarrow.Array` as stripped texts, null where they are empty."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # pyarrow compares none of 16 bits
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        whole = values.cast(pa.int64(), safe=False)
        # 3, not 3.0, which whole numbers become beside a missing value. Decided for each value:
        # another part of the column, or another split, may have no fractions.
        is_whole = pc.equal(whole.cast(values.type), values)
        values = pc.if_else(is_whole, whole.cast(pa.string()), values.cast(pa.string()))
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


BATCH_ROWS = 65_536  # rows of a batch: of a table larger than memory no more are held
MAX_SHOWN = 20  # most names of columns that a sentence lists


Note = Callable[[str], None]
"""Shows a sentence to the user: a note on how data are read."""


@dataclass(frozen=True)
class Unread:
    """Reason why a column of texts cannot be read as the numbers or dates that it seems to hold."""

    reason: str
    """Ends a sentence that names the column."""
    wrong: str | None = None
    """A text to correct; None where all cells are ambiguous."""
    place: str = ""
    """Place of the first text to correct, or else the table."""

    def about(self, column: str) -> UserError:
        """Return the error for a column that is needed; `column` is its name in the sentence."""
        return UserError(f"{self.place}: {column} {self.reason}.", ErrorCode.INVALID_DATA)


LONG_TEXT = 40  # least mean characters of a column of texts that are no names
SEEN_ROWS = 2000  # first rows that decide on the use of a column


class Table:
    """Rows of files, of a folder or of a Hugging Face set: columns by name, read in batches."""

    forms: Mapping[str, Any] = {}
    """Notation of texts that are read as numbers or dates (`written.NumberForm`), by column."""
    unread: Mapping[str, Unread] = {}
    """Columns of texts that could not be read as numbers or dates."""

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
            data: The rows, a `pyarrow.Table` or a `pyarrow.dataset.Dataset`.
            source: Name of the table in sentences: its path.
            folder: Folder from which relative paths in cells start.
            class_names: Names of the classes of columns that hold them as numbers.
            place: Returns the place of a row (from 0) in its file, for sentences.

        Raises:
            UserError: There are no rows, or two columns have the same name.
        """
        self.source, self.folder, self.class_names = source, folder, class_names or {}
        self.place = place or (lambda row: f"row {row + 1} of {source}")
        self._hold(data)

    def _hold(self, data: Any) -> None:
        self._data = data
        # pandas writes its row numbers under an empty name, and reads it as this one.
        names = [
            name.strip() or f"Unnamed: {number}" for number, name in enumerate(data.schema.names)
        ]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise UserError(
                    f"{self.source}: two columns have the name '{name}' (columns "
                    f"{names.index(name) + 1} and {number + 1}); give each its own.",
                    ErrorCode.INVALID_FILE,
                )
        self._given = dict(zip(names, data.schema.names, strict=True))
        self.schema = pa.schema(list(zip(names, data.schema.types, strict=True)))
        """Stripped names, and types, of the columns: a `pyarrow.Schema`."""
        is_file = isinstance(data, pa.dataset.Dataset)
        self.num_rows: int = data.count_rows() if is_file else data.num_rows
        if not self.num_rows:
            raise UserError(f"{self.source} has no rows; give it some.", ErrorCode.INVALID_DATA)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield all rows of some columns in batches (`pyarrow.RecordBatch`), in order."""
        given = [self._given[name] for name in columns]
        try:
            if isinstance(self._data, pa.Table):
                found = self._data.select(given).to_batches(max_chunksize=BATCH_ROWS)
            else:
                found = self._data.to_batches(
                    columns=given, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1
                )
            for batch in found:
                arrays = [
                    self.forms[name].read(values) if self._is_written(name, values.type) else values
                    for name, values in zip(columns, batch.columns, strict=True)
                ]
                yield pa.record_batch(arrays, names=list(columns))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{self.source} cannot be read on ({error}); write it again.",
                ErrorCode.INVALID_FILE,
            ) from error

    def kind(self, name: str) -> Any:
        """Return the pyarrow type of a column."""
        return self.schema.field(name).type

    def is_text(self, name: str) -> bool:
        """Return whether a column holds texts."""
        return is_text_type(self.kind(name))

    def is_long_text(self, name: str) -> bool:
        """Return whether a column holds texts that are longer than names."""
        if not self.is_text(name):
            return False
        length = pc.mean(pc.utf8_length(self.head(name).cast(pa.string()))).as_py()
        return length is not None and length >= LONG_TEXT

    def column(self, name: str) -> Any:
        """Return a whole column as a `pyarrow.Array`."""
        parts = [batch.column(0) for batch in self.batches([name])]
        return pa.chunked_array(parts, self.kind(name)).combine_chunks()

    def head(self, name: str) -> Any:
        """Return the first values of a column, a `pyarrow.Array`."""
        return next(iter(self.batches([name]))).column(0).slice(0, SEEN_ROWS)

    def read_as(self, forms: Mapping[str, Any], unread: Mapping[str, Unread]) -> Self:
        """Return the table with texts of some columns read as numbers or dates."""
        found = copy.copy(self)
        found.forms, found.unread = forms, unread
        kinds = {
            one.name: forms[one.name].type if found._is_written(one.name, one.type) else one.type
            for one in self.schema
        }
        found.schema = pa.schema(list(kinds.items()))
        return found

    def require_none(self, wrong: npt.ArrayLike, what: str, advice: str) -> None:
        """Raise UserError if any row is wrong, with the place of the first and their number.

        Args:
            wrong: Whether each row is wrong, (num_rows,).
            what: Says what is wrong: "column 'age' is empty".
            advice: Says what to do.
        """
        rows = np.flatnonzero(wrong)
        if len(rows):
            number = f"{len(rows):,} such rows" if len(rows) > 1 else "1 row"
            end = "" if advice.endswith("?") else "."
            raise UserError(
                f"{self.place(int(rows[0]))}: {what} ({number}); {advice}{end}",
                ErrorCode.INVALID_DATA,
            )

    def _is_written(self, column: str, kind: Any) -> bool:
        return column in self.forms and is_text_type(kind)


Tables = Mapping[str, Table]
"""Tables by split, `train` first, from which missing splits are cut."""


def require_columns(table: Table, columns: Sequence[str], key: str) -> None:
    """Raise UserError if a table lacks a column that `key` of the dataset names."""
    names = table.schema.names
    for column in columns:
        if column not in names:
            hint = did_you_mean(column, names, f"its columns are {_listed(names)}.")
            raise UserError(
                f"dataset.{key}: {table.source} has no column '{column}'; {hint}",
                ErrorCode.UNKNOWN_NAME,
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")


def _require_same_columns(tables: Tables, columns: Sequence[str]) -> None:
    """Raise UserError if a split lacks a column, or has texts where training has none."""
    train = tables["train"]
    for table in tables.values():
        for column in columns:
            if column not in table.schema.names:
                raise UserError(
                    f"{table.source} has no column '{column}', which {train.source} has; add it, "
                    "or name the columns to use in dataset.columns.",
                    ErrorCode.UNKNOWN_NAME,
                )
            kinds = [one.kind(column) for one in (train, table)]
            are_texts = [is_text_type(kind) for kind in kinds]
            if len(set(are_texts)) > 1 and not any(map(pa.types.is_null, kinds)):
                raise UserError(
                    f"Column '{column}' is {kinds[0]} in {train.source}, and {kinds[1]} in "
                    f"{table.source}; make them the same.",
                    ErrorCode.INVALID_DATA,
                )


def is_text_type(kind: Any) -> bool:
    """Return whether a type of pyarrow is text, or a dictionary of texts."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text_type(kind.value_type)
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(test(kind) for test in tests)


ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""Names that pandas gives its index in Parquet, and in a CSV that is read."""


def find_roles(spec: DatasetSpec, tables: Tables, note: Note) -> tuple[list[str], list[str]]:
    """Return the columns of labels and the columns of inputs.

    There are no columns of inputs where the inputs are texts or images.

    Args:
        spec: The dataset, whose keys name columns.
        tables: Tables by split.
        note: Called with a sentence on each column that is left out.

    Raises:
        UserError: A column is missing, or used twice.
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
                    f"dataset.{key}: column '{column}' is {uses[column]} already.",
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
                f"column '{column}' is left out: splits are cut by it; to learn from it too, name "
                "it in dataset.columns."
            )
    if [spec.text, spec.image, spec.columns].count(None) < 2:
        raise UserError(
            "dataset: text, image and columns are three kinds of inputs; keep one of them.",
            ErrorCode.CONFLICT,
        )
    is_table = spec.text is None and spec.image is None
    inputs = _inputs(spec, train, set(uses), note) if is_table else []
    rest = [] if is_table else [one for one in train.schema.names if one not in uses]
    if rest := [name for name in rest if not ROW_NUMBERS.fullmatch(name)]:
        kind, advice = "text" if spec.image is None else "image", []
        if columns := [name for name in rest if not train.is_long_text(name)]:
            advice.append(f"columns: [{_listed(columns)}] in place of {kind} learns from them")
        if len(columns) < len(rest):
            advice.append("to learn from several texts, write them into one column")
        note(
            f"column{'s' * (len(rest) > 1)} {_listed(rest)} {'are' if len(rest) > 1 else 'is'} not "
            f"used beside {kind} {getattr(spec, kind)}; {'; '.join(advice)}."
        )
    for table in tables.values():
        require_columns(table, named["label"], "label")
    _require_same_columns(tables, [*inputs, *named["text"], *named["image"]])
    return named["label"], inputs


def split_column(spec: DatasetSpec) -> str:
    """Return the column of `split_by`."""
    given = spec.split_by
    assert given is not None
    return given if isinstance(given, str) else next(iter(given.values()))


def _inputs(spec: DatasetSpec, table: Table, used: set[str], note: Note) -> list[str]:
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    if spec.columns is not None:
        for column in spec.columns:
            if not is_input_type(kinds[column]):
                raise UserError(
                    f"dataset.columns: column '{column}' holds {kinds[column]}; inputs are "
                    "numbers, dates and texts.",
                    ErrorCode.INVALID_DATA,
                )
        return spec.columns
    inputs = []
    for name, kind in kinds.items():
        if name in used - set(spec.categories or []):
            continue
        if ROW_NUMBERS.fullmatch(name) and pa.types.is_integer(kind):  # it may tell the label
            note(
                f"column '{name}' is left out: it holds pandas' numbers of the rows; if it is "
                "more, name it in dataset.columns."
            )
        elif is_input_type(kind):
            inputs.append(name)
        else:
            note(f"column '{name}' is left out: it holds {kind}.")
    if not inputs:
        raise UserError(
            f"{table.source} has no column of inputs beside {', '.join(sorted(used))}.",
            ErrorCode.INVALID_DATA,
        )
    return inputs


def is_input_type(kind: Any) -> bool:
    """Return whether a column of that type of pyarrow can be an input."""
    if pa.types.is_dictionary(kind):
        return is_input_type(kind.value_type)
    return is_text_type(kind) or is_number_type(kind)
