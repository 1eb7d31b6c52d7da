"""Tables, read in batches of rows, and the role of each column (label, input, ...)."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
"""Numbers that are larger count as missing, because they are usually placeholders for missing
values, and their squares overflow."""


def is_number_type(kind: Any) -> bool:
    """Return whether a pyarrow type is read as numbers, which includes dates and booleans."""
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_decimal)
    return any(test(kind) for test in (*tests, types.is_boolean, types.is_temporal, types.is_null))


def as_numbers(values: Any) -> Numbers:
    """Convert a `pyarrow.Array` to float64, with NaN for values that are missing or too large.

    Dates become days since 1970, times of day and durations become days, booleans become 1 and 0.
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
    """Convert a `pyarrow.Array` to stripped strings; empty strings become null."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # pyarrow cannot compare 16-bit floats
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        whole = values.cast(pa.int64(), safe=False)
        # Integers in a column with missing values are read as floats, and must become 3, not 3.0.
        # This is decided for each value, so that its string does not depend on the other values.
        is_whole = pc.equal(whole.cast(values.type), values)
        values = pc.if_else(is_whole, whole.cast(pa.string()), values.cast(pa.string()))
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def is_number(text: str) -> bool:
    """Return whether a string is a finite number."""
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
"""Strings such as `1.200,50`, `$5`, `12 %` and `31/12/2017`."""
PLAIN_NUMBER = r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$"
LONG_TEXT = 40  # minimum mean characters of a column of strings to count as texts, not names
SEEN_ROWS = 2000  # number of first rows by which the kind of a column is decided

Note = Callable[[str], None]
"""Function that shows the user a sentence on how the data are read."""


class Table:
    """A table read in batches of rows from files, a folder or a Hugging Face dataset."""

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
            source: Name of the table in messages, usually its path.
            folder: Folder to which paths in cells are relative.
            class_names: Names of the classes for columns that hold class numbers.
            place: Function that maps a row number (from 0) to the row's place in messages.

        Raises:
            UserError: There are no rows, or two columns have the same name.
        """
        self.source, self.folder, self.class_names = source, folder, class_names or {}
        self.place = place or (lambda row: f"row {row + 1} of {source}")
        self._data = data
        # pandas writes row numbers under an empty name, and reads this name as "Unnamed: 0".
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
        """Stripped names and types of the columns, a `pyarrow.Schema`."""
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
        """Return whether a column holds strings."""
        return is_text_type(self.kind(name))

    def is_long_text(self, name: str) -> bool:
        """Return whether a column holds strings that are too long to be names."""
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
        """Raise UserError if most cells of a column of strings look like numbers or dates.

        Columns in which all cells are digits, such as codes in a Parquet file, are names. So are
        categorical columns of pandas. `advice` is what the user can do if the strings are names.
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
            f"column '{column}' holds the text '{texts[int(np.argmax(wrong))]}', and most of its "
            "texts look like numbers or dates",
            "write numbers as 1200.5 and dates as 2017-12-31, set dataset.decimal or dataset.dates "
            f"for a CSV file, or {advice} if these are names",
        )

    def require_none(self, wrong: npt.ArrayLike, what: str, advice: str) -> None:
        """Raise UserError if any row is wrong, with the place of the first one and their number.

        Args:
            wrong: Whether each row is wrong, (num_rows,).
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
    """Raise UserError if a table lacks one of the columns given by the key `key` of `dataset`."""
    names = table.schema.names
    for column in columns:
        if column not in names:
            hint = did_you_mean(column, names, f"its columns are {listed(names)}.")
            raise UserError(
                f"dataset.{key}: {table.source} has no column '{column}'; {hint}",
                ErrorCode.UNKNOWN_NAME,
            )


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message, at most MAX_SHOWN of them."""
    return ", ".join(names[:MAX_SHOWN]) + (", ..." if len(names) > MAX_SHOWN else "")


def _require_same_columns(tables: Tables, columns: Sequence[str]) -> None:
    """Raise UserError if a split lacks a column, or a column has strings only in some splits."""
    train = tables["train"]
    for table in tables.values():
        for column in columns:
            if column not in table.schema.names:
                raise UserError(
                    f"{table.source} has no column '{column}', but {train.source} has; add it, "
                    "or list the columns to use in dataset.columns.",
                    ErrorCode.UNKNOWN_NAME,
                )
            kinds = [one.kind(column) for one in (train, table)]
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
"""Names of a column that holds the index of a pandas table: in Parquet, and in CSV."""


def find_roles(spec: DatasetSpec, tables: Tables, note: Note) -> tuple[list[str], list[str]]:
    """Return the names of the label columns and of the input columns.

    If the inputs are texts or images, the list of input columns is empty.

    Args:
        spec: The dataset, whose keys name columns.
        tables: Tables by split.
        note: Called with sentences on columns that are left out.

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
    inputs = _inputs(spec, train, set(uses), note) if is_table else []
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
    """Return the column named by `split_by`, which must be set."""
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
        # Row numbers may reveal the label, if rows are sorted by label.
        if ROW_NUMBERS.fullmatch(name) and pa.types.is_integer(kind):
            note(
                f"column '{name}' is left out: it holds the row numbers of pandas; to use it "
                "anyway, list it in dataset.columns."
            )
        elif is_input_type(kind):
            inputs.append(name)
        else:
            note(f"column '{name}' is left out: it holds {kind}.")
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
