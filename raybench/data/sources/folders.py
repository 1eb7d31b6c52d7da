"""Folders of images or texts as tables, with one row per file: its name or text, and its class."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from raybench.data.sources.files import SPLIT_NAMES, find_files, split_of
from raybench.data.sources.images import is_image
from raybench.data.sources.table import Table, Tables
from raybench.data.store import File, list_files
from raybench.spec.errors import ErrorCode, UserError

METADATA = "metadata.csv"  # file that lists images and labels, as in Hugging Face's ImageFolder
FILE_NAME, TEXT, LABEL = "file_name", "text", "label"  # names of columns in the tables
TEXT_ENDINGS = (".txt", ".text", ".md")


def open_text_folder(folder: Path, read: Callable[[Path], str]) -> Tables:
    """Return a table of texts for each split, from `folder/CLASS/*` (all in `train`) or from
    `folder/train/CLASS/*` and so on; `read` returns the text of a file."""
    names = [file.relative_to(folder).as_posix() for file in find_files(folder, TEXT_ENDINGS)]
    if not names:
        raise UserError(
            f"dataset.path: {folder} has no {TEXT_ENDINGS[0]} files in folders of classes.",
            ErrorCode.NOT_FOUND,
        )
    return _by_class(folder, _by_split(folder, names), read)


def is_class_folder(path: Path) -> bool:
    """Return whether a folder holds a folder of texts for each class, instead of running text."""
    names = [file.relative_to(path).parts for file in find_files(path, TEXT_ENDINGS)]
    return any(len(parts) > (2 if split_of(parts[0]) else 1) for parts in names)


def list_images(path: Path) -> tuple[list[File], int]:
    """Return the image files below a folder, and the number of other files."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(
            f"dataset.path: {path} {what}; name an unpacked folder of images.",
            ErrorCode.NOT_FOUND,
        )
    listed = list_files(path)
    tables = [one.name for one in listed if one.name.rpartition("/")[2] == METADATA]
    if tables:
        raise UserError(
            f"dataset.path: {path} has its labels in {tables[0]}; set name: csv, image: "
            f"{FILE_NAME} and label: COLUMN.",
            ErrorCode.CONFLICT,
        )
    files = [one for one in listed if is_image(one.name)]
    if not files:
        what = f"{len(listed):,} files, none of them an image" if listed else "no files"
        raise UserError(
            f"dataset.path: {path} holds {what}; name a folder of images.", ErrorCode.NOT_FOUND
        )
    return files, len(listed) - len(files)


def open_image_folder(place: Path, files: Sequence[File]) -> Tables:
    """Return a table of images for each split, from `place/CLASS/*` (all in `train`) or from
    `place/train/CLASS/*` and so on."""
    return _by_class(place, _by_split(place, [file.name for file in files]))


Names = dict[str, tuple[str, list[str]]]
"""For each split, the prefix of the names of its files (`train/` or empty), and the names."""


def _by_split(place: Path, names: Sequence[str]) -> Names:
    """Group files by split; without folders for splits, all files belong to `train`."""
    folders = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    found: dict[str, str] = {}
    for folder in folders:
        split = next((one for one, known in SPLIT_NAMES.items() if folder.lower() in known), None)
        if split in found:
            raise UserError(
                f"{place} holds both {found[split]} and {folder}; keep one of them.",
                ErrorCode.CONFLICT,
            )
        if split is not None:
            found[split] = folder
    if "train" not in found:
        if found and len(found) == len(folders):
            raise UserError(
                f"{place} holds {', '.join(found.values())} and no train; add it.",
                ErrorCode.MISSING,
            )
        # Next to other folders, a folder such as "test" is a class ("test" and "no_test").
        return {"train": ("", list(names))}
    outside = [name for name in names if name.partition("/")[0] not in found.values()]
    if outside:
        raise UserError(
            f"{place}/{outside[0]} lies outside the splits {', '.join(found.values())}; move it.",
            ErrorCode.CONFLICT,
        )
    return {
        split: (f"{found[split]}/", [one for one in names if one.startswith(f"{found[split]}/")])
        for split in SPLIT_NAMES
        if split in found
    }


def _by_class(place: Path, by_split: Names, read: Callable[[Path], str] | None = None) -> Tables:
    """Return a table for each split, whose rows are the files: class, and path or text.

    The text is the result of `read`; without `read`, the tables hold paths.
    """
    tables: dict[str, Table] = {}
    for split, (prefix, names) in by_split.items():
        classes = []
        for name in names:
            folder, separator, _ = name.removeprefix(prefix).partition("/")
            if not separator:
                raise UserError(
                    f"{place}/{name} is in no folder of a class; move it into {prefix}<class>/.",
                    ErrorCode.CONFLICT,
                )
            classes.append(folder)
        files = [f"{place}/{name}" for name in names]
        cells = {FILE_NAME: files} if read is None else {TEXT: [read(Path(one)) for one in files]}
        table = pa.table({**cells, LABEL: classes})
        tables[split] = Table(table, f"{place}/{prefix}".rstrip("/"), place=files.__getitem__)
    return tables
