"""Optimizers in torch: torch.optim's classes where they compute the papers' updates, and LARS, LAMB
and Muon by multi-tensor kernels. Mirrors tensorflow/optim.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.optimizer import DEFAULTS, is_library_class
from raybench.spec.run import RunSpec
from raybench.training.optimizers import (
    ADAMW_RMS,
    COEFFICIENTS,
    NO_MATRICES,
    SMALLEST_NORM,
    construct,
    newton_schulz,
)
from raybench.training.torch.internals import foreach


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`.

    NaN or infinite gradients become NaN. Unlike torch.nn.utils.clip_grad_norm_, which adds 1e-6 to
    the norm, this computes what TensorFlow does. Does not wait for the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.nn.utils.get_total_norm(gradients)
    foreach.mul_(gradients, (max_norm / norm).clamp(max=1.0))


class Optimizer(torch.optim.Optimizer):
    """Base class of optimizers that update all tensors of a parameter group together.

    Norms stay on the device. Biases and norm parameters (ndim <= 1) are excluded from weight decay
    and trust ratios. The group key `step` counts the steps.
    """

    SETTINGS: ClassVar[dict[str, float]]
    """Default settings of the method, which become keys of each parameter group."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        **settings: float,
    ) -> None:
        defaults = {"lr": learning_rate, "weight_decay": weight_decay, "step": 0}
        super().__init__(params, defaults | self.SETTINGS | settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; gradients are left as they are."""
        for group in self.param_groups:
            group["step"] += 1
            params = [param for param in group["params"] if param.grad is not None]
            for excluded in (False, True):
                updated = [param for param in params if (param.ndim <= 1) is excluded]
                if updated:
                    self._update(updated, group, excluded)

    def _update(self, params: list[Tensor], group: dict[str, Any], excluded: bool) -> None:
        """Take one step with some parameters of a group; `excluded` if they have ndim <= 1."""
        raise NotImplementedError

    def _states(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return the state tensor `name` of each parameter; states start at 0."""
        for param in params:
            if name not in self.state[param]:
                self.state[param][name] = torch.zeros_like(param)
        return [self.state[param][name] for param in params]

    def _adam_directions(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Update both moments with the gradients; return m_hat / (sqrt(v_hat) + epsilon)."""
        grads, step = _gradients(params), group["step"]
        beta1, beta2 = group["beta1"], group["beta2"]
        exp_avgs, exp_avg_sqs = (self._states(params, name) for name in ("exp_avg", "exp_avg_sq"))
        foreach.lerp_(exp_avgs, grads, 1 - beta1)
        foreach.mul_(exp_avg_sqs, beta2)
        foreach.addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)
        denominators: list[Tensor] = foreach.sqrt(exp_avg_sqs)
        foreach.div_(denominators, math.sqrt(1 - beta2**step))
        foreach.add_(denominators, group["epsilon"])
        updates: list[Tensor] = foreach.div(exp_avgs, denominators)
        foreach.div_(updates, 1 - beta1**step)
        return updates


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return [param.grad for param in params if param.grad is not None]


class Lars(Optimizer):
    """Layer-wise adaptive rate scaling."""

    SETTINGS = DEFAULTS["lars"]

    def _update(self, params: list[Tensor], group: dict[str, Any], excluded: bool) -> None:
        grads = _gradients(params)
        buffers, weight_decay = self._states(params, "momentum_buffer"), group["weight_decay"]
        foreach.mul_(buffers, group["momentum"])
        if excluded:
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

    def _update(self, params: list[Tensor], group: dict[str, Any], excluded: bool) -> None:
        updates = self._adam_directions(params, group)
        if excluded:
            foreach.add_(params, updates, alpha=-group["lr"])
            return
        foreach.add_(updates, params, alpha=group["weight_decay"])
        norms = (torch.stack(foreach.norm(tensors)) for tensors in (params, updates))
        foreach.addcmul_(params, updates, _ratios(*norms).unbind(), value=-group["lr"])


class Muon(Optimizer):
    """Orthogonalized momentum for hidden matrices (`orthogonal` groups), otherwise AdamW."""

    SETTINGS = DEFAULTS["muon"]

    def _update(self, params: list[Tensor], group: dict[str, Any], excluded: bool) -> None:
        lr, kept = group["lr"], 1 - group["lr"] * (0.0 if excluded else group["weight_decay"])
        if not group["orthogonal"]:
            updates = self._adam_directions(params, group)
            foreach.mul_(params, kept)
            foreach.add_(params, updates, alpha=-lr)
            return
        momentum, buffers = group["momentum"], self._states(params, "momentum_buffer")
        for param, grad, buffer in zip(params, _gradients(params), buffers, strict=True):
            buffer.lerp_(grad, 1 - momentum)
            matrix: Tensor = grad.lerp(buffer, momentum).flatten(1)
            param.mul_(kept)
            update = orthogonalize(matrix).reshape(grad.shape)
            param.sub_(update, alpha=lr * ADAMW_RMS * math.sqrt(max(matrix.shape)))


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return U S V^T with singular values S near 1 instead of the matrix's; 0 for a zero matrix.

    Newton-Schulz iteration with a polynomial of degree 5, in float32 or float64, because the
    authors' bfloat16 would give other results in TensorFlow and is slow on CPUs.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if is_tall else matrix
    if result.dtype != torch.float64:
        result = result.float()
    result = result / (torch.linalg.vector_norm(result) + SMALLEST_NORM)
    result = newton_schulz(result, lambda matrix: matrix @ matrix.T, _polynomial)
    update: Tensor = (result.T if is_tall else result).to(matrix.dtype)
    return update


def _polynomial(products: Tensor) -> Tensor:
    first, third, fifth = COEFFICIENTS
    result = torch.addmm(products, products, products, beta=third, alpha=fifth)
    result.diagonal().add_(first)
    return result


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights between a model's inputs and its head: dense, attention, convolutions.

    The head is the last weight of two dimensions or more. Embeddings, biases, depthwise filters and
    weights with a single row or column when flattened to (outputs, inputs) are left out.
    """
    left_out = set[nn.Parameter]()
    for module in model.modules():
        is_depthwise = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and (
            1 < module.groups == module.in_channels
        )
        for name, parameter in module.named_parameters(recurse=False):
            words = f"{type(module).__name__} {name}".lower()
            if is_depthwise or "bias" in name or any(word in words for word in NO_MATRICES):
                left_out.add(parameter)
    named = model.named_parameters(remove_duplicate=False)
    weights = [weight for _, weight in named if weight.ndim > 1]
    left_out.update(weights[-1:])
    return {
        weight
        for weight in weights
        if weight not in left_out and weight.shape[0] > 1 and weight[0].numel() > 1
    }


TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.AdamW,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
}
"""Optimizers that are classes of torch."""
OURS: dict[str, type[Optimizer]] = {"lars": Lars, "lamb": Lamb, "muon": Muon}


def build_optimizer(
    name: str,
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
    **settings: float,
) -> torch.optim.Optimizer:
    """Build an optimizer over the trainable parameters of a model.

    Takes the same names and settings as `raybench.training.tensorflow.optim.build_optimizer` and
    computes the same updates. Change the rate between steps through `param_group["lr"]`.

    Args:
        name: Key of `TORCH` or `OURS`, or a class of a library such as `torch:NAdam`.
        model: Model whose parameters are trained.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of parameters with two dimensions or more.
        options: Arguments of a library's class.
        **settings: Settings that replace those of `spec.optimizer.DEFAULTS`.
    """
    params: list[Any] = trainable(model)
    if is_library_class(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _of_library(name, params, **given)
    method_settings = DEFAULTS[name] | settings
    if name in TORCH:
        groups = _decayed(params, weight_decay)
        return TORCH[name](
            groups, lr=learning_rate, **_torch_settings(name, params, method_settings)
        )
    if name == "muon":
        matrices = hidden_matrices(model)
        params = _two_groups(params, matrices.__contains__, "orthogonal", True, False)
    return OURS[name](
        params, learning_rate=learning_rate, weight_decay=weight_decay, **method_settings
    )


def _torch_settings(
    name: str, params: list[nn.Parameter], method_settings: Mapping[str, float]
) -> dict[str, Any]:
    """Translate our settings into arguments of torch's class."""
    if name == "sgd":
        momentum = method_settings["momentum"]
        # Torch refuses Nesterov momentum without momentum.
        nesterov = bool(method_settings["nesterov"] and momentum)
        return {"momentum": momentum, "nesterov": nesterov, "fused": _fused(params)}
    arguments: dict[str, Any] = {
        "betas": (method_settings["beta1"], method_settings["beta2"]),
        "eps": method_settings["epsilon"],
    }
    if name != "radam":
        return arguments | {"fused": _fused(params)}
    # Multi-tensor on CPUs too: less than half the time of torch's default there.
    return arguments | {"decoupled_weight_decay": True, "foreach": True}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def refuse_complex(model: nn.Module, spec: RunSpec) -> None:
    """Raise UserError for complex weights that the optimizer or the loss scale cannot handle."""
    key = "optimizer" if spec.optimizer in OURS else "precision"
    is_unfit = spec.optimizer in OURS or spec.precision == "fp16"
    if is_unfit and any(parameter.is_complex() for parameter in trainable(model)):
        raise UserError(
            f"{key} {getattr(spec, key)}: does not support complex weights, which the model has; "
            "choose adam, adamw, radam or sgd in bf16 or fp32.",
            ErrorCode.CONFLICT,
        )


def _of_library(name: str, params: list[nn.Parameter], **given: Any) -> torch.optim.Optimizer:
    groups = _decayed(params, given["weight_decay"]) if given["weight_decay"] else params
    base = torch.optim.Optimizer
    built: torch.optim.Optimizer = construct(name, "torch.optim", base, groups, **given)
    return built


def _decayed(params: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return groups with and without weight decay, since torch's optimizers would decay biases."""
    return _two_groups(params, lambda param: param.ndim > 1, "weight_decay", weight_decay, 0.0)


def _two_groups(
    params: list[nn.Parameter],
    is_first: Callable[[nn.Parameter], bool],
    key: str,
    first: float,
    second: float,
) -> list[dict[str, Any]]:
    """Return the parameters in two groups, with `key` set to `first` or `second`; an empty group is
    left out."""
    groups = [
        {"params": [param for param in params if is_first(param)], key: first},
        {"params": [param for param in params if not is_first(param)], key: second},
    ]
    return [group for group in groups if group["params"]]


def _fused(params: list[nn.Parameter]) -> bool | None:
    """Return True where torch has fused kernels; None leaves the choice to torch."""
    usable = all(
        param.dtype == torch.float32 and param.device.type in ("cpu", "cuda") for param in params
    )
    return True if usable else None
