"""Training data (`dataset` in a file) and augmentations of training samples (`augment`)."""

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
"""Names of the datasets that are read from the file or folder `path`."""
LIBRARY_SETS: tuple[str, ...] = ("keras", "torchvision")
"""Libraries whose datasets can be used if they have been downloaded already; `set` is the name of
the dataset in the library."""
TABLES: tuple[str, ...] = ("csv", "parquet", "huggingface")
"""Names of the datasets that are tables; `split_by` can split their rows by a column."""
NEEDS_LABEL: tuple[str, ...] = ("csv", "parquet")
"""Names of the datasets for which `label` is required, except to train a language model."""

DecimalMark = Literal[".", ","]
DateOrder = Literal["day_first", "month_first", "year_first"]

SplitSize = PositiveInt | Annotated[float, Field(gt=0, lt=1)]
"""Number of samples, or fraction of all samples."""


def with_absolute_paths(content: Any) -> Any:
    """Return the content of a file with the paths of existing data and weights made absolute.

    Users write paths relative to the folder in which the command runs, but workers run in other
    folders.
    """
    if isinstance(content, list):
        return [with_absolute_paths(item) for item in content]
    if not isinstance(content, dict):
        return content
    absolute = {key: with_absolute_paths(value) for key, value in content.items()}
    if isinstance(absolute.get("dataset"), dict):
        absolute["dataset"] = _with_absolute_path(absolute["dataset"], "path")
    return _with_absolute_path(absolute, "weights")


def _with_absolute_path(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if isinstance(value, list):
        return content | {key: [_with_absolute_path({key: item}, key)[key] for item in value]}
    if not isinstance(value, str) or not value:
        return content
    path = Path(value).expanduser()
    return content | {key: str(path.resolve())} if path.exists() else content


class DatasetSpec(Document):
    """Training data, and how much of it to use."""

    name: DatasetName = "digits"
    """Name of a dataset, or format of your own data. `digits` needs no download; `workload` calls
    the method `load_dataset` of your workload."""
    path: str | None = None
    """File or folder with the data of `image_folder`, `csv`, `parquet`, `text`, `npz` or
    `huggingface`. For `keras` and `torchvision`, the folder into which the library downloads
    datasets; by default `~/.keras/datasets`, or for torchvision the first of `data`, `datasets`,
    `~/data` and `~/datasets` that has the dataset."""
    set: str | None = None
    """Name of a dataset in `keras` (such as `cifar10`) or `torchvision` (such as `CIFAR10`)."""
    task: Task | None = None
    """Learning task; by default inferred from the labels."""
    label: str | list[str] | None = None
    """Label column of a table, or name of the label array of `npz` (default: `y`). Several numeric
    columns form a vector of labels."""
    columns: list[str] | None = None
    """Input columns of a table, or names of the input arrays of `npz` (default: `x`). By default,
    all columns of a table that have no other use are inputs."""
    categories: list[str] | None = None
    """Input columns that are categorical even if they contain numbers, such as codes."""
    decimal: DecimalMark | None = None
    """Decimal mark of numbers in a CSV file; by default a point. Thousands separators are not
    supported."""
    dates: DateOrder | None = None
    """Order of day, month and year in a CSV file (such as 31/12/2017); by default, only dates such
    as 2017-12-31 are read."""
    image: str | None = None
    """Image column: the bytes of image files, or their paths relative to the folder of the
    table."""
    text: str | None = None
    """Text column: the texts to classify, or to train a language model on."""
    tokens: Literal["words", "characters", "bytes"] = "words"
    """Tokens into which text is split. The vocabulary consists of the words or characters of the
    training split, or of all 256 bytes."""
    vocabulary_size: Annotated[int, Field(ge=4)] = 20_000
    """Maximum number of distinct tokens. The most frequent ones are kept; all others share one
    id."""
    sequence_length: PositiveInt = 128
    """Tokens per sample: longer samples are truncated, shorter ones padded."""
    image_size: PositiveInt | None = None
    """Height and width in pixels to which images are scaled; by default, images are not
    scaled."""
    resize: Literal["stretch", "crop"] = "stretch"
    """How images are made square: `stretch` distorts them, `crop` keeps the center."""
    channels: Literal[1, 3] | None = None
    """Channels of images from files: 1 (gray) or 3 (RGB). By default, 1 if the first images are all
    gray, else 3."""
    white: PositiveFloat | None = None
    """Pixel value of white in gray images with more than 8 bits; by default the smallest of 1, 255,
    1023, 4095, 16383 and 65535 that no pixel of the first images exceeds."""
    weight: str | None = None
    """Column (or array of `npz`) with the weight of each sample in the training loss; weights are
    scaled to mean 1."""
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """Class weights in the training loss: equal total weight for all classes (`balanced`), or a
    weight per class name; scaled to mean 1 over the training samples."""
    repeat: PositiveInt = 1
    """Repetitions of the training split per epoch."""
    limit: PositiveInt | None = None
    """Maximum number of training samples, before `repeat`; by default, all are used."""
    validation_size: SplitSize | None = None
    """Number or fraction of samples held out for validation; by default the dataset's own split."""
    test_size: SplitSize | Literal["none"] | None = None
    """Number or fraction of samples held out to test the winners, if the dataset has no test split;
    by default as many as for validation. `none` holds out nothing and skips the test."""
    split_by: str | dict[Literal["time", "group"], str] | None = None
    """Column that determines the splits instead of random sampling. With a column of dates, or of
    numbers as in `{time: year}`, the latest rows are held out; `{group: patient}` keeps all rows of
    a group in the same split."""
    split_seed: Seed = 0
    """Seed of the splits, the same for every run of a study."""
    shape: list[PositiveInt] = [28, 28, 1]
    """Height, width and channels of `synthetic` images."""
    num_classes: PositiveInt = 10
    """Number of classes of `synthetic` labels; for a language model, the number of distinct tokens;
    for a regression, the number of values in a label."""
    num_samples: PositiveInt = 4096
    """Number of `synthetic` training samples; the validation and test splits each have a quarter of
    this number by default."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        """Accept `dataset: mnist` for `dataset: {name: mnist}`."""
        return {"name": content} if isinstance(content, str) else content

    @field_validator("class_weights", mode="before")
    @classmethod
    def _with_string_names(cls, value: Any) -> Any:
        """Convert class names to strings, since YAML reads a name such as 7 as a number."""
        return (
            {str(key): weight for key, weight in value.items()}
            if isinstance(value, dict)
            else value
        )

    @model_validator(mode="after")
    def _check_required_keys(self) -> "DatasetSpec":
        """Raise ValueError if a key is missing, or if a key does not apply to the dataset."""
        if self.name in FILES and not self.path:
            raise ValueError(f"{self.name} needs the path of its file or folder: path: my_data")
        if self.name in LIBRARY_SETS and not self.set:
            raise ValueError(f"{self.name} needs the name of the set: set: cifar10")
        if self.name in NEEDS_LABEL and not self.label and self.task != "language_modelling":
            raise ValueError(f"{self.name} needs the column of the labels: label: price")
        for key, names in (("decimal", ("csv",)), ("dates", ("csv",)), ("split_by", TABLES)):
            if getattr(self, key) is not None and self.name not in names:
                raise ValueError(f"{key} is for tables ({', '.join(names)}); leave it out")
        if isinstance(self.split_by, dict) and len(self.split_by) != 1:
            raise ValueError("split_by takes one column: {time: when}, or {group: patient}")
        return self


Share = Annotated[float, Field(ge=0, le=1)]
"""Fraction from 0 to 1."""


class RandomCrop(Document):
    """Pad by `padding` pixels on each side, then crop to the original size at random."""

    kind: Literal["random_crop"]
    padding: Annotated[int, Field(gt=0)] = 4
    """Pixels of zeros on each side (He et al. 2016, arXiv 1512.03385, section 4.2: 4 of 32)."""


class Flip(Document):
    """Mirror left to right with probability `probability`."""

    kind: Literal["flip"]
    probability: Share = 0.5
    """Fraction of samples that are mirrored."""


class RandomResizedCrop(Document):
    """Crop at random and rescale to the original size (Szegedy et al. 2015, arXiv 1409.4842)."""

    kind: Literal["random_resized_crop"]
    min_area: Fraction = 0.08
    """Minimum area of the crop, as a fraction of the image; the maximum is 1."""
    max_ratio: Annotated[float, Field(ge=1)] = 4 / 3
    """Maximum aspect ratio of the crop, in either direction."""


class Cutout(Document):
    """Set a random square to zero (DeVries and Taylor 2017, arXiv 1708.04552)."""

    kind: Literal["cutout"]
    size: Fraction = 0.5
    """Side of the square as a fraction of the image's shorter side; the square may extend over the
    edge."""


class Mixup(Document):
    """Replace each sample by a weighted mean with another sample, and the loss by the weighted mean
    of the losses for both labels (Zhang et al. 2018, arXiv 1710.09412)."""

    kind: Literal["mixup"]
    alpha: PositiveFloat = 0.2
    """Parameter of the Beta(alpha, alpha) distribution of the mixing weight."""


class ColorJitter(Document):
    """Multiply brightness, contrast and saturation by random factors between 1 - x and 1 + x, where
    x is the value of `brightness`, `contrast` or `saturation`."""

    kind: Literal["color_jitter"]
    brightness: Share = 0.4
    """Maximum relative change of the brightness."""
    contrast: Share = 0.4
    """Maximum relative change of the difference between a pixel and the mean gray value of the
    image."""
    saturation: Share = 0.4
    """Maximum relative change of the difference between a pixel and its own gray value; only for
    RGB images."""


AUGMENTATIONS: dict[str, type[Document]] = {
    "random_crop": RandomCrop,
    "flip": Flip,
    "random_resized_crop": RandomResizedCrop,
    "cutout": Cutout,
    "mixup": Mixup,
    "color_jitter": ColorJitter,
}
"""Classes of augmentations, keyed by the value of `kind` in an entry of the list `augment`."""


def _with_kind(content: Any) -> Any:
    """Convert the short forms `flip` and `{random_crop: {padding: 4}}` to mappings with the key
    `kind`.

    Raises:
        ValueError: The kind or a key is unknown.
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
        raise ValueError(
            "write a name, such as flip, or a name with settings: {random_crop: {padding: 4}}"
        )
    kind = str(content["kind"])
    if kind not in AUGMENTATIONS:
        raise ValueError(f"there is no augmentation {kind}; {did_you_mean(kind, AUGMENTATIONS)}")
    allowed = list(AUGMENTATIONS[kind].model_fields)
    for key in content:
        if key not in allowed:
            raise ValueError(f"{kind} has no key {key}; {did_you_mean(key, allowed)}")
    return content


Augmentation = Annotated[
    Annotated[
        RandomCrop | Flip | RandomResizedCrop | Cutout | Mixup | ColorJitter,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_with_kind),
]
