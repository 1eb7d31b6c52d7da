"""A user's model that is tried on a few samples: refused with what is wrong, or warned of."""

import numpy as np
import pytest
from framework_models import backend

from raybench.models.base import Workload
from raybench.models.layers import Conv, Dense, Flatten, ReLU
from raybench.models.shipped import ShippedWorkload
from raybench.spec.errors import UserError
from raybench.spec.metric import ACCURACY, METRICS, Metric
from raybench.training.base import find_part

INPUTS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int64) % 10


def probe(framework, workload, inputs=INPUTS, labels=LABELS, metric=ACCURACY):
    backend(framework)
    trial = find_part(framework, "probe").Trial(workload, metric, gpu=False)
    return trial.run(inputs, labels).warnings


def refused(framework, workload, *data, **settings):
    with pytest.raises(UserError) as caught:
        probe(framework, workload, *data, **settings)
    assert "orkload own" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


class Own(Workload):
    """Ten classes of four features; the subclasses break one thing each."""

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


def layers(*given, input_shape=(4,)):
    """Return what makes a workload of these layers."""
    return lambda: ShippedWorkload("own", input_shape, 10, given)


class OwnJudge(Own):
    """Any outputs are right where both hooks are the user's."""

    units = 1
    torch_loss = keras_loss = lambda self, outputs, labels: outputs[:, 0] ** 2
    torch_correct = keras_correct = lambda self, outputs, labels: outputs[:, 0] > 0


class Softmax(Own):
    end = applying(lambda one: one.softmax(dim=1), lambda ops, one: ops.softmax(one))


class SoftmaxWithLoss(Softmax):
    """Probabilities are right where the user's own loss takes them."""

    torch_loss = keras_loss = lambda self, outputs, labels: -outputs[:, 0]


IMAGES = np.zeros((8, 6, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("workload", "inputs"),
    [
        *((Own, INPUTS), (OwnJudge, INPUTS), (SoftmaxWithLoss, INPUTS)),
        (layers(Conv(2), Flatten(), Dense(10), input_shape=(6, 6, 3)), IMAGES),
    ],
)
def test_a_whole_model_passes_without_a_word(framework, workload, inputs):
    assert probe(framework, workload(), inputs) == []


class NoModel(Own):
    def build_torch(self):
        return "model"

    build_keras = build_torch


class Raises(Own):
    def build_torch(self):
        raise RuntimeError("no weights\nhere")

    build_keras = build_torch


class LossRaises(Own):
    torch_loss = keras_loss = lambda self, outputs, labels: 1 / 0


class NotFinite(Own):
    def build_torch(self):
        model = super().build_torch()
        model[0].bias.data[3] = float("nan")
        return model

    def build_keras(self):
        model = super().build_keras()
        model.layers[0].bias.assign([float("inf")] * 10)
        return model


class NotFiniteBack(Own):
    """The square root of 0 has no slope."""

    torch_loss = keras_loss = lambda self, outputs, labels: (outputs[:, 0] * 0) ** 0.5


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (layers(Dense(7)), "returns outputs of shape (8, 7) for 8 samples of 10 classes"),
        (layers(ReLU()), "has no trainable parameters"),
        (NoModel, "must return a"),
        (Raises, "RuntimeError: no weights here"),
        (layers(Dense(10), input_shape=(5,)), "failed on inputs (8, 4)"),
        (LossRaises, "its loss failed in"),
        (NotFinite, "returns NaN or infinite values before any training"),
        (NotFiniteBack, "is NaN or infinite before any training"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(framework, workload, words):
    error = refused(framework, workload())
    assert words in str(error)
    assert workload is not Raises or 'raise RuntimeError("no weights' in error.details


class Unfinished(Own):
    """Layers of unknown sizes."""

    def build_torch(self):
        import torch

        return torch.nn.LazyLinear(10)

    def build_keras(self):
        import keras

        return keras.Sequential([keras.layers.Dense(10)])


def test_a_model_of_unknown_sizes_is_refused(framework):
    words = {"torch": "lazy layers", "tensorflow": "begin it with keras.Input((4,))"}
    assert words[framework] in str(refused(framework, Unfinished()))


class OfTheBatch(Own):
    """Normalised by the batch in evaluations too."""

    end = applying(
        lambda one: one / one.std(dim=0, keepdim=True),
        lambda ops, one: one / ops.std(one, axis=0, keepdims=True),
    )


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (OfTheBatch, "depend on the other samples of the batch"),
        (Softmax, "look like probabilities"),
    ],
)
def test_what_learns_badly_is_a_warning(framework, workload, words):
    (warning,) = probe(framework, workload())
    assert words in warning


class Unused(Own):
    def build_torch(self):
        import torch

        model = super().build_torch()
        model.spare = torch.nn.Parameter(torch.zeros(3))
        model.forward = lambda inputs: model[0](inputs)
        return model

    def build_keras(self):
        import keras

        inputs = keras.Input((4,))
        kept, cut = keras.layers.Dense(10)(inputs), keras.layers.Dense(10, name="spare")(inputs)
        return keras.Model(inputs, keras.layers.Lambda(lambda both: both[0])([kept, cut]))


def test_parameters_without_a_gradient_are_a_warning(framework):
    (warning,) = probe(framework, Unused())
    assert "parameters get no gradient (the first: " in warning
    assert "spare" in warning


PAIRS = np.linspace(0, 1, 16, dtype=np.float32).reshape(8, 2)
TOKENS = np.arange(24, dtype=np.int64).reshape(8, 3) % 10
RMSE, LOSS = METRICS["rmse"], METRICS["loss"]


class Regressed(Own):
    """One number too many: ten in place of two."""

    task = "regression"


class Spoken(Own):
    """No outputs for each token."""

    task = "language_modelling"


class OwnMetric(Own):
    metric = Metric(name="half", direction="max")
    torch_metric = keras_metric = lambda self, outputs, labels: outputs[: len(labels) // 2, 0]


class NoHook(Own):
    metric = OwnMetric.metric


class Whole(Own):
    """Answers in place of numbers that have a slope."""

    end = applying(lambda one: one.argmax(dim=1), lambda ops, one: ops.argmax(one, axis=1))


@pytest.mark.parametrize(
    ("workload", "data", "words"),
    [
        (Regressed, (INPUTS, PAIRS, RMSE), "(8, 10) for 8 samples with labels of shape (8, 2); e"),
        (Spoken, (INPUTS, TOKENS, LOSS), "3 tokens out of 10; end it so that they are (8, 3, 10)"),
        (OwnMetric, (INPUTS, LABELS, OwnMetric.metric), "its half in "),
        (NoHook, (INPUTS, LABELS, OwnMetric.metric), "has the metric half and no "),
        (Whole, (), "must return a tensor of floating point numbers, not "),
    ],
)
def test_what_other_tasks_and_metrics_need(framework, workload, data, words):
    assert words in str(refused(framework, workload(), *data))
