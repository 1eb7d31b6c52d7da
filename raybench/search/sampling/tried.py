"""What a search has proposed so far, kept so that nothing walks through all of it."""

import bisect
import itertools
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from raybench.search.policy import SearchPolicy
from raybench.search.sampling.feedback import Feedback, told_score
from raybench.search.sampling.neighbourhood import is_near, position
from raybench.search.sampling.optuna_study import (
    NO_ROOM,
    NOT_RUN,
    TRIAL,
    WOULD_FAIL,
    key_of,
    names_in_use,
    proposed_trials,
)

NUM_SPLIT = 3
"""Ranges by which near proposals are looked up; each of them triples the places to look at."""
MARGIN = 1.001
"""Cells are a little wider than the resolution, for what rounding makes of it."""
Place = tuple[tuple[Any, ...], tuple[int, ...]]


class NearIndex:
    """Finds the trials near to a proposal (`neighbourhood.is_near`) without asking all.

    Trials lie in places: equal in all that is no range, and in ranges by cells as wide as the
    resolution. What is near lies in a proposal's own place, or in one beside it.
    """

    def __init__(self, policy: SearchPolicy) -> None:
        self._policy = policy
        self._places: dict[Place, list[FrozenTrial]] = {}

    def add(self, trial: FrozenTrial) -> None:
        """Take a trial, whose parameters are set."""
        kind, cells = self._place(trial.params, trial.distributions)
        self._places.setdefault((kind, cells), []).append(trial)

    def holds(self, params: dict[str, Any], distributions: dict[str, BaseDistribution]) -> bool:
        """Whether some trial is near."""
        kind, cells = self._place(params, distributions)
        for steps in itertools.product((0, -1, 1), repeat=len(cells)):
            beside = tuple(cell + step for cell, step in zip(cells, steps, strict=True))
            for other in self._places.get((kind, beside), ()):
                if is_near(params, distributions, other, self._policy):
                    return True
        return False

    def _place(self, params: dict[str, Any], distributions: dict[str, BaseDistribution]) -> Place:
        kind: list[Any] = []
        cells: list[int] = []
        for name in sorted(params):
            distribution = distributions[name]
            if not isinstance(distribution, FloatDistribution):
                kind.append((name, params[name]))
                continue
            kind.append(name)
            if len(cells) < NUM_SPLIT:
                share = position(distribution, params[name])
                cells.append(int(share // max(MARGIN * self._policy.resolution, 1e-9)))
        return tuple(kind), tuple(cells)


class Tried:
    """The trials of a search and its rejected draws, taken one at a time as they are proposed."""

    def __init__(self, journal: optuna.Study, feedback: Feedback, policy: SearchPolicy) -> None:
        self._journal, self._feedback, self._num_best = journal, feedback, policy.num_best
        self.ran, self._failing = NearIndex(policy), NearIndex(policy)
        self.num_ran = 0
        """Trials of the study, those included that run."""
        self.known: set[str] = set()
        """Parameters (`key_of`) that were run, or are known to fail."""
        self.drawn: set[str] = set()
        """Parameters that were proposed, rejected ones included."""
        self._names = names_in_use(journal)
        self._lowest = itertools.count()
        self._best: list[tuple[float, int]] = []
        """Score and number of the best trials that Optuna was told of."""
        for trial in proposed_trials(journal):
            reason = trial.user_attrs.get(NOT_RUN)
            self.drawn.add(key_of(trial.params))
            if reason in (WOULD_FAIL, NO_ROOM):
                self.rejected(trial, would_fail=True)
            elif reason is None and trial.state != TrialState.WAITING:
                self.accepted(trial, str(trial.user_attrs.get(TRIAL)))
                score = told_score(trial)
                self._rank([] if score is None else [(trial.number, score)])
        feedback.newly_told()  # they are ranked already

    def accepted(self, trial: FrozenTrial, name: str) -> None:
        """Take a trial that runs."""
        self.num_ran += 1
        self.ran.add(trial)
        self._names.add(name)
        self.known.add(key_of(trial.params))
        self.drawn.add(key_of(trial.params))

    def rejected(self, trial: FrozenTrial, *, would_fail: bool) -> None:
        """Take a draw that is not run."""
        self.drawn.add(key_of(trial.params))
        if would_fail:
            self._failing.add(trial)
            self.known.add(key_of(trial.params))

    def free_name(self) -> str:
        """Return the lowest one that no trial has."""
        return next(name for at in self._lowest if (name := f"{at:04d}") not in self._names)

    def best(self) -> list[FrozenTrial]:
        """Return the best of the trials that have ended, best first."""
        self._rank(self._feedback.newly_told())
        waiting = ((score, number) for number, score in self._feedback.waiting().items())
        every = sorted([*self._best, *waiting])[: self._num_best]
        trials = self._journal.get_trials(deepcopy=False)
        return [trials[number] for _, number in every]

    def is_tried(self, params: dict[str, Any], distributions: dict[str, BaseDistribution]) -> bool:
        """Whether parameters are near to those of a trial, or of one that would fail."""
        near = (self.ran, self._failing)
        return any(index.holds(params, distributions) for index in near)

    def _rank(self, told: list[tuple[int, float]]) -> None:
        for number, score in told:
            bisect.insort(self._best, (score, number))
        del self._best[self._num_best :]
