"""Both frameworks see equal samples in equal order, augmentations included, by any workers.

What reaches the models is hashed over two epochs: images, labels, and labels they are mixed with.
"""

import hashlib
from collections import defaultdict

import numpy as np
import pytest
from local import Place, new_trainer
from pydantic import TypeAdapter

from raybench.data.augment import Augmenter
from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.spec.dataset_spec import Augmentation
from raybench.spec.run import RunSpec
from raybench.training.base import Step, Trainer
from raybench.training.steps import take_until, training_steps

ROWS, REPEAT, EPOCHS = 26, 2, 2
GLOBAL = 12
"""Samples of a step: the last one of an epoch has 4, of two workers 2 each; of three workers, of
whom two would have one alone, the step before has them too."""
SHAPE = (6, 5, 3)
KINDS = ("random_resized_crop", "random_crop", "flip", "color_jitter", "mixup", "cutout")
AUGMENT = TypeAdapter(list[Augmentation]).validate_python(
    [{"kind": kind, "alpha": 1.0} if kind == "mixup" else kind for kind in KINDS]
)
SEEN: dict[str, list[np.ndarray]] = defaultdict(list)
"""What reached the model and its loss, in order."""


class Watching(Workload):
    """Sums of pixels as logits: nothing to learn, so a loss tells samples, labels and shares."""

    name = "watching"
    input_shape = SHAPE
    num_classes = 3

    def build_torch(self):
        import torch

        class Watch(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(()))

            def forward(self, inputs):
                if self.training:
                    keep("inputs", inputs.detach().permute(0, 2, 3, 1).numpy())
                return self.scale * inputs.mean(dim=(2, 3))

        return Watch()

    def torch_loss(self, outputs, labels):
        import torch

        keep("labels", labels.numpy())
        return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")

    def build_keras(self):
        import keras
        import tensorflow as tf

        class Watch(keras.layers.Layer):
            def build(self, input_shape) -> None:
                self.scale = self.add_weight(shape=(), initializer="ones")

            def call(self, inputs, training=False):
                if training:
                    with tf.control_dependencies([tf.py_function(kept("inputs"), [inputs], [])]):
                        inputs = tf.identity(inputs)
                return self.scale * tf.reduce_mean(inputs, axis=(1, 2))

        return keras.Sequential([keras.Input(SHAPE), Watch()])

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        with tf.control_dependencies([tf.py_function(kept("labels"), [labels], [])]):
            outputs = tf.identity(outputs)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def keep(name: str, values: np.ndarray) -> None:
    SEEN[name].append(values.copy())


def kept(name: str):
    return lambda tensor: keep(name, tensor.numpy())


def data_of(kind: str) -> Dataset:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    inputs = pixels if kind == "uint8" else (pixels / 64 - 2).astype(np.float32)
    split = Split(inputs, rng.integers(0, 3, ROWS))
    return Dataset("pictures", 3, split, split, split, repeat=REPEAT)


def spec_of(framework: str, num_workers: int) -> RunSpec:
    return RunSpec(
        framework=framework,
        num_workers=num_workers,
        batch_size_per_worker=GLOBAL // num_workers,
        optimizer="sgd",
        learning_rate=1e-12,
        augment=AUGMENT,
        seed=5,
    )


def samples_of(
    trainer: Trainer, spec: RunSpec, dataset: Dataset, num_workers: int
) -> tuple[list[tuple], float]:
    """Train as each worker in turn; return what was seen in the order of training, and the loss.

    (row, round, hash of the image, label, label that it is mixed with) of each sample.
    """
    steps_of, seen_of, total = [], [], 0.0
    for rank in range(num_workers):
        steps = training_steps(spec, dataset, Place(rank, num_workers))
        chunk, number = take_until(steps, EPOCHS * dataset.num_train_samples)
        assert number == EPOCHS * dataset.num_train_samples
        SEEN.clear()
        total += trainer.train(chunk)
        steps_of.append(chunk)
        seen_of.append({name: list(values) for name, values in SEEN.items()})
    found = []
    for index in range(len(steps_of[0])):
        for chunk, seen in zip(steps_of, seen_of, strict=True):
            assert len(seen["labels"]) == 2 * len(seen["inputs"]) == 2 * len(chunk)
            found += one_step(chunk[index], seen["inputs"][index], seen["labels"][2 * index :][:2])
    return found, total


def one_step(step: Step, inputs: np.ndarray, labels: list[np.ndarray]) -> list[tuple]:
    assert step.rounds is not None
    assert len(step.indices) == 1
    rows, rounds, weights = step.indices[0], step.rounds[0], step.weights[0]
    hashes = [hashlib.sha256(np.ascontiguousarray(image)).hexdigest() for image in inputs]
    columns = (rows.tolist(), rounds.tolist(), hashes, *(one.tolist() for one in labels))
    samples = zip(*columns, weights, strict=True)
    return [tuple(sample) for *sample, weight in samples if weight]  # others pad a pass


def expected_of(dataset: Dataset, spec: RunSpec, samples: list[tuple]) -> tuple[list[tuple], float]:
    """Return the same by the augmenter, all samples at once, and the loss by numpy."""
    rows, rounds = (np.array([sample[at] for sample in samples]) for at in (0, 1))
    made = Augmenter(spec.augment, dataset.train, spec.seed)(dataset.train.read(rows), rows, rounds)
    assert made.other_rows is not None
    assert made.shares is not None
    images = np.asarray(made.inputs)
    if images.dtype == np.uint8:
        images = images.astype(np.float32) * np.float32(1 / 255)
    labels, others = dataset.train.labels[rows], dataset.train.labels[made.other_rows]
    hashes = [hashlib.sha256(image).hexdigest() for image in images]
    columns = (rows, rounds, hashes, labels.tolist(), others.tolist())
    logits = images.mean(axis=(1, 2), dtype=np.float64)
    costs = np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits
    own, other = costs[np.arange(len(rows)), labels], costs[np.arange(len(rows)), others]
    losses = made.shares * own + (1 - made.shares) * other
    sizes = [12, 12, 12, 16] if spec.num_workers == 3 else [12, 12, 12, 12, 4]
    weights = np.concatenate([np.full(size, 1 / size) for size in sizes * EPOCHS])
    return list(zip(*columns, strict=True)), float(losses @ weights)


ORDERS: dict[str, list[tuple]] = {}


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_equal_samples_in_equal_order(framework: str, kind: str) -> None:
    spec = spec_of(framework, 1)
    trainer, dataset, _ = new_trainer(spec, workload=Watching(), dataset=data_of(kind))
    for num_workers in (1, 2, 3):
        spec = spec_of(framework, num_workers)
        found, loss = samples_of(trainer, spec, dataset, num_workers)
        # The first to come here, whichever framework and workers, says what all others must see.
        assert found == ORDERS.setdefault(kind, found)
        expected, loss_expected = expected_of(dataset, spec, found)
        assert found == expected
        assert loss == pytest.approx(loss_expected, rel=1e-5)
    trainer.close()
    assert len(found) == EPOCHS * REPEAT * ROWS
    keys = {sample[:2] for sample in found}
    assert keys == {(row, one) for row in range(ROWS) for one in range(EPOCHS * REPEAT)}
    assert len({sample[2] for sample in found}) > 0.95 * len(found), "of each round another image"
