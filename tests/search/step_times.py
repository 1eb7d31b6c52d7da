"""Made-up runs whose seconds depend on where they run."""

import math

from raybench.spec.run import Placement, RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import record


def seconds_on(placement: Placement) -> float:
    """Return the seconds of 10,000 samples: 0.1 ms a sample and worker, a step 2 ms more with
    every further worker."""
    workers, batch = placement.num_workers, placement.batch_size_per_worker
    return 10_000 / (workers * batch) * (1e-4 * batch + 2e-3 * (workers - 1))


def trained(name: str, spec: RunSpec) -> RunRecord:
    """Return the record of a run that is at the target after 10,000 samples."""
    seconds = seconds_on(spec.placement)
    return record(name, spec, seconds, samples=10_000, score=math.log(seconds))
