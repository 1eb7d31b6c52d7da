"""The next configuration to run: of the grid, of the priors, or of the sampler.

`Tried` keeps what a search has proposed so far, so that nothing walks through all of it.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

from raybench.search.factorisation import GLOBAL_BATCH, speed_values
from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import (
    MOST_LISTED,
    grid,
    priors,
    rate_factor,
)
from raybench.search.sampling.feedback import Feedback, Infeasible
from raybench.search.sampling.optuna_space import (
    STARTUP_TRIALS,
    build_sampler,
    encode,
    params_of,
    propose,
)
from raybench.search.sampling.optuna_study import (
    DUPLICATE,
    EARLIER_STUDY,
    FIRST,
    NO_ROOM,
    NO_TIME,
    NOT_RUN,
    PLACEMENT,
    PRIOR,
    TRIAL,
    WOULD_FAIL,
    key_of,
    names_in_use,
    proposed_trials,
    real_trials,
)
from raybench.spec.run import Placement, RunSpec
from raybench.spec.space import Space, num_configurations
from raybench.spec.study import StudySpec
from raybench.spec.values import identity

NUM_SAMPLED, NUM_RANDOM = 2, 20
"""Draws of the sampler, and then at random, until a repetition is replaced by one that is listed,
or accepted where the space has no end."""
MOST_REFUSED = 500
"""Draws in a row that are known to fail, after which the search gives up."""


class Tried:
    """The trials of a search and its rejected draws, taken one at a time as they are proposed."""

    def __init__(self, journal: optuna.Study) -> None:
        self.num_ran = 0
        """Trials of the study, those included that run."""
        self.known: set[str] = set()
        """Parameters (`key_of`) that were run, or are known to fail."""
        self.drawn: set[str] = set()
        """Parameters that were proposed, rejected ones included."""
        self._names = names_in_use(journal)
        self._lowest = itertools.count()
        for trial in proposed_trials(journal):
            reason = trial.user_attrs.get(NOT_RUN)
            if reason == NO_TIME:
                continue  # an earlier session had none
            if reason is None and trial.state != TrialState.WAITING:
                self.accepted(trial, str(trial.user_attrs.get(TRIAL)))
            else:
                self.drew(trial, is_known=reason in (WOULD_FAIL, NO_ROOM))

    def accepted(self, trial: FrozenTrial, name: str) -> None:
        """Take a trial that runs."""
        self.num_ran += 1
        self._names.add(name)
        self.drew(trial, is_known=True)

    def drew(self, trial: FrozenTrial, *, is_known: bool) -> None:
        """Take a draw; it `is_known` if it runs, or would fail. What lies outside the space has no
        parameters."""
        if not trial.params:
            return
        self.drawn.add(key_of(trial.params))
        if is_known:
            self.known.add(key_of(trial.params))

    def free_name(self) -> str:
        """Return the lowest one that no trial has."""
        return next(name for at in self._lowest if (name := f"{at:04d}") not in self._names)


class Proposal(NamedTuple):
    """A trial that is to run."""

    trial: optuna.Trial
    name: str
    spec: RunSpec


class Proposer:
    """Draws configurations that are new and would not fail, and says where to run them."""

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        journal: optuna.Study,
        infeasible: Infeasible,
        feedback: Feedback,
        placer: Placer | None,
        firsts: Mapping[str, RunSpec] | None = None,
    ) -> None:
        self._study, self._space, self._journal = study, space, journal
        self._infeasible, self._feedback, self._placer = infeasible, feedback, placer
        num_earlier = len(journal.get_trials(deepcopy=False))
        self._random = build_sampler("random", seed=study.search.seed + 1, num_earlier=num_earlier)
        size = num_configurations(space, study.fixed)
        self._size = size if size is not None and size <= MOST_LISTED else None
        self._is_grid = study.search.sampler == "grid"
        self._listed: Iterator[dict[str, Any]] | None = None
        self._tried: Tried | None = None
        self._failing: set[str] = set()
        """Parameters (`key_of`) that would fail."""
        ran = {one.user_attrs.get(FIRST) for one in real_trials(journal)}
        self._firsts = {key: one for key, one in (firsts or {}).items() if key not in ran}

    def next(self) -> Proposal | None:
        """Return the next trial; None where nothing is left to try.

        That is at the end of the grid, or of a space of lists of which every configuration was
        run on all its placements or would fail. A draw that repeats an earlier one is drawn
        again; one that would fail as an earlier one has is never taken.
        """
        if (first := self._next_first()) is not None:
            return first
        tried, num_draws = self.tried, NUM_SAMPLED + NUM_RANDOM
        is_last_round = self._is_exhausted()
        if is_last_round and not self._enqueue_other_placement():
            return None
        for attempt in itertools.count(1):
            is_listed = attempt > num_draws and self._size is not None
            if not (self._enqueue_listed() if is_listed else self._enqueue()):
                return None
            trial, values = self._ask(at_random=attempt > NUM_SAMPLED)
            options = self._feasible(values)
            is_new = bool(options) and key_of(trial.params) not in tried.known
            may_repeat = attempt >= num_draws and not self._is_grid and self._size is None
            if is_new or is_last_round or (options and may_repeat):
                break
            reason = DUPLICATE if options else self._reason(values)
            trial.set_user_attr(NOT_RUN, reason)
            if reason in (DUPLICATE, NO_TIME):
                self._journal.tell(trial, state=TrialState.FAIL)
            else:  # the sampler learns it as if it had
                self._feedback.tell_would_fail(trial)
            tried.drew(self._frozen(trial), is_known=not options)
            if self._is_exhausted() or (attempt >= MOST_REFUSED and not options):
                return None
        # A trial that was interrupted comes back under its own name.
        name = trial.user_attrs.get(TRIAL) or tried.free_name()
        return self._accept(trial, name, self._choose(trial, name, options))

    def _next_first(self) -> Proposal | None:
        """Return the user's next own configuration; None once all have run, or while interrupted
        trials are to come back."""
        if len(self._firsts) == 0 or self._is_waiting():
            return None
        for given, spec in list(self._firsts.items()):
            del self._firsts[given]
            if not (self._infeasible.has_room(spec) and self._infeasible.is_in_time(spec)):
                continue
            params = params_of(spec, self._study, self._space, widen=True)
            attributes: dict[str, Any] = {FIRST: given}
            if self._placer is not None:
                attributes |= {PLACEMENT: speed_values(spec.placement)}
            if params is None:  # what lies outside has no parameters, and the sampler no use for it
                trial = self._journal.ask()
                for name, value in attributes.items():
                    trial.set_user_attr(name, value)
            else:
                self._journal.enqueue_trial(params, user_attrs=attributes)
                trial, _ = self._ask(at_random=False)
            return self._accept(trial, self.tried.free_name(), spec)
        return None

    @property
    def has_own_next(self) -> bool:
        """Whether interrupted trials or the user's own configurations come next."""
        return len(self._firsts) > 0 or self._is_waiting()

    def is_open(self, values: Mapping[str, Any]) -> bool:
        """Whether a configuration may be proposed: not where it is known to fail, and of a space of
        lists not twice."""
        closed = self._failing if self._size is None else self.tried.known
        return not closed or key_of(encode(self._space, self._study.fixed, dict(values))) not in (
            closed
        )

    def take(self, values: dict[str, Any], *, seed: int) -> Proposal | None:
        """Return a trial of a configuration, with a `seed` of its own where it has run before; None
        where it would fail as an earlier one has."""
        params = encode(self._space, self._study.fixed, values)
        options, has_run = self._feasible(values), key_of(params) in self.tried.known
        self._journal.enqueue_trial(params)
        trial, _ = self._ask(at_random=False)
        if not options:
            self._failing.add(key_of(params))
            trial.set_user_attr(NOT_RUN, self._reason(values))
            self._feedback.tell_would_fail(trial)
            self.tried.drew(self._frozen(trial), is_known=True)
            return None
        if has_run:
            options = [one.model_copy(update={"seed": seed}) for one in options]
        name = self.tried.free_name()
        return self._accept(trial, name, self._choose(trial, name, options))

    def again(self, spec: RunSpec) -> Proposal | None:
        """Return a trial of a configuration that has run, as `spec` has it; None where it was run
        with that seed, too, and said something, or while interrupted trials are to come back."""
        params = params_of(spec, self._study, self._space, widen=self._study.search.widen)
        if params is None or self._is_waiting():
            return None
        for one in real_trials(self._journal):
            is_alike = one.params == params and one.state != TrialState.FAIL
            if is_alike and one.user_attrs["spec"]["seed"] == spec.seed:
                return None
        there = {} if self._placer is None else {PLACEMENT: speed_values(spec.placement)}
        self._journal.enqueue_trial(params, user_attrs=there)
        trial, _ = self._ask(at_random=False)
        return self._accept(trial, self.tried.free_name(), spec)

    def _accept(self, trial: optuna.Trial, name: str, spec: RunSpec) -> Proposal:
        trial.set_user_attr(TRIAL, name)
        trial.set_user_attr("spec", spec.document())
        self.tried.accepted(self._frozen(trial), name)
        return Proposal(trial, name, spec)

    @property
    def tried(self) -> Tried:
        """Configurations proposed so far, by earlier sessions too."""
        if self._tried is None:
            self._tried = Tried(self._journal)
        return self._tried

    def _frozen(self, trial: optuna.Trial) -> FrozenTrial:
        return self._journal.get_trials(deepcopy=False)[trial.number]

    def _is_exhausted(self) -> bool:
        """Whether every configuration of a space of lists was run, or is known to fail."""
        if self._size is None or self._is_grid:
            return False
        if self._is_waiting():
            return False  # an interrupted one comes back
        return len(self.tried.known) >= self._size

    def _is_waiting(self) -> bool:
        return bool(self._journal.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def _enqueue_other_placement(self) -> bool:
        """Name a placement that no trial has had, where all configurations were tried."""
        if self._placer is None:
            return False
        ran = {identity(one.user_attrs.get("spec")) for one in real_trials(self._journal)}
        for values in self._combinations():
            for spec in self._feasible(values):
                if identity(spec.document()) not in ran:
                    params = encode(self._space, self._study.fixed, values)
                    there = {PLACEMENT: speed_values(spec.placement)}
                    self._journal.enqueue_trial(params, user_attrs=there)
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

    def _enqueue(self) -> bool:
        """Name what Optuna shall answer next, if that is known; whether there is a next one."""
        if self._is_waiting():
            return True  # interrupted trials come first
        if self._is_grid:
            return self._enqueue_listed()
        self._enqueue_prior()
        return True

    def _enqueue_listed(self) -> bool:
        """Name the next combination of a space of lists that was not tried; whether there is one.

        That is the grid's order, and for other samplers what chance has not found in many draws.
        """
        if self._listed is None:
            self._listed = iter(self._combinations())
        for values in self._listed:
            params = encode(self._space, self._study.fixed, values)
            if key_of(params) not in self.tried.drawn:
                self._journal.enqueue_trial(params)
                return True
        return False

    def _enqueue_prior(self) -> None:
        """Let every other start-up trial be an optimizer's usual rate."""
        count = self.tried.num_ran
        is_over = count >= STARTUP_TRIALS or count % 2
        if not self._study.search.priors or is_over:
            return
        everything = proposed_trials(self._journal)
        if any(trial.user_attrs.get(NOT_RUN) == EARLIER_STUDY for trial in everything):
            return  # it is known better
        factor = rate_factor(self._study)
        known = priors(self._space, self._study.fixed, factor=factor)
        num_used = sum(PRIOR in trial.user_attrs for trial in everything)
        if num_used < len(known):
            params = encode(self._space, self._study.fixed, known[num_used])
            self._journal.enqueue_trial(params, user_attrs={PRIOR: True})

    def _combinations(self) -> list[dict[str, Any]]:
        factors = self._placer.factors if self._placer else None
        return grid(self._study, self._space, factors)

    def _feasible(self, values: dict[str, Any]) -> list[RunSpec]:
        """Return the run specs a proposal can be run as, one for every placement, widest first;
        without those that would fail."""
        return [spec for spec in self._specs(values) if self._infeasible.is_feasible(spec)]

    def _reason(self, values: dict[str, Any]) -> str:
        """Return why nothing that is feasible is among the run specs of a proposal."""
        fitting = list(filter(self._infeasible.has_room, self._specs(values)))
        if not fitting:
            return NO_ROOM
        return WOULD_FAIL if any(map(self._infeasible.is_in_time, fitting)) else NO_TIME

    def _specs(self, values: dict[str, Any]) -> list[RunSpec]:
        if self._placer is None:
            return [self._study.run_spec(values)]
        rest = {key: value for key, value in values.items() if key != GLOBAL_BATCH}
        there = self._placer.factors.of_values(values, in_more_passes=True)
        return [self._study.run_spec(rest | speed_values(one)) for one in there]

    def _choose(self, trial: optuna.Trial, name: str, specs: list[RunSpec]) -> RunSpec:
        """Return the run spec to run, where an interrupted trial was before."""
        if self._placer is None:
            return specs[0]
        before = trial.user_attrs.get(PLACEMENT)
        for spec in specs:
            if before is not None and before.items() <= speed_values(spec.placement).items():
                return spec
        options: dict[Placement, RunSpec] = {spec.placement: spec for spec in specs}
        chosen = self._placer.choose(name, specs[0].optimizer, list(options))
        trial.set_user_attr(PLACEMENT, speed_values(chosen))
        return options[chosen]
