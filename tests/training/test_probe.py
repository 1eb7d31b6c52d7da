"""A user's model that cannot be trained is refused with what is wrong, in both frameworks."""

import os

import numpy as np
import pytest
from framework_models import backend
from probed import Own, probe, refused

from raybench.training.probe import DIFFERENT


def test_a_whole_model_passes_without_a_word(framework):
    assert probe(framework, Own()) == []


def test_pixels_and_images_pass(framework):
    class Images(Own):
        input_shape = (6, 6, 3)

        def build_torch(self):
            import torch

            return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), last(32))

        def build_keras(self):
            import keras

            layers = keras.layers
            inside = [layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(10)]
            return keras.Sequential([keras.Input((6, 6, 3)), *inside])

    def last(size):
        import torch

        return torch.nn.Linear(size, 10)

    assert probe(framework, Images(), np.zeros((8, 6, 6, 3), np.uint8)) == []


class Seven(Own):
    units = 7


class Nothing(Own):
    def build_torch(self):
        import torch

        return torch.nn.ReLU()

    def build_keras(self):
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.ReLU()])


class NoModel(Own):
    def build_torch(self):
        return "model"

    build_keras = build_torch


class Raises(Own):
    def build_torch(self):
        raise RuntimeError("no weights\nhere")

    build_keras = build_torch


class Leaves(Own):
    def build_torch(self):
        raise SystemExit(5)

    build_keras = build_torch


class WrongInput(Own):
    def build_torch(self):
        import torch

        return torch.nn.Linear(5, 10)

    def build_keras(self):
        import keras

        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(10)])


class MeanLoss(Own):
    def torch_loss(self, outputs, labels):
        return outputs.mean()

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        return tf.reduce_mean(outputs)


class LossRaises(Own):
    def torch_loss(self, outputs, labels):
        raise ZeroDivisionError

    keras_loss = torch_loss


class CutOff(Own):
    def torch_loss(self, outputs, labels):
        return outputs.argmax(dim=1).float()

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        return tf.cast(tf.argmax(outputs, axis=1), tf.float32)


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

    def torch_loss(self, outputs, labels):
        return (outputs * 0).sum(dim=1).sqrt()

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        return tf.sqrt(tf.reduce_sum(outputs * 0, axis=1))


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (Seven, "returns outputs of shape (8, 7) for 8 samples of 10 classes"),
        (Nothing, "has no trainable parameters"),
        (NoModel, "must return a"),
        (Raises, "failed (" + __file__),
        (Raises, "RuntimeError: no weights here"),
        (Leaves, "sys.exit(5)"),
        (WrongInput, "failed on inputs (8, 4)"),
        (MeanLoss, "loss returns shape () for 8 samples"),
        (LossRaises, "its loss failed in"),
        (CutOff, "depends on no parameter"),
        (NotFinite, "returns NaN or infinite values before any training"),
        (NotFiniteBack, "is NaN or infinite before any training"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(framework, workload, words):
    assert words in str(refused(framework, workload()))


class WideByRank(Own):
    """As wide as what torchrun and Ray Train call a process."""

    @property
    def rank(self):
        return int(os.environ.get("RANK", 0))

    def build_torch(self):
        import torch

        width = 7 + self.rank
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 10))

    def build_keras(self):
        import keras

        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((4,)), dense(7 + self.rank), dense(10)])


def test_several_workers_need_models_of_the_same_shapes(framework):
    assert probe(framework, WideByRank()) == []
    error = str(refused(framework, WideByRank(), several=True))
    assert error.startswith(DIFFERENT)
    assert "(rank, environment" in error
    assert "RANK" not in os.environ
    assert probe(framework, Own(), several=True) == [], "layers are counted on in Keras"


def test_the_traceback_of_the_users_code_is_kept(framework):
    assert 'raise RuntimeError("no weights' in refused(framework, Raises()).details


def test_layers_without_sizes_are_refused():
    backend("torch")

    class Lazy(Own):
        def build_torch(self):
            import torch

            return torch.nn.LazyLinear(10)

    assert "lazy layers" in str(refused("torch", Lazy()))


def test_a_keras_model_without_an_input_is_refused():
    backend("tensorflow")

    class Unbuilt(Own):
        def build_keras(self):
            import keras

            return keras.Sequential([keras.layers.Dense(10)])

    assert "begin it with keras.Input((4,))" in str(refused("tensorflow", Unbuilt()))


def test_keras_code_that_needs_values_while_it_is_traced_is_refused():
    backend("tensorflow")

    class Values(Own):
        def keras_loss(self, outputs, labels):
            return outputs[:, 0] * float(outputs.numpy().sum())

    assert "the way back" in str(refused("tensorflow", Values()))
