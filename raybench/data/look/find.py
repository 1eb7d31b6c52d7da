"""From a path to what is seen there."""

from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.dataset_spec import DatasetSpec, Task
from raybench.core.errors import UserError
from raybench.data.dataset import Dataset
from raybench.data.load import build_dataset
from raybench.data.look.images import see_images
from raybench.data.look.leaks import leak_lines
from raybench.data.look.seen import Seen, balance_line, class_lines, number_line
from raybench.data.look.tables import see_table
from raybench.data.sources import text_files
from raybench.data.sources.files import ENDINGS
from raybench.data.sources.images import is_image
from raybench.data.sources.tables import require_text_task
from raybench.data.store.place import size_in_words
from raybench.data.store.source import list_files

HUGGING_FACE = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files of a folder that `save_to_disk` has written."""
LENGTH = 128
"""Tokens of a window of running text."""


def see(path: Path, *, label: str | None = None, task: Task | None = None) -> Seen:
    """Look at a file or folder; UserError for what is no data, or broken."""
    kind = kind_of(path)
    if kind == "image_folder":
        return see_images(path, label=label, task=task)
    if kind == "npz":
        asked = {"label": label, "task": task}
        content: dict[str, Any] = {"name": "npz", "path": str(path)}
        content |= {key: value for key, value in asked.items() if value is not None}
        return see_dataset(build_dataset(DatasetSpec.model_validate(content)), content)
    if kind == "text":
        if label is not None:
            raise UserError(
                f"--label is for tables, and {path} is text: of classes by folder, or running text "
                "whose next characters are the labels; leave it out."
            )
        return _see_text(path, task)
    return see_table(path, kind, label=label, task=task)


def kind_of(path: Path) -> str:
    """Return the name of the dataset that a file or folder is."""
    if not path.exists():
        raise UserError(
            f"there is no file or folder {path} (from {Path.cwd()}); name your data, or "
            "module:Class for a workload of your own."
        )
    names = [path.name] if path.is_file() else [file.name for file in list_files(path)]
    if path.is_dir() and any((path / name).is_file() for name in HUGGING_FACE):
        return "huggingface"
    if not names:
        raise UserError(f"{path} is an empty folder; name one that holds data.")
    endings = {
        "image_folder": is_image,
        "parquet": lambda name: name.lower().endswith(ENDINGS["parquet"]),
        "csv": lambda name: name.lower().endswith(ENDINGS["csv"]),
        "text": lambda name: name.lower().endswith(text_files.ENDINGS),
        "npz": lambda name: name.lower().endswith(".npz"),
    }
    for kind, is_kind in endings.items():
        if any(map(is_kind, names)) and not (path.is_file() and kind == "image_folder"):
            return kind
    raise UserError(
        f"{path} is nothing that init knows ({names[0]}): folders of images, .csv, .parquet, .txt, "
        ".npz, and what save_to_disk of Hugging Face's datasets has written."
    )


def see_dataset(dataset: Dataset, content: dict[str, Any]) -> Seen:
    """Return what is seen of a dataset that is there already, of whatever source."""
    train = dataset.train
    lines = [
        f"{len(train):,} samples to train on, {len(dataset.validation):,} for validation, "
        f"{len(dataset.test):,} for the test; inputs of shape {dataset.input_shape}."
    ]
    if dataset.task == "classification":
        assert dataset.num_classes is not None
        names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
        counts = np.bincount(train.labels, minlength=len(names))
        lines += [f"{len(names)} classes:", *class_lines(names, counts)]
        lines.append(balance_line(names, counts))
    elif dataset.task == "regression" and train.labels.ndim == 1:
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        offset = 0.0 if dataset.label_offset is None else dataset.label_offset
        lines.append(number_line("values", train.labels * scale + offset))
    lines += leak_lines(dataset)
    shape = dataset.input_shape
    is_picture = isinstance(shape, tuple) and len(shape) == 3
    return Seen(
        kind="pictures" if is_picture else "other",
        dataset=content,
        task=dataset.task,
        num_train=len(train),
        lines=lines,
        input_shape=None if isinstance(shape, dict) else shape,
    )


def _see_text(path: Path, task: Task | None) -> Seen:
    if task == "classification" or (task is None and text_files.is_class_folder(path)):
        return _see_text_folder(path)
    content: dict[str, Any] = {
        "name": "text",
        "path": str(path),
        "tokens": "characters",
        "sequence_length": LENGTH,
    }
    if task is not None:
        content["task"] = task
    build = DatasetSpec.model_validate(content)
    require_text_task(build)
    texts = text_files.running_texts(path)
    total = sum(map(len, texts.values()))
    different = len(set().union(*map(set, texts.values())))
    num_train = int(len(texts["train"]) * (0.8 if len(texts) == 1 else 1.0)) // LENGTH
    lines = [
        f"{path}: {size_in_words(total)} of running text, {total:,} characters, {different:,} "
        "different ones; a language model learns it by the next character.",
        f"Splits: {', '.join(texts)}."
        if len(texts) > 1
        else "Validation and test are cut off its end, a tenth each.",
    ]
    if num_train < 2:
        build_dataset(build)  # says what is too short
    return Seen(
        kind="running text",
        dataset=content,
        task="language_modelling",
        num_train=num_train,
        lines=lines,
        input_shape=(LENGTH,),
        notes={"tokens": "or words, or bytes", "sequence_length": "characters of a window"},
    )


def _see_text_folder(path: Path) -> Seen:
    content = {"name": "text", "path": str(path)}
    dataset = build_dataset(DatasetSpec.model_validate(content | {"task": "classification"}))
    seen = see_dataset(dataset, content)
    return Seen(
        kind="texts",
        dataset=content,
        task="classification",
        num_train=seen.num_train,
        lines=[f"{path}: a folder of texts for each class.", *seen.lines],
        input_shape=seen.input_shape,
    )
