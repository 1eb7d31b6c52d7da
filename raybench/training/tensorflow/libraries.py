"""The models of keras.applications as ours, without their own tops. Mirrors torch/libraries.py."""

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import keras
import tensorflow as tf

from raybench.models.named import NamedWorkload, first_there, keras_folder, missing
from raybench.spec.errors import UserError

RGB = 3
FAMILIES = {
    "ResNet": "{name}_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "DenseNet": "{name}_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "VGG": "{name}_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "Xception": "{name}_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "InceptionV3": "inception_v3_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "InceptionResNetV2": "inception_resnet_v2_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "MobileNetV3Small": "weights_mobilenet_v3_small_224_1.0_float_no_top_v2.h5",
    "MobileNetV3Large": "weights_mobilenet_v3_large_224_1.0_float_no_top_v2.h5",
    "MobileNetV2": "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5",
    "MobileNet": "mobilenet_1_0_224_tf_no_top.h5",
    "EfficientNetV2": "efficientnetv2-{rest}_notop.h5",
    "EfficientNet": "{name}_notop.h5",
    "ConvNeXt": "convnext_{rest}_notop.h5",
    "NASNet": "nasnet_{rest}_no_top.h5",
}
"""File of trained weights without top, by how a network's name begins, the longer first; `rest` is
what follows it."""


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


def build_keras(workload: NamedWorkload) -> NamedModel:
    """Return the network, its average over the last map, and a dense head; Keras has been seeded.

    Without the library's own top, which differs between its networks and is not what is
    fine-tuned.
    """
    function = _function(workload)
    assert not isinstance(workload.input_shape, dict)
    height, width, _ = workload.input_shape
    shape = (height, width, RGB)
    try:
        backbone = function(include_top=False, weights=None, input_shape=shape, pooling="avg")
    except ValueError as error:
        raise UserError(
            f"Workload {workload.name}: cannot be built for images of {height} x {width} "
            f"({error}); set dataset.image_size: 224."
        ) from None
    module = _module_of(workload.model)

    def prepare(inputs: tf.Tensor) -> tf.Tensor:
        return module.preprocess_input(inputs * 255.0)

    return NamedModel(prepare, backbone, [keras.layers.Dense(workload.num_classes)])


def cached_keras(workload: NamedWorkload) -> Path:
    """Return the library's file of trained weights without top."""
    name = workload.model
    for family in sorted(FAMILIES, key=len, reverse=True):
        if name.startswith(family):
            rest = name.removeprefix(family).lower()
            file = FAMILIES[family].format(name=name.lower(), rest=rest)
            return first_there(workload.name, keras_folder(), (file,))
    raise missing(workload.name, str(keras_folder()))


def _function(workload: NamedWorkload) -> Callable[..., keras.Model]:
    known: dict[str, Callable[..., keras.Model]] = {
        name: one for name, one in vars(keras.applications).items() if inspect.isfunction(one)
    }
    if workload.model in known:
        return known[workload.model]
    same = {name.lower(): name for name in known}
    close = difflib.get_close_matches(workload.model.lower(), same, n=1)
    hint = f"did you mean '{same[close[0]]}'?" if close else f"there are {', '.join(known)}."
    raise UserError(
        f"Workload {workload.name}: keras.applications has no model '{workload.model}'; {hint}"
    )


def _module_of(name: str) -> ModuleType:
    """Return the public module that has the network, and how its inputs are prepared."""
    modules = [one for one in vars(keras.applications).values() if inspect.ismodule(one)]
    return next(one for one in modules if hasattr(one, name))
