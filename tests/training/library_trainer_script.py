"""Script of a worker: runs training functions with trainers of libraries and saves the curves."""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from worker_processes import run_worker

from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import DistributedContext
from raybench.training.own import OwnTrainer, Run


def work(framework: str, cases: Any, world: DistributedContext, folder: Path) -> None:
    for name, case in cases.items():
        sys.path.insert(0, case["folder"])
        loop = getattr(import_module(case["module"]), case["function"])
        spec = RunSpec.model_validate(case["spec"])
        result = outcome(loop, spec, world, case["leave_at"], folder)
        (folder / f"{name}-{world.rank}.json").write_text(json.dumps(result))


def outcome(
    loop: Callable[[Run], object],
    spec: RunSpec,
    world: DistributedContext,
    leave_at: int | None,
    folder: Path,
) -> dict[str, Any]:
    """Run a loop to its end, interrupted and resumed after evaluation `leave_at` if given."""
    curve = list[Evaluation]()
    if leave_at is not None:
        trainer = OwnTrainer(spec, loop, world, Ledger("setup"))
        for point in trainer.evaluations():
            curve.append(point)
            if point.index == leave_at:
                break
        if world.rank == 0:
            (folder / "state").write_bytes(trainer.state() or b"")
        trainer.finish()
        trainer.close()
        world.gather([0.0])
    resume = RunState.after(spec, curve) if curve else None
    ledger = Ledger("setup", earlier=resume.ledger if resume else None)
    trainer = OwnTrainer(spec, loop, world, ledger, resume=resume)
    if resume:
        trainer.restore((folder / "state").read_bytes())
    curve += trainer.evaluations()
    trainer.finish()
    trainer.close()
    return {
        "values": [point.value for point in curve],
        "samples": [point.samples for point in curve],
        "stop": curve[-1].stop,
    }


def own_process_group(run: Run) -> None:
    """Training loop that creates and destroys a process group, which is that of the run."""
    import torch
    import torch.distributed as dist

    assert os.environ["WORLD_SIZE"] == str(dist.get_world_size()) == "2"
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == (str(run.rank), str(run.rank))
    dist.init_process_group("gloo")
    for _ in range(2):
        with run.training():
            total = torch.ones(1)
            dist.all_reduce(total)
        run.report(float(total) / 2, samples=1)
    (run.folder / "shared").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_worker(work)
