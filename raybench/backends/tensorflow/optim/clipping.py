"""Gradients scaled down to a norm. Mirrors torch's."""

from __future__ import annotations

import tensorflow as tf


def clip_gradients(gradients: list[tf.Tensor], most: float) -> list[tf.Tensor]:
    """Scale all gradients by one factor, so that the norm of them together is `most` at most.

    Of NaN or infinite gradients they become NaN.
    """
    clipped, _ = tf.clip_by_global_norm(gradients, most)
    return list(clipped)
