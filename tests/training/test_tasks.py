"""Tasks beside pictures by class: the same run in both frameworks, from memory or a mapped file."""

import functools
from dataclasses import replace
from pathlib import Path

import local
import numpy as np
import pytest
from headed import CLASSES, PICTURES, Headed
from local import alone, small_spec
from one_worker import weights_of
from task_data import TOKENS, Letters, Prices, first_weights, letters, prices

from raybench.data import memory
from raybench.data.dataset import Dataset, Split, epoch_order
from raybench.data.shared import open_shared
from raybench.models.base import Workload
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from raybench.training import memory as room
from raybench.training.run import evaluate_split

TASKS = {"regression": (Prices(), prices()), "language_modelling": (Letters(), letters())}


def spec_of(framework: str, metric: str, **changes: object) -> RunSpec:
    content: dict[str, object] = {
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
    curve, trainer = local.train(spec, workload=workload, dataset=dataset)
    test = evaluate_split(dataset, trainer, alone(spec.framework), "test")
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
def test_both_frameworks_learn_the_same(task: str) -> None:
    curve, test, weights = run_of("torch", task)
    again, other_test, others = run_of("tensorflow", task)
    np.testing.assert_allclose(numbers(curve), numbers(again), rtol=1e-5)
    assert test == pytest.approx(other_test, rel=1e-5)
    for one, other in zip(weights, others, strict=True):
        if one.shape != other.shape:  # torch's dense layers are the other way round
            other = other.T
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert curve[-1].value < curve[0].value
    assert curve[-1].best_value == curve[-1].value, "the least is the best"


def test_the_first_loss_is_that_of_the_papers() -> None:
    """The first step by numpy: includes sample weights, excludes ignored tokens."""
    workload, dataset = TASKS["language_modelling"]
    spec = spec_of("torch", "loss", epochs=16 / 40, eval_every_samples=16)
    curve, _, _ = train(spec, workload, dataset)
    rows = epoch_order(40, seed=0, epoch=0)[:16]
    logits = first_weights(TOKENS, TOKENS)[dataset.train.array[rows]].astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=-1))
    labels = dataset.train.labels[rows]
    counted = labels >= 0
    chosen = np.take_along_axis(logits, np.where(counted, labels, 0)[..., None], -1)[..., 0]
    means = ((losses - chosen) * counted).sum(axis=1) / counted.sum(axis=1)
    assert curve[0].train_loss == pytest.approx(means.mean(), rel=1e-5)


def test_what_is_larger_than_memory_is_the_same_from_its_file(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, dataset = TASKS["regression"]
    expected = run_of(framework, "regression")
    open_shared(tmp_path / "x", lambda: dataset)
    monkeypatch.setattr(memory, "MAX_MAPPED_SHARE", 0.0)
    monkeypatch.setattr(room, "SHARE", 0.0)
    large = open_shared(tmp_path / "x", lambda: dataset)
    assert not large.train.labels.flags.writeable
    curve, test, weights = train(spec_of(framework, "rmse", prefetch=2), workload, large)
    np.testing.assert_allclose(numbers(curve), numbers(expected[0]), rtol=1e-6)
    assert test == expected[1]
    np.testing.assert_equal(weights, expected[2])


def test_a_worker_takes_its_share_of_what_is_free_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from raybench.training.torch import batches

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70, 80))
    monkeypatch.setattr(batches, "Room", lambda free_bytes, is_gpu: free_bytes * is_gpu)
    device = torch.device("cuda", 0)
    assert [batches.room_for_data(device, share) for share in (0.5, 1, 2)] == [40, 70, 70]


def test_a_sample_of_weight_0_has_no_part_in_mixed_losses(framework: str) -> None:
    """The label of such a sample does not matter, whichever sample it is mixed with."""
    spec = spec_of(framework, "loss", augment=["mixup"], accumulate=1, epochs=1.0)
    labels, weights = PICTURES.train.labels, np.arange(24, dtype=np.float32) % 2
    curves = []
    for given in (labels, np.where(weights > 0, labels, (labels + 1) % CLASSES)):
        dataset = replace(PICTURES, train=Split(PICTURES.train.inputs, given, weights))
        curves.append(numbers(train(spec, Headed(), dataset)[0]))
    np.testing.assert_array_equal(curves[0], curves[1])


def test_tensors_as_a_gpu_takes_them_train_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU takes int64 for int32, and gathers bytes as words; both work on a CPU too."""
    pytest.importorskip("tensorflow")
    from raybench.training.tensorflow import batches

    curve, test, weights = run_of("tensorflow", "regression")
    monkeypatch.setattr(batches, "has_gpus", lambda: True)
    found = train(spec_of("tensorflow", "rmse"), *TASKS["regression"])
    np.testing.assert_allclose(numbers(curve), numbers(found[0]), rtol=1e-6)
    assert test == found[1]
    np.testing.assert_equal(weights, found[2])


@pytest.mark.parametrize(("share", "is_gpu"), [(2, False), (5, True)])
def test_the_splits_of_a_run_share_a_part_of_what_is_free(share: int, is_gpu: bool) -> None:
    """A GPU keeps most of its memory for what is allocated later."""
    splits = [one for _, data in TASKS.values() for one in (data.train, data.validation, data.test)]
    free_bytes = share * sum(room.num_bytes(one) for one in splits)
    free = room.Room(free_bytes - share, is_gpu=is_gpu)
    assert [free.reserve(one) for one in splits] == [True] * 5 + [False]
