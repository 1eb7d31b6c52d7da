"""A user's torch model tried on a few samples, and how a model begins, before any worker starts.
Mirrors tensorflow's.
"""

import copy

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from raybench.backends.probe import (
    Array,
    Probed,
    as_another_worker,
    check_alone,
    check_gradients,
    check_outputs,
    check_parameters,
    check_per_sample,
    check_same,
    is_default,
    needs_check,
    refuse_outputs,
    softmax_warning,
)
from raybench.backends.torch.judging import sample_losses, sample_values
from raybench.backends.torch.layers import synchronise
from raybench.backends.torch.model import (
    Inputs,
    batch_statistics,
    build_model,
    has_channels,
    num_parameters,
    parameter_shapes,
    prepare_inputs,
)
from raybench.backends.torch.named import start_from
from raybench.backends.torch.state import Freezing
from raybench.core.errors import UserError
from raybench.core.metric import Metric
from raybench.core.spec import RunSpec
from raybench.data.inputs import Batch, each, shown
from raybench.workloads.base import Workload, users_code
from raybench.workloads.named import NamedWorkload


def probe_model(
    workload: Workload,
    inputs: Batch,
    labels: Array,
    *,
    metric: Metric,
    gpu: bool,
    several: bool,
) -> Probed:
    """Build the model, take a batch through it, loss and metric, and back.

    UserError for what cannot train, by `several` workers too.

    With `gpu`, there; where this machine has none, nothing is tried.
    """
    if gpu and not torch.cuda.is_available():
        return Probed([])
    device = "cuda" if gpu else "cpu"
    model = _build(workload)
    if several:
        with as_another_worker():
            other = _build(workload)
        check_same(workload, parameter_shapes(model), parameter_shapes(other))
    model = model.to(device)
    if has_channels(each(inputs, lambda one: tuple(one.shape[1:]))):
        model = model.to(memory_format=torch.channels_last)  # as in training
    batch = prepare_inputs(each(inputs, lambda one: torch.from_numpy(one).to(device)))
    answers = torch.from_numpy(labels).to(device)
    default = is_default(workload, metric, loss=workload.torch_loss, correct=workload.torch_correct)
    with torch.no_grad():
        whole, alone = (_outputs(workload, model.eval(), one) for one in (batch, _first(batch)))
    check_outputs(workload, _array(whole), labels, is_default=default)
    outputs = _outputs(workload, model.train(), batch)
    check_outputs(workload, _array(outputs), labels, is_default=default)
    with users_code(f"Workload {workload.name}: its loss failed in torch"):
        loss = sample_losses(workload, outputs, answers)
    check_per_sample(workload, "its torch loss", _array(loss), len(labels))
    with users_code(f"Workload {workload.name}: its {metric.words} failed in torch"):
        scale = torch.ones((), device=device)
        values = sample_values(workload, metric, outputs, answers, losses=loss, scale=scale)
    check_per_sample(workload, f"its {metric.words} in torch", _array(values), len(labels))
    warnings = check_gradients(workload, _gradients(workload, model, loss), all_needed=several)
    warnings += check_alone(workload, _array(alone), _array(whole))
    if workload.torch_loss is None:
        warnings += softmax_warning(workload, _array(outputs))
    return Probed(warnings, batch_statistics(model))


def _outputs(workload: Workload, model: nn.Module, batch: Inputs) -> torch.Tensor:
    shapes = shown(each(batch, lambda one: tuple(one.shape)))
    with users_code(f"Workload {workload.name}: its torch model failed on inputs {shapes}"):
        outputs = model(batch)
    if not isinstance(outputs, torch.Tensor):
        raise refuse_outputs(workload, type(outputs).__name__)
    if not outputs.is_floating_point():
        raise refuse_outputs(workload, str(outputs.dtype))
    return outputs


def _gradients(workload: Workload, model: nn.Module, loss: torch.Tensor) -> dict[str, Array | None]:
    """Return the gradient of every trainable parameter, None where there is none."""
    if loss.requires_grad:
        with users_code(f"Workload {workload.name}: the way back through its torch model failed"):
            torch.autograd.backward(loss.sum())
    return {
        name: None if parameter.grad is None else _array(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _build(workload: Workload) -> nn.Module:
    with users_code(f"Workload {workload.name}: build_torch failed"):
        model = build_model(workload, seed=0)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"Workload {workload.name}: build_torch must return a torch.nn.Module, not "
            f"{type(model).__name__}."
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise UserError(
            f"Workload {workload.name}: its torch model has lazy layers; give them their sizes."
        )
    check_parameters(workload, num_parameters(model))
    return model


def _first(batch: Inputs) -> Inputs:
    """Return the first half of the samples."""
    return each(batch, lambda one: one[: len(one) // 2])


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


SIDES = (32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 299, 384)
"""Pixels a side that are tried to find what a network takes."""


def check_start(workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences of weights that were drawn anew; UserError for weights, a head, images and
    batch normalisation that cannot be."""
    if not isinstance(workload, NamedWorkload) and not needs_check(spec):
        return []
    model = build_model(workload, spec.seed)
    warnings = start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        Freezing(model, workload)
    if isinstance(workload, NamedWorkload):
        _check_size(model, workload)
    if spec.sync_batch_norm:
        synchronise(model)
    return warnings


def _check_size(model: nn.Module, workload: NamedWorkload) -> None:
    """Raise UserError for images that nothing is left of within the network."""
    shape = workload.input_shape
    if isinstance(shape, dict) or len(shape) != 3:
        return
    height, width, channels = shape
    shadow = copy.deepcopy(model).to("meta").eval()
    error = _forward(shadow, channels, height, width)
    if error is None:
        return
    fitting = (side for side in SIDES if _forward(shadow, channels, side, side) is None)
    side = next(fitting, None)
    advice = f"set dataset.image_size: {side}" if side else "choose another model"
    raise UserError(
        f"Workload {workload.name}: cannot take images of {height} x {width} ({error}); {advice}.",
    )


def _forward(model: nn.Module, channels: int, height: int, width: int) -> Exception | None:
    """Return what such an image raises in the model, on the meta device; None for nothing."""
    try:
        with torch.no_grad():
            model(torch.empty(2, channels, height, width, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        return error
    return None
