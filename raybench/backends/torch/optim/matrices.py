"""Which weights of a torch model are hidden matrices. Mirrors tensorflow's."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            found.add(module.weight)
        elif isinstance(module, CONVOLUTIONS) and 1 < module.groups == module.in_channels:
            found.add(module.weight)
    return found


def _is_matrix(weight: nn.Parameter) -> bool:
    return weight.shape[0] > 1 and weight[0].numel() > 1
