"""Optimizers for torch: ours where no library gives them right, torch's where it does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from raybench.models.base import users_code
from raybench.spec.errors import UserError
from raybench.spec.optimizer import is_librarys
from raybench.spec.run import RunSpec
from raybench.training.optimizers import construct, own_settings, settings_of
from raybench.training.torch.internals import fused_kernels_work
from raybench.training.torch.optim import methods
from raybench.training.torch.optim.kernels import clip_gradients as clip_gradients


def build_optimizer(
    name: str,
    model: nn.Module | Iterable[tuple[str, nn.Parameter]],
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float | None,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the model's trainable parameters.

    `settings` are those of `raybench.training.optimizers.own_settings`, `options` those of a
    library's class. Same names, defaults and updates as
    `raybench.training.tensorflow.optim.build_optimizer`. The rate is changed between steps through
    `param_group["lr"]`.
    """
    if not isinstance(model, nn.Module):
        model = list(model)
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    params: list[Any] = [param for _, param in named if param.requires_grad]
    if is_librarys(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _of_library(name, params, **given)
    own = own_settings(name, **settings)
    if name == "muon":
        matrices = methods.hidden_matrices(model)
        params = _two_groups(params, matrices.__contains__, "orthogonal", True, False)
    return OPTIMIZERS[name](params, learning_rate=learning_rate, weight_decay=weight_decay, **own)


def _of_library(name: str, params: list[nn.Parameter], **given: Any) -> torch.optim.Optimizer:
    groups = _decayed(params, given["weight_decay"]) if given["weight_decay"] else params
    base = torch.optim.Optimizer
    built: torch.optim.Optimizer = construct(name, "torch.optim", base, groups, **given)
    closure = inspect.signature(built.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UserError(
            f"optimizer {name}: its steps compute the gradient anew (closure), and here a step has "
            "one gradient; take another optimizer."
        )
    return built


def check_optimizer(spec: RunSpec) -> None:
    """Take a step with a library's optimizer on a small model; UserError where that fails."""
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(spec.optimizer, model, **settings_of(spec))
    with users_code(f"optimizer {spec.optimizer}: its first step failed"):
        model(torch.ones(2, 2)).square().sum().backward()
        optimizer.step()


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
