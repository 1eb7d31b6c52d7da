"""Files of tables, CSV and Parquet: one that is cut into splits, or some for each split."""

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
from raybench.spec.errors import UserError

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of files and folders of splits, as Hugging Face's ImageFolder has them."""


class ParquetTable(Table):
    """One file, or several that are parts of one table, in the order of their names."""

    def __init__(self, files: Sequence[Path], source: Path) -> None:
        """`source`: what the user named. UserError for files that are no parts of one table."""
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
                raise UserError(message) from error
        self._given = schemas[0].names
        names = [name.strip() for name in self._given]
        require_once(names, str(files[0]))
        joined = schemas[0]
        for file, schema in zip(self._files, schemas, strict=True):
            if schema.names != self._given:
                other = set(schema.names) ^ set(self._given)
                raise UserError(
                    f"{file} and {files[0]} have other columns ({', '.join(sorted(other))}); make "
                    "them the same, in the same order."
                )
            try:  # a part's column may be empty, or whole where another's has fractions
                joined = pa.unify_schemas([joined, schema], promote_options="permissive")
            except pa.ArrowException as error:
                raise UserError(
                    f"{file} and {files[0]} have other types ({error}); make them the same."
                ) from error
        self.schema = pa.schema(list(zip(names, joined.types, strict=True)))
        self.num_rows = sum(self._rows)
        if not self.num_rows:
            raise UserError(f"{source} has no rows; give it some.")

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        given = dict(zip(self.schema.names, self._given, strict=True))
        asked = [given[column] for column in columns]
        kinds = pa.schema([self.schema.field(column) for column in columns])
        for file in self._files:
            try:
                # Buffered ahead, all that was read of a file stays in memory until its end.
                with pa.parquet.ParquetFile(file, pre_buffer=False) as opened:
                    for batch in opened.iter_batches(BATCH_ROWS, columns=asked):
                        yield batch.select(asked).rename_columns(list(columns)).cast(kinds)
            except (pa.ArrowInvalid, OSError) as error:
                raise UserError(f"{file} cannot be read on: {error}; write it again.") from error

    def place(self, row: int) -> str:
        """See `Table`."""
        for file, rows in zip(self._files, self._rows, strict=True):
            if row < rows:
                return f"row {row + 1} of {file}"
            row -= rows
        raise AssertionError("there are no such rows")


def require_once(names: Sequence[str], source: str) -> None:
    """Raise UserError for two columns of one name."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(
                f"{source}: two columns have the name '{name}' (columns {names.index(name) + 1} "
                f"and {number + 1}); give each its own."
            )


DELIMITERS = (",", ";", "\t", "|")
SEPARATOR = re.compile(r'"?sep=([^\r\n])"?')  # the line that tells Excel the delimiter
UNREADABLE = "\N{REPLACEMENT CHARACTER}"  # what bytes are decoded to that are not UTF-8
SHOWN = 20  # bytes before and after one that is not UTF-8 that a sentence shows
HEAD_BYTES = 2**20  # what is read of a file to tell how it is written
MEMORY_FACTOR = 3
"""Bytes in memory for one of the file, at most, while it is read: text and what is made of it."""
BLANKS = tuple(" " * number for number in range(9))
MISSING = (*BLANKS, "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?")
"""Texts of a cell without a number in a column of numbers."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class CsvTable(MemoryTable):
    """A CSV file, whole in memory: its first line names the columns.

    Columns may be parted by comma, semicolon, tab or `|`, or as a line `sep=` above the names says.
    UTF-8, or UTF-16 and UTF-32 with a byte order mark; `.gz` is read too.
    """

    def __init__(self, path: Path) -> None:
        """UserError, with its line, for what is no table."""
        self.folder, self._path = str(path.parent), path
        require_memory(MEMORY_FACTOR * path.stat().st_size, f"{path} (Parquet needs less)")
        try:
            self._encoding = encoding_of(path)
            with pa.input_stream(str(path)) as stream:
                head = stream.read(HEAD_BYTES).decode(self._encoding, errors="replace")
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path} cannot be read ({error}).") from error
        lines = [line for line in head.splitlines() if line.strip()]
        separator = SEPARATOR.fullmatch(lines[0].strip(" ")) if lines else None
        self._skipped = 0
        if separator:
            self._skipped = 1 + head.splitlines().index(lines[0])
            lines = lines[1:]
        if not lines:
            raise UserError(f"{path} is empty; give it a line of names, and rows.")
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
            raise UserError(f"{path} has a line of names and no rows; give it rows.")
        if any(map(pa.types.is_binary, self.schema.types)):
            raise not_utf8(path)

    def place(self, row: int) -> str:
        """Return the line in which a row ends; reads the file up to there."""
        for number, (line, _) in enumerate(self._records()):
            if number == row + 1:  # after the names
                return f"line {line} of {self._path}"
        return f"row {row + 1} of {self._path}"

    def with_texts(self, columns: Sequence[str]) -> "CsvTable":
        """Return the table with these columns as the texts that the file has."""
        given = dict(zip(self.schema.names, self._given, strict=True))
        texts = self._read([given[column] for column in columns])
        return self.replaced({column: texts.column(given[column]) for column in columns})

    def _read(self, as_texts: Sequence[str] = ()) -> Any:
        """Read the columns by their types, or some of them as texts."""
        read = pa.csv.ReadOptions(
            skip_rows=self._skipped, encoding=self._encoding.replace("utf-8-sig", "utf8")
        )
        parse = pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        convert = pa.csv.ConvertOptions(
            null_values=list(MISSING),
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
        """Return the error for what pyarrow cannot read: the first line that is not as the rest."""
        expected = 0
        for line, cells in self._records():
            expected = expected or len(cells)
            if len(cells) != expected:
                return UserError(
                    f"{self._path}: line {line} has {len(cells)} values, the line of names has "
                    f"{expected}; give them as many, and put values that hold "
                    f"{self.delimiter!r} in double quotes."
                )
        return UserError(f"{self._path} cannot be read as CSV: {problem.rstrip('.')}.")

    def _names(self) -> list[str]:
        """Return the names of the columns; UserError where one stands twice, or there are none."""
        line, cells = next(self._records())
        given = [name.strip() for name in cells]
        if all(is_number(name) for name in given if name):
            raise UserError(
                f"{self._path}: line {line} must name the columns, and holds "
                f"{f'numbers ({given[0]}, ...)' if any(given) else 'nothing'}; write a line of "
                "names above it."
            )
        # pandas writes its row numbers under an empty name, and calls it so itself.
        names = [name or f"Unnamed: {number}" for number, name in enumerate(given)]
        require_once(names, str(self._path))
        return names

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the line that each record ends in, and its cells; empty ones not."""
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
    """Return the encoding of a file of text by its byte order mark, UTF-8 without one; UserError
    for UTF-16 without a mark."""
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
            "utf-8."
        )
    return "utf-8-sig"


def not_utf8(path: Path) -> UserError:
    """Return the error for a file of text that its encoding cannot read, with the first such line
    of UTF-8."""
    encoding = encoding_of(path)
    if encoding != "utf-8-sig":
        return UserError(f"{path} begins as {encoding}, and is damaged; save it again as UTF-8.")
    number, shown = 0, ""
    with pa.input_stream(str(path)) as stream:
        for line in io.BufferedReader(stream):
            number += 1
            try:
                line.decode()
            except UnicodeDecodeError as error:
                shown = line[max(0, error.start - SHOWN) : error.start + SHOWN].decode("latin-1")
                break
    return UserError(
        f"{path}: line {number} is not UTF-8 ('{shown.strip()}' if it is Latin-1); save the file "
        "as UTF-8: iconv -f latin1 -t utf-8."
    )


ENDINGS = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz")}


def open_tables(kind: str, given: str) -> Tables:
    """Open what `dataset.path` names: a file, or a folder with files `train`, `val`, `test`.

    `kind`: `csv` or `parquet`, of which a folder may also be the parts of one table.
    """
    path = Path(given).expanduser()
    if path.is_file():
        return {"train": _open(kind, [path], path)}
    files = find_files(path, ENDINGS[kind])
    if not files:
        raise UserError(f"dataset.path: {path} has no file that ends in {ENDINGS[kind][0]}.")
    by_split = _files_by_split(path, files)
    if not by_split:
        return {"train": _open(kind, files, path)}
    if "train" not in by_split:
        raise UserError(
            f"dataset.path: {path} has files of the splits {', '.join(by_split)} and none of "
            f"train; add train{ENDINGS[kind][0]}."
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
        "name one of them, or call them train.csv, val.csv and test.csv."
    )


def find_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files below a folder that end so, by name; hidden ones are left out.

    Links are followed, as for the key of the store: a class may be one.
    """
    return sorted(
        folder / file.name
        for file in list_files(folder)
        if file.name.lower().endswith(endings)
        and not any(part.startswith("_") for part in file.name.split("/"))
    )


def _files_by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Return the files of each split: by the folder they are in, or by how their name begins.

    `train/part-1.parquet`, `train.csv` and `train-00000-of-00002.parquet` are of `train`.
    UserError where some are of no split and others are.
    """
    found: dict[str | None, list[Path]] = {}
    for file in files:
        found.setdefault(split_of(file.relative_to(folder).parts[0]), []).append(file)
    by_split = {split: found[split] for split in SPLIT_NAMES if split in found}
    if by_split and None in found:
        raise UserError(
            f"dataset.path: {found[None][0]} is of no split, and "
            f"{next(iter(by_split.values()))[0].name} is; move it elsewhere, or name one file."
        )
    return by_split


def split_of(name: str) -> str | None:
    """Return the split that a file or folder of that name is of."""
    stem = name.lower().split(".")[0].split("-")[0]
    return next((split for split, names in SPLIT_NAMES.items() if stem in names), None)
