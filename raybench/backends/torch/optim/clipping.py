"""Gradients scaled down to a norm. Mirrors tensorflow's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale all gradients by one factor, so that the norm of them together is `most` at most.

    Of NaN or infinite gradients they become NaN. torch.nn.utils.clip_grad_norm_ adds 1e-6 to the
    norm, TensorFlow nothing. Nothing is read on the host.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    factor = (most / norm).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
