"""What is done to training samples on their way: a list of `augment` in a run spec."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raybench.core.documents import Document, Fraction, PositiveFloat

Share = Annotated[float, Field(ge=0, le=1)]


class RandomCrop(Document):
    """Pad by `padding` pixels on each side, cut the old size out at a random place."""

    kind: Literal["random_crop"]
    padding: Annotated[int, Field(gt=0)] = 4
    """Pixels of zeros on each side (He et al. 2016, arXiv 1512.03385, section 4.2: 4 of 32)."""


class Flip(Document):
    """Mirror left to right with probability `probability`."""

    kind: Literal["flip"]
    probability: Share = 0.5
    """Share of samples that are mirrored."""


class RandomResizedCrop(Document):
    """Cut a random part out and scale it to the old size (Szegedy et al. 2015, arXiv 1409.4842)."""

    kind: Literal["random_resized_crop"]
    min_area: Fraction = 0.08
    """Least share of the image's area; the most is 1."""
    max_ratio: Annotated[float, Field(ge=1)] = 4 / 3
    """Most ratio of the part's sides, either way."""


class Cutout(Document):
    """Set a random square to zero (DeVries and Taylor 2017, arXiv 1708.04552)."""

    kind: Literal["cutout"]
    size: Fraction = 0.5
    """Side of the square as a share of the image's shorter side; it may reach over the edge."""


class Mixup(Document):
    """Mix each sample and its loss with another's (Zhang et al. 2018, arXiv 1710.09412)."""

    kind: Literal["mixup"]
    alpha: PositiveFloat = 0.2
    """Of the Beta(alpha, alpha) distribution of the share."""


class ColorJitter(Document):
    """Change brightness, contrast and saturation, each by a factor of 1 - x to 1 + x."""

    kind: Literal["color_jitter"]
    brightness: Share = 0.4
    """Most relative change of the brightness."""
    contrast: Share = 0.4
    """Most relative change of the distance from the mean grey."""
    saturation: Share = 0.4
    """Most relative change of the distance from the pixel's own grey; of three channels alone."""


OF_KIND: dict[str, type[Document]] = {
    "random_crop": RandomCrop,
    "flip": Flip,
    "random_resized_crop": RandomResizedCrop,
    "cutout": Cutout,
    "mixup": Mixup,
    "color_jitter": ColorJitter,
}
"""What an entry of `augment` is, by its kind."""
KINDS: tuple[str, ...] = tuple(OF_KIND)


def _one_form(content: Any) -> Any:
    """Take `flip` for `{kind: flip}`, and `{random_crop: {padding: 4}}` for a kind and its keys.

    ValueError for a kind or a key that there is not, with the nearest one.
    """
    if isinstance(content, Document):
        return content
    if isinstance(content, str):
        content = {"kind": content}
    elif isinstance(content, dict) and "kind" not in content and len(content) == 1:
        ((kind, keys),) = content.items()
        if isinstance(keys, dict) or keys is None:
            content = {"kind": kind, **(keys or {})}
    if not isinstance(content, dict) or "kind" not in content:
        raise ValueError("write a kind, such as flip, or {random_crop: {padding: 4}} with its keys")
    kind = str(content["kind"])
    if kind not in OF_KIND:
        raise ValueError(f"there is no augmentation {kind}; {_nearest(kind, KINDS)}")
    allowed = [key for key in OF_KIND[kind].model_fields if key != "kind"]
    for key in content:
        if key not in ("kind", *allowed):
            raise ValueError(f"{kind} has no key {key}; {_nearest(str(key), allowed)}")
    return content


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


Augmentation = Annotated[
    Annotated[
        RandomCrop | Flip | RandomResizedCrop | Cutout | Mixup | ColorJitter,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_one_form),
]
