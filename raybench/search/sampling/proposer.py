"""The next configuration to run: of the grid, of the priors, or of the sampler."""

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from raybench.core.space import Space, num_configurations
from raybench.core.study import StudySpec
from raybench.search.sampling.default_rates import priors, rate_factor
from raybench.search.sampling.feedback import Feedback
from raybench.search.sampling.grid import grid
from raybench.search.sampling.infeasible import Infeasible
from raybench.search.sampling.neighbourhood import is_near, new_neighbour
from raybench.search.sampling.optuna_space import encode, propose
from raybench.search.sampling.optuna_study import (
    DUPLICATE,
    EARLIER_STUDY,
    INTERRUPTED,
    NOT_RUN,
    WOULD_FAIL,
    key_of,
    real_trials,
)
from raybench.search.sampling.samplers import build_sampler
from raybench.speed.factorisation import Split, split_of
from raybench.speed.placement import Placer

DRAWS = (*2 * ["sampler"], "neighbour", *20 * ["random"])
"""Where a proposal comes from, and after each repetition the next one: TPE twice (then it has said
all it knows of where to look), what lies next to the best trials, chance; then a repetition is
accepted where the space has no end."""
PATIENCE = 500
"""Draws of which every one is known to fail, after which all that is left is taken to fail."""
STARTUP_TRIALS = 10
"""Trials before TPE begins to model; every other one of them is a prior."""


class Proposer:
    """Draws configurations that are new and would not fail, and says on which split to run."""

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        journal: optuna.Study,
        failures: Infeasible,
        endings: Feedback,
        speed: Placer | None,
    ) -> None:
        self._study, self._space, self._journal = study, space, journal
        self._failures, self._endings, self._speed = failures, endings, speed
        num_earlier = len(journal.get_trials(deepcopy=False))
        self._random = build_sampler("random", seed=study.search.seed + 1, num_earlier=num_earlier)
        self._size = num_configurations(space, study.fixed)
        self._grid: Iterator[dict[str, Any]] | None = None
        if study.search.sampler == "grid":
            self._grid = iter(grid(study, space, speed.factors if speed else None))

    def next(self) -> tuple[optuna.Trial, dict[str, Any]] | None:
        """Return a trial and the run spec to run; None where nothing is left to try.

        That is at the end of the grid, or of a space of lists of which every configuration was
        run on all its splits or would fail. A draw that repeats an earlier one or nearly so (TPE
        draws what is best ever closer, far below what runs can tell apart) is drawn again, as
        DRAWS says; one that would fail as an earlier one has is never taken.
        """
        earlier = real_trials(self._journal)
        is_last_round = self._is_exhausted()
        if is_last_round and not self._enqueue_other_split(earlier):
            return None
        for attempt, source in enumerate(itertools.chain(DRAWS, itertools.repeat(DRAWS[-1])), 1):
            is_listed = attempt > len(DRAWS) and self._size is not None
            if not (self._enqueue_listed() if is_listed else self._enqueue(earlier)):
                return None
            if source == "neighbour":
                self._enqueue_neighbour(earlier)
            trial, values = self._ask(at_random=source != "sampler")
            params, distributions = trial.params, trial.distributions
            options = [spec for spec in self._specs(values) if not self._failures.forbid(spec)]
            is_new = bool(options) and not any(
                is_near(params, distributions, other) for other in earlier
            )
            may_repeat = attempt >= len(DRAWS) and self._grid is None and self._size is None
            if is_new or is_last_round or (options and may_repeat):
                break
            trial.set_user_attr(NOT_RUN, DUPLICATE if options else WOULD_FAIL)
            if options:
                self._journal.tell(trial, state=TrialState.FAIL)
            else:  # the sampler learns it as if it had
                self._endings.tell_would_fail(trial)
            if self._is_exhausted() or (attempt >= PATIENCE and not options):
                return None
        # The lowest free name: a trial that was interrupted comes back under its own.
        names = {earlier_trial.user_attrs.get("trial") for earlier_trial in earlier}
        name = next(name for number in itertools.count() if (name := f"{number:04d}") not in names)
        trial.set_user_attr("trial", name)
        spec = self._choose(trial, options)
        trial.set_user_attr("spec", spec)
        return trial, spec

    def _is_exhausted(self) -> bool:
        """Whether every configuration of a space of lists was run, or is known to fail."""
        if self._size is None or self._grid is not None:
            return False
        trials = self._journal.get_trials(deepcopy=False)
        if any(trial.state == TrialState.WAITING for trial in trials):
            return False  # an interrupted one comes back
        known = (None, WOULD_FAIL)
        tried = {key_of(t.params) for t in trials if t.user_attrs.get(NOT_RUN) in known}
        return len(tried) >= self._size

    def _enqueue_other_split(self, earlier: list[FrozenTrial]) -> bool:
        """Name a split that no trial has run, in a space whose configurations were all tried."""
        if self._speed is None:
            return False
        ran = [trial.user_attrs.get("spec") for trial in earlier]
        for values in grid(self._study, self._space, self._speed.factors):
            for spec in self._specs(values):
                if spec not in ran and not self._failures.forbid(spec):
                    params = encode(self._space, self._study.fixed, values)
                    split = {"split": split_of(spec).values()}
                    self._journal.enqueue_trial(params, user_attrs=split)
                    return True
        return False

    def _ask(self, *, at_random: bool) -> tuple[optuna.Trial, dict[str, Any]]:
        sampler = self._journal.sampler
        if at_random:
            self._journal.sampler = self._random
        try:
            trial = self._journal.ask()
            return trial, propose(trial, self._space, self._study.fixed)
        finally:
            self._journal.sampler = sampler

    def _enqueue(self, earlier: list[FrozenTrial]) -> bool:
        """Name what Optuna shall answer next, if that is known; whether there is a next one."""
        if self._journal.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return True  # interrupted trials come first
        if self._grid is not None:
            return self._enqueue_listed()
        self._enqueue_prior(earlier)
        return True

    def _enqueue_listed(self) -> bool:
        """Name the next combination of a space of lists that was not tried; whether there is one.

        That is the grid's order, and for other samplers what chance has not found in many draws.
        """
        if self._grid is None:
            factors = self._speed.factors if self._speed else None
            listed = iter(grid(self._study, self._space, factors))
        else:
            listed = self._grid
        known = {
            key_of(trial.params)
            for trial in self._journal.get_trials(deepcopy=False)
            if trial.user_attrs.get(NOT_RUN) != INTERRUPTED
        }
        for values in listed:
            params = encode(self._space, self._study.fixed, values)
            if key_of(params) not in known:
                self._journal.enqueue_trial(params)
                return True
        return False

    def _enqueue_prior(self, earlier: list[FrozenTrial]) -> None:
        """Let every other start-up trial be an optimizer's usual rate, while these do well."""
        count = len(earlier)
        everything = self._journal.get_trials(deepcopy=False)
        knows_better = any(t.user_attrs.get(NOT_RUN) == EARLIER_STUDY for t in everything)
        is_over = count >= STARTUP_TRIALS or count % 2
        if not self._study.search.priors or is_over or knows_better:
            return
        known = priors(self._space, self._study.fixed, factor=rate_factor(self._study))
        num_used = sum("prior" in trial.user_attrs for trial in everything)
        ran = {trial.number for trial in earlier if "prior" in trial.user_attrs}
        if num_used < len(known) and not _in_bottom_half(ran, self._endings.scores(earlier)):
            params = encode(self._space, self._study.fixed, known[num_used])
            self._journal.enqueue_trial(params, user_attrs={"prior": True})

    def _enqueue_neighbour(self, earlier: list[FrozenTrial]) -> None:
        """Let the next draw be a new neighbour of the best trials, if there is one."""
        if self._study.search.sampler != "tpe":  # the other samplers are left as they are
            return
        everything = self._journal.get_trials(deepcopy=False)
        failing = [t for t in everything if t.user_attrs.get(NOT_RUN) == WOULD_FAIL]
        params = new_neighbour([*earlier, *failing], self._endings.scores(earlier))
        if params is not None:
            self._journal.enqueue_trial(params)

    def _specs(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the run specs a proposal can be run as, one for every split."""
        if self._speed is None:
            return [self._study.run_spec(values).document()]
        factors = self._speed.factors
        ways = [factors.specify(values, split) for split in factors.splits(values)]
        return [self._study.run_spec(way).document() for way in ways]

    def _choose(self, trial: optuna.Trial, specs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the run spec to run, on the split that an interrupted trial had before."""
        if self._speed is None:
            return specs[0]
        by_split = {split_of(spec): spec for spec in specs}
        before = trial.user_attrs.get("split")
        if before is not None and Split(**before) in by_split:
            return by_split[Split(**before)]
        name = trial.user_attrs["trial"]
        chosen = self._speed.choose(name, specs[0]["optimizer"], list(by_split))
        trial.set_user_attr("split", chosen.values())
        return by_split[chosen]


def _in_bottom_half(some: set[int], scores: dict[int, float]) -> bool:
    """Whether the median of some trials' scores lies in the worse half of all (four at least)."""
    own = [score for number, score in scores.items() if number in some]
    if len(scores) < 4 or not own:
        return False
    return statistics.median(own) > statistics.median(scores.values())
