"""Metrics of both frameworks, compared with numpy and scikit-learn, on uneven shards."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from framework_models import losses_and_values
from local_runs import ThreadWorld, dataset_of, new_trainer, run_on_ranks, small_spec
from sklearn.metrics import (
    mean_absolute_error,
    r2_score,
    root_mean_squared_error,
    top_k_accuracy_score,
)

from raybench.data.dataset import IGNORED, Dataset
from raybench.data.split_metrics import measure, predictions_of
from raybench.models.base import Workload
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import Objective
from raybench.stats.clock import Ledger
from raybench.training.base import Totals
from raybench.training.run import evaluate_test_split, run, value_error

ROWS, CLASSES = 23, 9
SCALE = np.array([4.0, 0.5, 10.0], np.float32)
RNG = np.random.default_rng(3)
LOGITS = RNG.standard_normal((ROWS, CLASSES)).astype(np.float32)
CLASS = RNG.integers(0, CLASSES, ROWS)
NUMBERS = RNG.standard_normal((ROWS, 3)).astype(np.float32)
GUESSES = (NUMBERS + 0.3 * RNG.standard_normal((ROWS, 3))).astype(np.float32)
TOKEN_LOGITS = RNG.standard_normal((ROWS, 4, CLASSES)).astype(np.float32)
TOKENS = RNG.integers(0, CLASSES, (ROWS, 4))
TOKENS[::5, 1:] = IGNORED


def value_on_ranks(dataset: Dataset, metric: Metric, totals_of: Callable[[slice], Totals]) -> float:
    """Return the value of a metric on the test split, of which each of three ranks has a part."""

    def work(world: ThreadWorld) -> float:
        trainer = SimpleNamespace(metric=metric, evaluate=lambda part, rows: totals_of(rows))
        return evaluate_test_split(dataset, trainer, world)

    first, *others = run_on_ranks(3, work)
    assert others == [first] * 2
    return first


def value_of(
    framework: str, metric: Metric, task: str, outputs: np.ndarray, labels: np.ndarray, **options
) -> float:
    """Return the value of a metric for outputs; `options` are those of the dataset."""
    workload = Workload()
    workload.task = task
    scale = options.get("label_scale", 1.0)
    _, values = losses_and_values(framework, workload, outputs, labels, metric, scale)
    assert (values.shape, values.dtype) == ((len(labels),), np.float32)
    inputs = np.zeros((len(labels), 1), np.float32)
    dataset = dataset_of(inputs, labels, CLASSES, task=task, **options)

    def totals_of(rows: slice) -> Totals:
        total = float(values[rows].sum(dtype="d"))
        return Totals(loss=0.0, value=total, squares=0.0, samples=len(values[rows]))

    return value_on_ranks(dataset, metric, totals_of)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("rmse", lambda labels, guesses: np.sqrt(np.mean((labels - guesses) ** 2))),
        ("mean_absolute_error", mean_absolute_error),
        ("r2", lambda *both: r2_score(*both, multioutput="variance_weighted")),
    ],
)
def test_regression_metrics_of_vectors_are_in_the_unit_of_the_labels(framework, name, reference):
    value = value_of(framework, METRICS[name], "regression", GUESSES, NUMBERS, label_scale=SCALE)
    assert value == pytest.approx(reference(NUMBERS * SCALE + 7, GUESSES * SCALE + 7), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "reference"), [("rmse", root_mean_squared_error), ("r2", r2_score), ("loss", None)]
)
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_outputs_of_one_number_may_be_a_column(framework, name, reference, shape):
    """A column minus a row must not broadcast to (N, N) differences."""
    labels, guesses = NUMBERS[:, 0], GUESSES[:, :1]
    value = value_of(framework, METRICS[name], "regression", guesses.reshape(shape), labels)
    expected = (
        np.mean((labels - guesses[:, 0]) ** 2) if reference is None else reference(labels, guesses)
    )
    assert value == pytest.approx(expected, rel=1e-5)


def cross_entropy(logits: np.ndarray, classes: np.ndarray) -> np.ndarray:
    chosen = np.take_along_axis(logits, classes[..., None], -1)[..., 0]
    return np.log(np.exp(logits.astype("d")).sum(axis=-1)) - chosen


def test_classification_metrics(framework):
    def value(name: str) -> float:
        return value_of(framework, METRICS[name], "classification", LOGITS, CLASS)

    top = top_k_accuracy_score(CLASS, LOGITS, k=5, labels=range(CLASSES))
    assert value("top5_accuracy") == pytest.approx(top)
    assert value("accuracy") == pytest.approx(np.mean(LOGITS.argmax(axis=1) == CLASS))
    loss = cross_entropy(LOGITS, CLASS).mean()
    assert value("perplexity") == pytest.approx(np.exp(loss), rel=1e-6)
    top5_of_three_classes = value_of(
        framework, METRICS["top5_accuracy"], "classification", LOGITS[:, :3], CLASS % 3
    )
    assert top5_of_three_classes == 1.0, "with three classes the best five contain the label"


def test_language_modelling_metrics_skip_ignored_tokens(framework):
    """Values are averaged over the tokens of a sample, then over samples."""

    def mean(values: np.ndarray) -> float:
        counted = TOKENS != IGNORED
        return float(np.mean((values * counted).sum(axis=1) / counted.sum(axis=1)))

    def value(name: str) -> float:
        return value_of(framework, METRICS[name], "language_modelling", TOKEN_LOGITS, TOKENS)

    loss = mean(cross_entropy(TOKEN_LOGITS, np.maximum(TOKENS, 0)))
    assert value("loss") == pytest.approx(loss, rel=1e-6)
    assert value("perplexity") == pytest.approx(np.exp(loss), rel=1e-6)
    assert value("accuracy") == pytest.approx(mean(TOKEN_LOGITS.argmax(axis=-1) == TOKENS))
    best = np.argsort(TOKEN_LOGITS, axis=-1)[..., -5:]
    assert value("top5_accuracy") == pytest.approx(mean((best == TOKENS[..., None]).any(axis=-1)))


def test_standard_error_of_a_root_equals_that_of_resampling():
    draws = RNG.standard_normal((4_000, 500)) ** 2
    sums = (float(draws[0].sum()), float((draws[0] ** 2).sum()), 500.0)
    roots = np.sqrt(draws.mean(axis=1))
    assert value_error(METRICS["rmse"], *sums, 1.0) == pytest.approx(roots.std(), rel=0.15)
    assert value_error(METRICS["r2"], *sums, 2.0) == pytest.approx(
        draws.mean(axis=1).std() / 2, 0.2
    )
    assert value_error(METRICS["accuracy"], *sums, 1.0) is None
    assert value_error(METRICS["rmse"], float("nan"), *sums[1:], 1.0) is None


@pytest.mark.parametrize(("framework", "name"), [("torch", "f1"), ("tensorflow", "roc_auc")])
def test_set_metric_of_a_run_uses_all_answers(framework, name):
    pytest.importorskip(framework)
    objective = Objective(kind="best_at_budget", metric=name, max_train_seconds=1e6)
    spec = small_spec(framework, objective=objective, epochs=2.0)
    trainer, dataset, world = new_trainer(spec)
    curve = list(run(spec, dataset, trainer, world, Ledger("setup")))
    labels = np.asarray(dataset.validation.labels)
    answers = trainer.evaluate("validation", slice(0, len(labels))).answers
    assert answers.shape[0] == len(labels)
    assert (curve[-1].value, curve[-1].value_error) == pytest.approx(
        measure(METRICS[name], labels, answers)
    )
    assert curve[-1].value > (0.5 if name == "f1" else 0.9)
    assert 0 < evaluate_test_split(dataset, trainer, world) <= 1
    trainer.close()


@pytest.mark.parametrize(("name", "size"), [("f1", 7), ("roc_auc", 7), ("roc_auc", 2)])
def test_set_metric_is_equal_for_uneven_shards(name, size):
    """With two samples, one of the three workers has no answers."""
    dataset = dataset_of(np.zeros((size, 1), np.float32), np.arange(size) % 2)
    outputs = np.stack([np.zeros(size), np.linspace(-1, 2, size)], axis=1)
    answers = predictions_of(METRICS[name], outputs)

    def totals_of(rows: slice) -> Totals:
        own_answers = answers[rows] if len(answers[rows]) else None
        return Totals(loss=0.0, value=0.0, squares=0.0, samples=0, answers=own_answers)

    expected, _ = measure(METRICS[name], dataset.test.labels, answers)
    assert value_on_ranks(dataset, METRICS[name], totals_of) == expected
