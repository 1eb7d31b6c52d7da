"""Runs of training loops of the user: on one worker, or on two ranks that are threads."""

from collections.abc import Callable, Iterator
from typing import Any

from local_runs import Clock, ThreadWorld, run_on_ranks

from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.own import OwnTrainer, PlainWorld, Run
from raybench.training.ranks import Position
from raybench.training.saved import Checkpoints, Snapshot

Loop = Callable[[Run], object]


def spec_of(**changes: Any) -> RunSpec:
    """Return the spec of a training loop without a framework, for three epochs."""
    content = {
        "workload": "train.py:train",
        "framework": "python",
        "epochs": 3.0,
        "objective": Objective(target=0.9, max_train_seconds=1000.0),
        "model": {"hidden": 8},
    }
    return RunSpec(**(content | changes))


class Worker:
    """Worker side of a run, as in `cluster.worker`: spec, world, ledger and trainer."""

    def __init__(
        self,
        loop: Loop,
        *,
        clock: Clock | None = None,
        world: Any = None,
        resume: RunState | None = None,
        **changes: Any,
    ) -> None:
        self.spec, self.world = spec_of(**changes), world or PlainWorld("cpu")
        earlier = resume.ledger if resume else None
        self.ledger = Ledger("setup", earlier=earlier, **({"clock": clock} if clock else {}))
        self.trainer = OwnTrainer(self.spec, loop, self.world, self.ledger, resume=resume)

    def checkpoints(self) -> Iterator[Snapshot | None]:
        """Start the run; yield the checkpoint after each evaluation, None where there is none."""
        checkpoints = Checkpoints(self.spec, self.world)
        for evaluation in self.trainer.evaluations():
            yield checkpoints.after(evaluation, self.trainer.state, self.ledger)

    def run_to_end(self) -> list[Evaluation]:
        """Run until the run stops and the loop has returned; return the curve."""
        curve = list(self.trainer.evaluations())
        self.trainer.finish()
        return curve


def reporting_loop(*values: float, seconds: float = 1.0, clock: Clock | None = None) -> Loop:
    """Return a loop that reports these values, one per epoch; each advances the clock."""

    def loop(run: Run) -> None:
        for value in values:
            with run.training():
                if clock:
                    clock.now += seconds
            if run.report(value, samples=100):
                return

    return loop


def run_on_two_ranks(
    spec: RunSpec, loop: Loop, compare: Callable[[Position], str | None] | None = None
) -> tuple[list[list[Evaluation]], dict[int, str]]:
    """Run a loop on two ranks; return the curve of each rank, and the errors by rank.

    The framework is `python`, because threads cannot form a process group of torch.
    """
    spec = spec.model_copy(update={"framework": "python", "num_workers": 2})
    options = {"compare": compare} if compare else {}
    errors: dict[int, str] = {}

    def work(world: ThreadWorld) -> list[Evaluation]:
        trainer = OwnTrainer(spec, loop, world, Ledger("setup"), **options)
        curve = list[Evaluation]()
        try:
            curve.extend(trainer.evaluations())
            trainer.finish()
        except UserError as error:
            errors[world.rank] = str(error)
        return curve

    return run_on_ranks(2, work), errors
