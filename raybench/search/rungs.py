"""Which trials may go on: halving at rungs of seconds, and capping at the best time so far.

Pure bookkeeping, without Ray: `scheduler.py` asks it for real trials, `benchmarks/` for replayed
ones.
"""

import math
from typing import Any

import numpy as np


class Rungs:
    """Asynchronous successive halving, stopping type (Li et al. 2020, arXiv 1810.05934).

    The fidelity is seconds of training: epochs of different configurations cost different
    seconds. Rungs stand at `first_s` times powers of `factor`. A trial that comes to a rung
    goes on if it is among the best 1 / `factor` of those that came there before it, itself
    not counted; the first ones always do.
    """

    def __init__(self, *, first_s: float, last_s: float, factor: float = 4.0) -> None:
        count = max(0, math.ceil(math.log(last_s / first_s, factor)))
        self._seconds = [first_s * factor**number for number in range(count)]
        self._accuracies: list[list[float]] = [[] for _ in self._seconds]
        self._factor = factor
        self._next: dict[str, int] = {}

    def allows(self, trial: str, seconds: float, accuracy: float) -> bool:
        """Take a trial's best accuracy by `seconds` of training; return whether it may go on.

        Of several rungs passed since the last call, the highest counts.
        """
        passed = sum(rung <= seconds for rung in self._seconds)
        if passed <= self._next.get(trial, 0):
            return True
        self._next[trial] = passed
        earlier = self._accuracies[passed - 1]
        is_good = not earlier or accuracy >= np.quantile(earlier, 1 - 1 / self._factor)
        earlier.append(accuracy)
        return bool(is_good)


class Cap:
    """Stops a trial that can no longer be the fastest, nor the cheapest.

    That is one whose next evaluation will come later than `beta` times the best time to target
    so far, and after more than `beta` times the fewest worker-seconds. Whatever it reaches then
    is no better: its score is censored. `beta` 1 is exact where times are; above 1 it leaves room
    for noise (Zeus, arXiv 2208.06102, stops batch sizes so, with 2).
    """

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._best_s = self._best_worker_s = math.inf

    def reached(self, seconds: float, worker_seconds: float) -> None:
        """Take what a finished trial needed to the target."""
        self._best_s = min(self._best_s, seconds)
        self._best_worker_s = min(self._best_worker_s, worker_seconds)

    def allows(self, seconds: float, worker_seconds: float) -> bool:
        """Whether a trial may go on that will be at the target then at the soonest."""
        return (
            seconds < self._beta * self._best_s or worker_seconds < self._beta * self._best_worker_s
        )


def next_evaluation_s(evaluation: dict[str, Any], epochs: float) -> float:
    """Return the train seconds at a run's next evaluation: the soonest it can be at the target.

    Evaluations are equally many samples apart; the last one may come sooner.
    """
    epoch = evaluation["epoch"]
    following = min(epoch + epoch / (evaluation["index"] + 1), epochs)
    return float(evaluation["train_s"] * following / epoch)
