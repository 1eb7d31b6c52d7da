"""From the name of a workload to the workload, and the checks that need no training."""

import difflib
import importlib
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.load import limit_and_repeat, load_dataset
from raybench.workloads.base import LayerWorkload, Workload, missing_method
from raybench.workloads.layers import Shape, output_shapes
from raybench.workloads.shipped import WORKLOADS

BUILD_METHODS = {"torch": "build_torch", "tensorflow": "build_keras"}


def find_workload(
    name: str, input_shape: Shape | None = None, num_classes: int | None = None
) -> Workload:
    """Return a shipped workload, or an instance of `module:Class` (also beside the user).

    Shipped ones take the dataset's input shape and number of classes (none: their own); a
    user's class has its own, and a dataset that does not fit it is a UserError. So is a
    name that leads nowhere, and an input too small for the layers.
    """
    if ":" in name:
        workload = _users_own(name)
        _require_fit(workload, input_shape, num_classes)
    else:
        workload = _shipped(name, input_shape, num_classes)
    if isinstance(workload, LayerWorkload):
        output_shapes(workload.layers, workload.input_shape)
    return workload


def require_framework(workload: Workload, framework: str) -> None:
    """Raise a UserError if the workload cannot run with `framework` ('torch', 'tensorflow').

    Builds nothing, so a study can be refused before it starts.
    """
    method = BUILD_METHODS[framework]
    if isinstance(workload, LayerWorkload):
        return
    if getattr(type(workload), method) is getattr(Workload, method):
        raise missing_method(workload, method, f"framework {framework}")


def load_workload_dataset(name: str, spec: DatasetSpec) -> tuple[Workload, Dataset]:
    """Return workload `name` and the data of `spec`, made to fit each other.

    A second call with an equal spec does not load again, a workload's own data included.
    """
    if spec.name != "workload":
        dataset = load_dataset(spec)
        return find_workload(name, dataset.input_shape, dataset.num_classes), dataset
    return _load_own(name, spec.model_dump_json())


@lru_cache(maxsize=4)
def _load_own(name: str, spec_json: str) -> tuple[Workload, Dataset]:
    spec = DatasetSpec.model_validate_json(spec_json)
    workload = find_workload(name)
    dataset = workload.load_dataset(spec)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"load_dataset of workload {name} must return a raybench Dataset, not "
            f"{type(dataset).__name__}."
        )
    _require_fit(workload, dataset.input_shape, dataset.num_classes)
    return workload, limit_and_repeat(dataset, spec)


def _require_fit(workload: Workload, input_shape: Shape | None, num_classes: int | None) -> None:
    if input_shape is not None and tuple(workload.input_shape) != tuple(input_shape):
        raise UserError(
            f"Workload {workload.name} takes inputs of shape {tuple(workload.input_shape)}, the "
            f"dataset has {tuple(input_shape)}; set dataset.image_size, or choose other data."
        )
    if num_classes is not None and workload.num_classes != num_classes:
        raise UserError(
            f"Workload {workload.name} tells {workload.num_classes} classes apart, the dataset "
            f"has {num_classes}; change its num_classes, or choose other data."
        )


def _shipped(name: str, input_shape: Shape | None, num_classes: int | None) -> Workload:
    if name not in WORKLOADS:
        close = difflib.get_close_matches(name, WORKLOADS, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "or write module:Class for your own."
        raise UserError(f"Unknown workload '{name}': there are {', '.join(WORKLOADS)}; {hint}")
    given: dict[str, Any] = {"input_shape": input_shape, "num_classes": num_classes}
    return WORKLOADS[name](**{key: value for key, value in given.items() if value is not None})


def _users_own(name: str) -> Workload:
    module_name, _, class_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's file may raise anything
        raise UserError(
            f"Workload {name}: module '{module_name}' cannot be imported "
            f"({type(error).__name__}: {error}); run from the folder that holds it."
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise UserError(f"Workload {name}: module '{module_name}' has no class '{class_name}'.")
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise UserError(f"Workload {name}: {class_name} must be a subclass of raybench.Workload.")
    wanted = ["name", "input_shape", "num_classes"]
    if issubclass(found, LayerWorkload):
        wanted.append("layers")
    missing = [attribute for attribute in wanted if not hasattr(found, attribute)]
    if missing:
        raise UserError(f"Workload {name}: {class_name} needs the attribute {missing[0]}.")
    try:
        return found()
    except TypeError as error:
        raise UserError(f"Workload {name}: {class_name}() failed ({error}).") from error
