"""One update of a Keras optimizer inside a traced step, leaving nothing behind."""

import keras
import tensorflow as tf
from tensorflow.python.framework import ops


def apply_gradients(
    optimizer: keras.optimizers.Optimizer, gradients: list[tf.Tensor], variables: list[tf.Variable]
) -> None:
    """Sum the gradients over all workers and update `variables`, in replica context.

    The sum is `ReplicaContext.all_reduce`, which registers a gradient of its own under a new
    name in every trace, in a registry that lasts as long as the process: each run would leave
    its whole graph there (about 6 MB). Nobody differentiates an update, so what it registered
    is forgotten again.
    """
    registry = getattr(ops.gradient_registry, "_registry", {})
    before = set(registry)
    optimizer.apply(gradients, variables)
    for name in set(registry) - before:
        del registry[name]
