"""Lookup of a workload and its data by name, with all checks that are possible before training."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from raybench.data.dataset import NO_DATA, Dataset, shown
from raybench.data.load import limit_and_repeat, load_dataset
from raybench.data.memory import require_memory
from raybench.data.store import open_shared, shared_key
from raybench.models.base import (
    BUILD_METHODS,
    DataShape,
    LayerWorkload,
    OwnLoop,
    Workload,
    as_tuples,
    missing_method,
)
from raybench.models.layers import num_parameters
from raybench.models.named import NETWORKS, NamedWorkload, is_named, named_workload, require_library
from raybench.models.shipped import WORKLOADS, shipped_workload
from raybench.models.user_code import (
    check_settings,
    import_loop,
    import_user_module,
    known_settings,
    user_code_errors,
)
from raybench.spec.dataset_spec import TASKS, DatasetSpec
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.metric import Metric
from raybench.spec.own_loop import is_command, is_own_loop
from raybench.spec.text import shorten


def _check_attributes(workload: Workload, source: str) -> None:
    """Raise UserError if an attribute of a workload is invalid; `source` begins the message."""
    shape = workload.input_shape
    shapes = list(shape.values()) if isinstance(shape, dict) else [shape]
    is_shape = bool(shapes) and shape != () and all(map(_is_shape, shapes))
    num_classes = getattr(workload, "num_classes", 1)
    rules = (
        ("name", "text, for tables", isinstance(workload.name, str) and workload.name.strip()),
        ("task", f"one of {', '.join(TASKS)}", workload.task in TASKS),
        ("num_classes", "a whole number from 1", _is_positive(num_classes)),
        ("input_shape", "a tuple of whole numbers, (H, W, C) or (features,), or a dict", is_shape),
        (
            "metric",
            'a raybench metric, as Metric(name="dice", direction="max")',
            isinstance(workload.metric, Metric | None),
        ),
    )
    for name, requirement, is_valid in rules:
        if not is_valid:
            value = shorten(repr(getattr(workload, name)), 80)
            raise UserError(
                f"{source}: its attribute {name} must be {requirement} (found {value}).",
                ErrorCode.INVALID_MODEL,
            )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple | list) and all(map(_is_positive, shape))


def _is_positive(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(is_whole and value > 0)


BYTES_PER_PARAMETER = 12
"""Minimum memory in bytes per parameter of a `LayerWorkload`: its initial value is drawn in float64
(8 bytes) and then converted to float32 (4 bytes)."""


def find_workload(
    name: str, shape: DataShape | None = None, model: Mapping[str, Any] = MappingProxyType({})
) -> Workload:
    """Return the workload (model with its data) that the key `workload` of a run spec names.

    Args:
        name: Name of a workload shipped with raybench, a library's model (`torchvision:resnet18`),
            the user's own class (`module:Class`), a training loop (`FILE.py:FUNCTION`), or a
            command.
        shape: Shape and task of the data. Models of raybench and of libraries are built for this
            shape (by default, for a typical shape). A user's own class must have this shape.
        model: Settings of the model, keyed by name.

    Raises:
        UserError: The workload does not exist, does not fit the data, or does not take these
            settings.
    """
    if is_own_loop(name):
        return OwnLoop(name, None if is_command(name) else import_loop(name))
    if is_named(name):
        return named_workload(name, shape, model)
    if ":" in name:
        workload = _user_workload(name, model)
        if shape is not None:
            _require_fit(workload, shape)
    elif name in WORKLOADS:
        workload = shipped_workload(name, shape)
        check_settings({}, model, f"workload {name}")
    else:
        known_names = (*WORKLOADS, *NETWORKS)
        raise UserError(
            f"Unknown workload '{name}'; {did_you_mean(name, known_names)} Write a library's model "
            "as torchvision:resnet18, your own as module:Class, your own loop as FILE.py:FUNCTION.",
            ErrorCode.UNKNOWN_NAME,
        )
    if isinstance(workload, LayerWorkload):
        _require_layers(workload)
    return workload


def require_framework(workload: Workload, framework: str) -> None:
    """Raise UserError if a workload cannot run with `framework` ('torch' or 'tensorflow').

    The check does not build the model, so it is fast enough to run before a study starts.
    """
    if isinstance(workload, NamedWorkload):
        require_library(workload, framework)
    elif not isinstance(workload, LayerWorkload | OwnLoop):
        method = BUILD_METHODS[framework]
        if getattr(type(workload), method) is getattr(Workload, method):
            raise missing_method(workload, method, f"framework {framework}")


def load_workload_dataset(
    name: str,
    spec: DatasetSpec,
    model: Mapping[str, Any] = MappingProxyType({}),
    data: Mapping[str, Any] = MappingProxyType({}),
    *,
    shared: Path | None = None,
) -> tuple[Workload, Dataset]:
    """Return a workload and its data, after checking that they fit together.

    The datasets loaded last are cached, and a call with an equal spec returns the same object.

    Args:
        name: Name of the workload; see `find_workload`.
        spec: The dataset spec.
        model: Settings of the model, keyed by name.
        data: Settings of the workload's own `load_dataset`, keyed by name.
        shared: A folder on this machine through which the processes of a session (one raybench
            command) share the arrays; None if arrays are not shared.

    Raises:
        UserError: The workload or the dataset does not exist or is invalid, or they do not fit
            together.
    """
    if is_own_loop(name):
        return find_workload(name), NO_DATA
    if spec.name == "workload":
        return _load_own(name, spec, model, data, shared)
    if data:
        raise UserError(
            f"data.{next(iter(data))}: dataset {spec.name} has no such setting; only a "
            "workload's load_dataset has settings (dataset: workload).",
            ErrorCode.UNKNOWN_KEY,
        )
    dataset = load_dataset(spec, shared)
    return find_workload(name, DataShape.of(dataset), model), dataset


_own_data: dict[tuple[str, Path | None], Dataset] = {}
"""Cache of the datasets that workloads loaded last, keyed by `shared_key` and shared folder. The
settings of the model are not part of the key, since they do not change the data."""
MAX_DATASETS_KEPT = 4
"""Maximum number of datasets in this cache."""


def _load_own(
    name: str,
    spec: DatasetSpec,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    shared: Path | None,
) -> tuple[Workload, Dataset]:
    workload, key = find_workload(name, model=model), (shared_key(name, spec, data), shared)
    if key not in _own_data:
        source = f"load_dataset of workload {name}"
        check_settings(known_settings(workload.load_dataset, 1), data, source, key="data")
        build = partial(_build_own, name, workload, spec, data)
        dataset = build() if shared is None else open_shared(shared / key[0], build)
        for oldest in list(_own_data)[: len(_own_data) + 1 - MAX_DATASETS_KEPT]:
            del _own_data[oldest]
        _own_data[key] = dataset
    return workload, _own_data[key]


def _build_own(
    name: str, workload: Workload, spec: DatasetSpec, data: Mapping[str, Any]
) -> Dataset:
    with user_code_errors(f"Workload {name}: load_dataset failed"):
        dataset = workload.load_dataset(spec, **data)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"load_dataset of workload {name} must return a raybench Dataset, not "
            f"{type(dataset).__name__}.",
            ErrorCode.USER_CODE,
        )
    _require_fit(workload, DataShape.of(dataset))
    return limit_and_repeat(dataset, spec)


def _require_fit(workload: Workload, data: DataShape) -> None:
    """Raise UserError if a user's workload and its data differ in input shape, task or number of
    classes.

    Task and number of classes are not compared if the workload defines its own loss.
    """
    name, expected, actual = workload.name, workload.input_shape, data.input_shape
    if as_tuples(expected) != as_tuples(actual):
        advice = "set dataset.image_size, or " if data.kind == "pixels" else ""
        raise UserError(
            f"Workload {name} takes inputs of shape {shown(expected)}, but the dataset has "
            f"{shown(actual)}; {advice}choose other data.",
            ErrorCode.INVALID_MODEL,
        )
    if workload.torch_loss is not None or workload.keras_loss is not None:
        return
    if workload.task != data.task:
        raise UserError(
            f"Workload {name} has task {workload.task}, but the dataset has task {data.task}; "
            "change the task of one of them, or write your own torch_loss and keras_loss.",
            ErrorCode.INVALID_MODEL,
        )
    if data.task != "regression" and workload.num_classes != data.num_outputs:
        raise UserError(
            f"Workload {name} has {workload.num_classes} classes, but the dataset has "
            f"{data.num_outputs}; change its num_classes, or choose other data.",
            ErrorCode.INVALID_MODEL,
        )


def _require_layers(workload: LayerWorkload) -> None:
    """Raise UserError unless the images are large enough and the parameters fit into memory."""
    count = num_parameters(workload.layers, workload.input_shape)
    require_memory(
        BYTES_PER_PARAMETER * count,
        f"Workload {workload.name} at input shape {tuple(workload.input_shape)} has {count:,} "
        "parameters and",
    )


def _user_workload(name: str, model: Mapping[str, Any]) -> Workload:
    """Import the user's class `module:Class`, and construct it with the given settings."""
    module_name, _, class_name = name.partition(":")
    module = import_user_module(module_name, f"Workload {name}")
    workload_class = getattr(module, class_name, None)
    if workload_class is None:
        raise UserError(
            f"Workload {name}: module '{module_name}' has no class '{class_name}'.",
            ErrorCode.UNKNOWN_NAME,
        )
    if not (isinstance(workload_class, type) and issubclass(workload_class, Workload)):
        raise UserError(
            f"Workload {name}: {class_name} must be a subclass of raybench.Workload; write a "
            f"training function as {module_name.replace('.', '/')}.py:{class_name}.",
            ErrorCode.INVALID_MODEL,
        )
    check_settings(known_settings(workload_class), model, f"workload {name}")
    arguments = ", ".join(f"{key}={value!r}" for key, value in model.items())
    with user_code_errors(f"Workload {name}: {class_name}({arguments}) failed"):
        workload = workload_class(**model)
    has_layers = issubclass(workload_class, LayerWorkload)
    required = {"name": True, "input_shape": True, "layers": has_layers}
    required["num_classes"] = has_layers or getattr(workload, "task", None) != "regression"
    for attribute, is_needed in required.items():
        if is_needed and not hasattr(workload, attribute):
            raise UserError(
                f"Workload {name}: {class_name} needs the attribute {attribute}.",
                ErrorCode.INVALID_MODEL,
            )
    _check_attributes(workload, f"Workload {name}")
    return workload
