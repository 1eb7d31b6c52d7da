"""Runs with a checkpoint after every evaluation, and runs resumed from one."""

from pathlib import Path
from typing import Any

import numpy as np
from local_runs import new_trainer, small_spec

from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.checkpoint import latest_checkpoint, write_checkpoint
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import BaseTrainer, DistributedContext
from raybench.training.run import run
from raybench.training.saved import Checkpoints

MIDDLE, END = 0, 1
"""Evaluations in the middle and at the end of the first epoch (90 samples, one per 45)."""


def spec_of(framework: str, optimizer: str, **changes: object) -> RunSpec:
    """Return a spec of two epochs of 90 digits, batches of 16 and two evaluations per epoch."""
    content: dict[str, object] = {
        "workload": "regularised:Regularised",
        "dataset": DatasetSpec(limit=90),
        "optimizer": optimizer,
        "learning_rate": 0.01,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "warmup_epochs": 0.3,
        "epochs": 2.0,
        "batch_size_per_worker": 16,
        "eval_every_samples": 45,
        "checkpoint_every_s": 1e-9,
    }
    return small_spec(framework, **(content | changes))


def train_and_save(
    spec: RunSpec, world: DistributedContext, folder: Path
) -> tuple[list[Evaluation], BaseTrainer]:
    """Train to the end, with each evaluation's checkpoint in a subfolder; return curve, trainer."""
    trainer, dataset, _ = new_trainer(spec, world=world)
    checkpoints, ledger = Checkpoints(spec, world), Ledger("setup")
    curve = []
    for evaluation in run(spec, dataset, trainer, world, ledger):
        curve.append(evaluation)
        checkpoint = checkpoints.after(evaluation, trainer.state, ledger)
        if checkpoint is not None:
            weights = checkpoint.weights
            write_checkpoint(
                folder / str(evaluation.index),
                checkpoint.state,
                lambda path: path.write_bytes(weights),  # noqa: B023 (called here)
            )
    return curve, trainer


def resume_and_train(
    spec: RunSpec, world: DistributedContext, folder: Path
) -> tuple[list[Evaluation], BaseTrainer]:
    """Resume from a folder and train to the end; return the rest of the curve and the trainer."""
    checkpoint = latest_checkpoint(folder, spec)
    trainer, dataset, _ = new_trainer(spec, world=world)
    trainer.restore(checkpoint.weights.read_bytes())
    ledger = Ledger("setup", earlier=checkpoint.state.ledger)
    curve = list(run(spec, dataset, trainer, world, ledger, resume=checkpoint.state))
    return curve, trainer


def model_arrays(trainer: BaseTrainer, framework: str) -> list[np.ndarray]:
    """Return all state of the model: weights, running averages, random streams."""
    model = trainer._model
    if framework == "torch":
        return [value.numpy().copy() for value in model.state_dict().values()]
    return [variable.value.numpy() for variable in model.variables]


def curve_values(curve: list[Evaluation]) -> np.ndarray:
    """Return the values of the curve that must be equal bit by bit."""
    return np.array(
        [[p.index, p.samples, p.epoch, p.value, p.train_loss, p.learning_rate] for p in curve]
    )


def work(framework: str, tasks: Any, world: DistributedContext, folder: Path) -> None:
    """Run tasks as a worker of a group and save their results in a folder.

    A task is a tuple of a name, a spec, and -1 for a whole run or the evaluation to resume after.
    """
    for name, content, at in tasks:
        spec = RunSpec.model_validate(content)
        if at < 0:
            curve, trainer = train_and_save(spec, world, folder / name)
        else:
            curve, trainer = resume_and_train(spec, world, folder / name / str(at))
        arrays = {f"array{i}": array for i, array in enumerate(model_arrays(trainer, framework))}
        trainer.close()
        seconds = [point.train_s for point in curve]
        file = folder / f"{name}{at}-{world.rank}.npz"
        np.savez(file, curve=curve_values(curve), seconds=seconds, **arrays)
