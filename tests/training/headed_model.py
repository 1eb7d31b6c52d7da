"""Small network with a backbone and a head, equal in both frameworks, and its training."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from local_runs import first_steps

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext, find_backend
from raybench.training.samples import make_step

SHAPE, CLASSES, FILTERS = (6, 6, 3), 3, 4


def _split(number: int) -> Split:
    random = np.random.default_rng(number)
    images = random.integers(0, 256, (number, *SHAPE), np.uint8)
    return Split(images, random.integers(0, CLASSES, number))


IMAGES = Dataset("pictures", CLASSES, train=_split(24), validation=_split(8), test=_split(8))


def _draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.3, shape).astype(np.float32)


class Headed(Workload):
    """Convolution, batch normalization, global average pooling and a dense layer.

    The buffer `seen` sums the pixels that a worker has trained on: an example of a buffer that is
    not a running statistic of batch normalization.
    """

    name, input_shape, num_classes, head = "headed", SHAPE, CLASSES, "head"

    def build_torch(self) -> Any:
        import torch
        from torch import nn

        layers = OrderedDict(
            conv=nn.Conv2d(3, FILTERS, 3, bias=False),
            norm=nn.BatchNorm2d(FILTERS),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(FILTERS, CLASSES),
        )
        model = nn.Sequential(layers)
        model.conv.weight.data = torch.from_numpy(_draw(FILTERS, 3, 3, 3))
        model.head.weight.data = torch.from_numpy(_draw(CLASSES, FILTERS))
        nn.init.zeros_(model.head.bias)
        model.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

        def add_pixels(layers: Any, inputs: Any) -> None:
            if layers.training:
                layers.seen += (255 * inputs[0]).sum().long()

        model.register_forward_pre_hook(add_pixels)
        return model

    def build_keras(self) -> Any:
        import keras

        from raybench.training.tensorflow.named import BatchNorm

        class Seen(keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.seen = self.add_weight(
                    name="seen", shape=(2,), dtype="int64", initializer="zeros", trainable=False
                )

            def call(self, inputs: Any, training: bool | None = None) -> Any:
                if training:
                    self.seen.assign_add(keras.ops.cast(keras.ops.sum(255 * inputs), "int64"))
                return inputs

        layers = [
            Seen(name="seen"),
            keras.layers.Conv2D(FILTERS, 3, use_bias=False, name="conv"),
            BatchNorm(momentum=0.9, epsilon=1e-5, name="norm"),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(CLASSES, name="head"),
        ]
        model = keras.Sequential([keras.Input(SHAPE), *layers])
        model.get_layer("conv").kernel.assign(_draw(FILTERS, 3, 3, 3).transpose(2, 3, 1, 0))
        model.get_layer("head").kernel.assign(_draw(CLASSES, FILTERS).T)
        return model


def pixel_sums(trainer: Any) -> np.ndarray:
    """Return the counter `seen` of the model."""
    model = trainer._model
    holder = model if hasattr(model, "state_dict") else model.get_layer("seen")
    return np.array(holder.seen.numpy())


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    """Return weights and running statistics by their names in torch, in the layout of torch."""
    model = trainer._model
    if hasattr(model, "state_dict"):
        arrays = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
        return {name: array for name, array in arrays.items() if array.dtype == np.float32}
    conv, norm, head = (model.get_layer(name) for name in ("conv", "norm", "head"))
    return {
        "conv.weight": conv.kernel.numpy().transpose(3, 2, 0, 1),
        "norm.weight": norm.gamma.numpy(),
        "norm.bias": norm.beta.numpy(),
        "norm.running_mean": norm.moving_mean.numpy(),
        "norm.running_var": norm.moving_variance.numpy(),
        "head.weight": head.kernel.numpy().T,
        "head.bias": head.bias.numpy(),
    }


PARTIAL = 7
"""Samples of the last batch, of which the workers get 4 and 3."""


def work(specs: Any, world: DistributedContext, folder: Path) -> None:
    """Train the network for each spec as a worker of a group; save its weights."""
    for index, content in enumerate(specs):
        arrays = train_result(RunSpec.model_validate(content), world)
        np.savez(folder / f"headed{index}-{world.rank}.npz", **arrays)


def train_result(spec: RunSpec, world: DistributedContext) -> dict[str, np.ndarray]:
    """Train for two epochs and a partial batch; return weights and buffers.

    Values named `own.*` are from before the evaluation, which averages them over the workers.
    """
    trainer = find_backend(spec.framework).Trainer(spec, Headed(), IMAGES, world)
    chunk = first_steps(spec, IMAGES, world, 2 * len(IMAGES.train))
    trainer.warm_up(chunk[0])
    trainer.train(chunk)
    trainer.train([make_step(spec, np.arange(PARTIAL), world, 1e-3)])
    weights = weights_of(trainer)
    own = {f"own.{name}": array for name, array in weights.items() if "running" in name}
    own["own.seen"] = pixel_sums(trainer)
    trainer.evaluate("validation", slice(0, 8))
    result = weights_of(trainer) | {"per_worker": np.array(trainer.batch_statistics)} | own
    result["seen"] = pixel_sums(trainer)
    trainer.close()
    return result
