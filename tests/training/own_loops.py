"""Runs of users' training loops: on one worker, or on two ranks that are threads."""

from collections.abc import Callable
from typing import Any

from local import Clock, ThreadWorld, on_ranks

from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.own import OwnTrainer, PlainWorld, Run
from raybench.training.ranks import Position

Loop = Callable[[Run], object]


def spec_of(**changes: Any) -> RunSpec:
    """Return the spec of a loop of framework `python` for three epochs."""
    content = {
        "workload": "train.py:train",
        "framework": "python",
        "epochs": 3.0,
        "objective": Objective(target=0.9, max_train_seconds=1000.0),
        "model": {"hidden": 8},
    }
    return RunSpec(**(content | changes))


class Worker:
    """The worker's side of a run, as in `cluster.worker`."""

    def __init__(
        self, loop: Loop, *, clock: Clock | None = None, world: Any = None, **changes: Any
    ) -> None:
        self.spec = spec_of(**changes)
        self.ledger = Ledger("setup", **({"clock": clock} if clock else {}))
        self.trainer = OwnTrainer(self.spec, loop, world or PlainWorld("cpu"), self.ledger)

    def to_the_end(self) -> list[Evaluation]:
        """Go on until the run ends by itself; then let the loop return."""
        curve = list(self.trainer.evaluations())
        self.trainer.finish()
        return curve


def reporting(*values: float, seconds: float = 1.0, clock: Clock | None = None) -> Loop:
    """Return a loop that reports these values, one per epoch."""

    def loop(run: Run) -> None:
        for value in values:
            with run.training():
                if clock:
                    clock.now += seconds
            if run.report(value, samples=100):
                return

    return loop


def on_two_ranks(
    spec: RunSpec, loop: Loop, compare: Callable[[Position], str | None] | None = None
) -> tuple[list[list[Evaluation]], dict[int, str]]:
    """Run a loop on two ranks; return the curve of each rank, and its error by rank if it has one.

    The ranks are of framework `python`, since threads have no process group of torch.
    """
    spec = spec.model_copy(update={"framework": "python", "num_workers": 2})
    given = {"compare": compare} if compare else {}
    errors: dict[int, str] = {}

    def work(world: ThreadWorld) -> list[Evaluation]:
        trainer, curve = OwnTrainer(spec, loop, world, Ledger("setup"), **given), list[Evaluation]()
        try:
            curve.extend(trainer.evaluations())
            trainer.finish()
        except UserError as error:
            errors[world.rank] = str(error)
        return curve

    return on_ranks(2, work), errors
