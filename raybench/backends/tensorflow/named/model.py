"""What every model by name is wrapped in. Mirrors torch's."""

from collections.abc import Callable

import keras
import tensorflow as tf


class NamedModel(keras.Model):
    """A network without its head, and a head for the data: pixels in 0..1 in, float32 out.

    `prepare` makes the pixels what the library's trained weights expect, with or without such
    weights; images of one channel are repeated to the three that the network takes. While the
    backbone is not `trainable`, it works as in evaluation, dropout included.
    """

    def __init__(
        self,
        prepare: Callable[[tf.Tensor], tf.Tensor],
        backbone: keras.Model,
        head: list[keras.layers.Layer],
    ) -> None:
        super().__init__()
        self._prepare, self._channels = prepare, backbone.input_shape[-1]
        self.backbone, self.head = backbone, keras.Sequential([*head, _float32()], name="head")
        self.head.build(backbone.output_shape)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Make no variables: the parts have theirs."""
        del input_shape

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return (N, outputs) float32."""
        if inputs.shape[-1] != self._channels:
            inputs = tf.repeat(inputs, self._channels, axis=-1)
        is_learning = training and self.backbone.trainable
        features = self.backbone(self._prepare(inputs), training=is_learning)
        return self.head(features, training=training)


def _float32() -> keras.layers.Layer:
    # The last layer makes the outputs float32 under a bf16 policy too.
    return keras.layers.Activation("linear", dtype="float32")
