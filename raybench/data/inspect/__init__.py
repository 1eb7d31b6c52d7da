"""What `raybench init` sees of data before anything trains: kind, classes, sizes, oddities."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raybench.data.dataset import Array
from raybench.data.sources.cut import as_classes, as_numbers, class_names, task_of
from raybench.data.sources.decode_images import ADVICE, probe
from raybench.data.sources.image_folder import METADATA, label_images, lay_out
from raybench.data.sources.images import (
    ImageError,
    ImageHead,
    Picture,
    huge_images_refused,
    is_image,
    read_head,
)
from raybench.data.store.place import size_in_words
from raybench.data.store.source import list_files
from raybench.spec.dataset_spec import DatasetSpec, Task
from raybench.spec.errors import UserError

Kind = Literal["pictures", "table", "texts", "running text", "other"]
MOST_CLASSES = 12
"""Classes that are listed; of more the most and the least frequent ones."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a space file needs to know of data, and sentences for the user."""

    kind: Kind
    dataset: dict[str, Any]
    """The `dataset` of a space file."""
    task: Task
    num_train: int
    """Training samples."""
    lines: list[str]
    """What was found, for the screen."""
    input_shape: tuple[int, ...] | None = None
    """Of one sample, where it is known."""
    notes: dict[str, str] = field(default_factory=dict)
    """Comments on keys of `dataset`."""


def class_lines(names: Sequence[str], counts: Array) -> list[str]:
    """Return how many samples each class has, the most frequent first."""
    total = int(counts.sum())
    order = np.argsort(-counts, kind="stable")
    shown = list(order)
    left_out = len(order) - MOST_CLASSES
    if left_out > 1:
        shown = [*order[: MOST_CLASSES - 2], *order[-2:]]
    width = max(len(names[number]) for number in shown)
    lines = []
    for place, number in enumerate(shown):
        if left_out > 1 and place == MOST_CLASSES - 2:
            lines.append(f"  ... {left_out:,} classes between them")
        share = 100 * counts[number] / total
        lines.append(f"  {names[number]:<{width}}  {int(counts[number]):>9,}  {share:5.1f} %")
    return lines


def balance_line(names: Sequence[str], counts: Array) -> str:
    """Return a sentence on how evenly samples are spread over the classes."""
    most, least = int(counts.argmax()), int(counts.argmin())
    ratio = counts[most] / max(1, counts[least])
    share = 100 * counts[most] / counts.sum()
    begin = f"always answering '{names[most]}' is right for {share:.1f} %"
    if ratio < 1.5:
        return f"{begin}; the classes are about equally frequent."
    return f"{begin}; '{names[most]}' is {ratio:.3g} times as frequent as '{names[least]}'" + (
        "." if ratio < 10 else ": class_weights: balanced would make up for it."
    )


def number_line(column: str, values: Array) -> str:
    """Return a sentence on labels of a regression."""
    return (
        f"label {column}: numbers from {values.min():.5g} to {values.max():.5g}, mean "
        f"{values.mean():.5g}, standard deviation {values.std():.5g} (what always answering the "
        "mean misses by: RMSE)."
    )


LOOKED_AT = 300
"""Images whose heads are read, evenly chosen."""
SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""What images of many sizes are scaled to: the largest that half of them have, or more."""


def see_images(path: Path, *, label: str | None, task: Task | None) -> Seen:
    """Look at a folder of images; UserError for one that cannot be used."""
    files = list_files(path)
    kept = [
        file for file in files if is_image(file.name) or file.name.rpartition("/")[2] == METADATA
    ]
    layout = lay_out(kept, str(path))
    samples = label_images(layout, path, label)
    if task == "language_modelling":
        raise UserError(f"--task {task} is not for images ({path}); leave it out.")
    asked, task = task, task_of(samples["train"], task)
    content: dict[str, Any] = {"name": "image_folder", "path": str(path)}
    if label is not None:
        content["label"] = label
    if asked is not None:
        content["task"] = asked
    total = sum(len(found) for found in samples.values())
    size = size_in_words(sum(file.size for file in kept))
    lines = [f"{path}: {total:,} images, {size}."]
    num_others = len(files) - len(kept)
    if num_others:
        lines.append(f"{num_others:,} files are no images by their names, and left out.")
    if task == "classification":
        names = class_names(samples["train"], str(path))
        counts = np.bincount(as_classes(samples["train"], names), minlength=len(names))
        for found in samples.values():
            as_classes(found, names)
        lines += [f"{len(names)} classes (of the images to train on):", *class_lines(names, counts)]
        lines.append(balance_line(names, counts))
    else:
        lines.append(number_line(label or "label", as_numbers(samples["train"])))
    if set(samples) == {"train"}:
        alike = ", of each class as much" if task == "classification" else ""
        lines.append(f"Validation and test are cut from them, a tenth each{alike}.")
    else:
        lines.append(", ".join(f"{part}: {len(found):,}" for part, found in samples.items()) + ".")
    chosen = [one.name for one in samples["train"]][:: max(1, len(samples["train"]) // LOOKED_AT)]
    pictures = [Picture(0, f"{path}/{name}", f"{path}/{name}") for name in chosen]
    shape, told = see_sizes(content, pictures, total)
    lines += told
    return Seen(
        kind="pictures",
        dataset=content,
        task=task,
        num_train=len(samples["train"]),
        lines=lines,
        input_shape=shape,
        notes={"image_size": "all are scaled to it; smaller trains faster"},
    )


def see_sizes(
    content: dict[str, Any], pictures: list[Picture], total: int
) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape that images become, and what is said of it.

    Where they have several sizes, `content` gets the key `image_size`. `total`: all images there
    are, of which `pictures` are some.
    """
    heads = []
    with huge_images_refused():
        for picture in pictures:
            try:
                heads.append(read_head(picture.content, picture.name))
            except ImageError as error:
                raise UserError(f"{picture.name} {error}; {ADVICE[error.fault]}.") from error
    if len({(head.width, head.height) for head in heads}) > 1:
        content["image_size"] = _usual_size(heads)
    form, seconds = probe(pictures, DatasetSpec.model_validate(content))
    pixels = total * int(np.prod(form.shape))
    return form.shape, [
        _sizes(heads),
        f"Decoded once to {form.height} x {form.width} x {form.channels}: {size_in_words(pixels)}, "
        f"about {max(1, round(total * seconds))} s of one core.",
    ]


def _sizes(heads: list[ImageHead]) -> str:
    sizes = Counter((head.width, head.height) for head in heads)
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) == 1:
        return f"All of {len(heads):,} that were looked at have {width} x {height} pixels."
    widths = [head.width for head in heads]
    heights = [head.height for head in heads]
    return (
        f"{len(sizes):,} sizes among {len(heads):,} that were looked at: {min(widths)} to "
        f"{max(widths)} pixels wide, {min(heights)} to {max(heights)} high."
    )


def _usual_size(heads: list[ImageHead]) -> int:
    middle = np.median([min(head.width, head.height) for head in heads])
    return max((size for size in SIZES if size <= middle), default=SIZES[0])
