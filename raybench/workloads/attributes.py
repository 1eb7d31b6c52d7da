"""The attributes of a user's workload, checked where they are still the user's."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from raybench.core.dataset_spec import TASKS
from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.workloads.base import LayerWorkload, Workload
from raybench.workloads.layers import Layer, Residual

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
    must = "must be a tuple of layers of raybench.workloads.layers, as (Flatten(), Dense(10))"
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
