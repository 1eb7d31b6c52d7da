"""Runs that are saved at every evaluation, and runs that are continued; alone or in a group."""

from pathlib import Path
from typing import Any

import numpy as np
from local import new_trainer, small_spec

from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.checkpoint import latest_checkpoint, write_checkpoint
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import BaseTrainer, DistributedContext
from raybench.training.run import run
from raybench.training.saved import Checkpoints

MIDDLE, END = 0, 1
"""Evaluations in the middle of the first epoch, and at its end (90 samples, each 45)."""


def spec_of(framework: str, optimizer: str, **changes: object) -> RunSpec:
    """Two epochs of 90 digits in global batches of 16, evaluated twice an epoch."""
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


def whole(
    spec: RunSpec, world: DistributedContext, folder: Path
) -> tuple[list[Evaluation], BaseTrainer]:
    """Train to the end; save after every evaluation, each in a folder of its own."""
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


def continued(
    spec: RunSpec, world: DistributedContext, folder: Path
) -> tuple[list[Evaluation], BaseTrainer]:
    """Continue from a folder to the end; return what of the curve was still to come."""
    checkpoint = latest_checkpoint(folder, spec)
    assert checkpoint is not None
    trainer, dataset, _ = new_trainer(spec, world=world)
    trainer.restore(checkpoint.weights.read_bytes())
    ledger = Ledger("setup", earlier=checkpoint.state.ledger)
    curve = list(run(spec, dataset, trainer, world, ledger, resume=checkpoint.state))
    return curve, trainer


def all_of(trainer: BaseTrainer, framework: str) -> list[np.ndarray]:
    """Everything the model holds: weights, running averages, random streams."""
    model = trainer._model
    if framework == "torch":
        return [value.numpy().copy() for value in model.state_dict().values()]
    return [variable.value.numpy() for variable in model.variables]


def facts(curve: list[Evaluation]) -> np.ndarray:
    """Values of the curve that must be equal bit by bit."""
    return np.array(
        [[p.index, p.samples, p.epoch, p.value, p.train_loss, p.learning_rate] for p in curve]
    )


def work(framework: str, tasks: Any, world: DistributedContext, folder: Path) -> None:
    """Do tasks, [name, spec, from] each, as a worker of a group: `from` is -1 for a whole run and
    else the evaluation after which it is continued."""
    for name, content, at in tasks:
        spec = RunSpec.model_validate(content)
        if at < 0:
            curve, trainer = whole(spec, world, folder / name)
        else:
            curve, trainer = continued(spec, world, folder / name / str(at))
        arrays = {f"array{i}": a for i, a in enumerate(all_of(trainer, framework))}
        trainer.close()
        seconds = [point.train_s for point in curve]
        np.savez(
            folder / f"{name}{at}-{world.rank}.npz", facts=facts(curve), seconds=seconds, **arrays
        )
