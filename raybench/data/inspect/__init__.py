"""What `raybench init` sees of data before anything trains: kind, classes, sizes, oddities."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from raybench.data.dataset import Array
from raybench.data.sources import images
from raybench.data.store.entries import size_in_words
from raybench.spec.dataset_spec import DatasetSpec, Task

Kind = Literal["pictures", "table", "texts", "running text", "other"]
MOST_CLASSES = 12  # classes that are listed; of more the most and the least frequent ones


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


SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""What images of many sizes are scaled to: the largest that half of them have, or more."""


def see_sizes(
    content: dict[str, Any], pictures: list[images.Picture], total: int
) -> tuple[tuple[int, int, int], list[str]]:
    """Return the shape that images become, and what is said of it.

    Where they have several sizes, `content` gets the key `image_size`. `total`: all images there
    are, of which `pictures` are some.
    """
    heads: list[images.ImageHead] = []
    with images.huge_images_refused():
        for picture in pictures:
            try:
                heads.append(images.read_head(picture.content, picture.name))
            except images.ImageError as error:
                raise error.about(picture.name) from error
    sizes = Counter((head.width, head.height) for head in heads)
    if len(sizes) == 1:
        ((width, height),) = sizes
        line = f"All of {len(heads):,} that were looked at have {width} x {height} pixels."
    else:
        middle = np.median([min(size) for size in sizes.elements()])
        content["image_size"] = max((size for size in SIZES if size <= middle), default=SIZES[0])
        widths, heights = zip(*sizes, strict=True)
        line = (
            f"{len(sizes):,} sizes among {len(heads):,} that were looked at: {min(widths)} to "
            f"{max(widths)} pixels wide, {min(heights)} to {max(heights)} high."
        )
    form, seconds = images.probe(pictures, DatasetSpec.model_validate(content))
    pixels = total * int(np.prod(form.shape))
    return form.shape, [
        line,
        f"Decoded once to {form.height} x {form.width} x {form.channels}: {size_in_words(pixels)}, "
        f"about {max(1, round(total * seconds))} s of one core.",
    ]
