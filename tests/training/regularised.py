"""A small workload that keeps more than weights: running averages and random streams."""

from raybench.models.base import Workload


class Regularised(Workload):
    """Batch normalisation and dropout on 8x8 digits."""

    name, input_shape, num_classes = "regularised", (8, 8, 1), 10

    def build_torch(self):
        from torch import nn

        norm = (nn.Linear(64, 32), nn.BatchNorm1d(32))
        return nn.Sequential(nn.Flatten(), *norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    def build_keras(self):
        import keras
        from keras.layers import BatchNormalization, Dense, Dropout, Flatten, ReLU

        layers = [Flatten(), Dense(32), BatchNormalization(), ReLU(), Dropout(0.5), Dense(10)]
        return keras.Sequential([keras.Input((8, 8, 1)), *layers])


class Wider(Regularised):
    """The same after its author has changed it."""

    def build_torch(self):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def build_keras(self):
        import keras
        from keras.layers import Dense, Flatten

        return keras.Sequential([keras.Input((8, 8, 1)), Flatten(), Dense(10)])
