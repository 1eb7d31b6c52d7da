"""Folders of images and of texts as tables: a row a file, with its class or its `metadata.csv`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from raybench.data.sources.files import SPLIT_NAMES, CsvTable, find_files, split_of
from raybench.data.sources.images import is_image
from raybench.data.sources.table import (
    BATCH_ROWS,
    Say,
    Table,
    Tables,
    as_texts,
    column_of,
    require_columns,
)
from raybench.data.store.build import File, list_files
from raybench.spec.errors import UserError

METADATA = "metadata.csv"
FILE_NAME = "file_name"
LABEL = "label"
TEXT_ENDINGS = (".txt", ".text", ".md")
FILES_AT_ONCE = BATCH_ROWS // 64  # texts that are read together: a file is longer than a cell


class FolderTable(Table):
    """Files with their labels."""

    def __init__(
        self,
        source: str,
        files: Sequence[str],
        labels: Any,
        read: Callable[[Path], str] | None = None,
        place: Callable[[int], str] | None = None,
    ) -> None:
        """`files`: paths; `labels`: a `pyarrow.Table` of as many rows. With `read` the column
        `text` is what it returns of each file, else `file_name` is its path."""
        self.source = self.folder = source
        self._files, self._labels, self._read = files, labels, read
        self._place = place or files.__getitem__
        first = FILE_NAME if read is None else "text"
        self.schema = pa.schema([(first, pa.string()), *labels.schema])
        self.num_rows = len(files)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        first = self.schema.names[0]
        size = FILES_AT_ONCE if self._read and first in columns else BATCH_ROWS
        for start in range(0, self.num_rows, size):
            table = self._labels.slice(start, size)
            if first in columns:
                files = self._files[start : start + size]
                cells = files if self._read is None else [self._read(Path(one)) for one in files]
                table = table.append_column(first, pa.array(cells, pa.string()))
            yield from table.select(list(columns)).combine_chunks().to_batches()

    def place(self, row: int) -> str:
        """See `Table`."""
        return self._place(row)


def open_text_folder(folder: Path, read: Callable[[Path], str]) -> Tables:
    """Return the texts of `folder/CLASS/`, or of `folder/train/CLASS/` and the other splits."""
    names = [file.relative_to(folder).as_posix() for file in find_files(folder, TEXT_ENDINGS)]
    if not names:
        raise UserError(
            f"dataset.path: {folder} has no folders with {TEXT_ENDINGS[0]} files; put the texts of "
            "each class into a folder with its name."
        )
    return _by_class(folder, _by_split(folder, names), read)


def is_class_folder(path: Path) -> bool:
    """Whether a path has folders of texts by class, and not texts to be learnt as one."""
    names = [file.relative_to(path).parts for file in find_files(path, TEXT_ENDINGS)]
    return any(len(parts) > (2 if split_of(parts[0]) else 1) for parts in names)


def list_images(path: Path) -> tuple[list[File], int]:
    """Return a folder's images and `metadata.csv` files, and how many other files there are."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(
            f"dataset.path: {path} {what}, and image_folder takes a folder of images; name one "
            "(unpacked), or another kind of dataset (csv, parquet, npz)."
        )
    listed = list_files(path)
    files = [one for one in listed if is_image(one.name) or _is_metadata(one.name)]
    if not files:
        what = f"{len(listed):,} files, none of them an image" if listed else "no files"
        raise UserError(f"dataset.path: {path} holds {what}; name a folder of images.")
    return files, len(listed) - len(files)


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] == METADATA


def open_image_folder(
    place: Path, files: Sequence[File], label: str | list[str] | None, say: Say
) -> tuple[Tables, str | list[str]]:
    """Return the images of `train|val|test/CLASS/*`, or of one folder `CLASS/*`, and their label.

    `metadata.csv` may lie in the folder, in those of its splits, or both; then labels are its
    columns, and `label` names which. `say` takes a sentence on images that it does not list.
    """
    tables = [file.name for file in files if _is_metadata(file.name)]
    images = [file.name for file in files if file.name not in tables]
    by_split = _by_split(place, images, tables)
    if tables:
        return _by_metadata(place, by_split, tables, label, say)
    if label is not None:
        raise UserError(
            f"dataset.label: {label}: {place} has no metadata.csv with such a column; leave the "
            "key out, then classes are folders."
        )
    _require_none_empty(place, by_split)
    return _by_class(place, by_split), LABEL


Names = dict[str, tuple[str, list[str]]]
"""By split what names of its files begin with (`train/`), and these names."""


def _by_split(place: Path, names: Sequence[str], tables: Sequence[str] = ()) -> Names:
    """Return the files of each split; all are of `train` where there are no such folders."""
    folders = dict.fromkeys(name.partition("/")[0] for name in [*names, *tables] if "/" in name)
    found: dict[str, str] = {}
    for folder in folders:
        split = next((one for one, known in SPLIT_NAMES.items() if folder.lower() in known), None)
        if split in found:
            raise UserError(f"{place} holds both {found[split]} and {folder}; keep one of them.")
        if split is not None:
            found[split] = folder
    if "train" not in found:
        if found and len(found) == len(folders):
            raise UserError(
                f"{place} holds {', '.join(found.values())} and no train; add what to train on, or "
                "name another folder."
            )
        _require_no_inner(place, [*names, *tables])
        # Beside others they are classes that are called so ("test" and "no_test").
        return {"train": ("", list(names))}
    outside = [name for name in names if name.partition("/")[0] not in found.values()]
    if outside:
        raise UserError(
            f"{place}/{outside[0]} lies outside of the splits {', '.join(found.values())}; move it."
        )
    return {
        split: (f"{found[split]}/", [one for one in names if one.startswith(f"{found[split]}/")])
        for split in SPLIT_NAMES
        if split in found
    }


def _require_no_inner(place: Path, names: Sequence[str]) -> None:
    """Raise UserError where all lies in one folder, and splits or several folders are in that."""
    inner = ""
    while True:
        below = [name.removeprefix(inner).partition("/") for name in names]
        folders = list(dict.fromkeys(first for first, separator, _ in below if separator))
        if len(folders) != 1 or not all(separator for _, separator, _ in below):
            break
        inner += f"{folders[0]}/"
    if inner and len(folders) > 1:
        inner = inner.rstrip("/")
        raise UserError(
            f"{place} holds the folder {inner} alone, and in it {', '.join(folders[:5])}; name "
            f"{place}/{inner}."
        )


def _require_none_empty(place: Path, by_split: Names) -> None:
    """Raise UserError for a folder of a split or of a class that holds no image."""
    images = [name for _, names in by_split.values() for name in names]
    folders = [one for one in place.iterdir() if one.is_dir()]
    if by_split["train"][0]:
        folders = [one for one in folders if split_of(one.name)]
        folders += [one for folder in folders for one in folder.iterdir() if one.is_dir()]
    filled = {"/".join(name.split("/")[:depth]) for name in images for depth in (1, 2)}
    for folder in folders:
        name = folder.relative_to(place).as_posix()
        if name not in filled and not folder.name.startswith("."):
            raise UserError(f"{folder} holds no images; give it at least one, or remove it.")


def _by_class(place: Path, by_split: Names, read: Callable[[Path], str] | None = None) -> Tables:
    tables: dict[str, Table] = {}
    for split, (prefix, names) in by_split.items():
        classes = []
        for name in names:
            folder, separator, _ = name.removeprefix(prefix).partition("/")
            if not separator:
                raise UserError(
                    f"{place}/{name} is in no folder of a class; move it into {prefix}<class>/ (or "
                    f"list images with their labels in {prefix}{METADATA}: file_name, label)."
                )
            classes.append(folder)
        files = [f"{place}/{name}" for name in names]
        labels = pa.table({LABEL: pa.array(classes, pa.string())})
        tables[split] = FolderTable(f"{place}/{prefix}".rstrip("/"), files, labels, read)
    return tables


def _by_metadata(
    place: Path, by_split: Names, tables: Sequence[str], label: str | list[str] | None, say: Say
) -> tuple[Tables, str | list[str]]:
    rows: dict[str, tuple[CsvTable, int]] = {}
    parts = []
    for name in tables:
        table = CsvTable(place / name)
        require_columns(table, [FILE_NAME], "path")
        if label is None:
            others = [one for one in table.schema.names if one != FILE_NAME]
            if LABEL not in others and len(others) != 1:
                raise UserError(
                    f"{place / name}: which of its columns {', '.join(table.schema.names)} is the "
                    "label? Name it: dataset.label: NAME."
                )
            label = LABEL if LABEL in others else others[0]
        labels = [label] if isinstance(label, str) else label
        require_columns(table, labels, "label")
        for row, cell in enumerate(as_texts(column_of(table, FILE_NAME)).to_pylist()):
            image = str(PurePosixPath(name).parent / (cell or ""))
            if cell is None or image in rows:
                what = "column file_name is empty" if cell is None else f"{cell} is there already"
                raise UserError(f"{table.place(row)}: {what}; correct or remove the line.")
            rows[image] = table, row
        parts.append(pa.table({one: column_of(table, one) for one in labels}))
    try:
        joined = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"{place}: {', '.join(tables)} hold other labels ({error}).") from error
    missing = sorted(set(rows) - {name for _, names in by_split.values() for name in names})
    if missing:
        table, row = rows[missing[0]]
        raise UserError(
            f"{table.place(row)}: there is no image {place}/{missing[0]}; correct the name, or "
            f"remove the line ({len(missing):,} such lines)."
        )
    number = {image: row for row, image in enumerate(rows)}
    found: dict[str, Table] = {}
    for split, (prefix, names) in by_split.items():
        listed = [name for name in names if name in rows]
        left = [name for name in names if name not in rows]
        if not listed:
            raise UserError(
                f"{place}: no metadata.csv lists an image of the {split} split, such as {left[0]}; "
                "list them with their labels, or remove them."
            )
        if left:
            say(f"{len(left):,} images that no metadata.csv lists are left out, such as {left[0]}.")
        found[split] = FolderTable(
            f"{place}/{prefix}".rstrip("/"),
            [f"{place}/{name}" for name in listed],
            joined.take([number[name] for name in listed]),
            place=lambda row, listed=listed: rows[listed[row]][0].place(rows[listed[row]][1]),  # type: ignore[misc]
        )
    assert label is not None
    return found, label
