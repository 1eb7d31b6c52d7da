"""Script of one worker of a group: trains each spec for a few steps and saves the results.

One group trains many specs because starting the processes takes longest.
"""

from pathlib import Path
from typing import Any

import numpy as np
from local_runs import first_steps, new_trainer
from optim_reference import IN_GROUPS, gradients, initial_weights, rates
from worker_processes import run_worker

from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext


def work(framework: str, specs: Any, world: DistributedContext, folder: Path) -> None:
    for index, content in enumerate(specs):
        arrays = train_result(RunSpec.model_validate(content), world)
        np.savez(folder / f"{index}-{world.rank}.npz", **arrays)
    if framework == "torch":
        import sharded_loop

        sharded_loop.work(world, folder)
    else:
        np.savez(folder / f"paper-{world.rank}.npz", **keras_weights_of_the_paper(world))


def train_result(spec: RunSpec, world: DistributedContext) -> dict[str, np.ndarray]:
    """Train for two and a half epochs; return weights, sums over all workers, number of steps."""
    trainer, dataset, _ = new_trainer(spec, world=world)
    chunk = first_steps(spec, dataset, world, round(2.5 * len(dataset.train)))
    trainer.warm_up(chunk[0])
    loss = trainer.train(chunk)
    middle = len(dataset.validation) // 3  # uneven shards
    shards = [slice(0, middle), slice(middle, None)] if world.num_workers == 2 else [slice(0, None)]
    totals = trainer.evaluate("validation", shards[world.rank])
    sums = np.sum(world.gather([loss, totals.loss, totals.value, float(totals.samples)]), axis=0)
    weights = weights_of(trainer, spec.framework)
    trainer.close()
    named = {f"weights{index}": array for index, array in enumerate(weights)}
    return named | {"sums": sums, "steps": np.array(len(chunk))}


def weights_of(trainer: Any, framework: str) -> list[np.ndarray]:
    """Return the trainable weights of a trainer's model."""
    if framework == "torch":
        return [value.detach().numpy().copy() for value in trainer._model.parameters()]
    return [variable.value.numpy() for variable in trainer._model.trainable_variables]


def flat_weights(trainer: Any, framework: str) -> np.ndarray:
    """Return all trainable weights of a trainer's model as one vector."""
    return np.concatenate([array.ravel() for array in weights_of(trainer, framework)])


def keras_weights_of_the_paper(world: DistributedContext) -> dict[str, np.ndarray]:
    """Return the weights of each optimizer of IN_GROUPS after all steps of `optim_reference`."""
    return {
        f"{name}{index}": weights
        for name in IN_GROUPS
        for index, weights in enumerate(keras_weights(name, world.strategy))
    }


def keras_weights(name: str, strategy) -> list[np.ndarray]:
    import keras
    import tensorflow as tf

    from raybench.training.tensorflow.optim import build_optimizer

    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        weights = [keras.Variable(w) for w in initial_weights()]
        optimizer = build_optimizer(name, learning_rate=0.1, weight_decay=0.05)
        optimizer.build(weights)

    @tf.function
    def step(grads):
        strategy.run(optimizer.apply, args=(grads, weights))

    for grads, rate in zip(gradients(), rates(name), strict=True):
        optimizer.learning_rate.assign(rate)
        step([tf.constant(g) for g in grads])
    return [w.numpy() for w in weights]


if __name__ == "__main__":
    run_worker(work)
