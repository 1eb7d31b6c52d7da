"""How a model begins, tried before any worker starts. Mirrors tensorflow's."""

import copy

import torch
from torch import nn

from raybench.backends.heads import needs_check
from raybench.backends.torch.freezing import Freezing
from raybench.backends.torch.model import build_model
from raybench.backends.torch.named.build import start_from
from raybench.backends.torch.sync_batch_norm import synchronise
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec
from raybench.workloads.base import Workload
from raybench.workloads.named.workload import NamedWorkload

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
