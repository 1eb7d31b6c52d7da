"""A model by name, built and given the weights that it begins with. Mirrors torch's."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import keras

from raybench.backends.tensorflow.named.model import NamedModel
from raybench.backends.tensorflow.named.weight_files import load_file
from raybench.core.errors import UserError
from raybench.workloads.base import Workload
from raybench.workloads.named.find import require_library
from raybench.workloads.named.workload import NamedWorkload

MODULES = {"keras": "applications", "both": "network"}
"""The module of each library; its `build` makes a model, its `cached` finds the trained weights."""


def build_named(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return a new model; Keras has been seeded. UserError for an unknown name."""
    model: NamedModel = _module(workload).build(workload, seed)
    model.build((None, *workload.input_shape))
    return model


def start_from(model: keras.Model, workload: Workload, weights: str) -> list[str]:
    """Give a new model the weights of a spec; return what was drawn anew, in sentences.

    `none` leaves it as it was drawn. UserError for weights that are not there, or of another
    model; only the head may differ, in its number of outputs.
    """
    if weights == "none":
        return []
    if weights == "cached":
        if not isinstance(workload, NamedWorkload):
            raise UserError(
                f"weights cached: is of models by name, not of workload {workload.name}; set "
                "weights to a file."
            )
        path = _module(workload).cached(workload)
    else:
        path = Path(weights).expanduser()
    if not path.is_file():
        raise UserError(f"weights {weights}: there is no such file on this machine.")
    return load_file(model, workload, path)


def _module(workload: NamedWorkload) -> ModuleType:
    require_library(workload, "tensorflow")
    return import_module(f"raybench.backends.tensorflow.named.{MODULES[workload.library]}")
