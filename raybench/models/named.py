"""Models of libraries, such as `torchvision:resnet18`; this module does not import a framework.

Pretrained weights are read from the folders in which the libraries store them. raybench downloads
nothing.

Both frameworks build ResNet-18, -34, -50 and MobileNetV2 from the same description (`NETWORKS`).
They equal the networks of torchvision in every weight, in padding and strides, and in epsilon and
momentum of batch normalization. The networks of the same names in keras.applications
(`keras:ResNet50`, `keras:MobileNetV2`) are different: ResNet50 has biases, and strides in different
convolutions; MobileNetV2 has a different padding and epsilon.
"""

import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import shown
from raybench.models.base import DataShape, Workload
from raybench.models.user_code import check_settings, user_code_errors
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError, did_you_mean


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
    """Additional arguments for the constructor of the model, keyed by name."""

    def constructed(self) -> AbstractContextManager[None]:
        """Context manager that turns an error of the model's constructor into a UserError.

        The message lists the settings. Without settings, the error is not changed.
        """
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


MADE_FOR = 224  # height and width in pixels for which most networks for images were designed


@dataclass(frozen=True)
class Library:
    """A library of models."""

    framework: str | None
    """Framework of the library's models; None if both frameworks can build them."""
    package: str
    """Name of the Python package, both to install and to import."""
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
    """Return whether a workload's name is that of a library's model or of one of `NETWORKS`."""
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
        settings: Additional arguments for the constructor of the model, keyed by name.

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
    inputs_text = f"but the dataset has inputs of shape {shown(input_shape)}"
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
                f"takes images of 1 or 3 channels, but the dataset has {channels}; timm's models "
                "take any number"
            )
    elif isinstance(input_shape, dict):
        if "input_ids" not in input_shape:
            names = ", ".join(input_shape)
            problem = f"needs an input named input_ids, but the dataset has {names}"
    elif len(input_shape) != 1 or shape.kind not in (None, "tokens"):
        problem = f"takes token ids (tokens,), {inputs_text}; set dataset.text to a column of texts"
    if problem:
        raise UserError(f"Workload {name}: {problem}.", ErrorCode.INVALID_VALUE)


TORCH_SUFFIXES = (".pth", ".pt", ".safetensors")
"""Suffixes of files with weights of torch."""


def weights_file(workload: Workload, weights: str, framework: str) -> Path | None:
    """Return the file that the key `weights` of a run spec names; None for `none` and `cached`.

    Raises:
        UserError: There is no such file, `cached` is set for a workload that is not a library's
            model, or the framework is tensorflow and torch, which reads the file, is not installed.
    """
    if weights == "cached" and not isinstance(workload, NamedWorkload):
        raise UserError(
            f"weights cached: only models of libraries have pretrained weights, but workload "
            f"{workload.name} is not one; set weights to a file.",
            ErrorCode.CONFLICT,
        )
    path = Path(weights).expanduser()
    if weights not in ("none", "cached") and not path.is_file():
        raise UserError(
            f"weights {weights}: there is no such file on this machine.", ErrorCode.NOT_FOUND
        )
    is_network = isinstance(workload, NamedWorkload) and workload.library == "both"
    if framework == "tensorflow" and is_network:
        _require_torch(weights, path.suffix)
    return None if weights in ("none", "cached") else path


def _require_torch(weights: str, suffix: str) -> None:
    """Raise UserError if weights of torch are named, and the package that reads them is missing."""
    package = "torchvision" if weights == "cached" else "torch"
    is_of_torch = weights == "cached" or suffix in TORCH_SUFFIXES
    if is_of_torch and importlib.util.find_spec(package) is None:
        raise UserError(
            f"weights {weights}: these are weights of torch, which {package} reads; run: pip "
            f"install {package}.",
            ErrorCode.NOT_INSTALLED,
        )


def unknown_model(workload: NamedWorkload, library_names: Collection[str]) -> UserError:
    """Return the error for a model that is not among `library_names`, all models of its library."""
    plain = workload.model.partition(".")[0]  # in timm, the part after the point names the weights
    hint = did_you_mean(plain, library_names, "see the library's list of models.")
    return UserError(
        f"Workload {workload.name}: {workload.library} has no model '{workload.model}' among its "
        f"{len(library_names)} models; {hint}",
        ErrorCode.UNKNOWN_NAME,
    )


def unfit_images(workload: NamedWorkload, error: Exception, made_for: int = MADE_FOR) -> UserError:
    """Return the error for an image size for which a library cannot build its model.

    `error` is the exception of the library, `made_for` a height and width in pixels that works.
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
    """Return a list with the warning that the head of a model is initialized at random, because the
    pretrained weights have no head for this dataset.

    Args:
        source: File or library from which the weights were read.
        names: Names of the tensors of the head.
    """
    names_text = f" ({', '.join(names)})" if names else ""
    return [f"weights {source}: the head{names_text} is initialized at random for these data."]


Activation = Literal["relu", "relu6"]
Arrays = dict[str, npt.NDArray[np.float32]]
"""Weights in torch's layout, keyed by torchvision's names."""

EPSILON = 1e-5  # added to the variance in batch normalization
MOMENTUM = 0.1
"""Weight of the current batch in the running statistics of batch normalization, as defined by
torch. The running variance is unbiased."""
MEAN = (0.485, 0.456, 0.406)
"""Channel means of ImageNet, for pixels from 0 to 1. Models with torchvision's weights expect the
input (pixels - MEAN) / STD."""
STD = (0.229, 0.224, 0.225)
"""Standard deviations of the channels of ImageNet, for pixels from 0 to 1."""


@dataclass(frozen=True)
class ConvSpec:
    """A convolution without bias, followed by batch normalization.

    The convolution is padded by `kernel // 2` on every side.
    """

    name: str
    """Prefix of the names of the convolution's weights in torchvision."""
    norm: str
    """Prefix of the names of the batch normalization's weights in torchvision."""
    inputs: int
    """Number of input channels."""
    filters: int
    """Number of output channels."""
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False
    activation: Activation | None = None


@dataclass(frozen=True)
class Block:
    """A sequence of convolutions, usually with a residual connection around them."""

    convs: tuple[ConvSpec, ...]
    is_residual: bool = True
    """Whether the input of the block is added to the output of the convolutions."""
    shortcut: ConvSpec | None = None
    """Convolution that is applied to the input before the input is added to the output; None to add
    the unchanged input."""
    activation: Activation | None = None
    """Activation that follows the addition."""


@dataclass(frozen=True)
class Network:
    """A network that consists of a stem, blocks, average pooling and a head."""

    stem: ConvSpec
    """First convolution."""
    max_pool: bool
    """Whether 3 x 3 max pooling with stride 2 follows the stem."""
    blocks: tuple[Block, ...]
    last: ConvSpec | None
    """Convolution after the blocks, if any."""
    dropout: float
    """Dropout rate before the head."""
    head: str
    """Prefix of the names of the head's weights in torchvision."""
    head_init: Literal["uniform", "normal"]
    """Initialization of the head: `uniform` within ±1 / sqrt(fan in), or `normal` with standard
    deviation 0.01 and bias 0."""

    @property
    def features(self) -> int:
        """Number of inputs of the head."""
        return (self.last or self.blocks[-1].convs[-1]).filters

    def convs(self) -> Iterator[ConvSpec]:
        """Yield all convolutions, in the order of torchvision."""
        yield self.stem
        for block in self.blocks:
            yield from block.convs
            if block.shortcut:
                yield block.shortcut
        if self.last:
            yield self.last


def initial_arrays(network: Network, num_outputs: int, seed: int) -> Arrays:
    """Return the initial weights for both frameworks, with the names and distributions of
    torchvision.

    Weights of convolutions have the normal distribution of He et al. (2015), scaled by the fan out.
    In batch normalization, scale and running variance are 1, bias and running mean are 0.
    `num_outputs` is the number of outputs of the head.
    """
    rng = np.random.default_rng(seed)
    norm = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    arrays: Arrays = {}
    for conv in network.convs():
        std = np.float32(math.sqrt(2 / (conv.filters * conv.kernel**2)))
        inputs = 1 if conv.depthwise else conv.inputs
        conv_shape = (conv.filters, inputs, conv.kernel, conv.kernel)
        arrays[f"{conv.name}.weight"] = rng.standard_normal(conv_shape, np.float32) * std
        for name, value in norm.items():
            arrays[f"{conv.norm}.{name}"] = np.full(conv.filters, value, np.float32)
    shape = (num_outputs, network.features)
    if network.head_init == "normal":
        weight = rng.standard_normal(shape, np.float32) * np.float32(0.01)
        bias = np.zeros(num_outputs, np.float32)
    else:
        bound = 1 / math.sqrt(network.features)
        weight = rng.uniform(-bound, bound, shape).astype(np.float32)
        bias = rng.uniform(-bound, bound, num_outputs).astype(np.float32)
    return arrays | {f"{network.head}.weight": weight, f"{network.head}.bias": bias}


def _resnet(depths: tuple[int, ...], *, bottleneck: bool) -> Network:
    stem = ConvSpec("conv1", "bn1", 3, 64, 7, 2, activation="relu")
    blocks: list[Block] = []
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        outputs = width * (4 if bottleneck else 1)
        for position in range(depth):
            stride = 2 if stage and not position else 1
            prefix = f"layer{stage + 1}.{position}."
            make = _bottleneck if bottleneck else _basic
            shortcut = None
            if stride != 1 or channels != outputs:
                names = f"{prefix}downsample.0", f"{prefix}downsample.1"
                shortcut = ConvSpec(*names, channels, outputs, 1, stride)
            convs = make(prefix, channels, width, stride)
            blocks.append(Block(convs, shortcut=shortcut, activation="relu"))
            channels = outputs
    return Network(stem, True, tuple(blocks), None, 0.0, "fc", "uniform")


def _basic(prefix: str, inputs: int, width: int, stride: int) -> tuple[ConvSpec, ...]:
    return (
        ConvSpec(f"{prefix}conv1", f"{prefix}bn1", inputs, width, 3, stride, activation="relu"),
        ConvSpec(f"{prefix}conv2", f"{prefix}bn2", width, width, 3),
    )


def _bottleneck(prefix: str, inputs: int, width: int, stride: int) -> tuple[ConvSpec, ...]:
    return (
        ConvSpec(f"{prefix}conv1", f"{prefix}bn1", inputs, width, activation="relu"),
        ConvSpec(f"{prefix}conv2", f"{prefix}bn2", width, width, 3, stride, activation="relu"),
        ConvSpec(f"{prefix}conv3", f"{prefix}bn3", width, 4 * width),
    )


def _mobilenet_v2() -> Network:
    def conv(prefix: str, inputs: int, filters: int, kernel: int = 1, stride: int = 1) -> ConvSpec:
        names = f"{prefix}.0", f"{prefix}.1"
        depthwise = inputs == filters and kernel > 1
        return ConvSpec(*names, inputs, filters, kernel, stride, depthwise, "relu6")

    stages = (  # expansion, channels, blocks, stride (Sandler et al. 2018, table 2)
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    blocks: list[Block] = []
    channels = 32
    for expansion, outputs, number, first_stride in stages:
        for position in range(number):
            stride = 1 if position else first_stride
            prefix = f"features.{len(blocks) + 1}.conv"
            hidden = channels * expansion
            convs = [conv(f"{prefix}.0", channels, hidden)] if expansion > 1 else []
            convs.append(conv(f"{prefix}.{len(convs)}", hidden, hidden, 3, stride))
            names = f"{prefix}.{len(convs)}", f"{prefix}.{len(convs) + 1}"
            convs.append(ConvSpec(*names, hidden, outputs))
            blocks.append(Block(tuple(convs), stride == 1 and channels == outputs))
            channels = outputs
    return Network(
        stem=conv("features.0", 3, 32, 3, 2),
        max_pool=False,
        blocks=tuple(blocks),
        last=conv(f"features.{len(blocks) + 1}", channels, 1280),
        dropout=0.2,
        head="classifier.1",
        head_init="normal",
    )


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": lambda: _resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": _mobilenet_v2,
}
"""Functions that return the descriptions of the networks, keyed by torchvision's names."""
