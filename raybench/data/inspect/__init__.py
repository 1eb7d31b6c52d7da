"""Inspection of data by `raybench init`, before anything trains: kind, classes, sizes, oddities."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from raybench.data.dataset import Array
from raybench.data.sources import images
from raybench.data.store import size_in_words
from raybench.spec.dataset_spec import DatasetSpec, Task

Kind = Literal["pictures", "table", "texts", "running text", "other"]
MOST_CLASSES = 12  # classes that are listed; of more the most and the least frequent ones


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Summary of data for a space file, and sentences for the user."""

    kind: Kind
    dataset: dict[str, Any]
    """The `dataset` of a space file."""
    task: Task
    num_train: int
    """Training samples."""
    lines: list[str]
    """Findings, for the screen."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one sample, where it is known."""
    notes: dict[str, str] = field(default_factory=dict)
    """Comments on keys of `dataset`."""


def class_lines(begin: str, names: Sequence[str], labels: Array) -> list[str]:
    """Return how many samples each class has, the most frequent first, and how evenly they are
    spread over the classes."""
    counts = np.bincount(labels, minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    left_out = len(order) - MOST_CLASSES
    first = len(order) if left_out <= 1 else MOST_CLASSES - 2
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


def number_line(column: str, values: Array) -> str:
    """Return a sentence on labels of a regression."""
    return (
        f"label {column}: numbers from {values.min():.5g} to {values.max():.5g}, mean "
        f"{values.mean():.5g}, standard deviation {values.std():.5g} (what always answering the "
        "mean misses by: RMSE)."
    )


SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""Size that images of many sizes are scaled to: the largest that half of them have, or more."""


def see_sizes(
    content: dict[str, Any], pictures: list[images.Picture], total: int
) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape that images become, and what is said of it.

    Where they have several sizes, `content` gets the key `image_size`. `total`: all images there
    are, of which `pictures` are some.
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
    decoded = set()
    for picture in pictures:
        with contextlib.suppress(images.ImageError), images.huge_images_refused():
            decoded.add(images.decode(picture.content, form).tobytes())
    if len(decoded) == 1 < len(pictures):
        lines.append(f"All {len(pictures):,} that were looked at are the same image once decoded.")
    return form.shape, lines
