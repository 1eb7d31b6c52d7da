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
    return _by_class(folder, names, read)


def is_class_folder(path: Path) -> bool:
    """Return whether a folder holds a folder of texts for each class, instead of running text."""
    names = [file.relative_to(path).parts for file in find_files(path, TEXT_ENDINGS)]
    return any(len(parts) > (2 if split_of(parts[0]) else 1) for parts in names)


def list_images(path: Path) -> tuple[list[File], int]:
    """Return the image files below a folder, and the number of other files."""
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
        raise UserError(
            f"dataset.path: {path} is no folder with images ({len(listed):,} other files); name an "
            "unpacked folder of them.",
            ErrorCode.NOT_FOUND,
        )
    return files, len(listed) - len(files)


def open_image_folder(place: Path, files: Sequence[File]) -> Tables:
    """Return a table of images for each split, from `place/CLASS/*` (all in `train`) or from
    `place/train/CLASS/*` and so on."""
    return _by_class(place, [file.name for file in files])


def _by_class(
    place: Path, names: Sequence[str], read: Callable[[Path], str] | None = None
) -> Tables:
    """Return a table for each split, whose rows are the files: class, and path or text.

    The text is the result of `read`; without `read`, the tables hold paths.
    """
    tables: dict[str, Table] = {}
    by_split, depth = _by_split(place, names)
    for split, own in by_split.items():
        parts = [name.split("/") for name in own]
        for name, folders in zip(own, parts, strict=True):
            if len(folders) < depth + 2:
                raise UserError(
                    f"{place}/{name} is in no folder of a class; move it into one.",
                    ErrorCode.CONFLICT,
                )
        files = [f"{place}/{name}" for name in own]
        cells = {FILE_NAME: files} if read is None else {TEXT: [read(Path(one)) for one in files]}
        # Categorical, so that folders named such as `10 %` are names.
        classes = pa.array([folders[depth] for folders in parts]).dictionary_encode()
        table = pa.table({**cells, LABEL: classes})
        tables[split] = Table(table, f"{place} ({split})", place=files.__getitem__)
    return tables


def _by_split(place: Path, names: Sequence[str]) -> tuple[dict[str, list[str]], int]:
    """Group files by the split that their top folder names.

    Returns:
        The files by split, and the number of folders above those of the classes. Without a folder
        for training, all files belong to `train`; next to other folders, a folder such as "test" is
        a class ("test" and "no_test").
    """
    found: dict[str | None, list[str]] = {}
    for name in names:
        top = name.partition("/")[0].lower() if "/" in name else ""
        split = next((one for one, known in SPLIT_NAMES.items() if top in known), None)
        found.setdefault(split, []).append(name)
    if "train" not in found:
        if None in found:
            return {"train": list(names)}, 0
        raise UserError(
            f"{place} holds {', '.join(map(str, found))} and no train; add it.", ErrorCode.MISSING
        )
    if None in found:
        raise UserError(
            f"{place}/{found[None][0]} lies outside the splits; move it.", ErrorCode.CONFLICT
        )
    return {split: found[split] for split in SPLIT_NAMES if split in found}, 1
