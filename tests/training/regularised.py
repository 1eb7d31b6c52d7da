"""Workloads on 8x8 digits with running averages, penalties, or complex and unused weights."""

from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Dense, Flatten


class Regularised(Workload):
    """Model with batch normalization and dropout, so with running averages and random streams."""

    name, input_shape, num_classes = "regularised", (8, 8, 1), 10

    def build_torch(self):
        from torch import nn

        norm = (nn.Linear(64, 32), nn.BatchNorm1d(32))
        return nn.Sequential(nn.Flatten(), *norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    def build_keras(self):
        import keras
        from keras import layers

        norm = layers.Dense(32), layers.BatchNormalization()
        parts = [layers.Flatten(), *norm, layers.ReLU(), layers.Dropout(0.5), layers.Dense(10)]
        return keras.Sequential([keras.Input((8, 8, 1)), *parts])


class Penalised(Workload):
    """Keras model with penalties on weights and outputs, and a layer that calls `add_loss`."""

    name, input_shape, num_classes = "penalised", (8, 8, 1), 10

    def build_keras(self):
        import keras
        from keras import layers, regularizers

        class Drawn(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.1 * keras.ops.mean(inputs**2))
                return inputs

        penalty, small = regularizers.L2(0.05), regularizers.L1(0.01)
        parts = [
            layers.Flatten(),
            layers.Dense(16, "relu", kernel_regularizer=penalty),
            keras.Sequential([layers.Dense(16, activity_regularizer=small), Drawn()]),
            layers.Dense(10, kernel_regularizer=penalty, bias_regularizer=small),
        ]
        return keras.Sequential([keras.Input((8, 8, 1)), *parts])


class Experts(Workload):
    """Torch model with a branch for some inputs only, complex weights, and buffers that are views:
    an expanded number, and every second element of another tensor."""

    name, input_shape, num_classes = "experts", (8, 8, 1), 10

    def build_torch(self):
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
                self.expert = nn.Linear(16, 16, bias=False)
                self.filter = nn.Parameter(torch.ones(9, dtype=torch.complex64))
                self.register_buffer("scale", torch.tensor(1.0).expand(16))
                self.register_buffer("shift", torch.zeros(32)[::2])

            def forward(self, inputs):
                pixels = inputs.flatten(1)
                hidden = torch.tanh(self.first(pixels)) * self.scale + self.shift
                chosen = pixels[:, 29] > 0.9  # of one sample in six
                if chosen.any():
                    filtered = torch.fft.irfft(torch.fft.rfft(hidden[chosen]) * self.filter, 16)
                    added = self.expert(filtered).to(hidden.dtype)
                    hidden = hidden.index_add(0, chosen.nonzero()[:, 0], added)
                return self.last(hidden)

        return Model()


class Wider(LayerWorkload):
    """Workload with the name of `Regularised` but another model."""

    name, input_shape, num_classes = "regularised", (8, 8, 1), 10
    layers = (Flatten(), Dense(10))
