"""What stands on the clock of several workers: training, and not the skew between commands."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from local import ThreadWorld, thread_worlds

from raybench.data.dataset import Dataset, Split
from raybench.spec.metric import ACCURACY
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.training.base import Step, Totals
from raybench.training.run import run

LATE_S = 0.2
NUM_EVALUATIONS = 5


class NoTraining:
    """Exchanges gradients with the other rank, as data-parallel training does; takes no time."""

    metric, num_parameters, batch_statistics = ACCURACY, 1, False

    def __init__(self, world: ThreadWorld) -> None:
        self._world = world

    def warm_up(self, *steps: Step) -> None:
        pass

    def train(self, steps: list[Step]) -> float:
        self._world.gather([0.0])
        return 0.0

    def evaluate(self, part: str, rows: slice) -> Totals:
        return Totals(loss=0.0, value=0.0, squares=0.0, samples=1)

    def input_seconds(self) -> float:
        return 0.0


def test_ranks_that_hear_go_on_at_different_moments() -> None:
    labels = np.zeros(64, np.int64)
    split = Split(np.zeros((64, 4), np.float32), labels)
    dataset = Dataset("none", 2, train=split, validation=split, test=split)
    spec = RunSpec(
        dataset=DatasetSpec(),
        objective=Objective(target=1.0),
        num_workers=2,
        batch_size_per_worker=16,
        epochs=float(NUM_EVALUATIONS),
    )
    worlds = thread_worlds(2)
    seconds: dict[int, float] = {}

    def work(rank: int) -> None:
        world, ledger = worlds[rank], Ledger("setup")
        for evaluation in run(spec, dataset, NoTraining(world), world, ledger):  # type: ignore[arg-type]
            seconds[rank] = evaluation.train_s
            time.sleep(LATE_S * rank)  # rank 1 is told late

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    assert seconds[0] == pytest.approx(seconds[1])
    assert seconds[0] < LATE_S / 4, "the other rank's delay is on the clock"
