"""Samples and their order are equal in both frameworks and for any number of workers.

Augmentations are included: the test compares hashes of images, labels and the labels they are
mixed with, over two epochs.
"""

import hashlib

import numpy as np
import pytest
from local_runs import RankContext, augmented_batches, dataset_of, new_trainer
from pydantic import TypeAdapter

from raybench.data.augment import Augmenter
from raybench.data.dataset import Dataset
from raybench.models.layers import Dense, GlobalAveragePool, initial_weights
from raybench.models.shipped import ShippedWorkload
from raybench.spec.dataset_spec import Augmentation
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step
from raybench.training.samples import take_until, training_steps

ROWS, REPEAT, EPOCHS = 26, 2, 2
GLOBAL_BATCH = 12
"""Samples of a step. The last step of an epoch has 4, which two workers share evenly. Of three
workers two would have a single sample, so the step before takes these samples too."""
SHAPE = (6, 5, 3)
AUGMENTATIONS = ("random_resized_crop", "random_crop", "flip", "color_jitter", "mixup", "cutout")
AUGMENT = TypeAdapter(list[Augmentation]).validate_python(
    [{"kind": kind, "alpha": 1.0} if kind == "mixup" else kind for kind in AUGMENTATIONS]
)
MEANS = ShippedWorkload("means", SHAPE, 3, (GlobalAveragePool(), Dense(3)))
"""Linear model of the mean pixel. With a learning rate near 0 its loss depends only on samples,
labels and mixing shares."""


def image_dataset() -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    return dataset_of(inputs, rng.integers(0, 3, ROWS), 3, repeat=REPEAT)


def spec_of(framework: str, num_workers: int) -> RunSpec:
    return RunSpec(
        framework=framework,
        num_workers=num_workers,
        batch_size_per_worker=GLOBAL_BATCH // num_workers,
        optimizer="sgd",
        learning_rate=1e-12,
        augment=AUGMENT,
        seed=5,
    )


def samples_of(trainer: BaseTrainer, spec: RunSpec, dataset: Dataset) -> tuple[list[tuple], float]:
    """Train as each worker in turn; return the samples in the order of training, and the loss.

    A sample is (row, round, hash of the image, label, label that it is mixed with).
    """
    num_samples, samples_by_rank, total_loss = EPOCHS * dataset.num_train_samples, [], 0.0
    for rank in range(spec.num_workers):
        steps, number = take_until(
            training_steps(spec, dataset, RankContext(rank, spec.num_workers)), num_samples
        )
        assert number == num_samples
        total_loss += trainer.train(steps)
        batches = augmented_batches(spec, dataset.train, steps)
        pairs = zip(steps, batches, strict=True)
        samples_by_rank.append([samples_of_step(step, batch) for step, batch in pairs])
    samples = [
        sample
        for step_of_ranks in zip(*samples_by_rank, strict=True)
        for rank_samples in step_of_ranks
        for sample in rank_samples
    ]
    return samples, total_loss


def samples_of_step(step: Step, batch: list[np.ndarray]) -> list[tuple]:
    assert len(step.indices) == 1
    images, *labels, _, _ = batch
    columns = (step.indices[0].tolist(), step.rounds[0].tolist(), hashes(images))
    label_columns = [column.tolist() for column in labels]
    samples = zip(*columns, *label_columns, step.weights[0], strict=True)
    return [tuple(sample) for *sample, weight in samples if weight]  # padding has weight 0


def hashes(images: np.ndarray) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(image)).hexdigest() for image in images]


def expected_of(dataset: Dataset, spec: RunSpec, samples: list[tuple]) -> tuple[list[tuple], float]:
    """Return the samples from one call of the augmenter, and the loss computed by numpy."""
    rows, rounds = (np.array([sample[column] for sample in samples]) for column in (0, 1))
    augment = Augmenter(spec.augment, dataset.train, spec.seed)
    augmented = augment(dataset.train.read(rows), rows, rounds)
    images = np.asarray(augmented.inputs)
    labels, others = dataset.train.labels[rows], dataset.train.labels[augmented.other_rows]
    columns = (rows, rounds, hashes(images), labels.tolist(), others.tolist())
    weights, biases = initial_weights(MEANS.layers, SHAPE, spec.seed)
    logits = images.mean(axis=(1, 2), dtype=np.float64) / 255 @ weights.T + biases
    costs = np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits
    label_costs, other_costs = (costs[np.arange(len(rows)), each] for each in (labels, others))
    losses = augmented.shares * label_costs + (1 - augmented.shares) * other_costs
    sizes = [12, 12, 12, 16] if spec.num_workers == 3 else [12, 12, 12, 12, 4]
    shares = np.concatenate([np.full(size, 1 / size) for size in sizes * EPOCHS])
    return list(zip(*columns, strict=True)), float(losses @ shares)


def test_samples_and_their_order_are_equal_for_any_workers(framework):
    trainer, dataset, _ = new_trainer(
        spec_of(framework, 1), workload=MEANS, dataset=image_dataset()
    )
    orders = []
    for num_workers in (1, 2, 3):
        spec = spec_of(framework, num_workers)
        samples, loss = samples_of(trainer, spec, dataset)
        orders.append(samples)
        expected, loss_expected = expected_of(dataset, spec, samples)
        assert samples == expected
        assert loss == pytest.approx(loss_expected, rel=1e-5)
    trainer.close()
    assert orders[0] == orders[1] == orders[2]
    assert len(samples) == EPOCHS * REPEAT * ROWS
    keys = {sample[:2] for sample in samples}
    assert keys == {(row, number) for row in range(ROWS) for number in range(EPOCHS * REPEAT)}
    num_images = len({sample[2] for sample in samples})
    assert num_images > 0.95 * len(samples), "images differ between rounds"
