"""Optimizers in torch.

Classes of torch.optim are used where they compute the same updates as the papers. LARS, LAMB and
Muon are implemented here with multi-tensor kernels. The equations are in `training.optimizers`.
Mirrors tensorflow/optim.py.
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
    """Multiply all gradients by one factor so that their joint norm is at most `max_norm`.

    If a gradient is NaN or infinite, all gradients become NaN. This is the rule of
    tf.clip_by_global_norm; torch.nn.utils.clip_grad_norm_ would add 1e-6 to the norm and set finite
    gradients to 0 beside an infinite one. This function does not wait for the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norm = torch.nn.utils.get_total_norm(gradients)
    nan_if_infinite = norm - norm
    foreach.mul_(gradients, (max_norm / norm).clamp(max=1.0) + nan_if_infinite)


class Optimizer(torch.optim.Optimizer):
    """Base class of optimizers that update all tensors of a parameter group together.

    Norms stay on the device. Biases and the parameters of normalization layers (ndim <= 1) are
    excluded from weight decay and trust ratios. Each parameter group stores its step count under
    the key `step`.
    """

    SETTINGS: ClassVar[dict[str, float]]
    """Default settings of the optimizer, which become keys of each parameter group."""

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
        """Update every parameter that has a gradient; the gradients are not changed."""
        for group in self.param_groups:
            group["step"] += 1
            params = [param for param in group["params"] if param.grad is not None]
            for excluded in (False, True):
                updated = [param for param in params if (param.ndim <= 1) is excluded]
                if updated:
                    self._update(updated, group, excluded)

    def _update(self, params: list[Tensor], group: dict[str, Any], excluded: bool) -> None:
        """Take one step for some parameters of a group.

        `excluded` says whether all of them are excluded from weight decay and trust ratios;
        otherwise, none of them is.
        """
        raise NotImplementedError

    def _states(self, params: list[Tensor], name: str) -> list[Tensor]:
        """Return the state tensor `name`, such as `momentum_buffer`, of each parameter; a new state
        tensor contains zeros."""
        for param in params:
            if name not in self.state[param]:
                self.state[param][name] = torch.zeros_like(param)
        return [self.state[param][name] for param in params]

    def _adam_directions(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Update both moments of Adam with the gradients; return m_hat / (sqrt(v_hat) + epsilon)
        for each parameter."""
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
    """Return the gradients of parameters."""
    return [param.grad for param in params if param.grad is not None]


class Lars(Optimizer):
    """LARS: layer-wise adaptive rate scaling."""

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
    """Return the trust ratios: numerators / denominators, and 1 where either of them is 0."""
    return torch.where((numerators > 0) & (denominators > 0), numerators / denominators, 1.0)


class Lamb(Optimizer):
    """LAMB: layer-wise adaptive moments."""

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
    """Muon: orthogonalized momentum for hidden matrices, AdamW for all other parameters.

    The key `orthogonal` of a parameter group says whether it contains hidden matrices.
    """

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
    """Return a matrix with the same singular vectors and with all singular values near 1.

    For a zero matrix, the result is 0. It is computed by a Newton-Schulz iteration with a
    polynomial of degree 5, in float32 or float64, because bfloat16, which the authors used, would
    give different results in TensorFlow and is slow on CPUs.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if is_tall else matrix
    if result.dtype != torch.float64:
        result = result.float()
    result = result / (torch.linalg.vector_norm(result) + SMALLEST_NORM)
    result = newton_schulz(result, lambda matrix: matrix @ matrix.T, _polynomial)
    update: Tensor = (result.T if is_tall else result).to(matrix.dtype)
    return update


def _polynomial(gram_matrix: Tensor) -> Tensor:
    """Return the Newton-Schulz polynomial of a Gram matrix (see `newton_schulz`)."""
    first, third, fifth = COEFFICIENTS
    result = torch.addmm(gram_matrix, gram_matrix, gram_matrix, beta=third, alpha=fifth)
    result.diagonal().add_(first)
    return result


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights between a model's inputs and its head that Muon orthogonalizes.

    These are the weights of dense layers, attention and convolutions. The head is the last weight
    with two dimensions or more. Left out are embeddings, biases, depthwise filters, and weights
    that have a single row or column if flattened to (outputs, inputs).
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


TORCH_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.AdamW,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
}
"""Classes of torch for the optimizers that torch has, keyed by name."""
OWN_CLASSES: dict[str, type[Optimizer]] = {"lars": Lars, "lamb": Lamb, "muon": Muon}
"""Classes of the optimizers that are implemented here, keyed by name."""


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

    It takes the same names and settings as `raybench.training.tensorflow.optim.build_optimizer`,
    and the optimizers compute the same updates. Change the learning rate between steps through
    `param_group["lr"]`.

    Args:
        name: Key of `TORCH_CLASSES` or `OWN_CLASSES`, or a class of a library, such as
            `torch:NAdam`.
        model: Model whose parameters are trained.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of parameters with two dimensions or more.
        options: Arguments of a library's class.
        **settings: Settings that replace those of `spec.optimizer.DEFAULTS`.
    """
    params: list[Any] = trainable(model)
    if is_library_class(name):
        given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "options": options}
        return _library_optimizer(name, params, **given)
    method_settings = DEFAULTS[name] | settings
    if name in TORCH_CLASSES:
        groups = _decay_groups(params, weight_decay)
        return TORCH_CLASSES[name](
            groups, lr=learning_rate, **_torch_settings(name, params, method_settings)
        )
    if name == "muon":
        matrices = hidden_matrices(model)
        params = _two_groups(params, matrices.__contains__, "orthogonal", True, False)
    return OWN_CLASSES[name](
        params, learning_rate=learning_rate, weight_decay=weight_decay, **method_settings
    )


def _torch_settings(
    name: str, params: list[nn.Parameter], method_settings: Mapping[str, float]
) -> dict[str, Any]:
    """Return raybench's settings as arguments of the optimizer's class in torch."""
    if name == "sgd":
        momentum = method_settings["momentum"]
        # Torch refuses Nesterov momentum without momentum.
        nesterov = bool(method_settings["nesterov"] and momentum)
        return {"momentum": momentum, "nesterov": nesterov, "fused": _fused_argument(params)}
    arguments: dict[str, Any] = {
        "betas": (method_settings["beta1"], method_settings["beta2"]),
        "eps": method_settings["epsilon"],
    }
    if name != "radam":
        return arguments | {"fused": _fused_argument(params)}
    # The multi-tensor implementation is used on CPUs, too, where it takes less than half the time
    # of torch's default.
    return arguments | {"decoupled_weight_decay": True, "foreach": True}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a model, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def refuse_complex(model: nn.Module, spec: RunSpec) -> None:
    """Raise UserError if a model has complex weights that the run's optimizer or precision does not
    support."""
    key = "optimizer" if spec.optimizer in OWN_CLASSES else "precision"
    is_unfit = spec.optimizer in OWN_CLASSES or spec.precision == "fp16"
    if is_unfit and any(parameter.is_complex() for parameter in trainable(model)):
        raise UserError(
            f"{key} {getattr(spec, key)}: does not support complex weights, which the model has; "
            "choose adam, adamw, radam or sgd in bf16 or fp32.",
            ErrorCode.CONFLICT,
        )


def _library_optimizer(
    name: str, params: list[nn.Parameter], **given: Any
) -> torch.optim.Optimizer:
    """Create an optimizer from a class of a library; see `optimizers.construct`."""
    groups = _decay_groups(params, given["weight_decay"]) if given["weight_decay"] else params
    base = torch.optim.Optimizer
    built: torch.optim.Optimizer = construct(name, "torch.optim", base, groups, **given)
    return built


def _decay_groups(params: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters in two groups, one with weight decay and one without. With a single
    group, torch's optimizers would decay biases, too."""
    return _two_groups(params, lambda param: param.ndim > 1, "weight_decay", weight_decay, 0.0)


def _two_groups(
    params: list[nn.Parameter],
    is_first: Callable[[nn.Parameter], bool],
    key: str,
    first: float,
    second: float,
) -> list[dict[str, Any]]:
    """Return the parameters in two groups, leaving out an empty one.

    The setting `key` has the value `first` in the group of parameters for which `is_first` returns
    True, and `second` in the other group.
    """
    groups = [
        {"params": [param for param in params if is_first(param)], key: first},
        {"params": [param for param in params if not is_first(param)], key: second},
    ]
    return [group for group in groups if group["params"]]


def _fused_argument(params: list[nn.Parameter]) -> bool | None:
    """Return the argument `fused` of torch's optimizers: True if torch has fused kernels for all
    parameters, otherwise None, which lets torch choose."""
    usable = all(
        param.dtype == torch.float32 and param.device.type in ("cpu", "cuda") for param in params
    )
    return True if usable else None
