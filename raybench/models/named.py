"""Models of libraries such as `torchvision:resnet18`: the code that does not import a framework.

Pretrained weights are read from the folders in which the libraries store them. raybench downloads
nothing.
"""

import importlib.util
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raybench.data.inputs import shown
from raybench.models.base import DataShape, Workload
from raybench.models.networks import NETWORKS
from raybench.models.user_code import check_settings, user_code_errors
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.run import Task


@dataclass(frozen=True)
class NamedWorkload(Workload):
    """A library's model, whose head and input size depend on the data.

    The modules `training/torch/named` and `training/tensorflow/named` build the model, instead of
    the methods `build_torch` and `build_keras`.
    """

    name: str
    """Name as the user wrote it: `torchvision:resnet18`, or a key of `NETWORKS` (`resnet18`)."""
    library: str
    """Name of the library, a key of `LIBRARIES`."""
    model: str
    """Name of the model in the library."""
    input_shape: "tuple[int, ...] | dict[str, tuple[int, ...]]"
    num_classes: int
    """Number of outputs of the head: classes, numbers of a regression, or token ids."""
    task: Task
    vocabulary_size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Additional arguments for the constructor of the model, by name."""

    def constructed(self) -> AbstractContextManager[None]:
        """Context manager: turn an error of the model's constructor into a UserError that lists the
        settings, if there are any."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        message = f"Workload {self.name}: cannot be built with {arguments}"
        return (
            user_code_errors(message, code=ErrorCode.INVALID_VALUE)
            if self.settings
            else nullcontext()
        )


def missing(workload: str, place: str) -> UserError:
    """Return the error for pretrained weights that are not on this machine.

    Args:
        workload: Name of the workload.
        place: File or folder in which the weights are expected.
    """
    return UserError(
        f"weights cached: the pretrained weights of {workload} are not on this machine, and "
        f"raybench downloads nothing; copy them to {place}, or set weights to your own file or to "
        "none.",
        ErrorCode.NOT_FOUND,
    )


MADE_FOR = 224  # height and width in pixels for which most of these networks were designed


@dataclass(frozen=True)
class Library:
    """A library of models."""

    framework: str | None
    """Framework of the library's models; None if both frameworks can build them."""
    package: str
    """Name of the Python package that is imported and installed."""
    example: str
    """Name of one of the models, for error messages."""
    takes_images: bool = True
    """Whether the inputs of the models are images; otherwise, they are token ids."""


LIBRARIES = {
    "torchvision": Library("torch", "torchvision", "resnet18"),
    "timm": Library("torch", "timm", "resnet18"),
    "transformers": Library("torch", "transformers", "distilbert", takes_images=False),
    "keras": Library("tensorflow", "keras", "MobileNetV2"),
    "both": Library(None, "torchvision", "resnet18"),
}
"""Libraries by the prefix of their models' names. The key `both` stands for the models in
`NETWORKS`, whose names have no prefix: with torch they are torchvision's models, and with Keras
raybench builds equal models."""
IMAGES = DataShape(input_shape=(MADE_FOR, MADE_FOR, 3), num_outputs=1000)
TOKENS = DataShape(input_shape=(128,), num_outputs=2)
"""Shapes of the data for which a model is built if no dataset is given."""


def is_named(name: str) -> bool:
    """Return whether a workload is a library's model or one of `NETWORKS`, given its name."""
    library, colon, _ = name.partition(":")
    return name in NETWORKS or (bool(colon) and library in LIBRARIES and library != "both")


def named_workload(
    name: str, shape: DataShape | None, settings: Mapping[str, Any] = MappingProxyType({})
) -> NamedWorkload:
    """Return the workload for a library's model, such as `torchvision:resnet18`.

    Whether the library has a model with this name is checked later, when the model is built.

    Args:
        name: Name of the workload, for which `is_named` is true.
        shape: Shape of the data; None for a typical shape.
        settings: Additional arguments for the constructor of the model, by name.

    Raises:
        UserError: The library is not installed, or its models do not accept such data.
    """
    key, model = ("both", name) if name in NETWORKS else name.split(":", 1)
    library = LIBRARIES[key]
    if not model:
        raise UserError(
            f"Workload {name}: write {key}:NAME, such as {key}:{library.example}.",
            ErrorCode.INVALID_VALUE,
        )
    if library.framework is not None:
        _require_installed(name, library)
    shape = shape or (IMAGES if library.takes_images else TOKENS)
    _require_fit(name, library, shape)
    if key == "both":
        check_settings({}, settings, f"workload {name}")
    data = shape.input_shape, shape.num_outputs, shape.task, shape.vocabulary_size
    return NamedWorkload(name, key, model, *data, settings)


def require_library(workload: NamedWorkload, framework: str) -> None:
    """Raise UserError if the model cannot run with `framework` ('torch' or 'tensorflow')."""
    library = LIBRARIES[workload.library]
    if library.framework not in (None, framework):
        networks = " and ".join(NETWORKS)
        raise UserError(
            f"Workload {workload.name}: {workload.library} has only models of "
            f"{library.framework}, so it cannot run with framework {framework}; set framework: "
            f"{library.framework}, or choose a network for both frameworks: {networks}.",
            ErrorCode.UNSUPPORTED,
        )
    if library.framework is None and framework == "torch":
        _require_installed(workload.name, library)


def _require_installed(name: str, library: Library) -> None:
    if importlib.util.find_spec(library.package) is None:
        package = library.package
        raise UserError(
            f"Workload {name}: {package} is not installed; run: pip install {package}.",
            ErrorCode.NOT_INSTALLED,
        )


def _require_fit(name: str, library: Library, shape: DataShape) -> None:
    input_shape, problem = shape.input_shape, ""
    inputs_text = f"the dataset has inputs of shape {shown(input_shape)}"
    if library.takes_images:
        if isinstance(input_shape, dict) or len(input_shape) != 3:
            problem = (
                f"takes images (H, W, C), {inputs_text}; choose another workload, such as mlp or "
                "text_bag"
            )
        elif shape.task == "language_modelling":
            problem = "takes images and is not a language model"
        elif input_shape[-1] not in (1, 3) and not name.startswith("timm:"):
            channels = input_shape[-1]
            problem = (
                f"takes images of 1 or 3 channels, the dataset has {channels}; timm's models take "
                "any number"
            )
    elif isinstance(input_shape, dict):
        if "input_ids" not in input_shape:
            problem = f"needs an input named input_ids, the dataset has {', '.join(input_shape)}"
    elif len(input_shape) != 1 or shape.kind not in (None, "tokens"):
        problem = f"takes token ids (tokens,), {inputs_text}; set dataset.text to a column of texts"
    if problem:
        raise UserError(f"Workload {name}: {problem}.", ErrorCode.INVALID_VALUE)


def weights_file(workload: Workload, weights: str) -> Path | None:
    """Return the file that the key `weights` of a run spec names; None for `none` and `cached`.

    Raises:
        UserError: There is no such file, or `cached` is set for a workload that is not a library's
            model.
    """
    if weights == "cached" and not isinstance(workload, NamedWorkload):
        raise UserError(
            f"weights cached: only models of libraries have pretrained weights, workload "
            f"{workload.name} has none; set weights to a file.",
            ErrorCode.CONFLICT,
        )
    if weights in ("none", "cached"):
        return None
    path = Path(weights).expanduser()
    if not path.is_file():
        raise UserError(
            f"weights {weights}: there is no such file on this machine.", ErrorCode.NOT_FOUND
        )
    return path


def unknown_model(workload: NamedWorkload, library_names: Collection[str]) -> UserError:
    """Return the error for a model that its library does not have.

    Args:
        workload: The workload.
        library_names: Names of all models of the library.
    """
    plain = workload.model.partition(".")[0]  # in timm, the part after the point names the weights
    hint = did_you_mean(plain, library_names, "see the library's list of models.")
    return UserError(
        f"Workload {workload.name}: {workload.library} has no model '{workload.model}' among its "
        f"{len(library_names)} models; {hint}",
        ErrorCode.UNKNOWN_NAME,
    )


def unfit_images(workload: NamedWorkload, error: Exception, made_for: int = MADE_FOR) -> UserError:
    """Return the error for an image size that the model does not support.

    Args:
        workload: The model.
        error: Exception that the library raised.
        made_for: Height and width in pixels that the model supports.
    """
    height, width, *_ = workload.input_shape
    return UserError(
        f"Workload {workload.name}: cannot be built for images of {height} x {width} ({error}); "
        f"set dataset.image_size: {made_for}.",
        ErrorCode.INVALID_MODEL,
    )


def weights_mismatch_error(source: str, name: str, reason: object) -> UserError:
    """Return the error for weights that do not fit the model.

    Args:
        source: File or library from which the weights were read.
        name: Name of the first tensor that does not fit.
        reason: Why the tensor does not fit, such as its shape.
    """
    return UserError(
        f"weights {source}: these weights belong to another model ({name}: {reason}); set workload "
        "to the model that they were trained with.",
        ErrorCode.INVALID_WEIGHTS,
    )


def new_head(source: object, *names: str) -> list[str]:
    """Return a warning, as a list of one sentence, that the head of a model is initialized at
    random because the weights have no head for these data.

    Args:
        source: File or library from which the weights were read.
        names: Names of the tensors of the head.
    """
    names_text = f" ({', '.join(names)})" if names else ""
    return [f"weights {source}: the head{names_text} is initialized at random for these data."]
