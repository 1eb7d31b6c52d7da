"""Small datasets and models for regression and language modeling, equal in both frameworks, and
data read on demand."""

import threading
import time
from dataclasses import replace

import numpy as np

from raybench.data.dataset import IGNORED, Dataset, Split
from raybench.data.load import weighted
from raybench.models.base import Workload
from raybench.spec.dataset_spec import DatasetSpec

TOKENS, LENGTH = 7, 5


def fixed_weights(*shape: int) -> np.ndarray:
    """Return equal initial weights for both frameworks."""
    values = np.sin(np.arange(np.prod(shape), dtype=np.float32) + len(shape))
    return (0.3 * values).reshape(shape)


class Prices(Workload):
    """Regression of two numbers from a picture, three codes and two numbers."""

    name, task = "prices", "regression"
    input_shape = {"picture": (4, 4, 3), "codes": (3,), "numbers": (2,)}

    def build_torch(self):
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.codes = nn.Embedding(6, 2)
                self.last = nn.Linear(7, 2)
                self.codes.weight.data[:] = torch.from_numpy(fixed_weights(6, 2))
                self.last.weight.data[:] = torch.from_numpy(fixed_weights(7, 2).T.copy())
                self.last.bias.data[:] = 0

            def forward(self, inputs):
                assert inputs["picture"].shape[1:] == (3, 4, 4)
                assert inputs["codes"].dtype == torch.int64
                parts = [inputs["picture"].mean(dim=(2, 3)), self.codes(inputs["codes"]).mean(1)]
                return self.last(torch.cat([*parts, inputs["numbers"]], dim=1))

        return Model()

    def build_keras(self):
        import keras

        picture = keras.Input((4, 4, 3), name="picture")
        numbers = keras.Input((2,), name="numbers")
        codes = keras.Input((3,), dtype="int64", name="codes")
        embedding, last = keras.layers.Embedding(6, 2), keras.layers.Dense(2)
        parts = [
            keras.layers.GlobalAveragePooling2D()(picture),
            keras.layers.GlobalAveragePooling1D()(embedding(codes)),
            numbers,
        ]
        outputs = last(keras.layers.Concatenate()(parts))
        embedding.set_weights([fixed_weights(6, 2)])
        last.set_weights([fixed_weights(7, 2), np.zeros(2, np.float32)])
        return keras.Model({"picture": picture, "codes": codes, "numbers": numbers}, outputs)


def prices(size: int = 50) -> Dataset:
    """Return weighted samples whose labels are scaled by 100 and 50."""
    rng = np.random.default_rng(0)

    def split(number: int) -> Split:
        inputs = {
            "picture": rng.integers(0, 256, (number, 4, 4, 3), dtype=np.uint8),
            "codes": rng.integers(0, 6, (number, 3), dtype=np.int32),
            "numbers": rng.standard_normal((number, 2), np.float32),
        }
        labels = inputs["numbers"] @ np.array([[1, -2], [0.5, 1]], np.float32)
        labels += inputs["codes"][:, :1] / 5
        return Split(inputs, labels.astype(np.float32), rng.uniform(0, 2, number).astype("f"))

    scale = np.array([100, 50], np.float32)
    whole = Dataset(
        "prices", None, split(size), split(13), split(7), task="regression", label_scale=scale
    )
    return weighted(whole, DatasetSpec())


class Letters(Workload):
    """Language model that predicts the next token from the current one only."""

    name, task, input_shape, num_classes = "letters", "language_modelling", (LENGTH,), TOKENS

    def build_torch(self):
        import torch
        from torch import nn

        model = nn.Embedding(TOKENS, TOKENS)
        model.weight.data[:] = torch.from_numpy(fixed_weights(TOKENS, TOKENS))
        return model

    def build_keras(self):
        import keras

        layer = keras.layers.Embedding(TOKENS, TOKENS)
        model = keras.Sequential([keras.Input((LENGTH,), dtype="int64"), layer])
        model.set_weights([fixed_weights(TOKENS, TOKENS)])
        return model


def letters(size: int = 40) -> Dataset:
    """Return sequences in which the next token is larger by three; some labels are ignored."""
    rng = np.random.default_rng(1)

    def split(number: int) -> Split:
        inputs = rng.integers(0, TOKENS, (number, LENGTH), dtype=np.int32)
        labels = ((inputs + 3) % TOKENS).astype(np.int64)
        labels[::3, -2:] = IGNORED
        return Split(inputs, labels)

    return Dataset("letters", TOKENS, split(size), split(11), split(6), task="language_modelling")


class LazyArray:
    """Array whose rows are read on demand, after `wait_s`; records the requests and threads."""

    def __init__(self, array: np.ndarray, wait_s: float = 0.0) -> None:
        self._array, self._wait_s = array, wait_s
        self.shape, self.dtype = array.shape, array.dtype
        self.requests = []
        self.threads = set()

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.requests.append(rows.copy())
        self.threads.add(threading.current_thread().name)
        time.sleep(self._wait_s)
        return self._array[rows]


def on_demand(dataset: Dataset, wait_s: float = 0.0) -> Dataset:
    """Return a dataset whose inputs are read on demand; only training rows take `wait_s`."""
    return replace(
        dataset,
        train=Split(LazyArray(dataset.train.array, wait_s), dataset.train.labels),
        validation=Split(LazyArray(dataset.validation.array), dataset.validation.labels),
        test=Split(LazyArray(dataset.test.array), dataset.test.labels),
    )
