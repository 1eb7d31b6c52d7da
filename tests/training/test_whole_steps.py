"""Times of steps are those of whole global batches: the last of an epoch has what is left."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from local import ThreadWorld, thread_worlds

from raybench.data.dataset import Dataset, Split
from raybench.spec.run import RunSpec
from raybench.training.base import StepLog
from raybench.training.run import Recorded, Recording
from raybench.training.steps import take_until, training_steps

EPOCH, WORKERS = 50_000, 8


@dataclass
class Trainer:
    """Needs a microsecond a sample of its own; nothing is exchanged."""

    seconds: list[float]
    num_parameters: int = 10

    def step_log(self) -> StepLog:
        return StepLog(seconds=self.seconds, part_squares=[], whole_squares=[])

    def memory_peak_bytes(self) -> int | None:
        return None


def recorded(batch_each: int, epochs: int) -> list[Recorded]:
    """Return what each rank has recorded of some epochs."""
    spec = RunSpec(num_workers=WORKERS, batch_size_per_worker=batch_each)
    split = Split(np.zeros((EPOCH, 1), np.float32), np.zeros(EPOCH, np.int64))
    dataset = Dataset("made up", 2, train=split, validation=split, test=split)

    def of(world: ThreadWorld) -> Recorded:
        steps, _ = take_until(training_steps(spec, dataset, world), epochs * EPOCH)
        own = [1e-6 * np.count_nonzero(step.weights) for step in steps]
        return Recording(spec, Trainer(own), world).end(steps)  # type: ignore[arg-type]

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(of, thread_worlds(WORKERS)))


def test_a_short_step_is_not_timed_as_a_whole_one() -> None:
    """50,000 samples in batches of 32,768: every second step has 17,232."""
    for one in recorded(4096, epochs=3):
        assert one["steps"] is not None
        assert one["steps"].num == 3
        for seconds in (one["steps"].first_s, one["steps"].p25_s, one["steps"].max_s):
            assert 32_768 / seconds == np.float64(WORKERS * 1e6)


def test_where_no_step_is_whole_none_is_timed() -> None:
    assert all(one["steps"] is None for one in recorded(8192, epochs=3))
