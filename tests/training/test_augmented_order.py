"""Both frameworks see equal samples in equal order, augmentations included, by any workers.

What a model is given is hashed over two epochs: images, labels, and labels they are mixed with.
"""

import hashlib

import numpy as np
import pytest
from local import Place, augmented_batches, new_trainer
from pydantic import TypeAdapter

from raybench.data.augment import Augmenter
from raybench.data.dataset import Dataset, Split
from raybench.models.layers import Dense, GlobalAveragePool, initial_weights
from raybench.models.shipped import ShippedWorkload
from raybench.spec.dataset_spec import Augmentation
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step
from raybench.training.steps import take_until, training_steps

ROWS, REPEAT, EPOCHS = 26, 2, 2
GLOBAL = 12
"""Samples of a step: the last one of an epoch has 4, of two workers 2 each; of three workers, of
whom two would have one alone, the step before has them too."""
SHAPE = (6, 5, 3)
AUGMENTATIONS = ("random_resized_crop", "random_crop", "flip", "color_jitter", "mixup", "cutout")
AUGMENT = TypeAdapter(list[Augmentation]).validate_python(
    [{"kind": kind, "alpha": 1.0} if kind == "mixup" else kind for kind in AUGMENTATIONS]
)
MEANS = ShippedWorkload("means", SHAPE, 3, (GlobalAveragePool(), Dense(3)))
"""A linear model of the mean pixel. With a rate near 0 it learns nothing, so its loss depends only
on samples, labels and mixing shares."""


def data_of() -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
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


def samples_of(trainer: BaseTrainer, spec: RunSpec, dataset: Dataset) -> tuple[list[tuple], float]:
    """Train as each worker in turn; return what is seen in the order of training, and the loss.

    (row, round, hash of the image, label, label that it is mixed with) of each sample.
    """
    wanted, each, total = EPOCHS * dataset.num_train_samples, [], 0.0
    for rank in range(spec.num_workers):
        steps, number = take_until(
            training_steps(spec, dataset, Place(rank, spec.num_workers)), wanted
        )
        assert number == wanted
        total += trainer.train(steps)
        batches = augmented_batches(spec, dataset.train, steps)
        each.append([one_step(*pair) for pair in zip(steps, batches, strict=True)])
    return [sample for ranks in zip(*each, strict=True) for one in ranks for sample in one], total


def one_step(step: Step, batch: list[np.ndarray]) -> list[tuple]:
    assert step.rounds is not None
    assert len(step.indices) == 1
    images, *labels, _, _ = batch
    columns = (step.indices[0].tolist(), step.rounds[0].tolist(), hashes(images))
    samples = zip(*columns, *(one.tolist() for one in labels), step.weights[0], strict=True)
    return [tuple(sample) for *sample, weight in samples if weight]  # others pad a pass


def hashes(images: np.ndarray) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(image)).hexdigest() for image in images]


def expected_of(dataset: Dataset, spec: RunSpec, samples: list[tuple]) -> tuple[list[tuple], float]:
    """Return the same by the augmenter, all samples at once, and the loss by numpy."""
    rows, rounds = (np.array([sample[at] for sample in samples]) for at in (0, 1))
    made = Augmenter(spec.augment, dataset.train, spec.seed)(dataset.train.read(rows), rows, rounds)
    assert made.other_rows is not None
    assert made.shares is not None
    images = np.asarray(made.inputs)
    labels, others = dataset.train.labels[rows], dataset.train.labels[made.other_rows]
    columns = (rows, rounds, hashes(images), labels.tolist(), others.tolist())
    weights, biases = initial_weights(MEANS.layers, SHAPE, spec.seed)
    logits = images.mean(axis=(1, 2), dtype=np.float64) / 255 @ weights.T + biases
    costs = np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits
    own, other = costs[np.arange(len(rows)), labels], costs[np.arange(len(rows)), others]
    losses = made.shares * own + (1 - made.shares) * other
    sizes = [12, 12, 12, 16] if spec.num_workers == 3 else [12, 12, 12, 12, 4]
    shares = np.concatenate([np.full(size, 1 / size) for size in sizes * EPOCHS])
    return list(zip(*columns, strict=True)), float(losses @ shares)


def test_equal_samples_in_equal_order(framework: str) -> None:
    trainer, dataset, _ = new_trainer(spec_of(framework, 1), workload=MEANS, dataset=data_of())
    orders = []
    for num_workers in (1, 2, 3):
        spec = spec_of(framework, num_workers)
        found, loss = samples_of(trainer, spec, dataset)
        orders.append(found)
        expected, loss_expected = expected_of(dataset, spec, found)
        assert found == expected
        assert loss == pytest.approx(loss_expected, rel=1e-5)
    trainer.close()
    assert orders[0] == orders[1] == orders[2]
    assert len(found) == EPOCHS * REPEAT * ROWS
    keys = {sample[:2] for sample in found}
    assert keys == {(row, one) for row in range(ROWS) for one in range(EPOCHS * REPEAT)}
    assert len({sample[2] for sample in found}) > 0.95 * len(found), "each round has another image"
