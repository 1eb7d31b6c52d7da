"""Summary of a file or folder for `raybench init`: kind, task, columns, classes and anomalies."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from raybench.data.check import check_something_to_learn
from raybench.data.dataset import Array, Dataset
from raybench.data.load import build_dataset
from raybench.data.sources import folders, images, texts
from raybench.data.sources.encode import NameEncoder
from raybench.data.sources.files import ENDINGS, open_tables
from raybench.data.sources.label_columns import MAX_NUMBERED_CLASSES, Labels, read_labels, task_of
from raybench.data.sources.table import (
    Table,
    Tables,
    as_texts,
    find_roles,
    is_number_type,
    require_columns,
)
from raybench.data.sources.table_set import Member, choose_split_rows, prepare, time_line
from raybench.data.sources.tables import (
    first_pictures,
    is_of_classes,
    open_huggingface,
    require_image_column,
    with_default_columns,
)
from raybench.data.store import file_at, list_files, size_in_words
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.errors import ErrorCode, UserError


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Summary of a user's data: messages to print, and values for a space file (a YAML study)."""

    kind: Literal["pictures", "table", "texts", "running text", "other"]
    dataset: dict[str, Any]
    """Value of `dataset` in the space file."""
    task: Task
    num_train: int
    """Number of training samples."""
    lines: list[str]
    """Findings about the data, to print."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one sample; None if unknown, or if inputs have names."""
    notes: dict[str, str] = field(default_factory=dict)
    """Comments for the space file, by key of `dataset`."""


HUGGING_FACE = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files by which a folder written by Hugging Face's `save_to_disk` is recognized."""


def summarize(path: Path, *, labels: Sequence[str] = (), task: Task | None = None) -> DataSummary:
    """Summarize a file or folder.

    Args:
        path: A file or folder of any kind that raybench reads.
        labels: Label columns of a table, or label arrays; by default found by name and content.
        task: Learning task; by default inferred from the labels.

    Raises:
        UserError: The data do not exist, or are damaged or ambiguous.
    """
    kind = kind_of(path)
    if labels and kind in ("image_folder", "text"):
        raise UserError(
            f"--label is for tables, and {path} is none: classes are its folders, and of running "
            "text the labels are the next characters; leave it out.",
            ErrorCode.CONFLICT,
        )
    if kind == "image_folder":
        return _summarize_image_folder(path, task)
    if kind == "npz":
        content = _content("npz", path, _one_or_all([*labels]), task)
        return summarize_dataset(build_dataset(DatasetSpec.model_validate(content)), content)
    if kind == "text":
        return _summarize_texts(path, task)
    return _summarize_tables(path, kind, labels=labels, task=task)


def kind_of(path: Path) -> str:
    """Return the value of `dataset.name` (`csv`, `image_folder`, ...) for a file or folder."""
    if not path.exists():
        raise UserError(
            f"there is no file or folder {path} (from {Path.cwd()}); name your data, or "
            "module:Class for a workload of your own.",
            ErrorCode.NOT_FOUND,
        )
    if any((path / name).is_file() for name in HUGGING_FACE):
        return "huggingface"
    names = [path.name] if path.is_file() else [file.name for file in list_files(path)]
    if not names:
        raise UserError(
            f"{path} is an empty folder; name one that holds data.", ErrorCode.INVALID_DATA
        )
    is_listed = any(name.rpartition("/")[2] == folders.METADATA for name in names)
    if path.is_dir() and any(map(images.is_image, names)) and not is_listed:
        return "image_folder"
    for kind, known in (ENDINGS | {"text": folders.TEXT_ENDINGS, "npz": (".npz",)}).items():
        if any(name.lower().endswith(known) for name in names):
            return kind
    raise UserError(
        f"{path} is nothing that init knows ({names[0]}): folders of images, .csv, .parquet, .txt, "
        ".npz, and what save_to_disk of Hugging Face's datasets has written.",
        ErrorCode.INVALID_FILE,
    )


def summarize_dataset(dataset: Dataset, content: dict[str, Any]) -> DataSummary:
    """Summarize a loaded dataset; `content` is the value of `dataset` for the space file."""
    train = dataset.train
    path = content.get("path", dataset.name)
    check_something_to_learn(dataset.task, train.labels, dataset.class_names, str(path))
    lines = [
        f"{len(train):,} samples to train on, {len(dataset.validation):,} for validation, "
        f"{len(dataset.test):,} for the test; inputs of shape {dataset.input_shape}."
    ]
    if dataset.task == "classification":
        names = dataset.names_of_classes
        lines += _class_lines(f"{len(names)} classes:", names, train.labels)
    elif dataset.task == "regression" and train.labels.ndim == 1:
        lines.append(_number_line("values", dataset.original_labels(train.labels)))
    shape = dataset.input_shape
    is_picture = isinstance(shape, tuple) and len(shape) == 3
    return DataSummary(
        kind="pictures" if is_picture else "other",
        dataset=content,
        task=dataset.task,
        num_train=len(train),
        lines=lines,
        input_shape=None if isinstance(shape, dict) else shape,
    )


def _content(
    name: str, path: Path, label: str | list[str] | None, task: Task | None
) -> dict[str, Any]:
    """Return the value of `dataset` for the space file; None values are left out."""
    content = {"name": name, "path": str(path), "label": label, "task": task}
    return {key: value for key, value in content.items() if value is not None}


def _one_or_all(labels: list[str]) -> str | list[str] | None:
    return labels[0] if len(labels) == 1 else labels or None


MAX_SEQUENCE_LENGTH = 512  # maximum `sequence_length` that is suggested for a column of texts


def _summarize_tables(
    path: Path, name: str, *, labels: Sequence[str], task: Task | None
) -> DataSummary:
    """Summarize a file or folder of tables, or a Hugging Face dataset."""
    content = _content(name, path, None, task)
    said: list[str] = []
    if name == "huggingface":
        tables, _ = open_huggingface(DatasetSpec.model_validate(content))
    else:
        tables = open_tables(DatasetSpec.model_validate(content | {"label": "?"}))
    labels = _label_columns(tables["train"], labels)
    spec = DatasetSpec.model_validate(content | _find_columns(tables["train"], labels, task))
    if name == "huggingface":
        spec, tables = with_default_columns(spec, tables)
    content |= spec.model_dump(include={"label", "image", "text"}, exclude_none=True)
    files = [file_at(path)] if path.is_file() else list_files(path)
    size, columns = size_in_words(sum(file.size for file in files)), tables["train"].schema.names
    rows = ", ".join(
        f"{table.num_rows:,} rows" + ("" if split == "train" else f" for {split}")
        for split, table in tables.items()
    )
    lines = [f"{path}: {rows}, {len(columns)} columns, {size}."]
    if spec.image is not None:
        return _summarize_images(spec, content, tables, lines, said)
    found, members, inputs = prepare(spec, tables, said.append)
    num_train = len(members[0].rows)
    lines += _label_lines(spec, found, members)
    notes = {}
    if isinstance(inputs, texts.Tokens):
        lengths = inputs.lengths
        long = 32 * np.ceil(float(np.quantile(lengths, 0.95)) / 32)
        content["sequence_length"] = int(min(MAX_SEQUENCE_LENGTH, max(32, long)))
        notes["sequence_length"] = "tokens kept of a text: 19 in 20 are shorter, or it is the most"
        said = [sentence for sentence in said if "sequence_length" not in sentence]
        lines.append(
            f"Texts of {spec.text}: {np.median(lengths):.0f} {spec.tokens} in the middle, the "
            f"longest {lengths.max():,}; {inputs.num_tokens:,} different ones."
        )
    else:
        names = [one for one in inputs.encoders if isinstance(one, NameEncoder)]
        shown = ", ".join(f"{one.name} ({len(one.known):,})" for one in names)
        lines.append(
            f"Inputs: {len(inputs.columns)} columns, {inputs.shape[0]} features: "
            f"{len(inputs.columns) - len(names)} of numbers"
            + (f", {len(names)} of names: {shown}" if names else "")
            + f"; {size_in_words(4 * inputs.shape[0] * num_train)} to train on."
        )
        gaps = [f"{one.name} {100 * one.missing:.2g} %" for one in inputs.encoders if one.missing]
        if gaps:
            lines.append(
                f"Missing in training rows: {', '.join(gaps)}; filled with the mean (or as a name "
                "of its own), and a feature says so."
            )
        for one in [one for one in _long_texts(tables["train"]) if one not in labels][:1]:
            notes["label"] = f"text: {one} in place of the columns learns from these texts"
    return DataSummary(
        kind="texts" if isinstance(inputs, texts.Tokens) else "table",
        dataset=content,
        task=found.task,
        num_train=num_train,
        lines=[*lines, *map(_capitalized, said)],
        input_shape=inputs.shape,
        notes=notes,
    )


def _capitalized(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}"


def _label_columns(table: Table, given: Sequence[str]) -> list[str]:
    """Return the columns given by `--label`; `a,b` means two columns unless one is named `a,b`."""
    names = set(table.schema.names)
    return [
        name
        for one in given
        for name in ([one] if one in names or not {*one.split(",")} <= names else one.split(","))
    ]


TYPICAL_LABELS = ("label", "labels", "class", "target", "y")
TYPICAL_TEXTS = ("text", "review", "sentence", "comment", "content", "body", "document", "message")
MAX_CANDIDATE_CLASSES = 50  # distinct values of a column up to which they may be classes


def _find_columns(table: Table, labels: list[str], task: Task | None) -> dict[str, Any]:
    """Return the values of `label`, `text` and `image` for the key `dataset`.

    By default, the label is the column with a typical name, or the only possible column.
    """
    names = table.schema.names
    pictures, written = [name for name in names if _is_image(table, name)], _long_texts(table)
    if not labels and task != "language_modelling":
        left = [name for name in names if name not in (*pictures, *written)]
        typical = [name for name in names if name.lower() in TYPICAL_LABELS]
        typical = typical or list(table.class_names) or left
        if len(typical) != 1:
            raise UserError(
                f"{table.source}: name the column to learn by --label: {_candidates(table, left)}.",
                ErrorCode.MISSING,
            )
        labels = typical
    require_columns(table, labels, "label")
    found: dict[str, Any] = {"label": _one_or_all(labels)} if labels else {}
    written = [name for name in written if name not in labels]
    typical = [name for name in written if name.lower() in TYPICAL_TEXTS]
    if pictures and pictures[0] not in labels:
        found["image"] = pictures[0]
    elif typical or (written and not set(names) - {*labels, *written}):
        found["text"] = (typical or written)[0]
    return found


def _candidates(table: Table, names: list[str]) -> str:
    """Return the columns that may be the label, as text for an error message."""
    shown = []
    for name in names:
        if not table.is_text(name) and not is_number_type(table.kind(name)):
            continue
        if task_of(table, [name], MAX_NUMBERED_CLASSES) == "regression":
            shown.append(f"{name} (numbers)")
            continue
        number = len(pc.unique(as_texts(table.column(name)).drop_null()))
        if 1 < number <= MAX_CANDIDATE_CLASSES:
            shown.append(f"{name} ({number} classes)")
    return ", ".join(shown) or "none of its columns looks like one"


def _long_texts(table: Table) -> list[str]:
    """Return the columns whose strings are too long to be names."""
    return [
        name
        for name in table.schema.names
        if table.is_long_text(name) and not _is_image(table, name)
    ]


def _is_image(table: Table, name: str) -> bool:
    if is_number_type(table.kind(name)):
        return False
    try:
        require_image_column(table, name)  # before reading rows: columns of lists are slow
        values = [value for value in table.head(name).to_pylist() if value]
        if table.is_text(name):
            return bool(values) and all(map(images.is_image, values))
        if values and isinstance(values[0], bytes):  # bytes may also be a hash or an array
            images.read_head(values[0], name)
    except (UserError, images.ImageError):
        return False
    return True


def _label_lines(spec: DatasetSpec, labels: Labels, members: list[Member]) -> list[str]:
    """Return lines about the distribution of the training labels and the sizes of the splits.

    Raises:
        UserError: All training labels are the same.
    """
    train, names = members[0], labels.class_names
    values, columns = labels.values["train"][train.rows], spec.label
    check_something_to_learn(labels.task, values, names, f"{spec.path}: label {columns}")
    if names:
        begin = f"label {columns}: {len(names)} classes (of the training rows):"
        lines = _class_lines(begin, names, values)
    elif isinstance(columns, list):
        lines = [_number_line(*one) for one in zip(columns, values.T, strict=True)]
    else:
        lines = [_number_line(str(columns), values)]
    uses = ("to train on", "for validation", "for the test")
    parts = [
        f"{len(one.rows):,} {use}{'' if one.table is train.table else ' (a file of its own)'}"
        for one, use in zip(members, uses, strict=True)
    ]
    return [*lines, f"Rows: {', '.join(parts)}."]


MAX_CLASSES_SHOWN = 12  # if there are more, only the most and least frequent are listed


def _class_lines(begin: str, names: Sequence[str], labels: Array) -> list[str]:
    """Return lines with the sample count of each class (most frequent first) and the balance."""
    counts = np.bincount(labels, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    left_out = len(order) - MAX_CLASSES_SHOWN
    first = len(order) if left_out <= 1 else MAX_CLASSES_SHOWN - 2
    shown = [*order[:first], *order[first:][-2:]]
    width = max(len(names[number]) for number in shown)
    shares = 100 * counts / counts.sum()
    lines = [
        f"  {names[number]:<{width}}  {int(counts[number]):>9,}  {shares[number]:5.1f} %"
        for number in shown
    ]
    if left_out > 1:
        lines.insert(first, f"  ... {left_out:,} classes between them")
    most, least = int(counts.argmax()), int(counts.argmin())
    ratio = counts[most] / max(1, counts[least])
    balance = f"'{names[most]}' is {ratio:.3g} times as frequent as '{names[least]}'"
    if ratio < 1.5:
        balance = "the classes are about equally frequent"
    elif ratio >= 10:
        balance += ": class_weights: balanced would make up for it"
    always = f"always answering '{names[most]}' is right for {shares[most]:.1f} %"
    return [begin, *lines, f"{always}; {balance}."]


def _number_line(column: str, values: Array) -> str:
    """Return a sentence about the distribution of the labels of a regression."""
    return (
        f"label {column}: numbers from {values.min():.5g} to {values.max():.5g}, mean "
        f"{values.mean():.5g}, standard deviation {values.std():.5g} (what always answering the "
        "mean misses by: RMSE)."
    )


SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""Sizes in pixels, of which one is chosen if the images have several sizes."""


def _summarize_image_folder(path: Path, task: Task | None) -> DataSummary:
    if task == "language_modelling":
        raise UserError(
            f"--task {task} is not for images ({path}); leave it out.", ErrorCode.UNSUPPORTED
        )
    files, num_others = folders.list_images(path)
    tables = folders.open_image_folder(path, files)
    total = sum(table.num_rows for table in tables.values())
    lines = [f"{path}: {total:,} images, {size_in_words(sum(file.size for file in files))}."]
    if num_others:
        lines.append(f"{num_others:,} files are not images by their names and are left out.")
    content = _content("image_folder", path, None, task)
    named = {"label": folders.LABEL, "image": folders.FILE_NAME}
    summary = _summarize_images(
        DatasetSpec.model_validate(content | named), content, tables, lines, []
    )
    summary.notes["image_size"] = "all are scaled to it; smaller trains faster"
    return summary


def _summarize_images(
    spec: DatasetSpec, content: dict[str, Any], tables: Tables, lines: list[str], said: list[str]
) -> DataSummary:
    """Summarize a table of images.

    The summary begins with `lines` and ends with the sentences `said` about columns.
    """
    assert spec.image is not None
    columns, _ = find_roles(spec, tables, said.append)
    labels = read_labels(tables, columns, spec.task, allow_many_classes=True)
    total = sum(table.num_rows for table in tables.values())
    shape, sizes = _image_sizes(content, first_pictures(tables["train"], spec.image), total)
    members = choose_split_rows(spec, tables, labels)
    if line := time_line(spec, tables):
        said.append(line)
    return DataSummary(
        kind="pictures",
        dataset=content,
        task=labels.task,
        num_train=len(members[0].rows),
        lines=[*lines, *_label_lines(spec, labels, members), *sizes, *map(_capitalized, said)],
        input_shape=shape,
    )


def _image_sizes(
    content: dict[str, Any], pictures: list[images.Picture], total: int
) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape of the decoded images, and lines about their sizes.

    If the images have several sizes, set `image_size` in `content` to the largest of SIZES that
    at least half of them have on their shorter side.

    Args:
        content: Value of `dataset` for the space file.
        pictures: Images to examine.
        total: Number of all images.
    """
    found = []
    with images.huge_images_refused():
        for picture in pictures:
            try:
                head = images.read_head(picture.content, picture.name)
            except images.ImageError as error:
                raise error.about(picture.name) from error
            found.append((head.width, head.height))
    widths, heights = np.transpose(found)
    line = f"All of {len(found):,} that were looked at have {widths[0]} x {heights[0]} pixels."
    if len(set(found)) > 1:
        middle = np.median(np.minimum(widths, heights))
        content["image_size"] = max((size for size in SIZES if size <= middle), default=SIZES[0])
        line = (
            f"{len(set(found)):,} sizes among {len(found):,} that were looked at: {min(widths)} to "
            f"{max(widths)} pixels wide, {min(heights)} to {max(heights)} high."
        )
    form = images.probe(pictures, DatasetSpec.model_validate(content))
    pixels = total * int(np.prod(form.shape))
    lines = [
        line,
        f"Decoded once to {form.height} x {form.width} x {form.channels}: {size_in_words(pixels)}.",
    ]
    if form.white is not None:
        lines.append(images.white_line(form.white).capitalize())
    return form.shape, lines


WINDOW_LENGTH = 128  # tokens per sample into which running text is cut


def _summarize_texts(path: Path, task: Task | None) -> DataSummary:
    if is_of_classes(DatasetSpec(name="text", path=str(path), task=task)):
        asked = DatasetSpec(name="text", path=str(path), task="classification")
        summary = summarize_dataset(build_dataset(asked), _content("text", path, None, None))
        lines = [f"{path}: a folder of texts for each class.", *summary.lines]
        return replace(summary, kind="texts", lines=lines)
    content = _content("text", path, None, task)
    content |= {"tokens": "characters", "sequence_length": WINDOW_LENGTH}
    by_split = texts.running_texts(path)
    total = sum(map(len, by_split.values()))
    different = len(set().union(*map(set, by_split.values())))
    share, splits = 0.8, "Validation and test are cut off its end, a tenth each."
    if len(by_split) > 1:
        share, splits = 1.0, f"Splits: {', '.join(by_split)}."
    num_train = int(len(by_split["train"]) * share) // WINDOW_LENGTH
    if num_train < 2:
        build_dataset(DatasetSpec.model_validate(content))  # raises the error for a short text
    lines = [
        f"{path}: {size_in_words(total)} of running text, {total:,} characters, {different:,} "
        "different ones; a language model learns it by the next character.",
        splits,
    ]
    return DataSummary(
        kind="running text",
        dataset=content,
        task="language_modelling",
        num_train=num_train,
        lines=lines,
        input_shape=(WINDOW_LENGTH,),
        notes={"tokens": "or words, or bytes", "sequence_length": "characters of a window"},
    )
