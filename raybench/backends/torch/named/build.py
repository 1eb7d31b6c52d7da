"""A model by name, built and given the weights that it begins with. Mirrors tensorflow's."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from torch import nn

from raybench.backends.torch.named.model import NamedModel
from raybench.backends.torch.named.state_dict import load_tensors, read_tensors
from raybench.core.errors import UserError
from raybench.workloads.base import Workload
from raybench.workloads.named.workload import NamedWorkload

MODULES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "transformers": "transformers",
    "both": "network",
}
"""The module of each library; its `build` makes a model, its `cached` finds the trained weights."""


def build_named(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return a new model on the CPU; torch has been seeded. UserError for an unknown name."""
    model: NamedModel = _module(workload).build(workload, seed)
    return model


def start_from(model: nn.Module, workload: Workload, weights: str) -> list[str]:
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
    return load_tensors(model, read_tensors(path), str(path))


def _module(workload: NamedWorkload) -> ModuleType:
    # Each imports its library, which takes seconds and need not be installed.
    return import_module(f"raybench.backends.torch.named.{MODULES[workload.library]}")
