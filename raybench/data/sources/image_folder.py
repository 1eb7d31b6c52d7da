"""A folder of images, by class or with a `metadata.csv`: decoded once, then mapped."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset, Split
from raybench.data.sources.cut import cut, held_out_line, mixed_order
from raybench.data.sources.decode_images import decode_images, probe
from raybench.data.sources.decoder import Picture
from raybench.data.sources.folder_labels import label_images
from raybench.data.sources.folder_layout import METADATA, lay_out, require_none_empty
from raybench.data.sources.images import is_image
from raybench.data.sources.labels import (
    Labelled,
    as_classes,
    as_numbers,
    class_names,
    standardise,
    task_of,
)
from raybench.data.store.build import stored
from raybench.data.store.progress import tell
from raybench.data.store.source import Source, list_files
from raybench.data.store.writer import Writer

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
    return _dataset(parts, about, str(path))


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


def _dataset(parts: tuple[Split, Split, Split], about: Mapping[str, Any], source: str) -> Dataset:
    if about["task"] == "classification":
        train, validation, test = parts
        names = tuple(about["class_names"])
        return Dataset("image_folder", len(names), train, validation, test, class_names=names)
    (train, validation, test), scale, offset = standardise(parts, source)
    return Dataset(
        "image_folder",
        None,
        train,
        validation,
        test,
        task="regression",
        label_scale=scale,
        label_offset=offset,
    )
