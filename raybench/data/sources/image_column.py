"""A table with a column of images, their bytes or their paths: decoded once, then mapped."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.dataset import Dataset, Split
from raybench.data.on_demand import Rows
from raybench.data.sources.columns import find_roles
from raybench.data.sources.cut import cut, mixed_order
from raybench.data.sources.decode_images import PROBES, decode_images, probe
from raybench.data.sources.decoder import Picture
from raybench.data.sources.label_columns import read_labels
from raybench.data.sources.labels import standardise
from raybench.data.sources.table import Table, Tables, is_text, is_text_type
from raybench.data.sources.weights import read_weights
from raybench.data.store.build import Stored
from raybench.data.store.source import File, file_at
from raybench.data.store.writer import Writer

OPTIONS = ("image", "label", "task", "weight", "image_size", "resize", "channels", "split_seed")
"""Keys of the dataset that the stored arrays depend on: splits are cut from these."""


def store_images(spec: DatasetSpec, tables: Tables, writer: Writer) -> dict[str, Any]:
    """Write images and labels of each table in a mixed order; return what describes them."""
    roles = find_roles(spec, tables)
    assert roles.image is not None
    labels = read_labels(tables, roles.labels, spec.task, are_pictures=True)
    is_class = labels.task == "classification"
    form, seconds_each = probe(first_pictures(tables.train, roles.image), spec)
    for split, table in tables.items():
        values = labels.values[split]
        order = mixed_order(values if is_class else None, table.num_rows, seed=spec.split_seed)
        writer.save(f"{split}-labels", values[order].astype(np.int64 if is_class else np.float32))
        if split == "train" and roles.weight is not None:
            writer.save("train-weights", read_weights(table, roles.weight)[order])
        decode_images(
            writer,
            f"{split}-inputs",
            _pictures(table, roles.image, order),
            number=table.num_rows,
            form=form,
            seconds_each=seconds_each,
        )
    return {"task": labels.task, "class_names": list(labels.class_names)}


def image_files(spec: DatasetSpec, tables: Tables) -> list[File]:
    """Return the files that a column of paths names: where one changes, all is decoded anew.

    None of images whose bytes stand in the table. What is not there is said when it is read.
    """
    found = {}
    assert spec.image is not None
    for _, table in tables.items():
        if spec.image not in table.schema.names or not is_text(table, spec.image):
            continue
        for batch in table.batches([spec.image]):
            for cell in batch.column(0).to_pylist():
                path = Path(table.folder, cell or "").absolute()
                if path.is_file():
                    found[str(path)] = file_at(path, name=str(path))
    return [found[name] for name in sorted(found)]


def stored_images(spec: DatasetSpec, found: Stored, *, source: str) -> Dataset:
    """Return the dataset that `store_images` wrote, cut into its splits."""
    whole: list[Split | None] = []
    for split in ("train", "validation", "test"):
        inputs = found.arrays.get(f"{split}-inputs")
        if inputs is None:
            whole.append(None)
            continue
        weights = found.arrays.get(f"{split}-weights")
        whole.append(Split(inputs, found.arrays[f"{split}-labels"], weights))
    assert whole[0] is not None
    parts = cut(whole[0], whole[1], whole[2], spec, source=source)
    # Weights are of what is trained on.
    splits = [parts[0], *(Split(part.inputs, part.labels) for part in parts[1:])]
    scale, offset = None, None
    if found.about["task"] == "regression":
        splits, scale, offset = standardise(splits, source)
    names = tuple(found.about["class_names"])
    return Dataset(
        spec.name,
        len(names) or None,
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        task=found.about["task"],
        class_names=names,
        label_scale=scale,
        label_offset=offset,
    )


def first_pictures(table: Table, column: str) -> list[Picture]:
    """Return some of the first images, which tell what all become."""
    batch = next(iter(table.batches([column])))
    step = max(1, batch.num_rows // PROBES)
    rows = range(0, batch.num_rows, step)
    return [_picture(table, column, batch.column(0)[row].as_py(), row, 0) for row in rows]


def _pictures(table: Table, column: str, order: Rows) -> Iterator[Picture]:
    """Yield all images in the table's order, each with its row in the array."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    start = 0
    for batch in table.batches([column]):
        for number, cell in enumerate(batch.column(0)):
            row = start + number
            yield _picture(table, column, cell.as_py(), row, int(place[row]))
        start += batch.num_rows


def _picture(table: Table, column: str, cell: Any, row: int, place: int) -> Picture:
    """Return the image of a cell: bytes, a path, or Hugging Face's pair of both."""
    name = f"{table.place(row)}: column '{column}'"
    if isinstance(cell, Mapping):
        cell = cell.get("bytes") or cell.get("path")
    if not cell:
        raise UserError(f"{name} is empty; give every row an image, or leave the row out.")
    if isinstance(cell, str):
        path = Path(table.folder, cell)
        if not path.is_file():
            raise UserError(
                f"{name} names {cell}, and there is no file {path}; paths begin at {table.folder}."
            )
        return Picture(place, str(path), str(path))
    return Picture(place, name, cell)


def require_image_column(table: Table, column: str) -> None:
    """Raise UserError for a column that can hold no images."""
    kind = table.schema.field(column).type
    is_pair = pa.types.is_struct(kind) and {field.name for field in kind} & {"bytes", "path"}
    if is_pair or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_text_type(kind):
        return
    raise UserError(
        f"dataset.image: column '{column}' of {table.source} holds {kind}; images are their bytes, "
        "or paths of files."
    )
