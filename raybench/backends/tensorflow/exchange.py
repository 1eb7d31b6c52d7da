"""How the gradients of a worker, or of a replica in one process, meet those of the others. Mirrors
torch's."""

import tensorflow as tf

from raybench.backends.tensorflow.internals import no_new_gradients
from raybench.core.spec import RunSpec

WIRE = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
"""Type of the gradients on their way; None as they are."""
MIB = 2**20


class Exchange:
    """Sums gradients over the workers; traced, in replica context."""

    def __init__(self, spec: RunSpec) -> None:
        between_processes = spec.num_workers > spec.replicas_per_process
        self.measures = between_processes and spec.exchange_gradients and spec.record_steps
        """Whether `squares` has something to say: not of replicas in one process."""
        self._num_workers, self._is_on = spec.num_workers, spec.exchange_gradients
        self._wire = WIRE[spec.gradient_compression]
        self.options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=round(spec.bucket_mb * MIB)
        )
        """Beside those of the strategy (world.communication)."""

    def __call__(self, parts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of all workers' parts; without exchange, this one's for all of them."""
        if not self._is_on:
            return [tf.convert_to_tensor(part) * self._num_workers for part in parts]
        sent = [tf.cast(part, self._wire) for part in parts] if self._wire else parts
        context = tf.distribute.get_replica_context()
        with no_new_gradients():
            received = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, self.options)
        if not self._wire:
            return received
        return [tf.cast(whole, part.dtype) for whole, part in zip(received, parts, strict=True)]

    def squares(self, parts: list[tf.Tensor], wholes: list[tf.Tensor]) -> tf.Tensor:
        """Return the squared norms of what a worker gives and gets, (2,) float64."""
        if not self.measures:
            return tf.zeros(2, tf.float64)
        return tf.stack([_square(parts), _square(wholes)])


def _square(gradients: list[tf.Tensor]) -> tf.Tensor:
    halves = [tf.nn.l2_loss(tf.convert_to_tensor(gradient)) for gradient in gradients]
    return 2 * tf.reduce_sum(tf.cast(tf.stack(halves), tf.float64))
