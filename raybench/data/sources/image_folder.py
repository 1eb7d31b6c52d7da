"""A folder of images, by class or with a `metadata.csv`: decoded once, then mapped.

How a folder of images is laid out: its splits and its classes.

`metadata.csv` beside images: a row for each, by its `file_name`, with its label.

The label of each image of a folder: the folder it lies in, or its row of `metadata.csv`.
"""

import csv
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from raybench.data.dataset import Dataset, Split
from raybench.data.sources.cut import (
    Labelled,
    as_classes,
    as_numbers,
    class_names,
    cut,
    dataset_of_parts,
    held_out_line,
    mixed_order,
    task_of,
)
from raybench.data.sources.decode_images import decode_images, probe
from raybench.data.sources.images import Picture, is_image
from raybench.data.store.build import stored
from raybench.data.store.place import Writer, tell
from raybench.data.store.source import File, Source, list_files
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

FILE_NAME = "file_name"
USUAL_LABEL = "label"


@dataclass(frozen=True)
class LabelledImage:
    """A row of the file."""

    name: str
    """Path of the image, from where the file lies."""
    labels: tuple[str, ...]
    """As they stand there, one of each label column."""
    line: int


def read_metadata(file: Path, label: str | list[str] | None) -> list[LabelledImage]:
    """Return the rows of a file; `label` names the column (none: `label`, or the only other one).

    Blank lines are left out. UserError with file, line and column for what cannot be used.
    """
    rows = _rows(file)
    if not rows:
        raise UserError(f"{file} is empty; its first line names the columns: file_name,label.")
    head = [name.strip() for name in rows[0][1]]
    _require_once(head, file)
    place = _column(FILE_NAME, head, file)
    wanted = _label_columns(label, head, file)
    places = [_column(name, head, file) for name in wanted]
    found: dict[str, LabelledImage] = {}
    for line, cells in rows[1:]:
        if not cells:
            continue
        if len(cells) != len(head):
            raise UserError(
                f"{file}, line {line}: has {len(cells)} values, the first line names {len(head)} "
                "columns; mend the line."
            )
        name = cells[place].strip()
        labels = tuple(cells[one].strip() for one in places)
        for column, value in zip([FILE_NAME, *wanted], [name, *labels], strict=True):
            if not value:
                raise UserError(f"{file}, line {line}: column {column} is empty; fill it in.")
        if name in found:
            raise UserError(
                f"{file}, line {line}: {name} stands in line {found[name].line} already; remove "
                "one of them."
            )
        found[name] = LabelledImage(name, labels, line)
    if not found:
        raise UserError(f"{file} has a first line and no rows; list the images in it.")
    return list(found.values())


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Return (line, cells) of every row."""
    try:
        text = file.read_bytes().decode("utf-8-sig")  # Excel writes a mark before the first name
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{file}, line {line}: is not UTF-8; save the file as UTF-8.") from error
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: is no row of a CSV ({error}).") from error


def _require_once(head: Sequence[str], file: Path) -> None:
    twice = [name for name in head if head.count(name) > 1]
    if twice:
        raise UserError(f"{file}: column {twice[0]} stands there twice; rename one of them.")


def _column(name: str, head: Sequence[str], file: Path) -> int:
    if name not in head:
        close = difflib.get_close_matches(name, head, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"{file} has no column {name}, but {', '.join(head)}{hint}")
    return head.index(name)


def _label_columns(label: str | list[str] | None, head: Sequence[str], file: Path) -> list[str]:
    if label is not None:
        return [label] if isinstance(label, str) else label
    others = [name for name in head if name != FILE_NAME]
    if USUAL_LABEL not in others and len(others) != 1:
        raise UserError(
            f"{file}: which of its columns {', '.join(head)} is the label? Name it: "
            "dataset.label: NAME."
        )
    return [USUAL_LABEL] if USUAL_LABEL in others else others


SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""What folders of splits may be called, as Hugging Face's ImageFolder has them."""
METADATA = "metadata.csv"


@dataclass
class FolderSplit:
    """Files of one split; names are from the folder that the user named."""

    images: list[File] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    """Names of its `metadata.csv` files; where there is one, classes are no folders."""


@dataclass
class Layout:
    """What a folder holds."""

    splits: dict[str, FolderSplit]
    """`train` alone where the folder has no splits of its own."""
    prefixes: dict[str, str]
    """By split, what the names of its files begin with: `train/`."""

    @property
    def has_splits(self) -> bool:
        """Whether the folder has splits of its own."""
        return bool(self.prefixes["train"])


def lay_out(files: Sequence[File], place: str) -> Layout:
    """Sort the images and tables of a folder; UserError, naming `place`, for what is no layout.

    `metadata.csv` may lie in the folder, in those of its splits, or both.
    """
    prefixes = _prefixes(files, place)
    layout = Layout({name: FolderSplit() for name in prefixes}, prefixes)
    for file in files:
        split = _split_of(file.name, prefixes)
        in_folder = "/" not in file.name
        if file.name.rpartition("/")[2] == METADATA:
            wanted = [split] if split else list(prefixes) if in_folder else []
            for name in wanted:
                layout.splits[name].metadata.append(file.name)
        elif split is None:
            raise UserError(
                f"{place}/{file.name} lies outside of the splits {_listed(prefixes)}; move or "
                "remove it."
            )
        else:
            layout.splits[split].images.append(file)
    return layout


def require_none_empty(layout: Layout, place: Path) -> None:
    """Raise UserError for a folder of a split or of a class that holds no image."""
    names = {name for known in SPLIT_NAMES.values() for name in known}
    if layout.has_splits:
        wanted = [one for one in place.iterdir() if one.is_dir() and one.name.lower() in names]
    else:
        wanted = [place]
    has_classes = not any(split.metadata for split in layout.splits.values())
    if has_classes:
        wanted += [one for folder in wanted for one in folder.iterdir() if one.is_dir()]
    images = [file.name for split in layout.splits.values() for file in split.images]
    filled = {place} | {
        place / folder for folder in {one for name in images for one in _first_two(name)}
    }
    for folder in wanted:
        if folder not in filled and not folder.name.startswith("."):
            raise UserError(f"{folder} holds no images; give it at least one, or remove it.")


def class_of(name: str, prefix: str, place: str) -> str:
    """Return the class of an image by its folder below the split; UserError if it has none."""
    folder, separator, _ = name.removeprefix(prefix).partition("/")
    if not separator:
        raise UserError(
            f"{place}/{name} is in no folder of a class; move it into {prefix}<class>/, or list it "
            f"with its label in {prefix}{METADATA} (columns file_name and label)."
        )
    return folder


def _prefixes(files: Sequence[File], place: str) -> dict[str, str]:
    """Return by split what its files' names begin with; `train: ""` where there are no splits."""
    folders = dict.fromkeys(file.name.partition("/")[0] for file in files if "/" in file.name)
    found: dict[str, str] = {}
    for folder in folders:
        for split, names in SPLIT_NAMES.items():
            if folder.lower() in names:
                if split in found:
                    raise UserError(
                        f"{place} holds both {found[split].rstrip('/')} and {folder}; keep one of "
                        "them."
                    )
                found[split] = f"{folder}/"
    if found and len(found) == len(folders) and "train" not in found:
        raise UserError(
            f"{place} holds {_listed(found)} and no train; add the images to train on, or name "
            "another folder."
        )
    inner = _inner(files)
    if "train" not in found and inner:
        held = ", ".join(_below(files, inner)[:5])
        raise UserError(
            f"{place} holds the folder {inner} alone, and in it {held}; name {place}/{inner}."
        )
    # Beside others they are classes that are called so ("test" and "no_test").
    return found if "train" in found else {"train": ""}


def _inner(files: Sequence[File]) -> str:
    """Return the only folder that all files lie in, where splits or several folders are in it."""
    inner = ""
    while len(below := _below(files, inner)) == 1 and all(
        file.name.removeprefix(inner).count("/") for file in files
    ):
        inner = f"{inner}{next(iter(below))}/"
    return inner.rstrip("/") if len(below) > 1 else ""


def _below(files: Sequence[File], folder: str) -> list[str]:
    """Return the folders directly below one, in order."""
    begin = f"{folder.rstrip('/')}/" if folder else ""
    names = (file.name.removeprefix(begin) for file in files)
    return list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))


def _first_two(name: str) -> list[str]:
    """Return the first folder of a file's name, and the first two."""
    folders = name.split("/")[:-1]
    return ["/".join(folders[:1]), "/".join(folders[:2])]


def _split_of(name: str, prefixes: dict[str, str]) -> str | None:
    return next((split for split, prefix in prefixes.items() if name.startswith(prefix)), None)


def _listed(prefixes: dict[str, str]) -> str:
    return ", ".join(prefix.rstrip("/") for prefix in prefixes.values())


def label_images(
    layout: Layout, place: Path, label: str | list[str] | None
) -> dict[str, list[Labelled]]:
    """Return by split the images that have labels, in the order of their names.

    Of a folder with a `metadata.csv` images that it does not list are left out, which is said.
    UserError for a listed image that is not there, and a split without a labelled one.
    """
    tables = dict.fromkeys(name for split in layout.splits.values() for name in split.metadata)
    if not tables:
        if label is not None:
            raise UserError(
                f"dataset.label: {label}: {place} has no metadata.csv with such a column; leave "
                "the key out, then classes are folders."
            )
        return {
            part: _by_folder(split.images, layout.prefixes[part], place)
            for part, split in layout.splits.items()
        }
    rows = _rows_folder_labels(list(tables), place, label)
    found: dict[str, list[Labelled]] = {}
    missing = set(rows)
    for part, split in layout.splits.items():
        listed = [rows[file.name] for file in split.images if file.name in rows]
        missing -= {one.name for one in listed}
        if len(listed) < len(split.images):
            left = next(file.name for file in split.images if file.name not in rows)
            if not listed:
                raise UserError(
                    f"{place}: no metadata.csv lists an image of the {part} split, such as {left}; "
                    "list them with their labels, or remove them."
                )
            tell(
                f"{place}: {len(split.images) - len(listed):,} images that no metadata.csv lists "
                f"are left out, such as {left}."
            )
        found[part] = listed
    for name in sorted(missing):
        one = rows[name]
        raise UserError(
            f"{one.where}: there is no image {place}/{name}; correct the name, or remove the line "
            f"({len(missing):,} such lines)."
        )
    return found


def _by_folder(images: Sequence[File], prefix: str, place: Path) -> list[Labelled]:
    return [
        Labelled(file.name, (class_of(file.name, prefix, str(place)),), f"{place}/{file.name}")
        for file in images
    ]


def _rows_folder_labels(
    tables: Sequence[str], place: Path, label: str | list[str] | None
) -> dict[str, Labelled]:
    """Return what the tables say of each image, by its name from `place`."""
    rows: dict[str, Labelled] = {}
    for table in tables:
        folder = PurePosixPath(table).parent
        for row in read_metadata(place / table, label):
            name = str(folder / row.name)
            where = f"{place / table}, line {row.line}"
            if name in rows and rows[name].labels != row.labels:
                raise UserError(
                    f"{where}: {row.name} has another label in {rows[name].where}; keep one."
                )
            rows[name] = Labelled(name, row.labels, where)
    return rows


PARTS = ("train", "validation", "test")
OPTIONS = ("image_size", "resize", "channels", "label", "task", "split_seed")


def load_image_folder(spec: DatasetSpec) -> Dataset:
    """Return the images of `spec.path`: uint8 (H, W, C), mapped from the store.

    Splits are those of its folders `train`, `val` and `test`; what is not there is cut from the
    training images by `spec.split_seed`, every class by its share. UserError for a folder or an
    image that cannot be used, with its name.
    """
    assert spec.path is not None
    path = _folder(spec.path)
    listed = list_files(path)
    files = [
        file for file in listed if is_image(file.name) or file.name.rpartition("/")[2] == METADATA
    ]
    if not files:
        what = f"{len(listed):,} files, none of them an image" if listed else "no files"
        raise UserError(f"dataset.path: {path} holds {what}; name a folder of images.")
    options = spec.model_dump(mode="json", include=set(OPTIONS))
    source = Source(name="image_folder", path=path, files=files, options=options)
    num_others = len(listed) - len(files)

    def build(writer: Writer) -> Mapping[str, Any]:
        if num_others:
            tell(f"{path}: {num_others:,} files are left out, which are no images by their names.")
        return _build(writer, source, spec)

    found = stored(source, build)
    about, images, labels = found.about, found.arrays["images"], found.arrays["labels"]
    splits: dict[str, Split] = {}
    start = 0
    for part, count in about["counts"].items():
        splits[part] = Split(images[start : start + count], labels[start : start + count])
        start += count
    parts = cut(
        splits["train"], splits.get("validation"), splits.get("test"), spec, source=str(path)
    )
    return dataset_of_parts("image_folder", parts, about, str(path))


def _folder(given: str) -> Path:
    path = Path(given).expanduser()
    if not path.exists():
        raise UserError(f"dataset.path: {path} does not exist; name a folder of images.")
    if not path.is_dir():
        raise UserError(
            f"dataset.path: {path} is a file, and image_folder takes a folder; unpack it, or name "
            "another kind of dataset (csv, parquet, npz)."
        )
    return path


def _build(writer: Writer, source: Source, spec: DatasetSpec) -> dict[str, Any]:
    """Write `images` and `labels`: one split after the other, each in a mixed order."""
    place = source.path
    layout = lay_out(source.files, str(place))
    require_none_empty(layout, place)
    labelled = label_images(layout, place, spec.label)
    task = task_of(labelled["train"], spec.task)
    names: tuple[str, ...] = ()
    if task == "classification":
        names = class_names(labelled["train"], str(place))
    elif task != "regression":
        raise UserError(f"dataset.task: {task} is not for images; leave it out.")
    if told := held_out_line(len(labelled["train"]), spec, labelled):
        tell(f"{place}: {told}")
    order: list[Labelled] = []
    numbers = []
    for samples in labelled.values():
        classes = as_classes(samples, names) if names else None
        values = as_numbers(samples) if classes is None else classes
        rows = mixed_order(classes, len(samples), seed=spec.split_seed)
        order += [samples[row] for row in rows]
        numbers.append(values[rows])
    writer.save("labels", np.concatenate(numbers))
    first = [Picture(0, f"{place}/{one.name}", f"{place}/{one.name}") for one in labelled["train"]]
    form, seconds_each = probe(first, spec)

    def pictures() -> Iterator[Picture]:
        for row, one in enumerate(order):
            yield Picture(row, f"{place}/{one.name}", f"{place}/{one.name}")

    decode_images(
        writer, "images", pictures(), number=len(order), form=form, seconds_each=seconds_each
    )
    counts = {part: len(samples) for part, samples in labelled.items()}
    return {"task": task, "class_names": list(names), "counts": counts}
