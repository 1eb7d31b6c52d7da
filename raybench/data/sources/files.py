"""Opening of the files of a dataset as tables, one table for each split.

CSV and Parquet files are tables. A folder of images or texts becomes a table with one row per file:
the path of the image, or the text, and the class.
"""

import codecs
import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

from raybench.data.memory import require_memory
from raybench.data.sources.images import is_image
from raybench.data.sources.table import Table, Tables, is_number
from raybench.data.store import File, list_files
from raybench.spec.dataset_spec import DatasetSpec, DateOrder, DecimalMark
from raybench.spec.errors import ErrorCode, UserError

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of the files and folders of each split, as in Hugging Face's ImageFolder."""


def open_parquet(files: Sequence[Path], source: Path) -> Table:
    """Open a Parquet file, or several files that are parts of the same table.

    Args:
        files: The files, in the order of their rows.
        source: The path that the user named, for messages.

    Raises:
        UserError: The column types of the files are incompatible, or a file is damaged.
    """
    try:
        parts = [pa.dataset.dataset(str(file), format="parquet") for file in files]
        # A column may be empty or contain only integers in one part, and floats in another.
        schema = pa.unify_schemas([part.schema for part in parts], promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{source} cannot be read as one Parquet table ({error}); write it again.",
            ErrorCode.INVALID_FILE,
        ) from error

    # pyarrow cannot filter rows with the type string_view.
    schema = pa.schema(
        [
            field.with_type(pa.large_string()) if pa.types.is_string_view(field.type) else field
            for field in schema
        ]
    )
    data = pa.dataset.dataset(list(map(str, files)), schema=schema, format="parquet")
    return Table(data, str(source), folder=str(files[0].parent))


DELIMITERS = (",", ";", "\t", "|")
UNREADABLE = "\N{REPLACEMENT CHARACTER}"  # replaces bytes that are not UTF-8
CHARACTERS_SHOWN = 60  # maximum characters of a line in an error message
HEAD_BYTES = 2**20  # bytes at the start of a file by which encoding and delimiter are detected
CSV_MEMORY_FACTOR = 3
"""Maximum memory for the text and the columns of a CSV file while it is read, in bytes per byte of
the file."""
MISSING_NUMBERS = (
    *(" " * number for number in range(9)),
    *("#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "n.a.", "na", "nan", "none"),
    *("null", "unknown", "Unknown", "-", "--", ".", "?"),
)
"""Strings that stand for a missing value in a column of numbers."""


def open_csv(path: Path, decimal: DecimalMark = ".", dates: DateOrder | None = None) -> Table:
    """Read a CSV file into memory; its first line contains the names of the columns.

    The delimiter is a comma, semicolon, tab or `|`. The encoding is UTF-8, or UTF-16 with a byte
    order mark. The file may be gzipped. In messages, rows are numbered as in a spreadsheet, where
    the column names are row 1.

    Args:
        path: The file.
        decimal: Decimal mark of numbers.
        dates: Order of day, month and year in dates; by default, only ISO 8601 is read.

    Raises:
        UserError: The file is not valid CSV; the message names the invalid row.
    """
    require_memory(CSV_MEMORY_FACTOR * path.stat().st_size, f"{path} (Parquet needs less)")
    try:
        encoding = encoding_of(path)
        with pa.input_stream(str(path)) as stream:
            head = stream.read(HEAD_BYTES).decode(encoding, errors="replace")
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path} cannot be read ({error}).", ErrorCode.NOT_FOUND) from error
    names = next((line for line in head.splitlines() if line.strip()), None)
    if names is None:
        raise UserError(
            f"{path} is empty; write a line of column names, then rows.", ErrorCode.INVALID_DATA
        )
    if UNREADABLE in names:
        raise not_utf8(path)
    delimiter = max(DELIMITERS, key=lambda mark: len(next(csv.reader([names], delimiter=mark))))
    convert = pa.csv.ConvertOptions(
        null_values=list(MISSING_NUMBERS),
        decimal_point=decimal,
        timestamp_parsers=[pa.csv.ISO8601, *_date_formats(dates)],
    )
    table = _read_csv(path, encoding, delimiter, convert)
    if any(map(pa.types.is_binary, table.schema.types)):
        raise not_utf8(path)
    if all(is_number(name.strip()) for name in table.column_names if name.strip()):
        raise UserError(
            f"{path}: row 1 must contain the column names, but contains numbers or nothing "
            f"({names[:CHARACTERS_SHOWN]}); insert a line of names above it.",
            ErrorCode.INVALID_FILE,
        )
    return Table(
        table, str(path), folder=str(path.parent), place=lambda row: f"row {row + 2} of {path}"
    )


def _read_csv(
    path: Path, encoding: str, delimiter: str, convert: Any, *, use_threads: bool = True
) -> Any:
    read = pa.csv.ReadOptions(
        encoding=encoding.replace("utf-8-sig", "utf8"), use_threads=use_threads
    )
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        return pa.csv.read_csv(
            str(path), read_options=read, parse_options=parse, convert_options=convert
        )
    except pa.ArrowInvalid as error:
        if use_threads:
            # The error has the row number only if one thread reads the file.
            return _read_csv(path, encoding, delimiter, convert, use_threads=False)
        raise UserError(
            f"{path} cannot be read as CSV: {error}. Every row needs a value for each column; put "
            f"values that contain {delimiter!r} in double quotes.",
            ErrorCode.INVALID_FILE,
        ) from error
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def _date_formats(order: DateOrder | None) -> list[str]:
    """Return the formats of dates, such as %d/%m/%Y, for a value of the key `dataset.dates`."""
    parts = {"day_first": "dmY", "month_first": "mdY", "year_first": "Ymd"}
    if order is None:
        return []
    return [mark.join(f"%{part}" for part in parts[order]) for mark in "/.-"]


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file: UTF-16 if the file begins with its byte order mark, else
    UTF-8."""
    with pa.input_stream(str(path)) as stream:
        head = stream.read(2)
    return "utf-16" if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def not_utf8(path: Path) -> UserError:
    """Return the error for a text file with bytes that are invalid in its encoding; the message
    shows the first line with an invalid byte."""
    encoding = encoding_of(path)
    with pa.input_stream(str(path)) as stream:
        content = stream.read()
    valid = content.decode(encoding, errors="replace").partition(UNREADABLE)[0]
    number = valid.count("\n") + 1
    line = content.decode("latin-1").split("\n")[number - 1].strip()
    return UserError(
        f"{path}: line {number} is not {encoding.removesuffix('-sig').upper()} "
        f"('{line[:CHARACTERS_SHOWN]}' if it is Latin-1); save the file as UTF-8: iconv -f latin1 "
        "-t utf-8.",
        ErrorCode.INVALID_FILE,
    )


ENDINGS = {"parquet": (".parquet", ".pq"), "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz")}


def open_tables(spec: DatasetSpec) -> Tables:
    """Open the CSV or Parquet files of a dataset as tables.

    Args:
        spec: The dataset spec, with the name `csv` or `parquet`. Its `path` is a file, a folder
            with files named `train`, `val` and `test`, or a folder with the parts of a Parquet
            table.

    Returns:
        Tables by split.

    Raises:
        UserError: There are no such files, there is no training split, or a table is damaged.
    """
    path = Path(str(spec.path)).expanduser()
    if path.is_file():
        return {"train": _open(spec, [path], path)}
    files = find_files(path, ENDINGS[spec.name])
    if not files:
        raise UserError(
            f"dataset.path: {path} contains no file that ends in {ENDINGS[spec.name][0]}.",
            ErrorCode.NOT_FOUND,
        )
    by_split = _files_by_split(path, files)
    if not by_split:
        return {"train": _open(spec, files, path)}
    if "train" not in by_split:
        raise UserError(
            f"dataset.path: {path} has files for {', '.join(by_split)}, but none for train; add "
            "them.",
            ErrorCode.MISSING,
        )
    return {
        name: _open(spec, parts, path / name if len(parts) > 1 else parts[0])
        for name, parts in by_split.items()
    }


def _open(spec: DatasetSpec, files: list[Path], source: Path) -> Table:
    """Open the files of a split as one table; error messages name it by the path `source`."""
    if spec.name == "parquet":
        return open_parquet(files, source)
    if len(files) == 1:
        return open_csv(files[0], spec.decimal or ".", spec.dates)
    raise UserError(
        f"dataset.path: {source} has {len(files)} files ({files[0].name}, ...); write the path of "
        "one file, or rename the files to train.csv, val.csv and test.csv.",
        ErrorCode.CONFLICT,
    )


def find_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files below a folder whose names end in one of the suffixes `endings`, sorted.

    Files and folders whose names begin with `.` or `_` are left out. Symbolic links are followed.
    """
    return sorted(
        folder / file.name
        for file in list_files(folder)
        if file.name.lower().endswith(endings)
        and not any(part.startswith("_") for part in file.name.split("/"))
    )


def _files_by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Group files by split, according to their top folder or the start of their name.

    For example, `train/part-1.parquet`, `train.csv` and `train-00000-of-00002.parquet` belong to
    `train`. The result is empty if no file belongs to a split.

    Raises:
        UserError: Some files belong to a split, but others do not.
    """
    grouped: dict[str | None, list[Path]] = {}
    for file in files:
        grouped.setdefault(split_of(file.relative_to(folder).parts[0]), []).append(file)
    by_split = {split: grouped[split] for split in SPLIT_NAMES if split in grouped}
    if by_split and None in grouped:
        raise UserError(
            f"dataset.path: {grouped[None][0]} belongs to no split, but "
            f"{next(iter(by_split.values()))[0].name} does; move it elsewhere, or write the path "
            "of one file.",
            ErrorCode.CONFLICT,
        )
    return by_split


def split_of(name: str) -> str | None:
    """Return the split to which a file or folder belongs according to its name; None if it belongs
    to no split."""
    stem = name.lower().split(".")[0].split("-")[0]
    return next((split for split, names in SPLIT_NAMES.items() if stem in names), None)


METADATA = "metadata.csv"
"""Name of a file that lists images and their labels, as in Hugging Face's ImageFolder."""
FILE_NAME, TEXT, LABEL = "file_name", "text", "label"
"""Names of columns in the tables that represent folders of images or texts."""
TEXT_ENDINGS = (".txt", ".text", ".md")


def open_text_folder(folder: Path, read: Callable[[Path], str]) -> Tables:
    """Return a table of texts for each split of a folder of text files.

    Args:
        folder: Folder with files `CLASS/*`, which all belong to the split `train`, or
            `train/CLASS/*`, `val/CLASS/*` and so on.
        read: Function that returns the text of a file.
    """
    names = [file.relative_to(folder).as_posix() for file in find_files(folder, TEXT_ENDINGS)]
    if not names:
        raise UserError(
            f"dataset.path: {folder} has no {TEXT_ENDINGS[0]} files in class folders.",
            ErrorCode.NOT_FOUND,
        )
    return _by_class(folder, names, read)


def is_class_folder(path: Path) -> bool:
    """Return whether a folder contains a folder of text files for each class.

    Otherwise, its files are running text, on which a language model is trained.
    """
    names = [file.relative_to(path).parts for file in find_files(path, TEXT_ENDINGS)]
    return any(len(parts) > (2 if split_of(parts[0]) else 1) for parts in names)


def list_images(path: Path) -> tuple[list[File], int]:
    """Return the image files below a folder, and the number of other files."""
    listed = list_files(path)
    tables = [file.name for file in listed if Path(file.name).name == METADATA]
    if tables:
        raise UserError(
            f"dataset.path: the labels of {path} are in {tables[0]}; set name: csv, image: "
            f"{FILE_NAME} and label: COLUMN.",
            ErrorCode.CONFLICT,
        )
    files = [file for file in listed if is_image(file.name)]
    if not files:
        raise UserError(
            f"dataset.path: {path} contains no images ({len(listed):,} other files); write the "
            "path of a folder of image files.",
            ErrorCode.NOT_FOUND,
        )
    return files, len(listed) - len(files)


def open_image_folder(place: Path, files: Sequence[File]) -> Tables:
    """Return a table of images for each split of a folder of image files.

    Args:
        place: Folder with files `CLASS/*`, which all belong to the split `train`, or
            `train/CLASS/*`, `val/CLASS/*` and so on.
        files: The image files, with paths relative to the folder.
    """
    return _by_class(place, [file.name for file in files])


def _by_class(
    place: Path, names: Sequence[str], read: Callable[[Path], str] | None = None
) -> Tables:
    """Return a table for each split, with one row per file.

    A row contains the class of the file, and either its text or its path.

    Args:
        place: Folder of the files.
        names: Paths of the files, relative to the folder.
        read: Function that returns the text of a file; None to put paths into the tables.
    """
    tables: dict[str, Table] = {}
    by_split, depth = _by_split(place, names)
    for split, split_names in by_split.items():
        parts = [name.split("/") for name in split_names]
        for name, folders in zip(split_names, parts, strict=True):
            if len(folders) < depth + 2:
                raise UserError(
                    f"{place}/{name} is not in a class folder; move it into one.",
                    ErrorCode.CONFLICT,
                )
        files = [f"{place}/{name}" for name in split_names]
        cells = {FILE_NAME: files} if read is None else {TEXT: [read(Path(file)) for file in files]}
        # A dictionary type, so that a folder name such as `10 %` is not taken for a number.
        classes = pa.array([folders[depth] for folders in parts]).dictionary_encode()
        table = pa.table({**cells, LABEL: classes})
        tables[split] = Table(table, f"{place} ({split})", place=files.__getitem__)
    return tables


def _by_split(place: Path, names: Sequence[str]) -> tuple[dict[str, list[str]], int]:
    """Group files by split, according to the names of their top folders.

    If there is no folder for the training split, the top folders are classes, even if one of them
    has the name of a split, as in the classes "test" and "no_test". All files then belong to
    `train`.

    Returns:
        Files by split, and the number of folder levels above the class folders (0 or 1).
    """
    grouped: dict[str | None, list[str]] = {}
    for name in names:
        top = name.partition("/")[0].lower() if "/" in name else ""
        split = next((split for split, names in SPLIT_NAMES.items() if top in names), None)
        grouped.setdefault(split, []).append(name)
    if "train" not in grouped:
        if None in grouped:
            return {"train": list(names)}, 0
        raise UserError(
            f"{place} has folders for {', '.join(map(str, grouped))}, but none for train; add one.",
            ErrorCode.MISSING,
        )
    if None in grouped:
        raise UserError(
            f"{place}/{grouped[None][0]} is outside the folders of the splits; move it.",
            ErrorCode.CONFLICT,
        )
    return {split: grouped[split] for split in SPLIT_NAMES if split in grouped}, 1
