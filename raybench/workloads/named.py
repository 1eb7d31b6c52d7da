"""From `library:name` to the workload, and what can be said of it without a framework.

Where the libraries keep trained weights on this machine; nothing is fetched from the net.

A model that a library knows by name, made to fit the data; the backends build it.

Weights that torch wrote, read without torch and without running anything that they hold.

A `.pth` file is a pickle that names its tensors' bytes: in a zip file since torch 1.6, before that
one after the other in one file. Only what such a pickle needs is let through.
"""

import importlib.util
import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.core.spec import Task
from raybench.workloads.base import Workload
from raybench.workloads.networks import NETWORKS
from raybench.workloads.shape import DataShape

Arrays = dict[str, npt.NDArray[Any]]

_TYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "BoolStorage": "?",
    "ByteStorage": "u1",
}
"""torch's kinds of storage as numpy's types."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""What a file of before torch 1.6 begins with, as a pickle."""


def read_tensors(path: Path) -> Arrays:
    """Return the tensors of a `.safetensors` or `.pth` file by their names.

    UserError for a file that holds something else.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        content = _read_zip(path) if zipfile.is_zipfile(path) else _read_legacy(path)
    except (pickle.UnpicklingError, KeyError, EOFError, ValueError, AttributeError) as error:
        raise not_weights(path, error) from None
    tensors: Arrays = named_tensors(content, path)
    return {name: array.copy() for name, array in tensors.items()}


def named_tensors(content: Any, path: Path) -> Any:
    """Return the state dict in what a file holds: itself, or under a key that many use."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if isinstance(content, dict):
        tensors = {name: one for name, one in content.items() if hasattr(one, "shape")}
        if tensors:
            return tensors
    raise not_weights(path, ValueError("no tensors by name"))


def not_weights(path: Path, error: Exception) -> UserError:
    """Return the error of a file that holds no weights."""
    kind = type(error).__name__
    return UserError(
        f"weights {path}: is no file of weights (a state dict that torch.save wrote as .pth or "
        f".pt, or .safetensors), and nothing of it was run ({kind}).",
        details=str(error),
    )


def _read_safetensors(path: Path) -> Arrays:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise UserError(
            f"weights {path}: safetensors is not installed; run: pip install safetensors."
        ) from None
    try:
        tensors: Arrays = load_file(path)
        return tensors
    except SafetensorError as error:
        raise not_weights(path, error) from None


class _Storage:
    """A kind of storage, by its name in the pickle."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(_TYPES[name])


class _Unpickler(pickle.Unpickler):
    """Builds numpy arrays where torch would build tensors; refuses every other name."""

    def __init__(self, file: Any, storage_of: Callable[[Any], npt.NDArray[Any]]) -> None:
        super().__init__(file)
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if module in ("torch", "torch.storage") and name in _TYPES:
            return _Storage(name)
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> npt.NDArray[Any]:
        return self._storage_of(pid)


def _rebuild(
    storage: npt.NDArray[Any], offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> npt.NDArray[Any]:
    """Return the part of a storage that a tensor is of, a view: it may be filled later."""
    last = offset + sum((number - 1) * step for number, step in zip(size, stride, strict=True))
    if min(size, default=1) and not 0 <= last < len(storage):
        raise ValueError("a tensor beyond its bytes")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps)


def _read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (pickled,) = [name for name in names if name.endswith("/data.pkl")]
        folder = pickled.removesuffix("data.pkl")

        def storage_of(pid: Any) -> npt.NDArray[Any]:
            _, kind, key, _, _ = pid
            return np.frombuffer(archive.read(f"{folder}data/{key}"), kind.dtype)

        return _Unpickler(io.BytesIO(archive.read(pickled)), storage_of).load()


def _read_legacy(path: Path) -> Any:
    """Read magic number, version, machine, content, keys; then each storage: its length, bytes."""
    storages: dict[str, npt.NDArray[Any]] = {}

    def storage_of(pid: Any) -> npt.NDArray[Any]:
        _, kind, key, _, number, *_ = pid
        return storages.setdefault(key, np.empty(number, kind.dtype))

    with path.open("rb") as file:
        parts = [_Unpickler(file, storage_of).load() for _ in range(5)]
        if parts[0] != LEGACY_MAGIC:
            raise ValueError("no file of torch's")
        for key in parts[4]:
            number = int(np.fromfile(file, "<i8", 1)[0])
            found = np.fromfile(file, storages[key].dtype, number)
            storages[key][:] = found
    return parts[3]


@dataclass(frozen=True)
class NamedWorkload(Workload):
    """A library's model whose head and input size come from the data.

    Its build methods are not asked: `backends/*/named` builds it.
    """

    name: str
    """As the user wrote it: `torchvision:resnet18`, or the name alone of a network of both
    frameworks."""
    library: str
    """A key of `LIBRARIES`."""
    model: str
    """The library's name of it."""
    input_shape: "tuple[int, ...] | dict[str, tuple[int, ...]]"
    num_classes: int
    """Outputs of the head: classes, numbers of a regression, tokens of a vocabulary."""
    task: Task
    vocabulary_size: int | None = None

    @classmethod
    def of(cls, name: str, library: str, model: str, shape: DataShape) -> "NamedWorkload":
        """Return it for data of that shape."""
        return cls(
            name,
            library,
            model,
            shape.input_shape,
            shape.num_outputs,
            shape.task,
            shape.vocabulary_size,
        )


TORCH_URL = "https://download.pytorch.org/models/"
"""Where torchvision's files come from."""


def torch_folder() -> Path:
    """Return the folder of torch's hub (`TORCH_HOME`)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    return Path(home).expanduser() / "hub" / "checkpoints"


def keras_folder() -> Path:
    """Return Keras's folder of trained weights (`KERAS_HOME`)."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "models"


def first_there(workload: str, folder: Path, files: tuple[str, ...], url: str = "") -> Path:
    """Return the first of the files that is there; UserError, with its place, if none is."""
    for file in files:
        if (folder / file).is_file():
            return folder / file
    source = f", from {url}{files[0]}" if url else ""
    raise missing(workload, f"{folder / files[0]}{source}")


def missing(workload: str, what: str) -> UserError:
    """Return the error of weights that this machine has not got; `what` is the file."""
    return UserError(
        f"weights cached: the trained weights of {workload} are not on this machine, and nothing "
        f"is fetched from the net; put them at {what}, or set weights to a file of yours or none."
    )


SMALL_IMAGE = 64
"""Pixels a side below which networks that halve images five times have next to nothing left."""
MADE_FOR = 224
"""Pixels a side that these networks were made for, most of them."""


@dataclass(frozen=True)
class Library:
    """A library of models."""

    framework: str | None
    """The one framework of its models; None of both."""
    package: str
    """What is imported, and what pip installs."""
    takes_images: bool = True
    """Whether its models take images, else token ids."""


LIBRARIES = {
    "torchvision": Library("torch", "torchvision"),
    "timm": Library("torch", "timm"),
    "transformers": Library("torch", "transformers", takes_images=False),
    "keras": Library("tensorflow", "keras"),
    "both": Library(None, "torchvision"),
}
"""`both` are the networks that raybench builds alike in both frameworks, named without a prefix; of
torch's only they need a library, which has them."""
USUAL = {
    True: DataShape(input_shape=(MADE_FOR, MADE_FOR, 3), num_outputs=1000),
    False: DataShape(input_shape=(128,), num_outputs=2),
}
"""The data that a model is for where nobody has any, by whether it takes images."""


def is_named(name: str) -> bool:
    """Whether a workload's name is that of a library's model, or of a network of both."""
    library, colon, _ = name.partition(":")
    return name in NETWORKS or (bool(colon) and library in LIBRARIES and library != "both")


def named_workload(name: str, shape: DataShape | None) -> NamedWorkload:
    """Return the model of that name for data of that shape (none: some usual ones).

    UserError where the library is not installed, or its models do not take such data. Whether the
    library has the name is known when a backend builds it.
    """
    key, model = ("both", name) if name in NETWORKS else name.split(":", 1)
    library = LIBRARIES[key]
    if not model:
        raise UserError(f"Workload {name}: write {key}:NAME, such as {key}:{_EXAMPLES[key]}.")
    if library.framework is not None:
        _require_installed(name, library)
    shape = shape or USUAL[library.takes_images]
    _require_fit(name, library, shape)
    return NamedWorkload.of(name, key, model, shape)


def require_library(workload: NamedWorkload, framework: str) -> None:
    """Raise UserError if the model cannot run with `framework` ('torch', 'tensorflow')."""
    library = LIBRARIES[workload.library]
    if library.framework not in (None, framework):
        known = " and ".join(NETWORKS)
        raise UserError(
            f"Workload {workload.name}: {workload.library} has models of {library.framework} "
            f"alone, so it cannot run with framework {framework}; set framework: "
            f"{library.framework}, or take a network of both: {known}."
        )
    if library.framework is None and framework == "torch":
        _require_installed(workload.name, library)


def size_warnings(workload: NamedWorkload) -> list[str]:
    """Return a sentence where the images are far below what such networks were made for."""
    shape = workload.input_shape
    if isinstance(shape, dict) or len(shape) != 3 or min(shape[:2]) >= SMALL_IMAGE:
        return []
    height, width = shape[:2]
    return [
        f"Workload {workload.name}: most such networks were made for {MADE_FOR} pixels and halve "
        f"an image five times, which leaves {-(-height // 32)} x {-(-width // 32)} of {height} x "
        f"{width}; dataset.image_size: {SMALL_IMAGE} or more learns better and takes longer, "
        "small_resnet is made for small images."
    ]


_EXAMPLES = {
    "torchvision": "resnet18",
    "timm": "resnet18",
    "transformers": "distilbert",
    "keras": "MobileNetV2",
}


def _require_installed(name: str, library: Library) -> None:
    if importlib.util.find_spec(library.package) is None:
        raise UserError(
            f"Workload {name}: {library.package} is not installed; run: pip install "
            f"{library.package}."
        )


def _require_fit(name: str, library: Library, shape: DataShape) -> None:
    found = shape.input_shape
    if library.takes_images:
        if isinstance(found, dict) or len(found) != 3:
            shown = "inputs by name" if isinstance(found, dict) else f"inputs of shape {found}"
            raise UserError(
                f"Workload {name}: takes images (H, W, C), the dataset has {shown}; choose "
                "a workload for them, such as mlp or text_bag."
            )
        if found[-1] not in (1, 3) and not name.startswith("timm:"):
            raise UserError(
                f"Workload {name}: takes images of 1 or 3 channels, the dataset has {found[-1]}; "
                "timm's models take any number."
            )
        if shape.task == "language_modelling":
            raise UserError(f"Workload {name}: takes images and models no language.")
        return
    if isinstance(found, dict):
        if "input_ids" not in found:
            raise UserError(
                f"Workload {name}: needs an input named input_ids, the dataset has "
                f"{', '.join(found)}."
            )
    elif len(found) != 1 or shape.kind not in (None, "tokens"):
        raise UserError(
            f"Workload {name}: takes token ids (whole numbers of shape (tokens,)), the dataset has "
            f"inputs of shape {found}; name a column of texts with dataset.text."
        )


def cached_network(workload: NamedWorkload) -> Path:
    """Return torchvision's file of the trained weights of a network of both frameworks."""
    files = NETWORKS[workload.model]().weights
    return first_there(workload.name, torch_folder(), files, TORCH_URL)


def weights_file(
    workload: Workload, weights: str, cached: Mapping[str, Callable[[NamedWorkload], Path]]
) -> Path | None:
    """Return the file of the weights of a spec; None for `none`, UserError where it is not there.

    `cached` finds trained weights on this machine, by the library of a model by name.
    """
    if weights == "none":
        return None
    path = Path(weights).expanduser()
    if weights == "cached":
        if not isinstance(workload, NamedWorkload):
            raise UserError(
                f"weights cached: is of models by name, not of workload {workload.name}; set "
                "weights to a file."
            )
        path = cached[workload.library](workload)
    if not path.is_file():
        raise UserError(f"weights {weights}: there is no such file on this machine.")
    return path
