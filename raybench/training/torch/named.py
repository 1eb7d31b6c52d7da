"""Models by name in torch, built and given the weights that they begin with. Mirrors tensorflow's.

A network of both frameworks is torchvision's, drawn as in Keras.
"""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from raybench.models.base import Workload
from raybench.models.named import NamedWorkload, cached_network, weights_file
from raybench.models.networks import MEAN, NETWORKS, STD, initial_arrays
from raybench.models.tensor_files import named_tensors, not_weights
from raybench.spec.errors import UserError
from raybench.training.torch.libraries import (
    PREFIX,
    NamedModel,
    build_timm,
    build_torchvision,
    build_transformers,
    cached_timm,
    cached_torchvision,
    cached_transformers,
)

Tensors = dict[str, Tensor]
BUILD = {
    "torchvision": build_torchvision,
    "timm": build_timm,
    "transformers": build_transformers,
}
CACHED = {
    "torchvision": cached_torchvision,
    "timm": cached_timm,
    "transformers": cached_transformers,
    "both": cached_network,
}
"""What finds the file of trained weights, by library."""


def build_named(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return a new model on the CPU; torch has been seeded. UserError for an unknown name."""
    if workload.library == "both":
        return _build_network(workload, seed)
    return BUILD[workload.library](workload)


def start_from(model: nn.Module, workload: Workload, weights: str) -> list[str]:
    """Give a new model the weights of a spec; return what was drawn anew, in sentences.

    `none` leaves it as it was drawn. UserError for weights that are not there, or of another
    model; only the head may differ, in its number of outputs.
    """
    path = weights_file(workload, weights, CACHED)
    return [] if path is None else load_tensors(model, read_tensors(path), str(path))


def _build_network(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return torchvision's model with the first weights of both frameworks."""
    from torchvision.models import get_model

    network = NETWORKS[workload.model]()
    with torch.device("meta"):  # nothing is drawn twice
        net = get_model(workload.model, weights=None, num_classes=workload.num_classes)
    net = net.to_empty(device="cpu")
    arrays = initial_arrays(network, workload.num_classes, seed)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name, own in net.state_dict().items():
        own.copy_(tensors[name] if name in tensors else torch.zeros_like(own))
    head = (f"{network.head}.weight", f"{network.head}.bias")
    return NamedModel(net, head, mean=MEAN, std=STD)


def read_tensors(path: Path) -> Tensors:
    """Return the tensors of a state dict by name; nothing that the file holds is run."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise not_weights(path, error) from None
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise not_weights(path, error) from None
    found: Tensors = named_tensors(content, path)
    return found


@torch.no_grad()
def load_tensors(model: nn.Module, tensors: Tensors, source: str) -> list[str]:
    """Give the model the tensors of its names; return what was drawn anew, in sentences.

    Names may lack the prefixes that a wrapper gives (`net.`, `module.`, a transformer's base
    model). UserError where anything but the head is missing or has another shape.
    """
    tensors = {name.removeprefix("module."): one for name, one in tensors.items()}
    head = set(model.head) if isinstance(model, NamedModel) else set()
    base = _base_prefix(model)
    shared: dict[int, bool] = {}
    drawn: list[str] = []
    missing: list[tuple[str, Tensor]] = []
    for name, own in model.state_dict().items():
        found = _find(name, tensors, base)
        if found is not None and found.shape == own.shape:
            own.copy_(found)
            shared[own.data_ptr()] = True
        elif name in head:
            drawn.append(name.removeprefix(PREFIX))
        elif found is not None:
            raise _other(source, name, f"{tuple(found.shape)} there, {tuple(own.shape)} here")
        elif own.numel() > 1 or own.is_floating_point():  # else a counter, of batch normalisation
            missing.append((name, own))
    for name, own in missing:
        if own.data_ptr() not in shared:  # else tied to one that was found
            raise _other(source, name, "none there")
    if not drawn:
        return []
    return [f"weights {source}: the head ({', '.join(drawn)}) is drawn anew for these data."]


def _find(name: str, tensors: Tensors, base: str) -> Tensor | None:
    bare = name.removeprefix(PREFIX)
    for one in (name, bare, bare.removeprefix(base)):
        if one in tensors:
            return tensors[one]
    return None


def _base_prefix(model: nn.Module) -> str:
    """Return the prefix of a transformer's weights without its head, such as `distilbert.`."""
    net = model.net if isinstance(model, NamedModel) else model
    prefix = getattr(net, "base_model_prefix", "")
    return f"{prefix}." if prefix else ""


def _other(source: str, name: str, found: str) -> UserError:
    return UserError(
        f"weights {source}: are of another model ({name.removeprefix(PREFIX)}: {found}); name the "
        "model that they were trained with."
    )
