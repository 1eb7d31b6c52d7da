"""Model checks on a few samples: refusals and warnings."""

from types import SimpleNamespace

import numpy as np
import pytest
from framework_models import model_module
from local_runs import dataset_of

from raybench.models.base import Workload
from raybench.models.layers import Conv, Dense, Flatten, ReLU
from raybench.models.shipped import ShippedWorkload
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import ACCURACY, METRICS, Metric
from raybench.spec.run import RunSpec
from raybench.training import model_check
from raybench.training.model_check import check_model, check_start
from tests.refusals import refused

INPUTS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int64) % 10


def check(framework, workload, inputs=INPUTS, labels=LABELS, metric=ACCURACY):
    model_module(framework)
    return check_model(framework, workload, metric, inputs, labels)


class Own(Workload):
    """Workload of ten classes and four features; each subclass changes one thing."""

    name, input_shape, num_classes = "own", (4,), 10
    units = 10

    def build_torch(self):
        import torch

        return torch.nn.Sequential(torch.nn.Linear(4, self.units), *self.end("torch"))

    def build_keras(self):
        import keras

        ends = self.end("tensorflow")
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(self.units), *ends])

    def end(self, framework):
        return []


def applying(in_torch, in_keras):
    """Return the end of a model that applies a function of each framework to the outputs."""

    def end(self, framework):
        if framework == "tensorflow":
            import keras

            return [keras.layers.Lambda(lambda outputs: in_keras(keras.ops, outputs))]
        import torch

        layer = torch.nn.Identity()
        layer.forward = in_torch
        return [layer]

    return end


def layers(*model_layers, input_shape=(4,)):
    """Return a function that makes a workload of these layers."""
    return lambda: ShippedWorkload("own", input_shape, 10, model_layers)


class OwnLossAndMetric(Own):
    """Workload whose outputs have another shape, which loss and metric of the user allow."""

    units = 1
    torch_loss = keras_loss = lambda self, outputs, labels: outputs[:, 0] ** 2


class Softmax(Own):
    end = applying(
        lambda outputs: outputs.softmax(dim=1), lambda ops, outputs: ops.softmax(outputs)
    )


class SoftmaxWithLoss(Softmax):
    """Workload with probabilities as outputs, which the loss of the user expects."""

    torch_loss = keras_loss = lambda self, outputs, labels: -outputs[:, 0]


IMAGES = np.zeros((8, 6, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("workload", "inputs"),
    [
        (Own, INPUTS),
        (OwnLossAndMetric, INPUTS),
        (SoftmaxWithLoss, INPUTS),
        (layers(Conv(2), Flatten(), Dense(10), input_shape=(6, 6, 3)), IMAGES),
    ],
)
def test_valid_model_has_no_warnings(framework, workload, inputs):
    metric = METRICS["loss"] if workload is OwnLossAndMetric else ACCURACY
    assert check(framework, workload(), inputs, metric=metric) == []


class NoModel(Own):
    build_torch = build_keras = lambda self: "model"


class Raises(Own):
    def build_torch(self):
        raise RuntimeError("no weights\nhere")

    build_keras = build_torch


class LossRaises(Own):
    torch_loss = keras_loss = lambda self, outputs, labels: 1 / 0


class Unfinished(Own):
    """Model with layers of unknown sizes."""

    def build_torch(self):
        import torch

        return torch.nn.LazyLinear(10)

    def build_keras(self):
        import keras

        return keras.Sequential([keras.layers.Dense(10)])


@pytest.mark.parametrize(
    ("workload", "names"),
    [
        (layers(Dense(7)), ["(8, 7)", "(8, 10)"]),
        (layers(ReLU()), []),
        (NoModel, ["str"]),
        (Raises, ["RuntimeError: no weights here"]),
        (layers(Dense(10), input_shape=(5,)), ["(8, 4)"]),
        (LossRaises, ["ZeroDivisionError"]),
        (Unfinished, []),
    ],
)
def test_model_that_cannot_be_trained_is_refused(framework, workload, names):
    with refused(ErrorCode.INVALID_MODEL, "own", *names) as caught:
        check(framework, workload())
    assert "\n" not in str(caught.value)
    assert workload is not Raises or 'raise RuntimeError("no weights' in caught.value.details


def test_probabilities_instead_of_logits_are_a_warning(framework):
    (warning,) = check(framework, Softmax())
    assert "own" in warning


PAIRS = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
TOKENS = np.arange(24, dtype=np.int64).reshape(8, 3) % 10
RMSE, LOSS = METRICS["rmse"], METRICS["loss"]


class Regressed(Own):
    """Regression of two numbers by a model with ten outputs."""

    task = "regression"


class LanguageModel(Own):
    """Language model without outputs for each token."""

    task = "language_modelling"


class OwnMetric(Own):
    metric = Metric(name="half", direction="max")
    torch_metric = keras_metric = lambda self, outputs, labels: outputs[: len(labels) // 2, 0]


class NoHook(Own):
    metric = OwnMetric.metric


class IntegerOutputs(Own):
    """Model whose outputs are classes, which have no gradient."""

    end = applying(
        lambda outputs: outputs.argmax(dim=1), lambda ops, outputs: ops.argmax(outputs, axis=1)
    )


@pytest.mark.parametrize(
    ("workload", "data", "code", "names"),
    [
        (Regressed, (INPUTS, PAIRS, RMSE), ErrorCode.INVALID_MODEL, ["(8, 10)", "(8, 2)"]),
        (LanguageModel, (INPUTS, TOKENS, LOSS), ErrorCode.INVALID_MODEL, ["(8, 10)", "(8, 3, 10)"]),
        (OwnMetric, (INPUTS, LABELS, OwnMetric.metric), ErrorCode.INVALID_MODEL, ["half", "(8,)"]),
        (NoHook, (INPUTS, LABELS, OwnMetric.metric), ErrorCode.MISSING, ["half", "metric"]),
        (IntegerOutputs, (), ErrorCode.INVALID_MODEL, ["int"]),
    ],
)
def test_unsuitable_outputs_of_other_tasks_and_metrics_are_refused(
    framework, workload, data, code, names
):
    with refused(code, "own", *names):
        check(framework, workload(), *data)


class Counted(Softmax):
    """Workload that counts how often its model is built."""

    built = 0

    def build_torch(self):
        type(self).built += 1
        return super().build_torch()


@pytest.mark.parametrize(
    ("make", "rank", "num_builds"), [(Counted, 0, 1), (Counted, 1, 0), (layers(Dense(10)), 0, 0)]
)
def test_rank_0_checks_a_user_model_once(make, rank, num_builds, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(model_check, "_checked", set())  # models that this process has checked
    Counted.built, workload = 0, make()
    world = SimpleNamespace(rank=rank, gpus=())
    dataset = dataset_of(INPUTS, LABELS, 10)
    warnings = [check_start(RunSpec(workload="own"), workload, dataset, world) for _ in range(2)]
    assert [len(messages) for messages in warnings] == [num_builds, 0]
    assert Counted.built == num_builds
