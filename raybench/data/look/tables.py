"""What is seen of a table: its label, its columns, and what becomes of them."""

from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.dataset_spec import DatasetSpec, Task
from raybench.data.look.images import see_sizes
from raybench.data.look.leaks import leak_lines
from raybench.data.look.seen import Seen, balance_line, class_lines, number_line
from raybench.data.look.told_columns import tell_columns, texts_of
from raybench.data.on_demand import Rows
from raybench.data.sources.encode import Names
from raybench.data.sources.files import open_tables
from raybench.data.sources.huggingface import open_huggingface, with_usual_columns
from raybench.data.sources.image_column import first_pictures
from raybench.data.sources.inputs_of_rows import Features
from raybench.data.sources.label_columns import Labels, read_labels
from raybench.data.sources.table import Tables
from raybench.data.sources.table_set import Member, prepare, split_members, table_dataset
from raybench.data.sources.texts import Tokens
from raybench.data.store.place import size_in_words

MOST_LENGTH = 512
MOST_NUMBERS = 2**27
"""Numbers of a table that `init` reads whole; of larger ones `tune` says what leaks."""


def see_table(path: Path, name: str, *, label: str | None, task: Task | None) -> Seen:
    """Look at a file or folder of tables, or at a Hugging Face set; UserError for broken ones."""
    content: dict[str, Any] = {"name": name, "path": str(path)}
    if name == "huggingface":
        tables, _ = open_huggingface(DatasetSpec(name="huggingface", path=str(path)))
        asked = DatasetSpec(name="huggingface", path=str(path), label=label, task=task)
        filled, tables = with_usual_columns(asked, tables)
        found = filled.model_dump(include={"label", "image", "text"}, exclude_none=True)
        content |= found
    else:
        tables = open_tables(name, str(path))
        content |= tell_columns(tables.train, label, task)
    if task is not None:
        content["task"] = task
    spec = DatasetSpec.model_validate(content)
    lines = [_size_line(path, tables)]
    if spec.image is not None:
        return _see_images(spec, content, tables, lines)
    said: list[str] = []
    ready = prepare(spec, tables, said.append)
    lines += label_lines(str(spec.label), ready.labels, ready.members[0].rows)
    lines += _split_lines(ready.members)
    notes = {}
    if isinstance(ready.inputs, Tokens):
        content["sequence_length"] = _length(ready.inputs)
        said = [sentence for sentence in said if "sequence_length" not in sentence]
        lines.append(_text_line(spec, ready.inputs))
        notes["sequence_length"] = "tokens kept of a text: 19 in 20 are shorter, or it is the most"
    elif isinstance(ready.inputs, Features):
        lines += _input_lines(ready.inputs, len(ready.members[0].rows))
        texts = [name for name in texts_of(tables.train) if name != spec.label]
        if texts:
            notes["label"] = f"text: {texts[0]} in place of the columns learns from these texts"
        size = tables.train.num_rows * ready.inputs.shape[0]
        if size <= MOST_NUMBERS:
            dataset = table_dataset(spec, tables, name=name, say=lambda sentence: None)
            said += leak_lines(dataset)
    lines += [f"{sentence[0].upper()}{sentence[1:]}" for sentence in said]
    return Seen(
        kind="texts" if isinstance(ready.inputs, Tokens) else "table",
        dataset=content,
        task=ready.labels.task,
        num_train=len(ready.members[0].rows),
        lines=lines,
        input_shape=ready.inputs.shape,
        notes=notes,
    )


def _size_line(path: Path, tables: Tables) -> str:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = size_in_words(sum(file.stat().st_size for file in files))
    rows = ", ".join(
        f"{table.num_rows:,} rows" + ("" if split == "train" else f" for {split}")
        for split, table in tables.items()
    )
    return f"{path}: {rows}, {len(tables.train.schema.names)} columns, {size}."


def label_lines(label: str, labels: Labels, rows: Rows) -> list[str]:
    """Return what the labels of the training rows are."""
    values = labels.values["train"][rows]
    names = labels.class_names
    if not names:
        return [number_line(label, values)]
    counts = np.bincount(values, minlength=len(names))
    begin = f"label {label}: {len(names)} classes (of the training rows):"
    return [begin, *class_lines(names, counts), balance_line(names, counts)]


def _split_lines(members: list[Member]) -> list[str]:
    own = {member.split for member in members if member.table is not members[0].table}
    told = [
        f"{len(member.rows):,} "
        + {"train": "to train on", "validation": "for validation", "test": "for the test"}[
            member.split
        ]
        + (" (a file of its own)" if member.split in own else "")
        for member in members
    ]
    return [f"Rows: {', '.join(told)}."]


def _input_lines(inputs: Features, num_rows: int) -> list[str]:
    names = [column for column in inputs.made if isinstance(column, Names)]
    numbers = len(inputs.made) - len(names)
    told = f"Inputs: {len(inputs.made)} columns, {inputs.shape[0]} features: {numbers} of numbers"
    if names:
        shown = ", ".join(f"{column.name} ({column.num_names:,})" for column in names)
        told += f", {len(names)} of names: {shown}"
    lines = [f"{told}; {size_in_words(4 * inputs.shape[0] * num_rows)} to train on."]
    missing = [column for column in inputs.made if column.missing_share]
    if missing:
        shown = ", ".join(f"{one.name} {100 * one.missing_share:.2g} %" for one in missing)
        lines.append(
            f"Missing in training rows: {shown}; filled with the mean (or as a name of its own), "
            "and a feature says so."
        )
    return lines


def _length(inputs: Tokens) -> int:
    long = float(np.quantile(inputs.lengths, 0.95))
    return int(min(MOST_LENGTH, max(32, 32 * np.ceil(long / 32))))


def _text_line(spec: DatasetSpec, inputs: Tokens) -> str:
    lengths = inputs.lengths
    return (
        f"Texts of {spec.text}: {np.median(lengths):.0f} {spec.tokens} in the middle, the longest "
        f"{lengths.max():,}; {inputs.num_tokens:,} different ones."
    )


def _see_images(
    spec: DatasetSpec, content: dict[str, Any], tables: Tables, lines: list[str]
) -> Seen:
    assert isinstance(spec.label, str)
    assert spec.image is not None
    labels = read_labels(tables, [spec.label], spec.task, are_pictures=True)
    members = split_members(spec, tables, labels)
    lines += [*label_lines(spec.label, labels, members[0].rows), *_split_lines(members)]
    total = sum(table.num_rows for _, table in tables.items())
    shape, told = see_sizes(content, first_pictures(tables.train, spec.image), total)
    return Seen(
        kind="pictures",
        dataset=content,
        task=labels.task,
        num_train=len(members[0].rows),
        lines=[*lines, *told],
        input_shape=shape,
    )
