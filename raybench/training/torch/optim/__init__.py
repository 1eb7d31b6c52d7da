"""Optimizers for torch: ours where no library gives them right, torch's where it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from raybench.training.optimizers import own_settings
from raybench.training.torch.internals import fused_kernels_work
from raybench.training.torch.optim import methods
from raybench.training.torch.optim.kernels import clip_gradients as clip_gradients


def build_optimizer(
    name: str,
    model: nn.Module | Iterable[tuple[str, nn.Parameter]],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    **settings: float | None,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the model's trainable parameters.

    `settings` are those of `raybench.training.optimizers.own_settings`. Same names, defaults and
    updates as `raybench.training.tensorflow.optim.build_optimizer`. The rate is changed between
    steps through `param_group["lr"]`.
    """
    own = own_settings(name, **settings)
    if not isinstance(model, nn.Module):
        model = list(model)
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    params: list[Any] = [param for _, param in named if param.requires_grad]
    if name == "muon":
        matrices = methods.hidden_matrices(model)
        params = _two_groups(params, matrices.__contains__, "orthogonal", True, False)
    return OPTIMIZERS[name](params, learning_rate=learning_rate, weight_decay=weight_decay, **own)


def _adam(
    params: list[nn.Parameter],
    *,
    weight_decay: float,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        _decayed(params, weight_decay),
        lr=learning_rate,
        betas=(beta1, beta2),
        eps=epsilon,
        fused=_fused(params),
    )


def _sgd(
    params: list[nn.Parameter],
    *,
    weight_decay: float,
    learning_rate: float,
    momentum: float,
    nesterov: bool,
) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        _decayed(params, weight_decay),
        lr=learning_rate,
        momentum=momentum,
        nesterov=nesterov and momentum > 0,  # the same without momentum, and torch refuses it
        fused=_fused(params),
    )


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": _adam,
    "radam": methods.RAdam,
    "lars": methods.Lars,
    "lamb": methods.Lamb,
    "sgd": _sgd,
    "adamw": _adam,
    "nadamw": methods.NAdamW,
    "lion": methods.Lion,
    "schedule_free_adamw": methods.ScheduleFreeAdamW,
    "muon": methods.Muon,
}


def _decayed(params: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, since torch's own optimizers know no other way to leave biases out."""
    return _two_groups(params, lambda one: one.ndim > 1, "weight_decay", weight_decay, 0.0)


def _two_groups(
    params: list[nn.Parameter],
    is_first: Callable[[nn.Parameter], bool],
    key: str,
    first: float,
    second: float,
) -> list[dict[str, Any]]:
    """Return groups with either value of a key; without an empty one."""
    groups = [
        {"params": [one for one in params if is_first(one)], key: first},
        {"params": [one for one in params if not is_first(one)], key: second},
    ]
    return [group for group in groups if group["params"]]


def _fused(params: list[nn.Parameter]) -> bool | None:
    """True where the fused kernels work; None leaves the choice to torch."""
    usable = all(
        param.dtype == torch.float32
        and param.device.type in ("cpu", "cuda")
        and fused_kernels_work(param.device.type)
        for param in params
    )
    return True if usable else None
