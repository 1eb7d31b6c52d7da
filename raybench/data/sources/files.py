"""CSV and Parquet files: one table that is cut into splits, or a table for each split."""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from raybench.data.memory import require_memory
from raybench.data.sources.table import BATCH_ROWS, MemoryTable, Table, Tables, is_number
from raybench.data.store import list_files
from raybench.spec.errors import ErrorCode, UserError

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of files and folders of splits, as in Hugging Face's ImageFolder."""


class ParquetTable(Table):
    """A Parquet file, or several that are parts of one table, in the order of their names."""

    def __init__(self, files: Sequence[Path], source: Path) -> None:
        """Open the files; `source` is the path that the user named.

        Raises:
            UserError: the files differ in columns or types, or one is damaged.
        """
        self.source, self.folder = str(source), str(files[0].parent)
        self._files, self._rows = list(files), []
        schemas = []
        for file in self._files:
            try:
                with pa.parquet.ParquetFile(file) as about:
                    self._rows.append(about.metadata.num_rows)
                    schemas.append(about.schema_arrow.remove_metadata())
            except (pa.ArrowInvalid, OSError) as error:
                message = f"{file} is not a whole Parquet file ({error}); write it again."
                raise UserError(message, ErrorCode.INVALID_FILE) from error
        self._given = schemas[0].names
        names = [name.strip() for name in self._given]
        require_once(names, str(files[0]))
        joined = schemas[0]
        for file, schema in zip(self._files, schemas, strict=True):
            if schema.names != self._given:
                other = set(schema.names) ^ set(self._given)
                raise UserError(
                    f"{file} and {files[0]} have other columns ({', '.join(sorted(other))}); make "
                    "them the same, in the same order.",
                    ErrorCode.INVALID_DATA,
                )
            try:  # a column may be empty in one part, or whole where another has fractions
                joined = pa.unify_schemas([joined, schema], promote_options="permissive")
            except pa.ArrowException as error:
                raise UserError(
                    f"{file} and {files[0]} have other types ({error}); make them the same.",
                    ErrorCode.INVALID_DATA,
                ) from error
        self.schema = pa.schema(list(zip(names, joined.types, strict=True)))
        self.num_rows = sum(self._rows)
        if not self.num_rows:
            raise UserError(f"{source} has no rows; give it some.", ErrorCode.INVALID_DATA)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        given = dict(zip(self.schema.names, self._given, strict=True))
        asked = [given[column] for column in columns]
        kinds = pa.schema([self.schema.field(column) for column in columns])
        for file in self._files:
            try:
                # With pre_buffer all that was read of a file stays in memory until its end.
                with pa.parquet.ParquetFile(file, pre_buffer=False) as opened:
                    for batch in opened.iter_batches(BATCH_ROWS, columns=asked):
                        yield batch.select(asked).rename_columns(list(columns)).cast(kinds)
            except (pa.ArrowInvalid, OSError) as error:
                raise UserError(
                    f"{file} cannot be read on: {error}; write it again.", ErrorCode.INVALID_FILE
                ) from error

    def place(self, row: int) -> str:
        """See `Table`."""
        for file, rows in zip(self._files, self._rows, strict=True):
            if row < rows:
                return f"row {row + 1} of {file}"
            row -= rows
        raise AssertionError("there are no such rows")


def require_once(names: Sequence[str], source: str) -> None:
    """Raise UserError if two columns have the same name."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(
                f"{source}: two columns have the name '{name}' (columns {names.index(name) + 1} "
                f"and {number + 1}); give each its own.",
                ErrorCode.INVALID_FILE,
            )


DELIMITERS = (",", ";", "\t", "|")
SEPARATOR = re.compile(r'"?sep=([^\r\n])"?')  # the line that tells Excel the delimiter
UNREADABLE = "\N{REPLACEMENT CHARACTER}"  # replaces bytes that are not UTF-8
BYTES_SHOWN = 20  # bytes shown before and after one that is not UTF-8
HEAD_BYTES = 2**20  # bytes of a file that decide on encoding and delimiter
MEMORY_FACTOR = 3
"""Bytes of memory for a byte of the file, at most, while it is read: text and columns."""
BLANKS = tuple(" " * number for number in range(9))
MISSING_NUMBERS = (*BLANKS, "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?")
"""Texts of missing values in a column of numbers."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class CsvTable(MemoryTable):
    """A CSV file in memory, whose first line names the columns.

    The delimiter is a comma, semicolon, tab or `|`, or given by a line `sep=` above the names. The
    encoding is UTF-8, or UTF-16 or UTF-32 with a byte order mark; the file may be gzipped.
    """

    def __init__(self, path: Path) -> None:
        """Read the file; raise UserError with the line of the first mistake."""
        self.folder, self._path = str(path.parent), path
        require_memory(MEMORY_FACTOR * path.stat().st_size, f"{path} (Parquet needs less)")
        try:
            self._encoding = encoding_of(path)
            with pa.input_stream(str(path)) as stream:
                head = stream.read(HEAD_BYTES).decode(self._encoding, errors="replace")
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path} cannot be read ({error}).", ErrorCode.NOT_FOUND) from error
        lines = [line for line in head.splitlines() if line.strip()]
        separator = SEPARATOR.fullmatch(lines[0].strip(" ")) if lines else None
        self._skipped = 0
        if separator:
            self._skipped = 1 + head.splitlines().index(lines[0])
            lines = lines[1:]
        if not lines:
            raise UserError(
                f"{path} is empty; give it a line of names, and rows.", ErrorCode.INVALID_DATA
            )
        if UNREADABLE in lines[0]:
            raise not_utf8(path)
        self.delimiter = (
            separator[1]
            if separator
            else max(DELIMITERS, key=lambda one: len(next(csv.reader([lines[0]], delimiter=one))))
        )
        names = self._names()
        table = self._read()
        self._given = table.column_names
        super().__init__(table.rename_columns(names), str(path))
        if not self.num_rows:
            raise UserError(
                f"{path} has a line of names and no rows; give it rows.", ErrorCode.INVALID_DATA
            )
        if any(map(pa.types.is_binary, self.schema.types)):
            raise not_utf8(path)

    def place(self, row: int) -> str:
        """Return the line in which a row ends, by reading the file up to it."""
        for number, (line, _) in enumerate(self._records()):
            if number == row + 1:  # after the names
                return f"line {line} of {self._path}"
        return f"row {row + 1} of {self._path}"

    def with_texts(self, columns: Sequence[str]) -> "CsvTable":
        """Return the table with some columns as the texts of the file."""
        given = dict(zip(self.schema.names, self._given, strict=True))
        texts = self._read([given[column] for column in columns])
        return self.replaced({column: texts.column(given[column]) for column in columns})

    def _read(self, as_texts: Sequence[str] = ()) -> Any:
        """Read all columns by their types, or some columns as texts."""
        read = pa.csv.ReadOptions(
            skip_rows=self._skipped, encoding=self._encoding.replace("utf-8-sig", "utf8")
        )
        parse = pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        convert = pa.csv.ConvertOptions(
            null_values=list(MISSING_NUMBERS),
            include_columns=list(as_texts),
            column_types=dict.fromkeys(as_texts, pa.string()),
        )
        try:
            return pa.csv.read_csv(
                str(self._path), read_options=read, parse_options=parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            raise self._not_a_table(str(error)) from error
        except UnicodeDecodeError as error:
            raise not_utf8(self._path) from error

    def _not_a_table(self, problem: str) -> UserError:
        """Return the error for a file that pyarrow cannot read, with the first wrong line."""
        expected = 0
        for line, cells in self._records():
            expected = expected or len(cells)
            if len(cells) != expected:
                return UserError(
                    f"{self._path}: line {line} has {len(cells)} values, the line of names has "
                    f"{expected}; give them as many, and put values that hold "
                    f"{self.delimiter!r} in double quotes.",
                    ErrorCode.INVALID_FILE,
                )
        return UserError(
            f"{self._path} cannot be read as CSV: {problem.rstrip('.')}.", ErrorCode.INVALID_FILE
        )

    def _names(self) -> list[str]:
        """Return the names of the columns; raise UserError for duplicates, or if there are none."""
        line, cells = next(self._records())
        given = [name.strip() for name in cells]
        if all(is_number(name) for name in given if name):
            raise UserError(
                f"{self._path}: line {line} must name the columns, and holds "
                f"{f'numbers ({given[0]}, ...)' if any(given) else 'nothing'}; write a line of "
                "names above it.",
                ErrorCode.INVALID_FILE,
            )
        # pandas writes its row numbers under an empty name, and reads it as this one.
        names = [name or f"Unnamed: {number}" for number, name in enumerate(given)]
        require_once(names, str(self._path))
        return names

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line in which each record ends, and its cells; empty records are skipped."""
        limit = csv.field_size_limit(2**31 - 1)
        try:
            with pa.input_stream(str(self._path)) as stream:
                text = io.TextIOWrapper(
                    stream, encoding=self._encoding, errors="replace", newline=""
                )
                for _ in range(self._skipped):
                    text.readline()
                reader = csv.reader(text, delimiter=self.delimiter)
                for cells in reader:
                    if cells:
                        yield self._skipped + reader.line_num, cells
        finally:
            csv.field_size_limit(limit)


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file by its byte order mark; UTF-8 without one.

    Raises:
        UserError: the file is UTF-16 without a byte order mark.
    """
    with pa.input_stream(str(path)) as stream:
        head = stream.read(HEAD_BYTES)
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    zeros = [head[start::2].count(0) for start in (0, 1)]
    if max(zeros) > len(head) / 4:  # half of the bytes of plain letters
        name = "utf-16be" if zeros[0] > zeros[1] else "utf-16le"
        raise UserError(
            f"{path} is UTF-16 without a byte order mark; save it as UTF-8: iconv -f {name} -t "
            "utf-8.",
            ErrorCode.INVALID_FILE,
        )
    return "utf-8-sig"


def not_utf8(path: Path) -> UserError:
    """Return the error for a text file with an invalid byte, with the first such line of UTF-8."""
    encoding = encoding_of(path)
    if encoding != "utf-8-sig":
        return UserError(
            f"{path} begins as {encoding}, and is damaged; save it again as UTF-8.",
            ErrorCode.INVALID_FILE,
        )
    number, shown = 0, ""
    with pa.input_stream(str(path)) as stream:
        for line in io.BufferedReader(stream):
            number += 1
            try:
                line.decode()
            except UnicodeDecodeError as error:
                start, end = max(0, error.start - BYTES_SHOWN), error.start + BYTES_SHOWN
                shown = line[start:end].decode("latin-1")
                break
    return UserError(
        f"{path}: line {number} is not UTF-8 ('{shown.strip()}' if it is Latin-1); save the file "
        "as UTF-8: iconv -f latin1 -t utf-8.",
        ErrorCode.INVALID_FILE,
    )


ENDINGS = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz")}


def open_tables(kind: str, given: str) -> Tables:
    """Open the tables of `dataset.path`, by split.

    Args:
        kind: `csv` or `parquet`.
        given: a file, a folder with files `train`, `val`, `test`, or a folder with the parts of one
            Parquet table.

    Raises:
        UserError: there are no such files, no training split, or a table is damaged.
    """
    path = Path(given).expanduser()
    if path.is_file():
        return {"train": _open(kind, [path], path)}
    files = find_files(path, ENDINGS[kind])
    if not files:
        raise UserError(
            f"dataset.path: {path} has no file that ends in {ENDINGS[kind][0]}.",
            ErrorCode.NOT_FOUND,
        )
    by_split = _files_by_split(path, files)
    if not by_split:
        return {"train": _open(kind, files, path)}
    if "train" not in by_split:
        raise UserError(
            f"dataset.path: {path} has files of the splits {', '.join(by_split)} and none of "
            f"train; add train{ENDINGS[kind][0]}.",
            ErrorCode.MISSING,
        )
    return {
        name: _open(kind, parts, path / name if len(parts) > 1 else parts[0])
        for name, parts in by_split.items()
    }


def _open(kind: str, files: list[Path], source: Path) -> Table:
    if kind == "parquet":
        return ParquetTable(files, source)
    if len(files) == 1:
        return CsvTable(files[0])
    raise UserError(
        f"dataset.path: {source} has {len(files)} files ({files[0].name}, {files[1].name}, ...); "
        "name one of them, or call them train.csv, val.csv and test.csv.",
        ErrorCode.CONFLICT,
    )


def find_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files below a folder that have one of the endings, sorted by name.

    Hidden ones, and those that begin with `_`, are left out; links are followed.
    """
    return sorted(
        folder / file.name
        for file in list_files(folder)
        if file.name.lower().endswith(endings)
        and not any(part.startswith("_") for part in file.name.split("/"))
    )


def _files_by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Return the files of each split, by their first folder or the beginning of their name.

    `train/part-1.parquet`, `train.csv` and `train-00000-of-00002.parquet` belong to `train`.

    Raises:
        UserError: some files belong to a split and others do not.
    """
    found: dict[str | None, list[Path]] = {}
    for file in files:
        found.setdefault(split_of(file.relative_to(folder).parts[0]), []).append(file)
    by_split = {split: found[split] for split in SPLIT_NAMES if split in found}
    if by_split and None in found:
        raise UserError(
            f"dataset.path: {found[None][0]} is of no split, and "
            f"{next(iter(by_split.values()))[0].name} is; move it elsewhere, or name one file.",
            ErrorCode.CONFLICT,
        )
    return by_split


def split_of(name: str) -> str | None:
    """Return the split to which a file or folder of that name belongs; None for others."""
    stem = name.lower().split(".")[0].split("-")[0]
    return next((split for split, names in SPLIT_NAMES.items() if stem in names), None)
