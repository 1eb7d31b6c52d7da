"""Summary of the user's data (kind, task, columns and classes), and the search-space file that
`raybench init` writes for them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raybench.data.check import check_something_to_learn
from raybench.data.dataset import Array, Dataset
from raybench.data.load import build_dataset
from raybench.data.memory import num_local_cores
from raybench.data.sources import files, images
from raybench.data.sources.cut import choose_split_rows
from raybench.data.sources.table import (
    Table,
    Tables,
    find_roles,
    listed,
    read_labels,
    require_columns,
)
from raybench.data.sources.tables import (
    first_pictures,
    is_of_classes,
    open_huggingface,
    require_image_column,
    with_default_columns,
)
from raybench.data.store import list_files, print_note
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.documents import parse_yaml
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import DEFAULTS, METRICS
from raybench.spec.run import FRAMEWORKS, installed_frameworks
from raybench.spec.text import clean, command_line

DataKind = Literal["pictures", "table", "texts", "running text", "other"]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Summary of a user's data: lines to print, and values for a search-space file."""

    kind: DataKind
    dataset: dict[str, Any]
    """Value of the key `dataset` for the search-space file."""
    task: Task
    num_train: int
    """Number of training samples."""
    lines: list[str]
    """Lines about the data to print: sizes of the splits, labels and inputs."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one sample; None if inputs have names."""


HUGGING_FACE = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Names of files by which a folder is recognized as written by Hugging Face's `save_to_disk`."""
WINDOW_LENGTH = 128  # characters per sample of running text


def summarize(path: Path, *, labels: Sequence[str] = (), task: Task | None = None) -> DataSummary:
    """Summarize the data in a file or folder.

    Except for images, the data are also decoded and stored, as they are for a search.

    Args:
        path: A file or folder in a format that raybench can read.
        labels: Label columns of a table, or label arrays; by default, they are found by name and
            content.
        task: Learning task; by default inferred from the labels.

    Raises:
        UserError: The data do not exist, or are damaged or ambiguous.
    """
    kind = kind_of(path)
    if labels and kind in ("image_folder", "text"):
        raise UserError(
            f"--label is for tables and arrays, not for {path}: the classes of images and texts "
            "are their folders, and the labels of running text are the next characters.",
            ErrorCode.CONFLICT,
        )
    content: dict[str, Any] = {"name": kind, "path": str(path)}
    if task is not None:
        content["task"] = task
    if kind == "image_folder":
        if task == "language_modelling":
            raise UserError(
                f"--task {task} does not apply to images ({path}).", ErrorCode.UNSUPPORTED
            )
        tables = files.open_image_folder(path, files.list_images(path)[0])
        columns = {"label": files.LABEL, "image": files.FILE_NAME}
        return _summarize_images(content, columns, tables)
    if kind in ("csv", "parquet", "huggingface"):
        if kind == "huggingface":
            tables, _ = open_huggingface(DatasetSpec.model_validate(content))
        else:
            tables = files.open_tables(DatasetSpec.model_validate(content | {"label": "?"}))
        content |= _find_columns(tables["train"], labels, task)
        if "image" in content:
            if kind == "huggingface":
                _, tables = with_default_columns(DatasetSpec.model_validate(content), tables)
            return _summarize_images(content, {}, tables)
    elif labels:
        content["label"] = _single_or_list([*labels])
    elif kind == "text" and not is_of_classes(DatasetSpec.model_validate(content)):
        content |= {"tokens": "characters", "sequence_length": WINDOW_LENGTH}
    return summarize_dataset(build_dataset(DatasetSpec.model_validate(content)), content)


def kind_of(path: Path) -> str:
    """Return the value of `dataset.name`, such as `csv` or `image_folder`, for a file or folder.

    Raises:
        UserError: The file or folder does not exist, is empty, or has an unknown format.
    """
    if not path.exists():
        raise UserError(
            f"there is no file or folder {path} (working directory: {Path.cwd()}); name your data, "
            "or module:Class for your own workload.",
            ErrorCode.NOT_FOUND,
        )
    if any((path / name).is_file() for name in HUGGING_FACE):
        return "huggingface"
    names = [path.name] if path.is_file() else [file.name for file in list_files(path)]
    if not names:
        raise UserError(
            f"{path} is an empty folder; name a folder with data.", ErrorCode.INVALID_DATA
        )
    is_listed = any(name.rpartition("/")[2] == files.METADATA for name in names)
    if path.is_dir() and any(map(images.is_image, names)) and not is_listed:
        return "image_folder"
    for kind, known in (files.ENDINGS | {"text": files.TEXT_ENDINGS, "npz": (".npz",)}).items():
        if any(name.lower().endswith(known) for name in names):
            return kind
    raise UserError(
        f"{path} is not supported (first file: {names[0]}); init reads folders of images, .csv, "
        ".parquet, .txt and .npz files, and folders written by save_to_disk of Hugging Face.",
        ErrorCode.INVALID_FILE,
    )


def summarize_dataset(dataset: Dataset, content: dict[str, Any]) -> DataSummary:
    """Summarize a loaded dataset; `content` is the value of `dataset` for the search-space file."""
    columns = (dataset.encoding or {}).get("columns")
    shape = dataset.input_shape
    kind: DataKind = "other"
    if dataset.task == "language_modelling":
        kind = "running text"
    elif columns or dataset.vocabulary:
        kind = "table" if columns else "texts"
    elif isinstance(shape, tuple) and len(shape) == 3:
        kind = "pictures"
    labels, names = dataset.train.labels, dataset.class_names
    if dataset.task == "regression":
        labels = dataset.original_labels(labels)
    elif dataset.task == "classification":
        names = dataset.names_of_classes
    lines = [
        _sizes_line(content, [len(split) for split in dataset.splits.values()]),
        *_label_lines(dataset.task, labels, names, content),
    ]
    if dataset.vocabulary:
        lines.append(f"Inputs: {shape} tokens, {len(dataset.vocabulary):,} different ones.")
    elif columns:
        categorical = [column for column in columns if column["kind"] == "name"]
        shown = ", ".join(f"{column['name']} ({len(column['known']):,})" for column in categorical)
        lines.append(
            f"Inputs: {len(columns)} columns, {dataset.train.array.shape[1]} features: "
            f"{len(columns) - len(categorical)} of numbers"
            + (f", {len(categorical)} of names: {shown}." if categorical else ".")
        )
    else:
        lines.append(f"Inputs of shape {shape}.")
    return DataSummary(
        kind=kind,
        dataset=content,
        task=dataset.task,
        num_train=len(dataset.train),
        lines=lines,
        input_shape=None if isinstance(shape, dict) else shape,
    )


def _single_or_list(labels: list[str]) -> str | list[str]:
    """Return the value of `dataset.label`: a single column, or a list of several columns."""
    return labels[0] if len(labels) == 1 else labels


TYPICAL_LABELS = ("label", "labels", "class", "target", "y")
TYPICAL_TEXTS = ("text", "review", "sentence", "comment", "content", "body", "document", "message")


def _find_columns(table: Table, given: Sequence[str], task: Task | None) -> dict[str, Any]:
    """Find the label, text and image columns of a table.

    Args:
        table: The training table.
        given: Label columns that the user has named; `a,b` means two columns unless a column is
            named `a,b`. If it is empty, the label is the column with a typical name, or the only
            column that may be the label.
        task: Learning task; None if the user has not set it.

    Returns:
        Keys of `dataset` that name the columns: `label`, and `image` or `text`. A key without a
        column is left out.

    Raises:
        UserError: No column, or more than one, may be the label.
    """
    names = table.schema.names
    labels = []
    for text in given:
        parts = text.split(",")
        labels += parts if text not in names and {*parts} <= {*names} else [text]
    pictures = [name for name in names if _is_image(table, name)]
    texts = [name for name in names if table.is_long_text(name) and name not in pictures]
    if not labels and task != "language_modelling":
        left = [name for name in names if name not in (*pictures, *texts)]
        typical = [name for name in names if name.lower() in TYPICAL_LABELS]
        labels = typical or list(table.class_names) or left
        if len(labels) != 1:
            raise UserError(
                f"{table.source}: name the label column with --label: {listed(left)}.",
                ErrorCode.MISSING,
            )
    require_columns(table, labels, "label")
    keys: dict[str, Any] = {"label": _single_or_list(labels)} if labels else {}
    texts = [name for name in texts if name not in labels]
    typical = [name for name in texts if name.lower() in TYPICAL_TEXTS]
    if pictures and pictures[0] not in labels:
        keys["image"] = pictures[0]
    elif typical or (texts and not {*names} - {*labels, *texts}):
        keys["text"] = (typical or texts)[0]
    return keys


def _is_image(table: Table, name: str) -> bool:
    """Return whether the first values of a column are images, or names of image files."""
    try:
        require_image_column(table, name)
        values = [value for value in table.head(name).to_pylist() if value]
        if table.is_text(name):
            return bool(values) and all(map(images.is_image, values))
        if values and isinstance(values[0], bytes):  # bytes may also be a hash or an array
            images.read_head(values[0], name)
    except (UserError, images.ImageError):
        return False
    return True


MAX_CLASSES_SHOWN = 12  # only the most frequent classes are shown


def _label_lines(
    task: Task, labels: Array, names: Sequence[str], content: dict[str, Any]
) -> list[str]:
    """Return lines to print about the distribution of the training labels.

    Raises:
        UserError: All training labels are the same.
    """
    what = f"label {content['label']}" if "label" in content else "labels"
    check_something_to_learn(task, labels, names, f"{content.get('path', 'data')}: {what}")
    if task == "language_modelling":
        return []
    if task == "classification":
        counts = np.bincount(labels, minlength=len(names))
        shown = [
            f"{names[number]} {counts[number]:,} ({100 * counts[number] / len(labels):.1f} %)"
            for number in np.argsort(-counts, kind="stable")[:MAX_CLASSES_SHOWN]
        ]
        more = ", ..." if len(names) > len(shown) else ""
        return [f"{what}: {len(names)} classes: {', '.join(shown)}{more}."]
    columns = np.reshape(labels, (len(labels), -1)).T
    given = content.get("label")
    label_names = given if isinstance(given, list) else [what.removeprefix("label ")] * len(columns)
    return [
        f"label {name}: numbers from {values.min():.5g} to {values.max():.5g}, mean "
        f"{values.mean():.5g}, standard deviation {values.std():.5g}."
        for name, values in zip(label_names, columns, strict=True)
    ]


def _sizes_line(content: dict[str, Any], sizes: Sequence[int]) -> str:
    """Return a line about the numbers of samples in the splits train, validation and test."""
    train, validation, test = sizes
    return (
        f"{content.get('path', 'Data')}: {train:,} samples to train on, {validation:,} for "
        f"validation, {test:,} for the test."
    )


def _summarize_images(
    content: dict[str, Any], columns: dict[str, str], tables: Tables
) -> DataSummary:
    """Summarize tables of images without decoding all images.

    If the first images differ in size, `image_size` is set to a multiple of 32 from 32 to 224: the
    median length of their shorter sides, rounded down.

    Args:
        content: Value of `dataset` for the search-space file.
        columns: Keys `label` and `image` of the tables for a folder of images, for which `content`
            names no columns; otherwise empty.
        tables: Tables, keyed by split.
    """
    spec = DatasetSpec.model_validate(content | columns)
    assert spec.image is not None
    label_columns, _ = find_roles(spec, tables, print_note)
    labels = read_labels(tables, label_columns, spec.task, allow_many_classes=True)
    heads = []
    for picture in first_pictures(tables["train"], spec.image):
        try:
            heads.append(images.read_head(picture.content, picture.name))
        except images.ImageError as error:
            raise error.about(picture.name) from error
    members = choose_split_rows(spec, tables, labels)
    sizes = {(head.width, head.height) for head in heads}
    if len(sizes) > 1:
        middle = np.median([min(head.width, head.height) for head in heads])
        content["image_size"] = int(np.clip(middle // 32 * 32, 32, 224))
    shape = images.form_of(DatasetSpec.model_validate(content | columns), heads).shape
    values = labels.values["train"][members[0].rows]
    return DataSummary(
        kind="pictures",
        dataset=content,
        task=labels.task,
        num_train=len(members[0].rows),
        lines=[
            _sizes_line(content, [len(member.rows) for member in members]),
            *_label_lines(labels.task, values, labels.class_names, content),
            f"Images of {len(sizes):,} sizes among {len(heads):,}; inputs of shape {shape}.",
        ],
        input_shape=shape,
    )


SMALL_PIXELS = 96  # longer side of images up to which raybench's own networks are suggested
PLAIN = re.compile(r"[\w./+:-]+(?: [\w./+-]+)*")
"""Pattern of strings that need no quotes in YAML, unless YAML reads them as another type."""
MAX_WORKERS = 8
MIN_BATCHES_PER_EPOCH = 16  # minimum number of batches per epoch
MAX_BATCH_SIZE = {"table": 2048, "running text": 256}  # keyed by kind of data; 512 for others


@dataclass(frozen=True, kw_only=True)
class StarterModel:
    """Suggested frameworks and workload for a search-space file."""

    frameworks: list[str]
    workload: str
    comment: str
    """Comment for the search-space file, which describes the workload and names alternatives."""


def start_for(
    summary: DataSummary, framework: str | None, workload: str | None = None
) -> StarterModel:
    """Suggest frameworks and a workload for the user's data.

    Args:
        summary: Summary of the data.
        framework: Framework to use; None to use all installed frameworks.
        workload: Workload to use; None to choose one that suits the data.
    """
    frameworks = [framework] if framework else installed_frameworks() or list(FRAMEWORKS)
    choices = {
        "texts": ("text_bag", "the mean of a text's words; or transformers:PATH"),
        "running text": ("char_lm", "a small transformer; or module:Class of your own"),
    }
    choice = choices.get(summary.kind)
    if workload is not None:
        choice = workload, "your own class"
    elif choice is None and summary.kind != "table" and len(summary.input_shape or ()) == 3:
        choice = _image_workload(summary.input_shape or ())
    name, comment = choice or ("mlp", "three hidden layers; or module:Class of your own")
    return StarterModel(frameworks=frameworks, workload=name, comment=comment)


def _image_workload(shape: Sequence[int]) -> tuple[str, str]:
    """Return a workload for images of shape (H, W, C), and a comment that describes it."""
    size = max(shape[:2])
    if size <= 32 and shape[2] == 1:
        return "mnist_small", "one convolution; or small_resnet"
    if size <= SMALL_PIXELS:
        return "small_resnet", "eight convolutions; or torchvision:resnet18"
    return "mobilenet_v2", "the same network in both frameworks; or resnet50"


def _powers(low: int, high: int) -> list[int]:
    """Return the powers of two from `low` (itself a power of two) to `high`; [low] if `high` is
    smaller."""
    return [low * 2**step for step in range(max(1, (high // low).bit_length()))]


def space_text(summary: DataSummary, start: StarterModel, *, file: Path) -> str:
    """Return the content of a search-space file as YAML with comments.

    Args:
        summary: Summary of the data.
        start: Suggested frameworks and workload.
        file: Path of the file, for the commands that its comments show.
    """
    metric = METRICS[DEFAULTS[summary.task]]
    other_names = [
        other.name
        for other in METRICS.values()
        if summary.task in other.tasks and other.name != metric.name
    ]
    most = max(8, summary.num_train // MIN_BATCHES_PER_EPOCH)
    largest = _powers(4, min(MAX_BATCH_SIZE.get(summary.kind, 512), most))[-1]
    smallest = max(4, largest // 32)
    direction = "at least" if metric.direction == "max" else "at most"
    lines = [
        f"# {clean(summary.lines[0])}",
        f"# Task: {summary.task.replace('_', ' ')}.",
        f"#   {command_line('tune', file, '--dry-run')}    prints the plan, starts nothing",
        f"#   {command_line('tune', file)}",
        f"workload: {_value(start.workload)}  # {start.comment}",
        "dataset:",
        *(f"  {key}: {_value(value)}" for key, value in summary.dataset.items()),
        "objective:",
        "  kind: time_to_target  # or best_at_budget: the best within max_train_seconds",
        f"  metric: {metric.name}  # or {', '.join(other_names)}",
        f"  target: auto  # set by reference runs; or a number, {direction} this {metric.words}",
        "  max_train_seconds: 120  # limit for each trial",
        "search: {trials: 60, time_budget_s: 3600, seed: 0}  # budget: start-up to confirmation",
        "confirm: {race: 24, fresh: 3}  # runs to compare the best; runs of each winner alone",
        "space:",
        f"  framework: [{', '.join(start.frameworks)}]",
        f"  num_workers: {_powers(1, min(MAX_WORKERS, num_local_cores()))}  # one core per worker",
        f"  batch_size_per_worker: {{low: {smallest}, high: {largest}, log2: true}}",
        "  optimizer: [adam, radam, lars, lamb]",
        "  learning_rate:",
        "    - {when: {optimizer: [adam, radam, lamb]}, low: 1.0e-4, high: 3.0e-2, log: true}",
        "    - {when: {optimizer: lars}, low: 1.0e-2, high: 10.0, log: true}",
        "fixed: {warmup_epochs: 1, precision: fp32}",
    ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a value as YAML on one line, quoting strings that YAML would read as another type."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    text = str(value)
    is_plain = PLAIN.fullmatch(text) and parse_yaml(f"key: {text}", "key") == {"key": value}
    return text if is_plain else json.dumps(value)
