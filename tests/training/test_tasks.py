"""Regression and language modeling: equal runs in both frameworks, from memory or a mapped file."""

import functools
from dataclasses import replace

import local_runs
import numpy as np
import pytest
from headed_model import CLASSES, IMAGES, Headed
from local_runs import single_worker, small_spec
from task_data import Letters, Prices, letters, prices
from worker_script import weights_of

from raybench.data import memory
from raybench.data.dataset import Dataset, Split
from raybench.data.store import open_shared
from raybench.models.base import Workload
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from raybench.training import samples
from raybench.training.run import evaluate_test_split

TASKS = {"regression": (Prices(), prices()), "language_modelling": (Letters(), letters())}


def spec_of(framework: str, metric: str, **changes: object) -> RunSpec:
    content = {
        "objective": Objective(kind="best_at_budget", metric=metric, max_train_seconds=1e6),
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.0,
        "epochs": 2.0,
        "batch_size_per_worker": 8,
        "accumulate": 2,
    }
    return small_spec(framework, **(content | changes))


def train(
    spec: RunSpec, workload: Workload, dataset: Dataset
) -> tuple[list[Evaluation], float, list[np.ndarray]]:
    """Return the curve, the value on the test split, and the weights at the end."""
    curve, trainer = local_runs.train(spec, workload=workload, dataset=dataset)
    test = evaluate_test_split(dataset, trainer, single_worker(spec.framework))
    weights = weights_of(trainer, spec.framework)
    trainer.close()
    return curve, test, weights


METRICS = {"regression": "rmse", "language_modelling": "perplexity"}


@functools.cache
def run_of(framework: str, task: str) -> tuple[list[Evaluation], float, list[np.ndarray]]:
    """Return the result of `train` for a framework and a task, from memory."""
    return train(spec_of(framework, METRICS[task]), *TASKS[task])


def numbers(curve: list[Evaluation]) -> np.ndarray:
    return np.array([(point.train_loss, point.value) for point in curve])


@pytest.mark.parametrize("task", TASKS)
def test_both_frameworks_train_equally(task):
    curve, test, weights = run_of("torch", task)
    keras_curve, keras_test, keras_weights = run_of("tensorflow", task)
    np.testing.assert_allclose(numbers(curve), numbers(keras_curve), rtol=1e-5)
    assert test == pytest.approx(keras_test, rel=1e-5)
    for array, keras_array in zip(weights, keras_weights, strict=True):
        if array.shape != keras_array.shape:  # dense layers of torch are transposed
            keras_array = keras_array.T
        np.testing.assert_allclose(array, keras_array, rtol=1e-4, atol=1e-6)
    assert curve[-1].value < curve[0].value
    assert curve[-1].best_value == curve[-1].value, "the lowest is the best"


def test_run_from_a_mapped_file_equals_the_run_in_memory(framework, tmp_path, monkeypatch):
    workload, dataset = TASKS["regression"]
    expected = run_of(framework, "regression")
    open_shared(tmp_path / "x", lambda: dataset)
    monkeypatch.setattr(memory, "MAX_MAPPED_SHARE", 0.0)
    monkeypatch.setattr(samples, "SHARE", 0.0)
    large = open_shared(tmp_path / "x", lambda: dataset)
    assert not large.train.labels.flags.writeable
    curve, test, weights = train(spec_of(framework, "rmse", prefetch=2), workload, large)
    np.testing.assert_allclose(numbers(curve), numbers(expected[0]), rtol=1e-6)
    assert test == expected[1]
    np.testing.assert_equal(weights, expected[2])


def test_worker_uses_its_share_of_the_free_gpu_memory(monkeypatch):
    torch = pytest.importorskip("torch")
    from raybench.training.torch import batches

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70, 80))
    monkeypatch.setattr(batches, "Room", lambda free_bytes, is_gpu: free_bytes * is_gpu)
    device = torch.device("cuda", 0)
    assert [batches.room_for_data(device, share) for share in (0.5, 1, 2)] == [40, 70, 70]


def test_samples_of_weight_0_have_no_part_in_mixed_losses(framework):
    """The label of such a sample has no effect, whichever sample it is mixed with."""
    spec = spec_of(framework, "loss", augment=["mixup"], accumulate=1, epochs=1.0)
    labels, weights = IMAGES.train.labels, np.arange(24, dtype=np.float32) % 2
    curves = []
    for train_labels in (labels, np.where(weights > 0, labels, (labels + 1) % CLASSES)):
        dataset = replace(IMAGES, train=Split(IMAGES.train.inputs, train_labels, weights))
        curves.append(numbers(train(spec, Headed(), dataset)[0]))
    np.testing.assert_array_equal(curves[0], curves[1])


def test_tensor_types_for_gpus_train_equal_weights(monkeypatch):
    """On a GPU, int32 becomes int64 and bytes are gathered as words; both work on a CPU too."""
    pytest.importorskip("tensorflow")
    from raybench.training.tensorflow import batches

    curve, test, weights = run_of("tensorflow", "regression")
    monkeypatch.setattr(batches, "has_gpus", lambda: True)
    gpu_types = train(spec_of("tensorflow", "rmse"), *TASKS["regression"])
    np.testing.assert_allclose(numbers(curve), numbers(gpu_types[0]), rtol=1e-6)
    assert test == gpu_types[1]
    np.testing.assert_equal(weights, gpu_types[2])


@pytest.mark.parametrize(("share", "is_gpu"), [(2, False), (5, True)])
def test_splits_of_a_run_share_a_part_of_the_free_memory(share, is_gpu):
    """Most memory of a GPU is kept for later allocations."""
    splits = [
        split
        for _, dataset in TASKS.values()
        for split in (dataset.train, dataset.validation, dataset.test)
    ]
    free_bytes = share * sum(samples.num_bytes(split) for split in splits)
    free = samples.Room(free_bytes - share, is_gpu=is_gpu)
    assert [free.reserve(split) for split in splits] == [True] * 5 + [False]
