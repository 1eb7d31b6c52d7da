"""A worker of test_ranks.py: a loop of the user's own whose ranks part in an exchange."""

import json
import pickle
import time
from pathlib import Path

import torch
import torch.distributed as dist
from group import serve
from torch import nn

from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training import own, ranks
from raybench.training.base import World
from raybench.training.own import OwnTrainer, Run
from raybench.training.ranks import Position, parting

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module) -> None:
    model(X).square().mean().backward()


def uneven(run: Run) -> None:
    model = run.prepare(nn.Linear(8, 2))
    for _ in run.epochs():
        with run.training():
            for _ in range(5 if run.rank == 0 else 4):
                step(model)
        run.report(0.5, samples=288)


def clock(run: Run) -> None:
    model = run.prepare(nn.Linear(8, 2))
    if run.rank == 0:
        with run.training():
            step(model)
    else:
        step(model)
    run.report(0.5, samples=64)


def own_collective(run: Run) -> None:
    with run.training():
        time.sleep(0.01)
    if run.rank == 0:  # of the size of nothing of ours
        dist.all_gather([torch.zeros(3), torch.zeros(3)], torch.zeros(3))
    run.report(0.5, samples=64)


def slow(run: Run) -> None:
    model = run.prepare(nn.Linear(8, 2))
    for _ in run.epochs():
        with run.training():
            step(model)
            if run.rank == 0:
                time.sleep(1.0)
        run.report(0.5, samples=64)


LOOPS = {one.__name__: one for one in (uneven, clock, own_collective, slow)}


def work(framework: str, case: str, world: World, folder: Path) -> None:
    """Run the case's loop; write what is said of it."""
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
        return parting([pickle.loads(one.read_bytes()) for one in folder.glob("*.now")])

    trainer = OwnTrainer(spec, LOOPS[case], world, Ledger("setup"), compare=compare)
    try:
        for _ in trainer.evaluations():
            pass
    except UserError as error:
        (folder / "said.json").write_text(json.dumps(str(error)))


if __name__ == "__main__":
    serve(work)
