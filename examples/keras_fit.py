"""Keras' own `fit` under raybench.

raybench tune own_loop.yaml --train keras_fit.py:train
"""

import keras
from sklearn.datasets import load_digits

import raybench
from raybench import integrations

IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = IMAGES.astype("float32") / 16


def train(run: raybench.Run) -> None:
    hidden = keras.layers.Dense(run.model["hidden_units"], activation="relu")
    model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
    model.compile(
        keras.optimizers.AdamW(run.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        IMAGES[:1400],
        LABELS[:1400],
        batch_size=run.batch_size_per_worker,
        epochs=int(run.spec.epochs),
        validation_data=(IMAGES[1400:], LABELS[1400:]),
        callbacks=[integrations.Keras(run)],
        verbose=0,
    )
