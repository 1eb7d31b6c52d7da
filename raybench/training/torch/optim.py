"""Optimizers for torch: its own where they are those of the papers; LARS, LAMB and Muon are ours.
Mirrors tensorflow's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from raybench.models.user_code import user_code_errors
from raybench.spec.errors import UserError
from raybench.spec.optimizer import DEFAULTS, is_librarys
from raybench.spec.run import RunSpec
from raybench.training.optimizers import (
    COEFFICIENTS,
    NO_MATRICES,
    RMS,
    SMALLEST_NORM,
    construct,
    newton_schulz,
    settings_of,
)
from raybench.training.torch.internals import foreach
from raybench.training.torch.kernels import Optimizer, TensorBucket, adam_directions


class Lars(Optimizer):
    """Layer-wise adaptive rate scaling."""

    STATES = ("momentum_buffer",)
    SETTINGS = DEFAULTS["lars"]

    def _update(self, bucket: TensorBucket, group: dict[str, Any], *, weight_decay: float) -> None:
        params, grads, (buffers,) = bucket.params, bucket.grads, bucket.states
        foreach.mul_(buffers, group["momentum"])
        if bucket.excluded:
            foreach.add_(buffers, grads)
        else:
            norms = torch.stack(foreach.norm(params))
            denominators = torch.stack(foreach.norm(grads)) + weight_decay * norms
            updates = foreach.add(grads, params, alpha=weight_decay)
            ratios = _ratios(group["trust_coefficient"] * norms, denominators)
            foreach.addcmul_(buffers, updates, ratios.unbind())
        foreach.add_(params, buffers, alpha=-group["lr"])


def _ratios(numerators: Tensor, denominators: Tensor) -> Tensor:
    """Return the ratios of norms, 1 where either is 0."""
    return torch.where((numerators > 0) & (denominators > 0), numerators / denominators, 1.0)


class Lamb(Optimizer):
    """Layer-wise adaptive moments."""

    SETTINGS = DEFAULTS["lamb"]

    def _update(self, bucket: TensorBucket, group: dict[str, Any], *, weight_decay: float) -> None:
        updates = adam_directions(bucket, group)
        if bucket.excluded:
            foreach.add_(bucket.params, updates, alpha=-group["lr"])
            return
        foreach.add_(updates, bucket.params, alpha=weight_decay)
        norms = (torch.stack(foreach.norm(one)) for one in (bucket.params, updates))
        foreach.addcmul_(bucket.params, updates, _ratios(*norms).unbind(), value=-group["lr"])


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def no_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of two dimensions or more that are none: embeddings, biases, filters of
    one channel each."""
    found = set()
    for module in model.modules():
        is_depthwise = isinstance(module, CONVOLUTIONS) and (
            1 < module.groups == module.in_channels
        )
        for name, parameter in module.named_parameters(recurse=False):
            words = f"{type(module).__name__} {name}".lower()
            if is_depthwise or "bias" in name or any(word in words for word in NO_MATRICES):
                found.add(parameter)
    return found


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights between a model's inputs and its head: dense, attention, convolutions.

    Not the head, which is the last weight of two dimensions or more; nor `no_matrices`, and what
    has one row or column once it is flattened to (outputs, others).
    """
    named = model.named_parameters(remove_duplicate=False)
    weights = [one for _, one in named if one.ndim > 1]
    left_out = no_matrices(model) | set(weights[-1:])
    return {
        one for one in weights if one not in left_out and one.shape[0] > 1 and one[0].numel() > 1
    }


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return U S V^T with S near 1 in place of the matrix's own singular values; 0 of 0.

    Newton and Schulz's iteration with a polynomial of degree 5, in float32 or the matrix's wider
    type: the authors' bfloat16 would not be the same in two frameworks, nor fast on a CPU.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    if found.dtype != torch.float64:
        found = found.float()
    found = found / (torch.linalg.vector_norm(found) + SMALLEST_NORM)
    found = newton_schulz(found, lambda one: one @ one.T, _polynomial)
    done: Tensor = found.T if is_tall else found
    return done.to(matrix.dtype)


def _polynomial(products: Tensor) -> Tensor:
    first, third, fifth = COEFFICIENTS
    found = torch.addmm(products, products, products, beta=third, alpha=fifth)
    found.diagonal().add_(first)
    return found


class Muon(Optimizer):
    """Orthogonalised momentum."""

    SETTINGS = DEFAULTS["muon"]
    GROUP_KEYS = {"orthogonal": False}

    def _states_of(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["orthogonal"] else self.STATES

    def _update(self, bucket: TensorBucket, group: dict[str, Any], *, weight_decay: float) -> None:
        if not group["orthogonal"]:
            updates = adam_directions(bucket, group)
            foreach.mul_(bucket.params, 1 - group["lr"] * weight_decay)
            foreach.add_(bucket.params, updates, alpha=-group["lr"])
            return
        lr, momentum, (buffers,) = group["lr"], group["momentum"], bucket.states
        for param, grad, buffer in zip(bucket.params, bucket.grads, buffers, strict=True):
            buffer.lerp_(grad, 1 - momentum)
            matrix: Tensor = grad.lerp(buffer, momentum).flatten(1)
            param.mul_(1 - lr * weight_decay)
            update = orthogonalised(matrix).reshape(grad.shape)
            param.sub_(update, alpha=lr * RMS * math.sqrt(max(matrix.shape)))


def build_optimizer(
    name: str,
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float,
) -> torch.optim.Optimizer:
    """The optimizer of that name over the model's trainable parameters.

    `settings` are in place of `spec.optimizer.DEFAULTS`, `options` those of a library's
    class. Same names, defaults and updates as `raybench.training.tensorflow.optim.build_optimizer`.
    The rate is changed between steps through `param_group["lr"]`.
    """
    params: list[Any] = trainable(model)
    if is_librarys(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _of_library(name, params, **given)
    own = DEFAULTS[name] | settings
    if name == "muon":
        matrices = hidden_matrices(model)
        params = _two_groups(params, matrices.__contains__, "orthogonal", True, False)
    return OPTIMIZERS[name](params, learning_rate=learning_rate, weight_decay=weight_decay, **own)


def refuse_complex(model: nn.Module, spec: RunSpec) -> None:
    """Raise UserError for complex weights where muon has no such matrices, and fp16 no scale."""
    if spec.precision == "fp16" and any(one.is_complex() for one in trainable(model)):
        raise UserError(
            "precision: fp16: the model has complex weights, whose gradients torch does not scale; "
            "set precision: bf16 or fp32."
        )
    if spec.optimizer == "muon" and any(one.is_complex() for one in hidden_matrices(model)):
        raise UserError(
            "optimizer muon: the model has complex weights between its inputs and its head, which "
            "muon cannot orthogonalise; take adamw, or another."
        )


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
    with user_code_errors(f"optimizer {spec.optimizer}: its first step failed"):
        model(torch.ones(2, 2)).square().sum().backward()
        optimizer.step()


def _adam(
    params: list[nn.Parameter], *, learning_rate: float, weight_decay: float, **own: float
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        _decayed(params, weight_decay),
        lr=learning_rate,
        betas=(own["beta1"], own["beta2"]),
        eps=own["epsilon"],
        fused=_fused(params),
    )


def _radam(
    params: list[nn.Parameter], *, learning_rate: float, weight_decay: float, **own: float
) -> torch.optim.Optimizer:
    return torch.optim.RAdam(
        _decayed(params, weight_decay),
        lr=learning_rate,
        betas=(own["beta1"], own["beta2"]),
        eps=own["epsilon"],
        decoupled_weight_decay=True,
        foreach=True,  # on CPUs, too: less than half of the time that torch takes by default
    )


def _sgd(
    params: list[nn.Parameter], *, learning_rate: float, weight_decay: float, **own: float
) -> torch.optim.Optimizer:
    momentum = own["momentum"]
    return torch.optim.SGD(
        _decayed(params, weight_decay),
        lr=learning_rate,
        momentum=momentum,
        nesterov=bool(own["nesterov"] and momentum),  # without momentum torch refuses it
        fused=_fused(params),
    )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that are trained, in the model's order."""
    return [one for one in model.parameters() if one.requires_grad]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": _adam,
    "radam": _radam,
    "lars": Lars,
    "lamb": Lamb,
    "sgd": _sgd,
    "adamw": _adam,
    "muon": Muon,
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
    """Return True where torch has fused kernels; None leaves the choice to torch."""
    usable = all(
        param.dtype == torch.float32 and param.device.type in ("cpu", "cuda") for param in params
    )
    return True if usable else None
