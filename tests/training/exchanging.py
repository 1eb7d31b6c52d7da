"""Script of one of two workers that exchange gradients in every supported way.

Trains the runs of `SPECS`, takes the single steps of `STEPS`, does what `continued`, `headed` and
`one_worker` are given in their names, and saves what came out of each: the start of a group is what
takes long.
"""

import json
from pathlib import Path
from typing import Any

import continued
import headed
import numpy as np
import one_worker
from group import serve
from local import new_trainer, small_spec
from one_worker import weights_of

from raybench.data.dataset import shard
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import BaseTrainer, DistributedContext, Step
from raybench.training.run import run

RATE = 3e-3
COMPILED = {"torch": "default", "tensorflow": "xla"}
BASE: dict[str, Any] = {
    "dataset": DatasetSpec(image_size=28, limit=90),
    "num_workers": 2,
    "batch_size_per_worker": 8,
    "optimizer": "adam",
    "learning_rate": RATE,
    "epochs": 3.0,
}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recorded": {"record_steps": True},
    "small_buckets": {"bucket_mb": 0.001, "record_steps": True},
    "fp16": {"gradient_compression": "fp16"},
    "bf16": {"gradient_compression": "bf16", "record_steps": True},
    "half": {"precision": "fp16", "gradient_compression": "fp16", "record_steps": True},
    "passes": {"accumulate": 2, "record_steps": True},
    "alone": {"exchange_gradients": False, "record_steps": True},
    "compiled": {"compile": True},
}
"""Three epochs of 90 digits in global batches of 16, the last of an epoch uneven."""
STEPS = {"even": 16, "uneven": 7, "one_empty": 1}
"""Samples of single steps; 1 leaves a worker without any."""


def spec_of(framework: str, name: str = "plain", **changes: object) -> RunSpec:
    given = BASE | SPECS[name] | changes
    return small_spec(
        framework, **given | ({"compile": COMPILED[framework]} if "compile" in given else {})
    )


def part_of_batch(num_samples: int, rank: int, num_workers: int) -> Step:
    """Return this worker's step over the first samples."""
    share = np.arange(num_samples)[shard(num_samples, rank=rank, num_workers=num_workers)]
    indices, weights = share, np.full(len(share), 1 / num_samples, np.float32)
    if not len(share):
        indices, weights = np.zeros(1, np.int64), np.zeros(1, np.float32)
    return Step(
        indices=indices.reshape(1, -1),
        weights=weights.reshape(1, -1),
        shares=weights.sum().reshape(1, 1),
        learning_rate=1e-3,
        num_samples=indices.size,
    )


def trained(spec: RunSpec, world: DistributedContext) -> tuple[list[dict[str, Any]], BaseTrainer]:
    """Run a spec to its end; return the lines of its evaluations and the trainer."""
    trainer, dataset, _ = new_trainer(spec, world=world)
    curve = run(spec, dataset, trainer, world, Ledger("setup"))
    return [evaluation.line("0000") for evaluation in curve], trainer


def single_steps(framework: str, world: DistributedContext) -> dict[str, list[float]]:
    """Take each of STEPS from the initial weights; return what was logged."""
    trainer, _, _ = new_trainer(spec_of(framework, "recorded"), world=world)
    initial, logs = trainer.save(), {}
    for name, size in STEPS.items():
        trainer.load(initial)
        trainer.train([part_of_batch(size, world.rank, world.num_workers)])
        log = trainer.step_log()
        logs[name] = [*log.part_squares, *log.whole_squares]
    trainer.close()
    return logs


def steps_without_the_other(trainer: BaseTrainer, world: DistributedContext) -> int:
    """Train without exchange, rank 0 three steps more than rank 1: any collective would hang."""
    steps = [part_of_batch(16, world.rank, world.num_workers)] * (1 if world.rank else 4)
    trainer.train(steps)
    return len(steps)


def work(framework: str, given: Any, world: DistributedContext, folder: Path) -> None:
    continued.work(framework, given["continued"], world, folder)
    headed.work(given["headed"], world, folder)
    if framework == "tensorflow":  # torch's are in test_worker_equality
        one_worker.work(framework, given["one_worker"], world, folder)
    found: dict[str, Any] = {}
    if framework == "torch":  # what inductor makes of a pass is tested on one worker: it takes long
        import torch

        real = torch.compile
        torch.compile = lambda one, *, mode, **given: real(one, backend="aot_eager", **given)
    for name in SPECS:
        found[name], trainer = trained(spec_of(framework, name), world)
        weights = {f"w{i}": array for i, array in enumerate(weights_of(trainer, framework))}
        np.savez(folder / f"{name}-{world.rank}.npz", **weights)
        if name == "alone":
            found["without_the_other"] = steps_without_the_other(trainer, world)
        trainer.close()
    found["logs"] = single_steps(framework, world)
    (folder / f"found-{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    serve(work)
