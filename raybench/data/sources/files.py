"""The files of a table: one that is cut into splits, or one or more for each split."""

from collections.abc import Callable
from pathlib import Path

from raybench.core.errors import UserError
from raybench.data.sources.csv_file import CsvTable
from raybench.data.sources.folder_layout import SPLIT_NAMES
from raybench.data.sources.parquet_file import ParquetTable
from raybench.data.sources.table import Table, Tables
from raybench.data.store.source import list_files

ENDINGS = {
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
    "parquet": (".parquet", ".pq"),
}


def open_tables(kind: str, given: str) -> Tables:
    """Open what `dataset.path` names: a file, or a folder with files `train`, `val`, `test`.

    `kind`: `csv` or `parquet`, of which a folder may also be the parts of one table.
    """
    path = Path(given).expanduser()
    ending = ENDINGS[kind][0]
    if not path.exists():
        raise UserError(
            f"dataset.path: there is no {path} (from {Path.cwd()}); name a {kind} file, or a "
            f"folder with train{ending}, val{ending} and test{ending}."
        )
    if path.is_file():
        return Tables(_open(kind, [path], path))
    files = find_files(path, ENDINGS[kind])
    if not files:
        raise UserError(f"dataset.path: {path} has no file that ends in {ENDINGS[kind][0]}.")
    by_split = files_by_split(path, files)
    if "train" in by_split:
        tables: dict[str, Table] = {
            name: _open(kind, parts, path / name if len(parts) > 1 else parts[0])
            for name, parts in by_split.items()
        }
        return Tables(**tables)
    if by_split:
        raise UserError(
            f"dataset.path: {path} has files of the splits {', '.join(by_split)} and none of "
            f"train; add train{ENDINGS[kind][0]}."
        )
    return Tables(_open(kind, files, path))


def _open(kind: str, files: list[Path], source: Path) -> Table:
    if kind == "parquet":
        return ParquetTable(files, source)
    if len(files) > 1:
        raise UserError(
            f"dataset.path: {source} has {len(files)} files ({files[0].name}, {files[1].name}, "
            "...); name one of them, or call them train.csv, val.csv and test.csv."
        )
    return CsvTable(files[0])


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


def files_by_split(folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Return the files of each split: by the folder they are in, or by how their name begins.

    `train/part-1.parquet`, `train.csv` and `train-00000-of-00002.parquet` are of `train`.
    UserError where some are of no split and others are.
    """
    found: dict[str, list[Path]] = {}
    others = []
    for file in files:
        parts = file.relative_to(folder).parts
        split = split_of(parts[0] if len(parts) > 1 else file.name)
        if split is None:
            others.append(file)
        else:
            found.setdefault(split, []).append(file)
    if found and others:
        raise UserError(
            f"dataset.path: {others[0]} is of no split, and {next(iter(found.values()))[0].name} "
            "is; move it to another folder, or name one file."
        )
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def split_of(name: str) -> str | None:
    """Return the split that a file or folder of that name is of."""
    stem = name.lower().split(".")[0].split("-")[0]
    is_name: Callable[[str], bool] = lambda split: stem in SPLIT_NAMES[split]  # noqa: E731
    return next(filter(is_name, SPLIT_NAMES), None)
