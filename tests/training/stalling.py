"""A small workload whose loss stalls at chosen calls, in both frameworks."""

import time
from typing import Any, ClassVar

from regularised import Regularised

STALL_S = 0.3


class Stalling(Regularised):
    """Sleeps in the calls of the loss that are named; `calls` counts them."""

    name = "stalling"
    calls: ClassVar[int] = 0
    stalls: ClassVar[tuple[int, ...]] = ()

    def torch_loss(self, outputs: Any, labels: Any) -> Any:
        from torch.nn import functional

        self._count()
        return functional.cross_entropy(outputs, labels, reduction="none")

    def keras_loss(self, outputs: Any, labels: Any) -> Any:
        import keras
        import tensorflow as tf

        def stall() -> int:
            self._count()
            return 0

        counted = tf.py_function(stall, [], tf.int32)
        with tf.control_dependencies([counted]):
            return keras.losses.sparse_categorical_crossentropy(
                labels, tf.identity(outputs), from_logits=True
            )

    @staticmethod
    def _count() -> None:
        if Stalling.calls in Stalling.stalls:
            time.sleep(STALL_S)
        Stalling.calls += 1
