"""Script of a worker in test_ranks.py: training loops whose ranks diverge in an exchange."""

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker_processes import run_worker

from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training import own, ranks
from raybench.training.base import DistributedContext
from raybench.training.own import OwnTrainer, Run
from raybench.training.ranks import Position, parting


def stepping(run: Run) -> Callable[[], object]:
    """Return a function that takes a step in which both workers exchange gradients."""
    if run.strategy is None:
        import torch

        model = run.prepare(torch.nn.Linear(8, 2))
        return lambda: model(torch.ones(64, 8)).square().mean().backward()
    import tensorflow as tf

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones(8))

    step: Callable[[], object] = tf.function(lambda: run.strategy.run(replica))
    return step


def uneven(run: Run) -> None:
    """Rank 0 is slower in the first epoch, by many checks, and has one more batch in the next."""
    step = stepping(run)
    for epoch in run.epochs():
        with run.training():
            for _ in range(5 if (run.rank, epoch) == (0, 1) else 4):
                step()
            if run.rank == 0:
                time.sleep(1.0)
        run.report(0.5, samples=288)


def step_outside_training(run: Run) -> None:
    """Rank 1 takes its step outside of `run.training()`."""
    step = stepping(run)
    if run.rank == 0:
        with run.training():
            step()
    else:
        step()
    run.report(0.5, samples=64)


def own_collective(run: Run) -> None:
    """Rank 0 calls a collective function that rank 1 does not call."""
    with run.training():
        time.sleep(0.01)
    import torch
    import torch.distributed as dist

    if run.rank == 0:  # its size differs from that of every collective call of raybench
        dist.all_gather([torch.zeros(3), torch.zeros(3)], torch.zeros(3))
    run.report(0.5, samples=64)


LOOPS = {loop.__name__: loop for loop in (uneven, step_outside_training, own_collective)}


def work(framework: Any, case: str, world: DistributedContext, folder: Path) -> None:
    """Run a loop of LOOPS; save the number of reports and the error."""
    own.LOOK_S, ranks.STUCK_S = 0.1, 0.3
    spec = RunSpec(
        workload="train.py:train",
        framework=framework,
        epochs=2.0,
        num_workers=2,
        objective=Objective(target=0.9, max_train_seconds=1000.0),
    )

    def compare(position: Position) -> str | None:
        file = folder / f"position-{position.rank}"
        file.with_suffix(".new").write_bytes(pickle.dumps(position))
        file.with_suffix(".new").rename(file.with_suffix(".now"))
        if any(folder.glob(f"error-{1 - position.rank}.json")):
            return "the other rank has failed"  # in a real run the pool ends this one
        return parting([pickle.loads(file.read_bytes()) for file in folder.glob("*.now")])

    trainer = OwnTrainer(spec, LOOPS[case], world, Ledger("setup"), compare=compare)
    num_reports = 0
    try:
        for _ in trainer.evaluations():
            num_reports += 1
    except UserError as error:
        (folder / f"error-{world.rank}.json").write_text(json.dumps([num_reports, str(error)]))


if __name__ == "__main__":
    run_worker(work)
