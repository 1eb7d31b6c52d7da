"""Which trials may go on: halving at rungs of seconds, and capping at the best time so far.

Pure bookkeeping, without Ray: `scheduler.py` asks it for real trials, `benchmarks/` for replayed
ones.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Costs = tuple[float, float]
"""Seconds and worker-seconds."""


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

    Kept is what was measured. What it stands for on other splits is a prediction, and asked for
    anew each time: `costs` returns the (seconds, worker-seconds) of a run spec and its seconds.
    """

    KEPT = 8
    """Finished trials that are compared with: the best by what is known of them."""

    def __init__(self, beta: float, costs: Callable[[dict[str, Any], float], Costs]) -> None:
        self._beta, self._costs = beta, costs
        self._measured: list[tuple[dict[str, Any], float]] = []

    def reached(self, spec: dict[str, Any], seconds: float) -> None:
        """Take what a finished trial needed to the target."""
        self._measured.append((spec, seconds))
        if len(self._measured) > self.KEPT:
            order = sorted(self._measured, key=lambda one: self._costs(*one)[0])
            cheapest = min(self._measured, key=lambda one: self._costs(*one)[1])
            kept = order[: self.KEPT - 1]
            self._measured = kept if cheapest in kept else [*kept, cheapest]

    def allows(self, spec: dict[str, Any], seconds: float) -> bool:
        """Whether a trial may go on that will be at the target then at the soonest."""
        if not self._measured:
            return True
        best = [self._costs(*one) for one in self._measured]
        own = self._costs(spec, seconds)
        return any(own[axis] < self._beta * min(one[axis] for one in best) for axis in (0, 1))


def next_evaluation_s(evaluation: dict[str, Any], epochs: float) -> float:
    """Return the train seconds at a run's next evaluation: the soonest it can be at the target.

    Evaluations are equally many samples apart; the last one may come sooner.
    """
    epoch = evaluation["epoch"]
    following = min(epoch + epoch / (evaluation["index"] + 1), epochs)
    return float(evaluation["train_s"] * following / epoch)
