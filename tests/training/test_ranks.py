"""Several ranks, each a thread: what stands on their clock, and the times of their steps."""

import time

import numpy as np
from local import Clock, NoTraining, ThreadWorld, on_ranks, zeros

from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import Step, StepLog
from raybench.training.run import Recorded, Recording, run
from raybench.training.steps import take_until, training_steps

EPOCH, WORKERS = 50_000, 8


class Exchanging(NoTraining):
    """Waits for the other ranks, as data-parallel training does; takes no time."""

    def __init__(self, world: ThreadWorld, seconds: list[float] | None = None) -> None:
        self._world, self._seconds = world, seconds or []

    def train(self, steps: list[Step]) -> float:
        self._world.gather([0.0])
        return 0.0

    def step_log(self) -> StepLog:
        return StepLog(seconds=self._seconds, part_squares=[], whole_squares=[])


def test_the_skew_between_commands_is_not_on_the_clock() -> None:
    workers = {"num_workers": 2, "batch_size_per_worker": 16}
    spec = RunSpec(objective=Objective(target=1.0), epochs=5.0, **workers)  # type: ignore[arg-type]
    clock = Clock()  # it stands still, so that no busy machine shows

    def seconds(world: ThreadWorld) -> float:
        ledger, found = Ledger("setup", clock=clock), []
        for evaluation in run(spec, zeros(64), Exchanging(world), world, ledger):  # type: ignore[arg-type]
            found.append(evaluation.train_s)
            if world.rank == 1:  # it is told late that it goes on
                time.sleep(0.05)  # the others go on meanwhile
                clock.now += 1.0
        return found[-1]

    assert on_ranks(2, seconds) == [0.0, 0.0], "the other rank's delay is on the clock"
    assert clock.now == 5.0


def recorded(batch_each: int, epochs: int) -> list[Recorded]:
    """Return what each rank has recorded of some epochs; it needs a microsecond a sample."""
    spec = RunSpec(num_workers=WORKERS, batch_size_per_worker=batch_each)

    def of(world: ThreadWorld) -> Recorded:
        steps, _ = take_until(training_steps(spec, zeros(EPOCH), world), epochs * EPOCH)
        own = [1e-6 * np.count_nonzero(step.weights) for step in steps]
        return Recording(spec, Exchanging(world, own), world).end(steps)  # type: ignore[arg-type]

    return on_ranks(WORKERS, of)


def test_a_short_step_is_not_timed_as_a_whole_one() -> None:
    """50,000 samples in batches of 32,768: every second step has 17,232."""
    for one in recorded(4096, epochs=3):
        assert one["steps"] is not None
        assert one["steps"].num == 3
        for seconds in (one["steps"].p25_s, one["steps"].max_s):
            assert 32_768 / seconds == np.float64(WORKERS * 1e6)


def test_where_no_step_is_whole_none_is_timed() -> None:
    assert all(one["steps"] is None for one in recorded(8192, epochs=3))
