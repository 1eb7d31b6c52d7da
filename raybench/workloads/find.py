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
from raybench.data.load import STORED, build_dataset, limit_and_repeat, load_dataset
from raybench.data.memory import require_memory
from raybench.data.shared import open_shared, shared_key
from raybench.workloads.attributes import check_attributes
from raybench.workloads.base import LayerWorkload, Workload, missing_method
from raybench.workloads.layers import Shape, num_parameters, output_shapes
from raybench.workloads.shipped import WORKLOADS
from raybench.workloads.users_code import users_code

BYTES_PER_PARAMETER = 12
"""Of a layer workload while it is trained, at least: drawn in float64, then weight and gradient."""
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
        _require_layers(workload)
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
    return find_workload(name, dataset.input_shape, dataset.num_classes), dataset


@lru_cache(maxsize=4)
def _load_shared(spec_json: str, shared: Path) -> Dataset:
    spec = DatasetSpec.model_validate_json(spec_json)
    if spec.name in STORED:
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
    _require_fit(workload, dataset.input_shape, dataset.num_classes)
    return limit_and_repeat(dataset, spec)


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


def _require_layers(workload: LayerWorkload) -> None:
    """Check that the layers fit the input, end in the classes, and fit into memory."""
    last = output_shapes(workload.layers, workload.input_shape)[-1]
    if last != (workload.num_classes,):
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
    wanted = ["name", "input_shape", "num_classes"]
    if issubclass(found, LayerWorkload):
        wanted.append("layers")
    missing = [attribute for attribute in wanted if not hasattr(found, attribute)]
    if missing:
        raise UserError(f"Workload {name}: {class_name} needs the attribute {missing[0]}.")
    with users_code(f"Workload {name}: {class_name}() failed"):
        workload = found()
    check_attributes(workload, f"Workload {name}")
    return workload
