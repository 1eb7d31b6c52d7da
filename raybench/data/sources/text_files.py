"""Files of text: a folder of classes, or what a language model learns."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raybench.core.errors import UserError
from raybench.data.memory import require_memory
from raybench.data.sources.files import find_files, split_of
from raybench.data.sources.folder_layout import SPLIT_NAMES
from raybench.data.sources.table import BATCH_ROWS, Table, Tables

ENDINGS = (".txt", ".text", ".md")
MEMORY_FACTOR = 20
"""Bytes in memory for one of a text that is learnt, at most: its ids, its next ones, its cuts."""


class TextFolder:
    """A folder with a folder of files for each class, as a table of `text` and `label`."""

    class_names: Mapping[str, Sequence[str]] = {}

    def __init__(self, folder: Path) -> None:
        """UserError for files that are in no class's folder."""
        self.source = self.folder = str(folder)
        files = find_files(folder, ENDINGS)
        outside = [file for file in files if file.parent == folder]
        if outside:
            raise UserError(
                f"{outside[0]} is in no class's folder; move it to one: {folder}/CLASS/"
                f"{outside[0].name}."
            )
        if not files:
            raise UserError(
                f"dataset.path: {folder} has no folders with {ENDINGS[0]} files; put the texts of "
                "each class into a folder with its name."
            )
        self.files = files
        self._classes = [file.relative_to(folder).parts[0] for file in files]
        self.num_rows = len(files)
        self.schema = pa.schema([("text", pa.string()), ("label", pa.string())])

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        rows = BATCH_ROWS // 64  # a file is longer than a cell
        for start in range(0, self.num_rows, rows):
            here = slice(start, start + rows)
            made = {"label": self._classes[here]}
            if "text" in columns:
                made["text"] = [read_text(file) for file in self.files[here]]
            arrays = [pa.array(made[column], pa.string()) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def place(self, row: int) -> str:
        """See `Table`."""
        return str(self.files[row])


def open_text_folder(folder: Path) -> Tables:
    """Return the texts of `folder/CLASS/`, or of `folder/train/CLASS/` and the other splits."""
    by_split = _split_folders(folder)
    if not by_split:
        return Tables(TextFolder(folder))
    if "train" not in by_split:
        raise UserError(f"dataset.path: {folder} has {', '.join(by_split)} and no train; add it.")
    tables: dict[str, Table] = {name: TextFolder(path) for name, path in by_split.items()}
    return Tables(**tables)


def _split_folders(folder: Path) -> dict[str, Path]:
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    found = {split_of(path.name): path for path in inner}
    is_all = bool(inner) and None not in found
    return {split: found[split] for split in SPLIT_NAMES if split in found} if is_all else {}


def is_class_folder(path: Path) -> bool:
    """Whether a path has folders of texts by class, and not texts to be learnt as one."""
    if not path.is_dir():
        return False
    return any(
        len(file.relative_to(path).parts) > (2 if split_of(file.relative_to(path).parts[0]) else 1)
        for file in find_files(path, ENDINGS)
    )


def running_texts(path: Path) -> dict[str, str]:
    """Return the text of a file, or of a folder's, whole: by split, or as `train` alone."""
    if path.is_file():
        _require_memory([path], path)
        return {"train": read_text(path)}
    files = find_files(path, ENDINGS)
    if not files:
        raise UserError(f"dataset.path: {path} has no {ENDINGS[0]} files; name a file or folder.")
    _require_memory(files, path)
    by_split: dict[str, list[str]] = {}
    splits = [split_of(file.relative_to(path).parts[0]) for file in files]
    is_split = all(splits) and "train" in splits
    for file, split in zip(files, splits, strict=True):
        by_split.setdefault(split if is_split and split else "train", []).append(read_text(file))
    order = [split for split in SPLIT_NAMES if split in by_split]
    return {split: "\n".join(by_split[split]) for split in order}


def _require_memory(files: list[Path], path: Path) -> None:
    require_memory(MEMORY_FACTOR * sum(file.stat().st_size for file in files), str(path))


def read_text(file: Path) -> str:
    """Return a file's text; UserError, with the line, if it is not UTF-8."""
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file}: line {line} is not UTF-8 (byte {content[error.start]:#04x}); save the file "
            "as UTF-8: iconv -f latin1 -t utf-8."
        ) from error
