"""Runs of the training loop in this process, without Ray."""

import importlib.util

import pytest

from raybench.models.find import load_workload_dataset
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import Trainer, find_backend
from raybench.training.run import run

FRAMEWORKS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"),
    )
    for name in ("torch", "tensorflow")
]
SMALL = DatasetSpec(image_size=28, limit=300)
FOR_EVER = Objective(kind="best_at_budget", max_train_seconds=1e6)


def small_spec(framework: str, **changes: object) -> RunSpec:
    """Three epochs of 300 digits in batches of 64."""
    content = {"dataset": SMALL, "objective": FOR_EVER, "epochs": 3.0, "learning_rate": 3e-3}
    return RunSpec(**({"framework": framework} | content | changes))  # type: ignore[arg-type]


def train(spec: RunSpec, ledger: Ledger | None = None) -> tuple[list[Evaluation], Trainer]:
    """Run a spec to its end; return its curve and the trainer, which still holds the model."""
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    backend = find_backend(spec.framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, workload, dataset, world)
    return list(run(spec, dataset, trainer, world, ledger or Ledger("setup"))), trainer
