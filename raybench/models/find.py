"""From the name of a workload to the workload, and the checks that need no training."""

import difflib
import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import numpy as np

from raybench.data.dataset import Dataset
from raybench.data.inputs import InputShape, shown
from raybench.data.load import STORED, build_dataset, limit_and_repeat, load_dataset
from raybench.data.memory import require_memory
from raybench.data.shared import open_shared, shared_key
from raybench.data.store.source import pinning
from raybench.models.base import LayerWorkload, Workload, missing_method, users_code
from raybench.models.layers import Layer, Residual, num_parameters, output_shapes
from raybench.models.named import NamedWorkload, is_named, named_workload, require_library
from raybench.models.networks import NETWORKS
from raybench.models.shape import DataShape
from raybench.models.shipped import WORKLOADS, shipped_workload
from raybench.spec.dataset_spec import TASKS
from raybench.spec.errors import UserError
from raybench.spec.metric import Metric
from raybench.spec.run import DatasetSpec

_FIELDS: dict[str, Callable[[Any], bool]] = {
    "padding": lambda value: value in ("same", "valid"),
    "rate": lambda value: isinstance(value, int | float) and 0 <= value < 1,
}
"""What the fields of layers may be; all others are whole numbers from 1."""


def check_attributes(workload: Workload, source: str) -> None:
    """Raise UserError, beginning with `source`, for the first attribute of a wrong kind."""
    if not isinstance(workload.name, str) or not workload.name.strip():
        raise _wrong(source, "name", "must be text, for tables", workload.name)
    if workload.task not in TASKS:
        raise _wrong(source, "task", f"must be one of {', '.join(TASKS)}", workload.task)
    if hasattr(workload, "num_classes") and not _is_positive(workload.num_classes):
        raise _wrong(source, "num_classes", "must be a whole number from 1", workload.num_classes)
    _check_shape(workload.input_shape, source)
    if workload.metric is not None and not isinstance(workload.metric, Metric):
        must = 'must be a raybench metric, as Metric(name="dice", direction="max")'
        raise _wrong(source, "metric", must, workload.metric)
    if isinstance(workload, LayerWorkload):
        _check_layers(workload.layers, source)


def _check_shape(shape: Any, source: str) -> None:
    is_one = not isinstance(shape, dict)
    shapes = [shape] if is_one else list(shape.values())
    must = "must be a tuple of whole numbers, (H, W, C) of an image or (features,), or a dict of"
    if not shapes or not all(map(_is_shape, shapes)) or (is_one and not shape):
        raise _wrong(source, "input_shape", f"{must} such", shape)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(map(_is_positive, shape))


def _check_layers(layers: Any, source: str) -> None:
    must = "must be a tuple of layers of raybench.models.layers, as (Flatten(), Dense(10))"
    if not isinstance(layers, tuple | list) or not layers:
        raise _wrong(source, "layers", must, layers)
    for layer in layers:
        if not isinstance(layer, get_args(Layer)):
            raise _wrong(source, "layers", must, layer)
        if isinstance(layer, Residual):
            _check_layers(layer.layers, source)
            continue
        for field, value in vars(layer).items():
            if not _FIELDS.get(field, _is_positive)(value):
                raise _wrong(source, "layers", f"has a layer whose {field} cannot be", layer)


def _is_positive(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(is_whole and value > 0)


def _wrong(source: str, name: str, must: str, found: Any) -> UserError:
    text = repr(found)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return UserError(f"{source}: its attribute {name} {must} (found {text}).")


BYTES_PER_PARAMETER = 12
"""Of a layer workload while it is trained, at least: drawn in float64, then weight and gradient."""
BUILD_METHODS = {"torch": "build_torch", "tensorflow": "build_keras"}


def find_workload(name: str, shape: DataShape | None = None) -> Workload:
    """Return a shipped workload, a library's model by name (`torchvision:resnet18`), or an
    instance of `module:Class` (also beside the user).

    Shipped ones take shape, outputs and task of the data (none: their own); a user's class
    has its own, and data that do not fit it are a UserError. So is a name that leads nowhere,
    and an input too small for the layers.
    """
    if is_named(name):
        return named_workload(name, shape)
    if ":" in name:
        workload = _users_own(name)
        if shape is not None:
            _require_fit(workload, shape)
    else:
        workload = _shipped(name, shape)
    if isinstance(workload, LayerWorkload):
        _require_layers(workload)
    return workload


def require_framework(workload: Workload, framework: str) -> None:
    """Raise a UserError if the workload cannot run with `framework` ('torch', 'tensorflow').

    Builds nothing, so a study can be refused before it starts.
    """
    method = BUILD_METHODS[framework]
    if isinstance(workload, LayerWorkload):
        return
    if isinstance(workload, NamedWorkload):
        require_library(workload, framework)
        return
    if getattr(type(workload), method) is getattr(Workload, method):
        raise missing_method(workload, method, f"framework {framework}")


def load_workload_dataset(
    name: str, spec: DatasetSpec, *, shared: Path | None = None
) -> tuple[Workload, Dataset]:
    """Return workload `name` and the data of `spec`, made to fit each other.

    A second call with an equal spec does not load again, a workload's own data included. With
    `shared`, a folder on this machine that lives as long as a session, the arrays are mapped
    from there: the first process to ask loads them, all others get them at once.
    """
    if spec.name == "workload":
        return _load_own(name, spec.model_dump_json(), shared)
    dataset = load_dataset(spec) if shared is None else _load_shared(spec.model_dump_json(), shared)
    return find_workload(name, DataShape.of(dataset)), dataset


@lru_cache(maxsize=4)
def _load_shared(spec_json: str, shared: Path) -> Dataset:
    spec = DatasetSpec.model_validate_json(spec_json)
    if spec.name in STORED:
        with pinning(shared):
            return load_dataset(spec)
    return open_shared(shared / shared_key("", spec), lambda: build_dataset(spec))


@lru_cache(maxsize=4)
def _load_own(name: str, spec_json: str, shared: Path | None) -> tuple[Workload, Dataset]:
    spec = DatasetSpec.model_validate_json(spec_json)
    workload = find_workload(name)
    if shared is None:
        return workload, _build_own(name, workload, spec)
    folder = shared / shared_key(name, spec)
    return workload, open_shared(folder, lambda: _build_own(name, workload, spec))


def _build_own(name: str, workload: Workload, spec: DatasetSpec) -> Dataset:
    with users_code(f"Workload {name}: load_dataset failed"):
        dataset = workload.load_dataset(spec)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"load_dataset of workload {name} must return a raybench Dataset, not "
            f"{type(dataset).__name__}."
        )
    _require_fit(workload, DataShape.of(dataset))
    return limit_and_repeat(dataset, spec)


def _require_fit(workload: Workload, data: DataShape) -> None:
    """Raise UserError where a workload of the user's own cannot take the data.

    Its own loss may make of the labels what it likes.
    """
    name, own, found = workload.name, workload.input_shape, data.input_shape
    if _comparable(own) != _comparable(found):
        advice = "set dataset.image_size, or " if data.kind == "pixels" else ""
        raise UserError(
            f"Workload {name} takes inputs of shape {shown(own)}, the dataset has {shown(found)}; "
            f"{advice}choose other data."
        )
    if workload.torch_loss is not None or workload.keras_loss is not None:
        return
    if workload.task != data.task:
        raise UserError(
            f"Workload {name} is of task {workload.task}, the dataset of {data.task}; change the "
            "task of one of them, or write torch_loss and keras_loss of your own."
        )
    if data.task != "regression" and workload.num_classes != data.num_outputs:
        raise UserError(
            f"Workload {name} tells {workload.num_classes} classes apart, the dataset "
            f"has {data.num_outputs}; change its num_classes, or choose other data."
        )


def _comparable(shape: InputShape) -> InputShape:
    """Return tuples where the user has written lists."""
    if isinstance(shape, dict):
        return {name: tuple(one) for name, one in shape.items()}
    return tuple(shape)


def _require_layers(workload: LayerWorkload) -> None:
    """Check that the layers fit the input, end in the classes, and fit into memory."""
    last = output_shapes(workload.layers, workload.input_shape)[-1]
    tokens = workload.input_shape if workload.task == "language_modelling" else ()
    if last != (*tokens, workload.num_classes):
        raise UserError(
            f"Workload {workload.name}: its last layer gives {last} for a sample; end its layers "
            f"with Dense({workload.num_classes})."
        )
    count = num_parameters(workload.layers, workload.input_shape)
    require_memory(
        BYTES_PER_PARAMETER * count,
        f"Workload {workload.name} at input shape {tuple(workload.input_shape)} has {count:,} "
        "parameters and",
    )


def _shipped(name: str, shape: DataShape | None) -> Workload:
    if name not in WORKLOADS:
        known = (*WORKLOADS, *NETWORKS)
        close = difflib.get_close_matches(name, known, n=1)
        own = "or write torchvision:resnet18 for a library's, module:Class for your own."
        hint = f"did you mean '{close[0]}'?" if close else own
        raise UserError(f"Unknown workload '{name}': there are {', '.join(known)}; {hint}")
    return shipped_workload(name, shape)


def _users_own(name: str) -> Workload:
    module_name, _, class_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with users_code(
        f"Workload {name}: module '{module_name}' cannot be imported",
        advice="; run from the folder that holds it, or mend it",
    ):
        module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise UserError(f"Workload {name}: module '{module_name}' has no class '{class_name}'.")
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise UserError(f"Workload {name}: {class_name} must be a subclass of raybench.Workload.")
    wanted = ["name", "input_shape"]
    if getattr(found, "task", None) != "regression" or issubclass(found, LayerWorkload):
        wanted.append("num_classes")
    if issubclass(found, LayerWorkload):
        wanted.append("layers")
    missing = [attribute for attribute in wanted if not hasattr(found, attribute)]
    if missing:
        raise UserError(f"Workload {name}: {class_name} needs the attribute {missing[0]}.")
    with users_code(f"Workload {name}: {class_name}() failed"):
        workload = found()
    check_attributes(workload, f"Workload {name}")
    return workload
