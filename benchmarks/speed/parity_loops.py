"""The second table of parity.py: loops in one process, an epoch each in turns; prints JSON.

Speeds are samples per second and per CPU second, which does not depend on other programs.

    python benchmarks/speed/parity_loops.py FRAMEWORK WORKLOAD ROUNDS FOLDER [cuda]

With `cuda` (`make gpu`) the loops run on a GPU, without `user`, with 1,024 samples per step: with
64, the host takes 3 ms to start the operations of a step, which an H200 executes in 0.8 ms.

*raybench* is the backend's own trainer. *plain* is an expert's loop (`PlainLoop` of parity_torch.py
and parity_tensorflow.py), in torch also in its *default layout*. *user* is a common loop: a
DataLoader over a TensorDataset with torch's default Adam, or Keras's `fit`. Their order rotates.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from parity_groups import compared, spec_of, write_task

from raybench.data.dataset import Dataset
from raybench.models.find import load_workload_dataset
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, find_backend
from raybench.training.samples import take_until, training_steps, warm_up_step

Side = Callable[[int], object]
"""Trains the epoch with the given number."""


class Plain(Protocol):
    """The plain loop of either framework."""

    def train(self, epoch: int) -> float:
        """Train the epoch of that number; return its seconds."""
        ...

    def save(self, folder: Path) -> Path:
        """Write the weights; return their file."""
        ...


class Own:
    """raybench's loop of one worker."""

    def __init__(self, spec: RunSpec, device: str) -> None:
        workload, self.dataset = load_workload_dataset(spec.workload, spec.dataset)
        backend = find_backend(spec.framework)
        gpus = int(device != "cpu")
        spec = spec.model_copy(update={"gpus_per_worker": gpus})
        world = backend.join(rank=0, num_workers=1, device=device, num_threads=1, num_gpus=gpus)
        self.trainer: BaseTrainer = backend.Trainer(spec, workload, self.dataset, world)
        self.trainer.warm_up(warm_up_step(spec, self.dataset, world))
        self._steps = training_steps(spec, self.dataset, world)

    def train(self, epoch: int) -> None:
        """Train the next epoch."""
        del epoch
        chunk, _ = take_until(self._steps, self.dataset.num_train_samples)
        self.trainer.train(chunk)


def torch_sides(
    spec: RunSpec, folder: Path, dataset: Dataset, device: str
) -> tuple[dict[str, Side], Plain]:
    """Return the peers, and the plain loop whose weights are compared."""
    import torch
    from parity_torch import MODELS, PlainLoop
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    pixels = torch.from_numpy(dataset.train.inputs).permute(0, 3, 1, 2)
    inputs = (pixels.float() / 255).contiguous().repeat(dataset.repeat, 1, 1, 1)
    labels = torch.from_numpy(dataset.train.labels).repeat(dataset.repeat)
    loader = DataLoader(
        TensorDataset(inputs, labels), batch_size=spec.batch_size_per_worker, shuffle=True
    )
    model = MODELS[spec.workload]()
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.learning_rate)

    def user(epoch: int) -> None:
        del epoch
        for images, answers in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), answers)
            loss.backward()
            optimizer.step()

    if device != "cpu":
        plain = PlainLoop(folder, channels_last=False, device=device)  # the faster one there
        return {"plain": plain.train}, plain
    plain, default = PlainLoop(folder), PlainLoop(folder, channels_last=False)
    return {"plain": plain.train, "default layout": default.train, "user": user}, plain


def tensorflow_sides(
    spec: RunSpec, folder: Path, dataset: Dataset, device: str
) -> tuple[dict[str, Side], Plain]:
    """Return the peers, and the plain loop whose weights are compared."""
    import keras
    import tensorflow as tf
    from parity_tensorflow import MODELS, PlainLoop

    inputs = np.tile(dataset.train.inputs.astype(np.float32) / 255, (dataset.repeat, 1, 1, 1))
    labels = np.tile(dataset.train.labels, dataset.repeat)
    model = MODELS[spec.workload]()
    model.compile(
        optimizer=keras.optimizers.Adam(spec.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def user(epoch: int) -> None:
        del epoch
        model.fit(inputs, labels, batch_size=spec.batch_size_per_worker, epochs=1, verbose=0)

    plain = PlainLoop(folder, tf.distribute.get_strategy())
    return {"plain": plain.train} | ({"user": user} if device == "cpu" else {}), plain


SIDES = {"torch": torch_sides, "tensorflow": tensorflow_sides}


def main() -> None:
    framework, workload, rounds, folder = *sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4])
    device = "".join(sys.argv[5:]) or "cpu"
    spec = spec_of(framework, workload, 1, rounds + 1)
    if device != "cpu":
        dataset = spec.dataset.model_copy(update={"repeat": 16})
        spec = spec.model_copy(update={"batch_size_per_worker": 1024, "dataset": dataset})
    write_task(spec, folder)
    own = Own(spec, device)
    peers, plain = SIDES[framework](spec, folder, own.dataset, device)
    sides: dict[str, Side] = {"raybench": own.train} | peers
    speeds: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    names = list(sides)
    for epoch in range(rounds + 1):
        for name in names:
            started, began = time.perf_counter(), time.process_time()
            sides[name](epoch)
            seconds = time.perf_counter() - started, time.process_time() - began
            if epoch:  # the first one traces, and fills caches
                speeds[name].append(tuple(own.dataset.num_train_samples / one for one in seconds))
        names = names[1:] + names[:1]
    theirs = plain.save(folder).read_bytes()
    weights = compared(framework, own.trainer.save(), theirs)
    print(json.dumps({"speeds": speeds, "weights": weights}))


if __name__ == "__main__":
    main()
