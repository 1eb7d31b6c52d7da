"""Script of one of two workers that exchange gradients in every supported way.

Trains the runs of `SPECS`, takes the single steps of `STEPS`, does the tasks of
`checkpointed_runs`, `headed_model` and `worker_script`, and saves all results. One group does
everything because its start takes long.
"""

import json
from pathlib import Path
from typing import Any

import checkpointed_runs
import headed_model
import numpy as np
import worker_script
from local_runs import new_trainer, small_spec
from worker_processes import run_worker
from worker_script import weights_of

from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import BaseTrainer, DistributedContext
from raybench.training.run import run
from raybench.training.samples import make_step

RATE = 3e-3
COMPILED = {"torch": "default", "tensorflow": "xla"}
BASE = {
    "dataset": DatasetSpec(image_size=28, limit=90),
    "num_workers": 2,
    "batch_size_per_worker": 8,
    "optimizer": "adam",
    "learning_rate": RATE,
    "epochs": 2.0,
}
SPECS = {
    "plain": {},
    "recorded": {"record_steps": True, "bucket_mb": 0.001},
    "fp16": {"gradient_compression": "fp16"},
    "bf16": {"gradient_compression": "bf16", "record_steps": True},
    "half": {"precision": "fp16", "gradient_compression": "fp16", "record_steps": True},
    "passes": {"accumulate": 2, "record_steps": True},
    "alone": {"exchange_gradients": False, "record_steps": True},
    "compiled": {"compile": True},
}
"""Two epochs of 90 digits in global batches of 16; the last batch of an epoch is smaller."""
STEPS = {"even": 16, "uneven": 7, "one_empty": 1}
"""Number of samples of single steps; 1 leaves one worker without samples."""


def spec_of(framework: str, name: str = "plain", **changes: object) -> RunSpec:
    content = BASE | SPECS[name] | changes
    if "compile" in content:
        content["compile"] = COMPILED[framework]
    return small_spec(framework, **content)


def trained(spec: RunSpec, world: DistributedContext) -> tuple[list[dict[str, Any]], BaseTrainer]:
    """Train to the end; return the records of the evaluations and the trainer."""
    trainer, dataset, _ = new_trainer(spec, world=world)
    curve = run(spec, dataset, trainer, world, Ledger("setup"))
    return [evaluation.line("0000") for evaluation in curve], trainer


def single_steps(framework: str, world: DistributedContext) -> dict[str, list[float]]:
    """Take each of STEPS from the initial weights; return the logged squared norms."""
    spec = spec_of(framework, "recorded")
    trainer, _, _ = new_trainer(spec, world=world)
    initial, logs = trainer.save(), {}
    for name, size in STEPS.items():
        trainer.load(initial)
        trainer.train([make_step(spec, np.arange(size), world, 1e-3)])
        log = trainer.step_log()
        logs[name] = [*log.part_squares, *log.whole_squares]
    trainer.close()
    return logs


def train_uneven_steps(trainer: BaseTrainer, spec: RunSpec, world: DistributedContext) -> int:
    """Train rank 0 for three steps more than rank 1, where any collective call would hang."""
    steps = [make_step(spec, np.arange(16), world, 1e-3)] * (1 if world.rank else 4)
    trainer.train(steps)
    return len(steps)


def work(framework: str, tasks: Any, world: DistributedContext, folder: Path) -> None:
    checkpointed_runs.work(framework, tasks["checkpointed_runs"], world, folder)
    headed_model.work(tasks["headed_model"], world, folder)
    if framework == "tensorflow":  # test_worker_equality has those of torch
        worker_script.work(framework, tasks["worker_script"], world, folder)
    else:  # compile without inductor, which is slow and is tested on one worker
        import torch

        compile_model = torch.compile
        torch.compile = lambda model, *, mode, **options: compile_model(
            model, backend="aot_eager", **options
        )
    results = {}
    for name in SPECS:
        spec = spec_of(framework, name)
        results[name], trainer = trained(spec, world)
        weights = {f"w{i}": array for i, array in enumerate(weights_of(trainer, framework))}
        np.savez(folder / f"{name}-{world.rank}.npz", **weights)
        if name == "alone":
            results["uneven_steps"] = train_uneven_steps(trainer, spec, world)
        trainer.close()
    results["logs"] = single_steps(framework, world)
    (folder / f"results-{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    run_worker(work)
