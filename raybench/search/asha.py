"""Which trials may go on: successive halving over seconds of training, and the time cutoff.

Pure bookkeeping over run specs and evaluations; `ask_tell.py` asks it after every evaluation.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from raybench.search.placement import Placer
from raybench.search.policy import DEFAULT, SearchPolicy
from raybench.spec.objective import small_difference
from raybench.spec.run import RunSpec
from raybench.spec.study import TIME, StudySpec
from raybench.stats.record import Evaluation, RunRecord, StopReason

Costs = tuple[float, float]
"""Seconds and worker-seconds."""
FIRST_SLOWDOWN = 2.0
"""How much longer than the next the first interval of a run may have taken: two processes share
a core while the second of them imports and compiles."""


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
        self._values: list[list[float]] = [[] for _ in self._seconds]
        """Values of every rung, in order."""
        self._factor = factor
        self._next: dict[str, int] = {}

    def allows(self, trial: str, seconds: float, value: float | None) -> bool:
        """Take a trial's best value by `seconds` of training (the more the better; None, where
        nothing was measured, loses to whatever was); return whether it may go on.

        Of several rungs passed since the last call, the highest counts.
        """
        passed = sum(rung <= seconds for rung in self._seconds)
        if passed <= self._next.get(trial, 0):
            return True
        self._next[trial] = passed
        earlier = self._values[passed - 1]
        if value is None:
            return not earlier
        is_good = not earlier or value >= float(np.quantile(earlier, 1 - 1 / self._factor))
        bisect.insort(earlier, value)
        return is_good


class Cap:
    """Stops a trial that is not among the fastest any more, nor among the cheapest.

    That is one whose next evaluation will come later than `beta` times the k-th best time to target
    so far, and after more than `beta` times the k-th least worker-seconds (Zeus, arXiv 2208.06102,
    stops batch sizes so, with 2 and the best one). k is the policy's `compared_with`: single runs
    differ by their seeds, the best one was lucky, and what it stops may be as good.

    It keeps the measured times of the fastest and of the cheapest trials. What they would be on
    other placements is a prediction, asked for anew each time: `costs` returns the (seconds,
    worker-seconds) of a run spec and its seconds.
    """

    def __init__(
        self, beta: float, costs: Callable[[RunSpec, float], Costs], policy: SearchPolicy = DEFAULT
    ) -> None:
        self._beta, self._costs, self._policy = beta, costs, policy
        self._measured: list[tuple[RunSpec, float]] = []

    def reached(self, spec: RunSpec, seconds: float) -> None:
        """Take what a finished trial needed to the target."""
        self._measured.append((spec, seconds))
        most = self._policy.num_compared
        if len(self._measured) > most:
            costs = [self._costs(*one) for one in self._measured]
            orders = [sorted(range(len(costs)), key=lambda i: costs[i][axis]) for axis in (0, 1)]
            kept = sorted({number for order in orders for number in order[:most]})
            self._measured = [self._measured[number] for number in kept]

    def allows(self, spec: RunSpec, seconds: float) -> bool:
        """Whether a trial may go on that will be at the target then at the soonest."""
        if not self._measured:
            return True
        own = self._costs(spec, seconds)
        axes = zip(*(self._costs(*one) for one in self._measured), strict=True)
        place = min(self._policy.compared_with, len(self._measured)) - 1
        references = [sorted(costs)[place] for costs in axes]
        return any(one < self._beta * best for one, best in zip(own, references, strict=True))


class Plateau:
    """When the runs that reached the target left the baseline: before, standing there says nothing.

    Where one class is most of the labels, runs stand at its share for a while and learn then. A
    rung that ends them there prefers what begins fast to what arrives first.
    """

    def __init__(self, study: StudySpec, costs: Callable[[RunSpec, float], Costs]) -> None:
        objective, self._costs = study.objective, costs
        self._metric, self._baseline = objective.judged_by, objective.baseline_value
        self._target = objective.target
        self._left: dict[str, float] = {}
        """Seconds at the first evaluation of a trial that was better than the baseline."""
        self._reached: list[tuple[RunSpec, float]] = []

    def level(self, best: float) -> float:
        """Return a best value, or the baseline where it is within a point of that."""
        return best if self._baseline is None or not self._stands(best) else self._baseline

    def seen(self, trial: str, seconds: float, best: float) -> None:
        """Take a trial's best value by `seconds` of training."""
        if trial not in self._left and not self._stands(best):
            self._left[trial] = seconds

    def reached(self, trial: str, spec: RunSpec, seconds: float) -> None:
        """Take a run that reached the target after `seconds`."""
        self._reached.append((spec, min(self._left.pop(trial, seconds), seconds)))

    def spares(self, spec: RunSpec, seconds: float, best: float, share: float) -> bool:
        """Whether a run is at the baseline where a `share` of those that arrived was, too."""
        if not self._stands(best) or not self._reached:
            return False
        own = self._costs(spec, seconds)[0]
        stood = sum(self._costs(*one)[0] > own for one in self._reached)
        return stood >= share * len(self._reached)

    def _stands(self, best: float) -> bool:
        if self._baseline is None or self._target is None:
            return False
        margin = small_difference(self._metric, self._target, self._baseline)
        return abs(self._metric.gap(self._baseline, best)) <= margin


class SecondLooks:
    """The trials that were stopped though they stood as one of the soonest had stood then.

    Runs of one configuration differ by their seeds, and what one unlucky run is stopped for is not
    proposed again: of searches that missed the best by more than 5 %, half had stopped it so. Run
    again with another seed, the best is missed in 10 of 100 searches instead of 15, for 5 % more
    seconds (240 searches of six recorded tables by chance, each with its race).
    """

    def __init__(self, costs: Callable[[RunSpec, float], Costs]) -> None:
        self._costs = costs
        self._curves: dict[str, list[tuple[float, float]]] = {}
        """Seconds and best value (the more the better), by trial."""
        self._stopped: dict[str, RunSpec] = {}
        self._reached: dict[str, tuple[RunSpec, float]] = {}

    def seen(self, trial: str, seconds: float, value: float) -> None:
        """Take a trial's best value by `seconds` of training."""
        self._curves.setdefault(trial, []).append((seconds, value))

    def stopped(self, trial: str, spec: RunSpec) -> None:
        """Take a trial that may not go on."""
        self._stopped[trial] = spec

    def reached(self, trial: str, spec: RunSpec, seconds: float) -> None:
        """Take a trial that came to the target."""
        self._reached[trial] = spec, seconds

    def due(self, num_compared: int) -> list[RunSpec]:
        """Return what is worth a second look, what stood best first."""
        every = [(self._costs(*run)[0], name) for name, run in self._reached.items()]
        soonest = [name for _, name in sorted(every)[:num_compared] if name in self._curves]
        found = []
        for name, spec in self._stopped.items():
            if not soonest or name not in self._curves:
                continue
            seconds, value = self._curves[name][-1]
            at_s = self._costs(spec, seconds)[0]
            others = [self._value_at(one, at_s) for one in soonest]
            if (worse := sum(value >= other for other in others)) > 0:
                found.append((-worse, -value, name))
        return [self._stopped[name] for *_, name in sorted(found)]

    def _value_at(self, trial: str, seconds: float) -> float:
        spec, _ = self._reached[trial]
        curve = self._curves[trial]
        before = [value for own, value in curve if self._costs(spec, own)[0] <= seconds]
        return before[-1] if before else -math.inf


class EarlyStopping:
    """Stops trials that others beat at equal seconds, or that cannot become the best.

    Where the space is taken apart (`placer`), a trial's seconds are converted to its fastest
    placement before they are compared, its worker-seconds to its cheapest. Otherwise rungs are
    kept apart by worker count: a narrow trial is slower than a wide one at equal quality, and
    may still be the cheapest.
    """

    def __init__(
        self, study: StudySpec, placer: Placer | None = None, policy: SearchPolicy = DEFAULT
    ) -> None:
        self._placer, self._policy = placer, policy
        objective, beta = study.objective, study.search.cap_factor
        self._limit_s, self._metric = objective.max_train_seconds, objective.judged_by
        self._target = objective.target if objective.kind == TIME else None
        # A grid is exact: only what cannot win any more is stopped, and what noise may hide is for
        # the file's `cap_factor` to say.
        is_grid = study.search.sampler == "grid"
        self._cap: Cap | None = None
        if beta is not None and self._target is not None:
            compared = replace(policy, compared_with=1) if is_grid else policy
            self._cap = Cap(beta, self._costs, compared)
        self._has_rungs = policy.rungs and not is_grid
        self._rungs: dict[int, Rungs] = {}
        self._plateau = Plateau(study, self._costs)
        self._seed = study.search.seed
        self.again: SecondLooks | None = None
        if self._target is not None and not is_grid:
            self.again = SecondLooks(self._costs)

    def judge(self, trial: str, spec: RunSpec, evaluation: Evaluation) -> StopReason | None:
        """Return why a trial must not go on after an evaluation; None where it may."""
        reason = self._judge(trial, spec, evaluation)
        if self.again is not None and spec.seed == self._seed:
            if evaluation.best_value is not None:
                value = self._metric.sign * evaluation.best_value
                self.again.seen(trial, evaluation.train_s, value)
            if reason is not None:
                self.again.stopped(trial, spec)
        return reason

    def _judge(self, trial: str, spec: RunSpec, evaluation: Evaluation) -> StopReason | None:
        # In a row of evaluations at the target, the first one counts: it may still be soonest,
        # and no rung stops a trial that stands at the target.
        is_there = self._target is not None and self._metric.reaches(evaluation.value, self._target)
        soonest = next_evaluation_s(evaluation, spec.epochs)
        if self._cap is not None and not is_there and not self._cap.allows(spec, soonest):
            return "cap"
        best, seconds = evaluation.best_value, evaluation.train_s
        if best is not None:
            self._plateau.seen(trial, seconds, best)
        if self._passes(trial, spec, seconds, best) or is_there or spec.seed != self._seed:
            return None  # a second look is not asked to be among the best from the start
        share = 1 / self._policy.rung_factor
        is_spared = best is not None and self._plateau.spares(spec, seconds, best, share)
        return None if is_spared else "scheduler"

    def learn(self, record: RunRecord, curve: list[Evaluation] | None = None) -> None:
        """Take a trial that ended by itself, or with its `curve` one of an earlier session."""
        best: float | None = None
        for point in curve or []:
            earlier = [] if best is None or self._target is None else [best]
            best = self._metric.best([point.value, *earlier])
            self._passes(record.trial, record.spec, point.train_s, best)
            if best is not None:
                self._plateau.seen(record.trial, point.train_s, best)
                if self.again is not None and record.spec.seed == self._seed:
                    self.again.seen(record.trial, point.train_s, self._metric.sign * best)
        if self.again is not None and curve and record.state == "stopped":
            self.again.stopped(record.trial, record.spec)
        if not curve and record.best_value is not None:
            seconds = record.ledger["train"]
            self._passes(record.trial, record.spec, seconds, record.best_value)
        if record.time_to_target_s is not None:
            self._plateau.reached(record.trial, record.spec, record.time_to_target_s)
            if self.again is not None:
                self.again.reached(record.trial, record.spec, record.time_to_target_s)
            if self._cap is not None:
                self._cap.reached(record.spec, record.time_to_target_s)

    def learn_reference(self, record: RunRecord, curve: list[Evaluation]) -> None:
        """Take how a run began that is no trial and came to the target."""
        for point in curve:
            self._plateau.seen(record.trial, point.train_s, point.value)
            if self._target is not None and self._metric.reaches(point.value, self._target):
                self._plateau.reached(record.trial, record.spec, point.train_s)
                break

    def _costs(self, spec: RunSpec, seconds: float) -> Costs:
        """Return the seconds and worker-seconds that a run's seconds stand for."""
        worker_seconds = seconds * spec.num_workers
        if self._placer is None:
            return seconds, worker_seconds
        to_fastest, to_cheapest = self._placer.to_fastest(spec), self._placer.to_cheapest(spec)
        return seconds * to_fastest, worker_seconds * to_cheapest

    def _passes(self, trial: str, spec: RunSpec, seconds: float, best: float | None) -> bool:
        if not self._has_rungs:
            return True
        value = None if best is None else self._metric.sign * self._plateau.level(best)
        ladder = spec.num_workers if self._placer is None else 0
        if ladder not in self._rungs:
            first, factor = self._limit_s * self._policy.first_rung, self._policy.rung_factor
            self._rungs[ladder] = Rungs(first_s=first, last_s=self._limit_s, factor=factor)
        return self._rungs[ladder].allows(trial, self._costs(spec, seconds)[0], value)


def next_evaluation_s(evaluation: Evaluation, epochs: float) -> float:
    """Return the train seconds at a run's next evaluation: the soonest it can be at the target.

    Evaluations are equally many samples apart; the last one may come sooner, but a loop of the
    user's own that does not ask for `run.epochs()` goes on after these. What comes next is
    taken to go at the mean pace so far or at that since the last evaluation, the faster one: a
    machine that was loaded, or cold, need not be so any more. Of a first evaluation, which
    has no other beside it, the pace may have been half of what it will be.
    """
    epoch, index = evaluation.epoch, evaluation.index
    following = min(epoch + epoch / (index + 1), epochs if epoch < epochs else math.inf)
    mean = evaluation.train_s / epoch
    latest = evaluation.samples / epoch / evaluation.samples_per_s
    pace = min(mean, latest) / (FIRST_SLOWDOWN if index == 0 else 1.0)
    return float(evaluation.train_s + pace * (following - epoch))
