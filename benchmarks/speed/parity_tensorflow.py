"""parity.py's plain script for TensorFlow: a custom loop under MultiWorkerMirroredStrategy.

    TF_CONFIG='...' python benchmarks/speed/parity_tensorflow.py FOLDER PORT

The faster form of TensorFlow's guide: one `tf.function` takes all steps of an epoch from a
distributed `tf.data` pipeline over arrays in memory. Only the optimizer is raybench's, because
Keras's Adam adds its epsilon elsewhere, and equal weights prove equal work (`fit` with Keras's own
optimizer is in the other table of parity.py).
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from parity_channel import serve

from raybench.training.tensorflow.optim import build_optimizer


def mnist_small() -> keras.Model:
    """Return the network of raybench's workload of that name."""
    return keras.Sequential(
        [
            *(keras.Input((28, 28, 1)), layers.Conv2D(32, 3, padding="same"), layers.ReLU()),
            *(layers.MaxPooling2D(2), layers.Flatten()),
            *(layers.Dense(64), layers.ReLU(), layers.Dense(10)),
        ]
    )


def mnist_large() -> keras.Model:
    """Return the network of raybench's workload of that name."""
    block = [
        layer
        for _ in range(2)
        for layer in (
            layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
            *(layers.ReLU(), layers.MaxPooling2D(2)),
        )
    ]
    return keras.Sequential(
        [
            *(keras.Input((28, 28, 1)), layers.Conv2D(128, 3, padding="same"), layers.ReLU()),
            *(layers.MaxPooling2D(2), *block, layers.Flatten()),
            *(layers.Dense(512), layers.ReLU(), layers.Dense(512), layers.ReLU()),
            layers.Dense(10),
        ]
    )


MODELS = {"mnist_small": mnist_small, "mnist_large": mnist_large}


class PlainLoop:
    """A training, one epoch per call."""

    def __init__(self, folder: Path, strategy: tf.distribute.Strategy, *, rank: int = 0) -> None:
        self._strategy, self._num_workers = strategy, strategy.num_replicas_in_sync
        self._rank = rank
        self._settings = json.loads((folder / "settings.json").read_text())
        with np.load(folder / "data.npz") as arrays:
            self._inputs = tf.constant(arrays["inputs"].astype(np.float32) * np.float32(1 / 255))
            self._labels = tf.constant(arrays["labels"])
        with strategy.scope():
            self.model = MODELS[self._settings["workload"]]()
            initial = np.load(folder / "initial.npz")
            self.model.set_weights([initial[name] for name in initial.files])
            self._optimizer = build_optimizer("adam", learning_rate=self._settings["learning_rate"])
            self._optimizer.build(self.model.trainable_variables)
        self._batches = iter(
            strategy.distribute_datasets_from_function(lambda context: self._pipeline())
        )
        size = self._settings["batch_size_per_worker"] * self._num_workers
        self._steps = len(self._labels) * self._settings["repeat"] // size
        self._take_steps = tf.function(self._steps_of_an_epoch)
        self._barrier = tf.function(self._sum_of_ones)

    def _pipeline(self) -> tf.data.Dataset:
        """Return this worker's batches, epoch after epoch."""
        number = len(self._labels) * self._settings["repeat"]
        epochs, size = self._settings["epochs"], self._settings["batch_size_per_worker"]
        generators = [np.random.default_rng([1, e, self._settings["seed"]]) for e in range(epochs)]
        orders = np.stack([one.permutation(number) for one in generators]) % len(self._labels)
        shares = orders.reshape(-1, self._num_workers, size)[:, self._rank]
        rows = tf.data.Dataset.from_tensor_slices(shares)
        batches = rows.map(
            lambda rows: (tf.gather(self._inputs, rows), tf.gather(self._labels, rows))
        )
        return batches.prefetch(2)

    def train(self, epoch: int) -> float:
        """Train one epoch; return its seconds."""
        del epoch  # the pipeline continues
        self.wait_for_all()
        started = time.perf_counter()
        float(self._take_steps(self._batches))
        self.wait_for_all()
        return time.perf_counter() - started

    def wait_for_all(self) -> None:
        """Wait until all workers have called this method."""
        if self._num_workers > 1:
            float(self._barrier())

    def _sum_of_ones(self) -> tf.Tensor:
        ones = self._strategy.run(lambda: tf.ones(()))
        return self._strategy.reduce("SUM", ones, axis=None)

    def _steps_of_an_epoch(self, batches: tf.data.Iterator) -> tf.Tensor:
        total = tf.zeros(())
        for _ in tf.range(self._steps):
            loss = self._strategy.run(self._take_step, args=next(batches))
            total += self._strategy.experimental_local_results(loss)[0]
        return total

    def _take_step(self, inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.nn.compute_average_loss(
                losses,
                global_batch_size=self._settings["batch_size_per_worker"] * self._num_workers,
            )
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self._optimizer.apply(summed, variables)
        return loss

    def save(self, folder: Path) -> Path:
        """Write the weights; return their file."""
        self.model.save_weights(folder / "of.weights.h5")
        return folder / "of.weights.h5"


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0
    loop = PlainLoop(folder, tf.distribute.MultiWorkerMirroredStrategy(), rank=rank)
    serve(port, rank, loop.train)
    if rank == 0:
        loop.save(folder)
    loop.wait_for_all()
    sys.stdout.flush()
    os._exit(0)  # a thread of TensorFlow may abort the process while it is torn down


if __name__ == "__main__":
    main()
