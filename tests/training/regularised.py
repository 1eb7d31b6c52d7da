"""A small workload that keeps more than weights: running averages and random streams."""

from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Dense, Flatten


class Regularised(Workload):
    """Batch normalisation and dropout on 8x8 digits."""

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
    """A Keras model with penalties of weights and outputs, and a loss that a layer adds."""

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
    """A torch model of which a pass uses a part by its inputs, with complex weights, and buffers
    that are views: a number shown several times, every second one of others."""

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
    """The same after its author has changed it."""

    name, input_shape, num_classes = "regularised", (8, 8, 1), 10
    layers = (Flatten(), Dense(10))
