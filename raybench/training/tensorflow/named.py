"""Keras models chosen by name from keras.applications, and their initial weights.

The top of a model of keras.applications, which is its head, is replaced by a head for the data.
Networks that exist in both frameworks (`models.named.NETWORKS`) are built here layer by layer as in
torchvision, with the same initial weights. Mirrors torch/named.py.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from raybench.models.base import Workload
from raybench.models.named import (
    EPSILON,
    MEAN,
    MOMENTUM,
    NETWORKS,
    STD,
    TORCH_SUFFIXES,
    Activation,
    Block,
    ConvSpec,
    NamedWorkload,
    initial_arrays,
    missing,
    new_head,
    require_library,
    unfit_images,
    unknown_model,
    weights_file,
    weights_mismatch_error,
)
from raybench.spec.errors import ErrorCode, UserError
from raybench.training.base import find_part

RGB = 3
"""Number of channels of a color image."""
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
"""Names of the files with pretrained weights, without the top, in keras.applications, keyed by
prefix of the model's name.

If several prefixes match, the longest one counts. `name` is the name of the model in lower case,
`rest` the name without the prefix.
"""


class BatchNorm(keras.layers.BatchNormalization):
    """Batch normalization with an unbiased moving variance, as in torch.

    The moving variance of Keras is biased: for 16 samples and a feature map of one pixel, it is
    smaller by one sixteenth. Unlike Keras's layer, this one uses TensorFlow's fused kernel. With
    `synchronized`, where the statistics are those of all workers, training is left to Keras.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """Normalize inputs of shape (N, H, W, C) with the batch statistics in training, and with
        the moving statistics otherwise."""
        del mask
        if not training or not self.trainable:
            return self._fused(inputs, self.moving_mean, self.moving_variance)[0]
        if self.synchronized:
            return super().call(inputs, training=True)
        outputs, mean, variance = self._fused(inputs, None, None)
        self._update_moving_statistics(mean, variance)
        return outputs

    def _fused(
        self, inputs: tf.Tensor, mean: keras.Variable | None, variance: keras.Variable | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalize inputs of shape (N, H, W, C) with `mean` and `variance`, or with those of the
        batch if these are None, by the fused kernel.

        Returns:
            The outputs, and mean and unbiased variance of the batch.
        """
        statistics = [
            None if statistic is None else tf.convert_to_tensor(statistic.value)
            for statistic in (mean, variance)
        ]
        outputs, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma.value),
            tf.convert_to_tensor(self.beta.value),
            *statistics,
            epsilon=self.epsilon,
            is_training=mean is None,
        )
        return outputs, batch_mean, batch_variance

    def _update_moving_statistics(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Update the moving statistics with those of a batch."""
        for running, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            running.assign(running * self.momentum + new * (1.0 - self.momentum))


class NamedModel(keras.Model):
    """A backbone with a head for the data; takes pixels in [0, 1] and returns float32 outputs.

    Pixels are converted (by `prepare`) as the backbone's pretrained weights require, even if these
    are not loaded. The channel of images with a single channel is repeated three times. If the
    backbone is not `trainable`, it runs in evaluation mode, without dropout.
    """

    def __init__(
        self,
        prepare: Callable[[tf.Tensor], tf.Tensor],
        backbone: keras.Model,
        head: list[keras.layers.Layer],
    ) -> None:
        super().__init__()
        self._prepare, self._channels = prepare, backbone.input_shape[-1]
        # The last layer converts the outputs to float32, also under a 16-bit policy.
        float32 = keras.layers.Activation("linear", dtype="float32")
        self.backbone, self.head = backbone, keras.Sequential([*head, float32], name="head")
        self.head.build(backbone.output_shape)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Do nothing, because backbone and head are built already."""
        del input_shape

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return outputs of shape (N, outputs), float32."""
        if inputs.shape[-1] != self._channels:
            inputs = tf.repeat(inputs, self._channels, axis=-1)
        is_learning = training and self.backbone.trainable
        features = self.backbone(self._prepare(inputs), training=is_learning)
        return self.head(features, training=training)


def build_keras(workload: NamedWorkload) -> NamedModel:
    """Build a model of keras.applications with global average pooling and a dense head.

    The library's top is left out, because it differs between models and is not fine-tuned. The
    caller must have seeded Keras.
    """
    function = _function(workload)
    assert not isinstance(workload.input_shape, dict)
    height, width, _ = workload.input_shape
    shape = (height, width, RGB)
    try:
        with workload.constructed():
            backbone = function(
                include_top=False,
                weights=None,
                input_shape=shape,
                pooling="avg",
                **workload.settings,
            )
    except ValueError as error:
        raise unfit_images(workload, error) from error
    preprocess = sys.modules[function.__module__].preprocess_input

    def prepare(inputs: tf.Tensor) -> tf.Tensor:
        return preprocess(inputs * 255.0)

    return NamedModel(prepare, backbone, [keras.layers.Dense(workload.num_classes)])


def cached_keras(workload: NamedWorkload) -> Path:
    """Return the path of the pretrained weights, without the top, of a model of keras.applications;
    raise UserError if they are not on this machine."""
    home = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    name, folder = workload.model, home / "models"
    family = max((prefix for prefix in FAMILIES if name.startswith(prefix)), key=len, default=None)
    if family is None:
        raise missing(workload.name, str(folder / f"{name.lower()}_*.h5"))
    suffix = name.removeprefix(family).lower()
    file = folder / FAMILIES[family].format(name=name.lower(), rest=suffix)
    if not file.is_file():
        raise missing(workload.name, str(file))
    return file


def _function(workload: NamedWorkload) -> Callable[..., keras.Model]:
    """Return the function of keras.applications that builds the workload's model."""
    known: dict[str, Callable[..., keras.Model]] = {
        name: function
        for name, function in vars(keras.applications).items()
        if inspect.isfunction(function)
    }
    if workload.model not in known:
        raise unknown_model(workload, known)
    return known[workload.model]


Arrays = dict[str, npt.NDArray[Any]]
"""Weights by name."""
KERAS_SUFFIX = ".weights.h5"
"""Suffix of the files in which Keras saves weights."""


def build_named(workload: NamedWorkload, seed: int) -> NamedModel:
    """Build a model that is chosen by name. The caller must have seeded Keras.

    Args:
        workload: Workload with the name of the model.
        seed: Seed for the initial weights of networks that exist in both frameworks.

    Raises:
        UserError: There is no model with this name.
    """
    require_library(workload, "tensorflow")
    is_network = workload.library == "both"
    model = _build_network(workload, seed) if is_network else build_keras(workload)
    model.build((None, *workload.input_shape))
    return model


def start_from(model: keras.Model, workload: Workload, weights: str) -> list[str]:
    """Load the weights that a run spec names into a new model.

    `weights` is `none` to keep the initial weights, `cached` for a library's pretrained weights, or
    the path of a file.

    Returns:
        A list with a warning if the head keeps its random weights; otherwise an empty list.

    Raises:
        UserError: The weights are missing or belong to another model.
    """
    path = weights_file(workload, weights, "tensorflow")
    if weights == "cached" and isinstance(workload, NamedWorkload):
        is_network = workload.library == "both"
        find = find_part("torch", "named").cached_torchvision if is_network else cached_keras
        path = find(workload)
    return [] if path is None else load_file(model, workload, path)


def _build_network(workload: NamedWorkload, seed: int) -> NamedModel:
    """Build a network that exists in both frameworks, with the same initial weights as in torch."""
    network = NETWORKS[workload.model]()
    assert not isinstance(workload.input_shape, dict)
    inputs = keras.Input((*workload.input_shape[:2], network.stem.inputs))
    outputs = _conv(inputs, network.stem)
    if network.max_pool:  # padding with 0 does not change the maximum of inputs after ReLU
        outputs = keras.layers.ZeroPadding2D(1)(outputs)
        outputs = keras.layers.MaxPooling2D(3, 2)(outputs)
    for block in network.blocks:
        outputs = _block(outputs, block)
    if network.last:
        outputs = _conv(outputs, network.last)
    backbone = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(outputs))
    dense = keras.layers.Dense(workload.num_classes, name=network.head)
    dropout = [keras.layers.Dropout(network.dropout)] if network.dropout else []
    model = NamedModel(_normalize, backbone, [*dropout, dense])
    load_arrays(model, initial_arrays(network, workload.num_classes, seed), "the first weights")
    return model


def load_file(model: keras.Model, workload: Workload, path: Path) -> list[str]:
    """Load the weights in a file into a model.

    The file may be a `.weights.h5` file of Keras or an `.h5` file of keras.applications without the
    top. For networks that exist in both frameworks, it may also be a `.pth`, `.pt` or
    `.safetensors` file of torch.

    Returns:
        A list with a warning if the head keeps its random weights; otherwise an empty list.

    Raises:
        UserError: The file does not fit the model.
    """
    if path.suffix in TORCH_SUFFIXES:
        if not isinstance(workload, NamedWorkload) or workload.library != "both":
            raise UserError(
                f"weights {path}: in tensorflow, weights of torch fit only networks that exist in "
                f"both frameworks; name a {KERAS_SUFFIX} file, or set framework: torch.",
                ErrorCode.INVALID_WEIGHTS,
            )
        tensors = find_part("torch", "named").read_tensors(path)
        arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
        return load_arrays(model, arrays, str(path))
    try:
        if path.name.endswith(KERAS_SUFFIX):
            return _load_saved(model, path)
        if path.suffix == ".h5" and isinstance(model, NamedModel):
            model.backbone.load_weights(path)
            return new_head(path)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(
            f"weights {path}: these do not fit workload {workload.name}; choose the workload that "
            "they were trained with.",
            ErrorCode.INVALID_WEIGHTS,
            details=str(error),
        ) from None
    raise UserError(
        f"weights {path}: its name must end in {KERAS_SUFFIX} (as Keras saves weights), .h5 (of "
        f"keras.applications, without top) or {', '.join(TORCH_SUFFIXES)}.",
        ErrorCode.INVALID_WEIGHTS,
    )


def _load_saved(model: keras.Model, path: Path) -> list[str]:
    """Load a `.weights.h5` file, in which only the head may have different shapes.

    Returns:
        A list with a warning if the head keeps its random weights; otherwise an empty list.

    Raises:
        ValueError: The file does not fit the backbone.
    """
    if not isinstance(model, NamedModel):
        model.load_weights(path)
        return []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = [variable.numpy() for variable in model.backbone.variables]
        model.load_weights(path, skip_mismatch=True)
    skipped = [
        str(warning.message) for warning in caught if "could not be loaded" in str(warning.message)
    ]
    if not skipped:
        return []
    same = [
        (variable.numpy() == old).all()
        for variable, old in zip(model.backbone.variables, before, strict=True)
    ]
    if all(same):
        raise ValueError(skipped[0])
    return new_head(path)


def load_arrays(model: NamedModel, arrays: Arrays, source: str) -> list[str]:
    """Load weights that have torchvision's names into a network that exists in both frameworks.

    Args:
        model: The network.
        arrays: Weights by name, in torch's layout.
        source: Description of where the weights come from, for messages.

    Returns:
        A list with a warning if a part of the head keeps its random weights; otherwise an empty
        list.

    Raises:
        UserError: A weight outside the head is missing or has a different shape.
    """
    arrays = {_plain(name): array for name, array in arrays.items()}
    random_names: list[str] = []
    for part in (model.backbone, model.head):
        for name, variable, to_keras in chain.from_iterable(map(_variables, part.layers)):
            if name in arrays and to_keras(arrays[name]).shape == variable.shape:
                variable.assign(to_keras(arrays[name]))
            elif part is model.head:
                random_names.append(name)
            else:
                actual = arrays[name].shape if name in arrays else "none there"
                raise weights_mismatch_error(source, name, actual)
    return new_head(source, *random_names) if random_names else []


def _plain(name: str) -> str:
    """Return the name of a weight without the prefixes that wrappers in torch add."""
    return name.removeprefix("module.").removeprefix("net.")


def _normalize(inputs: tf.Tensor) -> tf.Tensor:
    """Normalize pixels in [0, 1] with the mean and standard deviation of ImageNet."""
    scale = 1 / np.array(STD, np.float32)
    shift = -np.array(MEAN, np.float32) * scale
    return inputs * tf.constant(scale, inputs.dtype) + tf.constant(shift, inputs.dtype)


def _block(inputs: Any, block: Block) -> Any:
    """Return the outputs of a block of a network, such as a residual block."""
    outputs = inputs
    for conv in block.convs:
        outputs = _conv(outputs, conv)
    if block.is_residual:
        beside = _conv(inputs, block.shortcut) if block.shortcut else inputs
        outputs = keras.layers.Add()([outputs, beside])
    return _activate(outputs, block.activation)


def _conv(inputs: Any, conv: ConvSpec) -> Any:
    """Return the outputs of a convolution with batch normalization and activation."""
    padding = "same"
    if conv.stride > 1 and conv.kernel > 1:  # with "same", Keras would pad the sides unequally
        inputs = keras.layers.ZeroPadding2D(conv.kernel // 2)(inputs)
        padding = "valid"
    settings = {"padding": padding, "strides": conv.stride, "use_bias": False, "name": conv.name}
    if conv.depthwise:
        layer = keras.layers.DepthwiseConv2D(conv.kernel, **settings)
    else:
        layer = keras.layers.Conv2D(conv.filters, conv.kernel, **settings)
    norm = BatchNorm(momentum=1 - MOMENTUM, epsilon=EPSILON, name=conv.norm)
    return _activate(norm(layer(inputs)), conv.activation)


def _activate(inputs: Any, activation: Activation | None) -> Any:
    """Apply an activation function, if there is one."""
    if activation is None:
        return inputs
    return keras.layers.ReLU(6.0 if activation == "relu6" else None)(inputs)


ToKeras = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Function that converts a weight from torch's layout to that of Keras."""


def _variables(layer: keras.layers.Layer) -> list[tuple[str, keras.Variable, ToKeras]]:
    """Return a tuple for each weight of a layer: the weight's name in torchvision, its variable in
    Keras, and the function that converts the weight from torch's layout to that of Keras."""
    name = layer.name
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return [(f"{name}.weight", layer.kernel, lambda array: array.transpose(2, 3, 0, 1))]
    if isinstance(layer, keras.layers.Conv2D):
        return [(f"{name}.weight", layer.kernel, lambda array: array.transpose(2, 3, 1, 0))]
    if isinstance(layer, keras.layers.Dense):
        return [
            (f"{name}.weight", layer.kernel, np.transpose),
            (f"{name}.bias", layer.bias, np.asarray),
        ]
    if isinstance(layer, BatchNorm):
        return [
            (f"{name}.weight", layer.gamma, np.asarray),
            (f"{name}.bias", layer.beta, np.asarray),
            (f"{name}.running_mean", layer.moving_mean, np.asarray),
            (f"{name}.running_var", layer.moving_variance, np.asarray),
        ]
    return []
