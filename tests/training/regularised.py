"""A small workload that keeps more than weights: running averages and random streams."""

from raybench.models.base import Workload


class Regularised(Workload):
    """Batch normalisation and dropout on 8x8 digits."""

    name = "regularised"
    input_shape = (8, 8, 1)
    num_classes = 10

    def build_torch(self):
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(32, 10),
        )

    def build_keras(self):
        import keras

        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(32),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(10),
            ]
        )


class Wider(Regularised):
    """The same after its author has changed it."""

    def build_torch(self):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def build_keras(self):
        import keras

        return keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        )
