"""Data that a run trains on (`dataset` of a file), and changes of its samples (`augment`)."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raybench.spec.documents import Document, Fraction, PositiveFloat, PositiveInt, Seed
from raybench.spec.errors import did_you_mean

Task = Literal["classification", "regression", "language_modelling"]
TASKS: tuple[str, ...] = get_args(Task)

DatasetName = Literal[
    "digits",
    "mnist",
    "synthetic",
    "workload",
    "image_folder",
    "csv",
    "parquet",
    "text",
    "npz",
    "huggingface",
    "keras",
    "torchvision",
]
FILES: tuple[str, ...] = ("image_folder", "csv", "parquet", "text", "npz", "huggingface")
"""Datasets that are read from `path`."""
LIBRARY_SETS: tuple[str, ...] = ("keras", "torchvision")
"""Datasets that a library knows by the name in `set`, and has on this machine already."""
TABLES: tuple[str, ...] = ("csv", "parquet", "huggingface")
NEEDS_LABEL: tuple[str, ...] = ("csv", "parquet")

DecimalMark = Literal[".", ","]
DateOrder = Literal["day_first", "month_first", "year_first"]

Part = PositiveInt | Annotated[float, Field(gt=0, lt=1)]
"""Samples, as a number of them or as a share of all."""


def with_whole_paths(content: Any) -> Any:
    """Return a file's content with the paths of data and weights that are there as whole paths.

    They are seen from where the command runs; a worker's own folder is another.
    """
    if isinstance(content, list):
        return [with_whole_paths(one) for one in content]
    if not isinstance(content, dict):
        return content
    whole = {key: with_whole_paths(one) for key, one in content.items()}
    if isinstance(whole.get("dataset"), dict):
        whole["dataset"] = _whole(whole["dataset"], "path")
    return _whole(whole, "weights")


def _whole(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if isinstance(value, list):
        return content | {key: [_whole({key: one}, key)[key] for one in value]}
    if not isinstance(value, str) or not value:
        return content
    path = Path(value).expanduser()
    return content | {key: str(path.resolve())} if path.exists() else content


class DatasetSpec(Document):
    """Data, and how much of it."""

    name: DatasetName = "digits"
    """`digits` needs no download; `workload` asks the workload's own `load_dataset`."""
    path: str | None = None
    """File or folder of `image_folder`, `csv`, `parquet`, `text`, `npz` and `huggingface`; the
    folder that a library keeps its sets in for `keras` and `torchvision` (by default its own)."""
    set: str | None = None
    """Name of a set that `keras` (`cifar10`) or `torchvision` (`CIFAR10`) knows."""
    task: Task | None = None
    """Task that is learnt; by default inferred from the labels."""
    label: str | list[str] | None = None
    """Column (key, array) of the labels; several columns of numbers are a vector each."""
    columns: list[str] | None = None
    """Columns (keys, arrays) that are inputs; by default all that have no other use."""
    categories: list[str] | None = None
    """Columns of inputs that are names even where they look like numbers (such as a code)."""
    decimal: DecimalMark | None = None
    """Decimal mark of numbers whose mark may also stand between thousands (1,200 or 2.100) where
    no other column tells; the other mark is the one between thousands."""
    dates: DateOrder | None = None
    """Order of dates that can be read in several (01/02/2017) where no other column tells."""
    image: str | None = None
    """Column of images: their bytes, or paths from where the file lies."""
    text: str | None = None
    """Column of texts."""
    tokens: Literal["words", "characters", "bytes"] = "words"
    """Units of a text: the words of the training split, its characters, or bytes."""
    vocabulary_size: Annotated[int, Field(ge=4)] = 20_000
    """Most tokens with an id of their own, the most frequent ones; the others share one."""
    sequence_length: PositiveInt = 128
    """Tokens of a sample: longer texts are cut, shorter ones padded."""
    image_size: PositiveInt | None = None
    """Height and width in pixels the images are scaled to; by default their own size."""
    resize: Literal["stretch", "crop"] = "stretch"
    """Treatment of images that are not square: stretched to it, or their middle cut out."""
    channels: Literal[1, 3] | None = None
    """Channels of images from files: 1 (grey) or 3 (RGB); by default what the first ones have."""
    white: PositiveFloat | None = None
    """Value of white in images of more than 8 bits a channel; by default the least of 1, 255, 1023,
    4095, 16383 and 65535 that the first images do not exceed."""
    weight: str | None = None
    """Column (array) with the weight of each training sample in the loss; scaled to mean 1."""
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """Weights of classes in the training loss: all as much as one another (`balanced`), or by name
    of class; scaled to mean 1 over the training samples."""
    repeat: PositiveInt = 1
    """Number of times that the training split stands in one epoch (study 5 used 1, 4 and 8)."""
    limit: PositiveInt | None = None
    """Number of training samples kept, before `repeat`; by default all."""
    validation_size: Part | None = None
    """Samples held out for validation, a number or a share; by default the dataset's own."""
    test_size: Part | Literal["none"] | None = None
    """Samples held out for the test of winners where the data have no test split of their own, a
    number or a share; left out it is as many as for validation. `none` holds out no row, and
    nothing is tested."""
    split_by: str | dict[Literal["time", "group"], str] | None = None
    """Column that splits are cut by, in place of chance: of a column of dates (or of numbers, as
    `{time: year}`) the latest rows are held out; `{group: patient}` keeps rows of a group in one
    split."""
    split_seed: Seed = 0
    """Seed of the splits: the same for every run of a study."""
    shape: list[PositiveInt] = [28, 28, 1]
    """Height, width, channels of `synthetic` images; other datasets bring their own."""
    num_classes: PositiveInt = 10
    """Number of classes of `synthetic` labels, of tokens of a language model's, of numbers in a
    label of a regression."""
    num_samples: PositiveInt = 4096
    """Number of `synthetic` training samples; validation and test get a quarter each."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, content: Any) -> Any:
        """Take `dataset: mnist` for `dataset: {name: mnist}`."""
        return {"name": content} if isinstance(content, str) else content

    @field_validator("class_weights", mode="before")
    @classmethod
    def _names_of_classes(cls, value: Any) -> Any:
        """Take classes that YAML reads as numbers by their text."""
        return {str(key): one for key, one in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _what_it_needs(self) -> "DatasetSpec":
        if self.name in FILES and not self.path:
            raise ValueError(f"{self.name} needs the path of its file or folder: path: my_data")
        if self.name in LIBRARY_SETS and not self.set:
            raise ValueError(f"{self.name} needs the name of the set: set: cifar10")
        if self.name in NEEDS_LABEL and not self.label and self.task != "language_modelling":
            raise ValueError(f"{self.name} needs the column of the labels: label: price")
        for key in ("decimal", "dates", "split_by"):
            if getattr(self, key) is not None and self.name not in TABLES:
                raise ValueError(f"{key} is for tables ({', '.join(TABLES)}); leave it out")
        if isinstance(self.split_by, dict) and len(self.split_by) != 1:
            raise ValueError("split_by takes one column: {time: when}, or {group: patient}")
        return self


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
    """Parameter of the Beta(alpha, alpha) distribution of the share."""


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
"""Class of an entry of `augment`, by its kind."""
KINDS: tuple[str, ...] = tuple(OF_KIND)


def _one_form(content: Any) -> Any:
    """Take `flip` for `{kind: flip}`, and `{random_crop: {padding: 4}}` for a kind and its keys.

    ValueError for an unknown kind or key, with the nearest one.
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
        raise ValueError(f"there is no augmentation {kind}; {did_you_mean(kind, KINDS)}")
    allowed = list(OF_KIND[kind].model_fields)
    for key in content:
        if key not in allowed:
            raise ValueError(f"{kind} has no key {key}; {did_you_mean(key, allowed)}")
    return content


Augmentation = Annotated[
    Annotated[
        RandomCrop | Flip | RandomResizedCrop | Cutout | Mixup | ColorJitter,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_one_form),
]
