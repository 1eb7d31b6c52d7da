"""Weights of a file put into a torch model by their names. Mirrors tensorflow's."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from raybench.backends.torch.named.model import PREFIX, NamedModel
from raybench.core.errors import UserError
from raybench.workloads.named.tensor_files import named_tensors, not_weights

Tensors = dict[str, Tensor]


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
