"""Optimizers for torch by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from raybench.backends.torch.optim.kernels import fused_kernels_work
from raybench.backends.torch.optim.lamb import Lamb
from raybench.backends.torch.optim.lars import Lars
from raybench.backends.torch.optim.radam import RAdam

EPSILON = {"adam": 1e-8, "radam": 1e-8, "lamb": 1e-6}


def build_optimizer(
    name: str,
    model: nn.Module | Iterable[tuple[str, nn.Parameter]],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float | None = None,
    trust_coefficient: float = 0.001,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the model's trainable parameters.

    Settings that a method does not have are ignored. Same names, defaults and updates as
    `raybench.backends.tensorflow.optim.build_optimizer`.

    | name  | reads                                | weight decay                              |
    |-------|--------------------------------------|-------------------------------------------|
    | adam  | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate (AdamW)         |
    | radam | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate                 |
    | lars  | momentum, trust_coefficient          | added to the gradient, inside the ratio   |
    | lamb  | beta1, beta2, epsilon (1e-6)         | added to the direction, inside the ratio  |
    | sgd   | momentum                             | added to the gradient (L2)                |

    Biases and norm parameters (ndim <= 1) get neither weight decay nor trust ratio. The rate is
    changed between steps through `param_group["lr"]`.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(OPTIMIZERS)}")
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    params = [param for _, param in named if param.requires_grad]
    create, reads = OPTIMIZERS[name]
    settings = {
        "momentum": momentum,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": EPSILON.get(name) if epsilon is None else epsilon,
        "trust_coefficient": trust_coefficient,
    }
    return create(
        params,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        **{setting: settings[setting] for setting in reads},
    )


def _adam(
    params: list[nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        _decay_groups(params, weight_decay),
        lr=learning_rate,
        betas=(beta1, beta2),
        eps=epsilon,
        fused=_fused(params),
    )


def _sgd(
    params: list[nn.Parameter], *, learning_rate: float, weight_decay: float, momentum: float
) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        _decay_groups(params, weight_decay),
        lr=learning_rate,
        momentum=momentum,
        fused=_fused(params),
    )


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[str, ...]]] = {
    "adam": (_adam, ("beta1", "beta2", "epsilon")),
    "radam": (RAdam, ("beta1", "beta2", "epsilon")),
    "lars": (Lars, ("momentum", "trust_coefficient")),
    "lamb": (Lamb, ("beta1", "beta2", "epsilon")),
    "sgd": (_sgd, ("momentum",)),
}


def _decay_groups(params: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, since torch's own optimizers know no other way to leave biases out."""
    if weight_decay == 0.0:
        return [{"params": params, "weight_decay": 0.0}]
    matrices = [param for param in params if param.ndim > 1]
    vectors = [param for param in params if param.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
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
