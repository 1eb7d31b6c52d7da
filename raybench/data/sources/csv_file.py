"""A CSV file as a table: its mistakes found by line and column."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybench.core.errors import UserError
from raybench.data.memory import require_memory
from raybench.data.sources.table import BATCH_ROWS

DELIMITERS = (",", ";", "\t", "|")
HEAD_BYTES = 2**20
"""What is read of a file to tell how it is written."""
MEMORY_FACTOR = 3
"""Bytes in memory for one of the file, at most, while it is read: text and what is made of it."""
MISSING = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?")
"""What a cell of a column of numbers says that has none."""
_DECIMAL_COMMA = re.compile(r"(?:^|[;\t\n])\"?-?\d+,\d+\"?(?=[;\t\r\n])")
_DECIMAL_POINT = re.compile(r"(?:^|[;\t\n])\"?-?\d+\.\d+\"?(?=[;\t\r\n])")


class CsvTable:
    """A CSV file, whole in memory: its first line names the columns.

    Columns may be parted by comma, semicolon, tab or `|`; UTF-8; `.gz` is read too.
    """

    class_names: Mapping[str, Sequence[str]] = {}

    def __init__(self, path: Path) -> None:
        """UserError, with its line, for what is no table."""
        self.source, self.folder, self._path = str(path), str(path.parent), path
        require_memory(MEMORY_FACTOR * path.stat().st_size, f"{path} (Parquet needs less)")
        head = _head(path)
        self._delimiter = _delimiter(head)
        names = _names(path, head, self._delimiter)
        self._table = self._read(head).rename_columns(names)
        self.schema, self.num_rows = self._table.schema, self._table.num_rows
        if not self.num_rows:
            raise UserError(f"{path} has a line of names and no rows; give it rows.")
        for name in names:
            if pa.types.is_binary(self.schema.field(name).type):
                raise self._not_utf8(name)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        yield from self._table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def place(self, row: int) -> str:
        """Return the line in which a row ends; reads the file up to there."""
        for number, (line, _) in enumerate(_records(self._path, self._delimiter)):
            if number == row + 1:  # after the names
                return f"line {line} of {self._path}"
        return f"row {row + 1} of {self._path}"

    def _read(self, head: str) -> Any:
        comma = self._delimiter != "," and _DECIMAL_COMMA.search(head)
        point = "," if comma and not _DECIMAL_POINT.search(head) else "."
        try:
            table = pa.csv.read_csv(
                str(self._path),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True
                ),
                convert_options=pa.csv.ConvertOptions(
                    null_values=list(MISSING),
                    decimal_point=point,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._not_a_table(str(error)) from error
        for number, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                column = _without_blanks(table.column(number), point)
                table = table.set_column(number, field.name, column)
        return table

    def _not_a_table(self, problem: str) -> UserError:
        """Return the error for what pyarrow cannot read: the first line that is not as the rest."""
        expected = 0
        for line, cells in _records(self._path, self._delimiter):
            expected = expected or len(cells)
            if len(cells) != expected:
                return UserError(
                    f"{self._path}: line {line} has {len(cells)} values, the line of names has "
                    f"{expected}; give them as many, and put values that hold a "
                    f"{_word(self._delimiter)} in double quotes."
                )
        return UserError(f"{self._path} cannot be read as CSV: {problem.rstrip('.')}.")

    def _not_utf8(self, column: str) -> UserError:
        values = self._table.column(column).combine_chunks()
        number, wrong = next(
            (number, value)
            for number, value in enumerate(values.to_pylist())
            if value is not None and not _is_utf8(value)
        )
        return UserError(
            f"{self.place(number)}: column '{column}' is not UTF-8 (it holds {wrong[:40]!r}, "
            f"'{wrong[:40].decode('latin-1')}' if it is Latin-1); save the file as UTF-8: "
            f"iconv -f latin1 -t utf-8."
        )


def _head(path: Path) -> str:
    """Return the begin of a file; UserError if it is empty, or in no encoding that is read."""
    try:
        with pa.input_stream(str(path)) as stream:
            head: bytes = stream.read(HEAD_BYTES)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error
    if not head.strip():
        raise UserError(f"{path} is empty; give it a line of names, and rows.")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path} is UTF-16; save it as UTF-8: iconv -f utf-16 -t utf-8.")
    if b"\0" in head:
        raise UserError(f"{path} is not text (it holds a zero byte); give the path of a CSV file.")
    names = head.splitlines()[0]
    if not _is_utf8(names):
        raise UserError(
            f"{path}: line 1, the names of the columns, is not UTF-8 "
            f"('{names.decode('latin-1').strip()}' if it is Latin-1); save the file as UTF-8: "
            "iconv -f latin1 -t utf-8."
        )
    return head.decode("utf-8-sig", errors="replace")


def _delimiter(head: str) -> str:
    """Return what parts the names: what makes most of them."""
    line = next(line for line in head.splitlines() if line.strip())
    return max(DELIMITERS, key=lambda delimiter: len(next(csv.reader([line], delimiter=delimiter))))


def _names(path: Path, head: str, delimiter: str) -> list[str]:
    """Return the names of the columns; UserError where one stands twice, or all are numbers."""
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
    given = [name.strip() for name in next(cells for cells in reader if cells)]
    if not any(given):
        raise UserError(
            f"{path}: line {reader.line_num} must name the columns, and all its cells are empty; "
            "remove it."
        )
    if all(map(_is_number, given)):
        raise UserError(
            f"{path}: line 1 must name the columns, and holds numbers ({given[0]}, ...); write a "
            "line of names above it."
        )
    # pandas writes its row numbers under an empty name, and calls it so itself.
    names = [name or f"Unnamed: {number}" for number, name in enumerate(given)]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(
                f"{path}: two columns have the name '{name}' (columns {names.index(name) + 1} and "
                f"{number + 1}); give each its own."
            )
    return names


def _without_blanks(texts: Any, point: str) -> Any:
    """Return a column of texts as numbers if it holds these, and blanks where one is missing.

    pyarrow takes no cell of spaces for a missing number, and all others for texts then.
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    is_missing = pc.is_in(trimmed, value_set=pa.array(MISSING))
    if not pc.any(pc.and_(is_missing, pc.not_equal(trimmed, texts))).as_py():
        return texts
    known = pc.if_else(is_missing, pa.scalar(None, pa.string()), trimmed)
    if known.null_count == len(known):
        return texts
    for kind in (pa.int64(), pa.float64()):
        with contextlib.suppress(pa.ArrowInvalid):
            return pc.replace_substring(known, point, ".").cast(kind)
    return texts


def _records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line that each record ends in, and its cells; empty ones not."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with pa.input_stream(str(path)) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            reader = csv.reader(text, delimiter=delimiter)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    finally:
        csv.field_size_limit(limit)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _word(delimiter: str) -> str:
    return {",": "comma", ";": "semicolon", "\t": "tab"}.get(delimiter, delimiter)
