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


class Wider(LayerWorkload):
    """The same after its author has changed it."""

    name, input_shape, num_classes = "regularised", (8, 8, 1), 10
    layers = (Flatten(), Dense(10))
