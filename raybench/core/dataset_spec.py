"""Which data a run trains on: the `dataset` of a file."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from raybench.core.documents import Document, PositiveFloat, PositiveInt, Seed

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
NEEDS_LABEL: tuple[str, ...] = ("csv", "parquet")

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
    dataset = whole.get("dataset")
    if isinstance(dataset, dict):
        whole["dataset"] = _whole(dataset, "path")
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
    """Which data, and how much of it."""

    name: DatasetName = "digits"
    """`digits` needs no download; `workload` asks the workload's own `load_dataset`."""
    path: str | None = None
    """File or folder of `image_folder`, `csv`, `parquet`, `text`, `npz` and `huggingface`; the
    folder that a library keeps its sets in for `keras` and `torchvision` (none: its usual one)."""
    set: str | None = None
    """Name of a set that `keras` (`cifar10`) or `torchvision` (`CIFAR10`) knows."""
    task: Task | None = None
    """What is to be learnt; none is told from the labels."""
    label: str | list[str] | None = None
    """Column (key, array) of the labels; several columns of numbers are a vector each."""
    columns: list[str] | None = None
    """Columns (keys, arrays) that are inputs; none takes all but those that have another use."""
    categories: list[str] | None = None
    """Columns of inputs that are names even where they look like numbers (such as a code)."""
    image: str | None = None
    """Column of images: their bytes, or paths from where the file lies."""
    text: str | None = None
    """Column of texts."""
    tokens: Literal["words", "characters", "bytes"] = "words"
    """What a text is cut into: the words of the training split, its characters, or bytes."""
    vocabulary_size: Annotated[int, Field(ge=4)] = 20_000
    """Most tokens told apart, the most frequent ones; the others are one."""
    sequence_length: PositiveInt = 128
    """Tokens of a sample: longer texts are cut, shorter ones padded."""
    image_size: PositiveInt | None = None
    """Height and width in pixels the images are scaled to; none keeps their own size."""
    resize: Literal["stretch", "crop"] = "stretch"
    """What becomes of images that are not square: stretched to it, or their middle cut out."""
    channels: Literal[1, 3] | None = None
    """Channels of images from files: 1 (grey) or 3 (RGB); none keeps what the first ones have."""
    weight: str | None = None
    """Column (array) with the weight of each training sample in the loss; scaled to mean 1."""
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """Weights of classes in the training loss: all as much as one another (`balanced`), or by name
    of class; scaled to mean 1 over the training samples."""
    repeat: PositiveInt = 1
    """How often the training split stands in one epoch (study 5 used 1, 4 and 8)."""
    limit: PositiveInt | None = None
    """Number of training samples kept, before `repeat`; none keeps all."""
    validation_size: Part | None = None
    """Samples held out for validation, a number or a share; none takes the dataset's own share."""
    test_size: Part | Literal["none"] | None = None
    """Samples held out for the test of winners where the data have no test split of their own, a
    number or a share; left out it is as many as for validation. `none` holds out no row, and
    nothing is tested."""
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
        return self
