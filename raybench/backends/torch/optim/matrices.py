"""Which weights of a torch model are hidden matrices. Mirrors tensorflow's."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NO_MATRICES = ("embed", "position", "depthwise")
"""What the names of layers and weights say that are tables, or filters of one channel each."""


def hidden_matrices(model: nn.Module | Iterable[tuple[str, nn.Parameter]]) -> set[nn.Parameter]:
    """Return the weights between a model's inputs and its head: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor embeddings, filters of one
    channel each, and what has one row or column once it is flattened to (outputs, others).
    """
    if isinstance(model, nn.Module):
        left_out = _not_matrices(model)
        named = list(model.named_parameters(remove_duplicate=False))
    else:
        left_out, named = set(), list(model)
    weights = [parameter for _, parameter in named if parameter.ndim > 1]
    left_out.update(weights[-1:])
    return {one for one in weights if one not in left_out and _is_matrix(one)}


def _not_matrices(model: nn.Module) -> set[nn.Parameter]:
    found: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            named = f"{type(module).__name__} {name}".lower()
            is_table = "bias" in name or any(word in named for word in NO_MATRICES)
            if is_table or _is_depthwise(module):
                found.add(parameter)
    return found


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, CONVOLUTIONS) and 1 < module.groups == module.in_channels


def _is_matrix(weight: nn.Parameter) -> bool:
    return weight.shape[0] > 1 and weight[0].numel() > 1
