"""Propose trials that come from `search.first`, a grid, default learning rates, or a sampler."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import optuna
from optuna.trial import TrialState

from raybench.search.factorisation import GLOBAL_BATCH, speed_values
from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import (
    MOST_LISTED,
    grid,
    initial_configurations,
    rate_factor,
)
from raybench.search.sampling.feedback import FailurePredictor, Feedback
from raybench.search.sampling.optuna_study import (
    DUPLICATE,
    EARLIER_STUDY,
    FIRST,
    INFEASIBLE,
    NOT_RUN,
    PLACEMENT,
    SEED,
    STARTUP_TRIALS,
    TRIAL,
    build_sampler,
    encode,
    key_of,
    params_of,
    propose,
    real_trials,
)
from raybench.spec.run import Placement, RunSpec
from raybench.spec.space import Space, num_configurations
from raybench.spec.study import StudySpec
from raybench.spec.text import identity

NUM_SAMPLED, NUM_RANDOM = 2, 20
"""Numbers of draws for one trial, which is drawn again if it is a duplicate or infeasible. First,
NUM_SAMPLED draws come from the sampler, and then NUM_RANDOM draws are random. After that, the trial
is an untried combination (finite space), or a feasible draw even if it is a duplicate (infinite
space)."""
MOST_DRAWS = 500
"""Number of draws for one trial after which the search of an infinite space ends, because the draws
were infeasible. With 95 % confidence, less than 0.7 % of the space is feasible then."""


class Proposal(NamedTuple):
    """A trial that is proposed to run: Optuna's trial, name and run spec."""

    trial: optuna.Trial
    name: str
    spec: RunSpec


class Proposer:
    """Draws feasible configurations that have not run yet, and chooses placements for them."""

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        journal: optuna.Study,
        infeasible: FailurePredictor,
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
        self.num_ran = 0
        """Number of trials so far, including running trials and trials of earlier sessions."""
        self._closed: set[str] = set()
        """Configurations that have run or are infeasible, as `key_of` strings of their
        parameters."""
        self._drawn: set[str] = set()
        """Configurations that were drawn, including rejected ones, as `key_of` strings."""
        self.num_skipped = 0
        """Number of proposals that were skipped because an equivalent run had failed."""
        self._failing: set[str] = set()
        """Configurations that the curve model proposed and that are infeasible, as `key_of`
        strings."""
        self._names = {trial.user_attrs.get(TRIAL) for trial in journal.get_trials(deepcopy=False)}
        self._numbers = itertools.count()
        ran = real_trials(journal)
        for trial in ran:
            self._add_trial(trial.params, trial.user_attrs[TRIAL])
        done = {trial.user_attrs.get(FIRST) for trial in ran}
        self._firsts = {key: spec for key, spec in (firsts or {}).items() if key not in done}

    def next(self) -> Proposal | None:
        """Return the next trial; None if the space is exhausted.

        A grid is exhausted after its last combination. Any other finite space is exhausted once
        every configuration has run on every placement (framework, workers, ...) or is infeasible.
        """
        if (first := self._next_first()) is not None:
            return first
        is_last_round = self._is_exhausted()
        if is_last_round and not self._enqueue_other_placement():
            return None
        attempt = 0
        while True:
            attempt += 1
            if not self._enqueue(attempt):
                return None
            trial, values = self._ask(at_random=attempt > NUM_SAMPLED)
            options = self._feasible(values)
            if options and (is_last_round or self._is_new(trial) or self._may_repeat(attempt)):
                return self._start(trial, options)
            self._reject(trial, values, is_feasible=bool(options))
            if self._is_exhausted() or (attempt >= MOST_DRAWS and not options):
                return None

    def _start(self, trial: optuna.Trial, options: list[RunSpec]) -> Proposal:
        """Return the proposal for a drawn trial; an interrupted trial keeps its name and seed.

        `options` are the feasible run specs of the trial, one per placement.
        """
        name = trial.user_attrs.get(TRIAL) or self._free_name()
        spec = self._choose(trial, name, options)
        if SEED in trial.user_attrs:
            spec = spec.model_copy(update={"seed": trial.user_attrs[SEED]})
        return self._accept(trial, name, spec)

    def _is_new(self, trial: optuna.Trial) -> bool:
        """Return whether a trial was interrupted, or its configuration has not run yet."""
        return TRIAL in trial.user_attrs or key_of(trial.params) not in self._closed

    def _may_repeat(self, attempt: int) -> bool:
        """Return whether a duplicate draw is accepted: only in an infinite space, after many
        draws."""
        return attempt >= NUM_SAMPLED + NUM_RANDOM and not self._is_grid and self._size is None

    def _reject(self, trial: optuna.Trial, values: dict[str, Any], *, is_feasible: bool) -> None:
        """Report a duplicate or an infeasible draw to Optuna."""
        trial.set_user_attr(NOT_RUN, DUPLICATE if is_feasible else INFEASIBLE)
        if is_feasible:
            self._journal.tell(trial, state=TrialState.FAIL)
            self._add_draw(trial.params, is_known=False)
        else:  # the sampler learns that the configuration is bad
            self._feedback.tell_predicted_failure(trial)
            self._skip(trial.params, values)

    def _next_first(self) -> Proposal | None:
        """Return a proposal for the next configuration of `search.first`.

        The result is None if no configuration is left, or if interrupted trials come first.
        """
        if len(self._firsts) == 0 or self._is_waiting():
            return None
        for given, spec in list(self._firsts.items()):
            del self._firsts[given]
            if not self._infeasible.has_room(spec):
                continue
            params = params_of(spec, self._study, self._space, widen=True)
            attributes: dict[str, Any] = {FIRST: given}
            if self._placer is not None:
                attributes |= {PLACEMENT: speed_values(spec.placement)}
            if params is None:  # outside the space, so the sampler cannot use the trial
                trial = self._journal.ask()
                for name, value in attributes.items():
                    trial.set_user_attr(name, value)
            else:
                self._journal.enqueue_trial(params, user_attrs=attributes)
                trial, _ = self._ask(at_random=False)
            return self._accept(trial, self._free_name(), spec)
        return None

    @property
    def has_queued(self) -> bool:
        """Whether interrupted trials or configurations of `search.first` come next."""
        return len(self._firsts) > 0 or self._is_waiting()

    def is_open(self, values: Mapping[str, Any]) -> bool:
        """Return whether a configuration may be proposed.

        It may, unless it is known to be infeasible or, in a finite space, has already run.
        """
        closed = self._failing if self._size is None else self._closed
        if not closed:
            return True
        return key_of(encode(self._space, self._study.fixed, dict(values))) not in closed

    def take(self, values: dict[str, Any], *, seed: int) -> Proposal | None:
        """Return a proposal to run a given configuration.

        Args:
            values: Configuration, by sampled key.
            seed: Seed of the trial if the configuration has run before.

        Returns:
            The proposal; None if the configuration is infeasible.
        """
        params = encode(self._space, self._study.fixed, values)
        options = self._feasible(values)
        if not options:
            self._failing.add(key_of(params))
            self._skip(params, values)
            return None
        if key_of(params) in self._closed:
            options = [option.model_copy(update={"seed": seed}) for option in options]
        self._journal.enqueue_trial(params)
        trial, _ = self._ask(at_random=False)
        name = self._free_name()
        return self._accept(trial, name, self._choose(trial, name, options))

    def rerun(self, spec: RunSpec) -> Proposal | None:
        """Return a proposal to run a given run spec.

        The result is None if the run spec lies outside the space, has run with the same seed, or
        must wait for interrupted trials.
        """
        params = params_of(spec, self._study, self._space, widen=self._study.search.widen)
        if params is None or self._is_waiting():
            return None
        for trial in real_trials(self._journal):
            is_same = trial.params == params and trial.state != TrialState.FAIL
            if is_same and trial.user_attrs["spec"]["seed"] == spec.seed:
                return None
        attributes = {} if self._placer is None else {PLACEMENT: speed_values(spec.placement)}
        self._journal.enqueue_trial(params, user_attrs=attributes)
        queued, _ = self._ask(at_random=False)
        return self._accept(queued, self._free_name(), spec)

    def _accept(self, trial: optuna.Trial, name: str, spec: RunSpec) -> Proposal:
        trial.set_user_attr(TRIAL, name)
        trial.set_user_attr("spec", spec.document())
        self._add_trial(trial.params, name)
        return Proposal(trial, name, spec)

    def _add_trial(self, params: dict[str, Any], name: str) -> None:
        self.num_ran += 1
        self._names.add(name)
        self._add_draw(params, is_known=True)

    def _add_draw(self, params: dict[str, Any], *, is_known: bool) -> None:
        """Add a drawn configuration, which is known if it runs or is infeasible.

        A configuration without parameters lies outside the space and is ignored.
        """
        if not params:
            return
        self._drawn.add(key_of(params))
        if is_known:
            self._closed.add(key_of(params))

    def _free_name(self) -> str:
        """Return the lowest trial name not in use."""
        return next(
            name for number in self._numbers if (name := f"{number:04d}") not in self._names
        )

    def _is_exhausted(self) -> bool:
        """Return whether all configurations of a finite space have run or are infeasible.

        The result is False for a grid, which ends after its last combination, and while trials are
        queued.
        """
        if self._size is None or self._is_grid or self._is_waiting():
            return False
        return len(self._closed) >= self._size

    def _is_waiting(self) -> bool:
        """Return whether trials are queued in the Optuna study."""
        return bool(self._journal.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def _enqueue_other_placement(self) -> bool:
        """Enqueue a trial on a placement on which its configuration has not run.

        Called once all configurations were tried.

        Returns:
            Whether there was such a placement.
        """
        if self._placer is None:
            return False
        ran = {identity(trial.user_attrs.get("spec")) for trial in real_trials(self._journal)}
        for values in self._combinations():
            for spec in self._feasible(values):
                if identity(spec.document()) not in ran:
                    params = encode(self._space, self._study.fixed, values)
                    attributes = {PLACEMENT: speed_values(spec.placement)}
                    self._journal.enqueue_trial(params, user_attrs=attributes)
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

    def _enqueue(self, attempt: int) -> bool:
        """Enqueue the configuration of the next draw, unless the sampler chooses it; return whether
        there is a next configuration.

        `attempt` is the number of the draw for this trial, from 1.
        """
        if attempt > NUM_SAMPLED + NUM_RANDOM and self._size is not None:
            return self._enqueue_listed()
        if self._is_waiting():
            return True  # interrupted trials come first
        if self._is_grid:
            return self._enqueue_listed()
        if attempt == 1:
            self._enqueue_prior()
        return True

    def _enqueue_listed(self) -> bool:
        """Enqueue the next untried feasible combination of a finite space; return whether there was
        one.

        A grid runs all combinations in this order. With other samplers, this replaces a draw after
        many duplicates.
        """
        if self._listed is None:
            self._listed = iter(self._combinations())
        for values in self._listed:
            params = encode(self._space, self._study.fixed, values)
            if key_of(params) in self._drawn:
                continue
            if self._feasible(values):
                self._journal.enqueue_trial(params)
                return True
            self._skip(params, values)
        return False

    def _enqueue_prior(self) -> None:
        """For every second start-up trial, enqueue an optimizer at its default learning rate."""
        count, trials = self.num_ran, self._journal.get_trials(deepcopy=False)
        if not self._study.search.priors or count >= STARTUP_TRIALS or count % 2:
            return
        if any(trial.user_attrs.get(NOT_RUN) == EARLIER_STUDY for trial in trials):
            return  # earlier results are better starting points
        factor = rate_factor(self._study)
        configurations = initial_configurations(self._space, self._study.fixed, factor=factor)
        for values in configurations[count // 2 : count // 2 + 1]:
            self._journal.enqueue_trial(encode(self._space, self._study.fixed, values))

    def _combinations(self) -> list[dict[str, Any]]:
        factors = self._placer.factors if self._placer else None
        return grid(self._study, self._space, factors)

    def _feasible(self, values: dict[str, Any]) -> list[RunSpec]:
        """Return the feasible run specs of a proposal, one per placement, most workers first."""
        return [spec for spec in self._specs(values) if self._infeasible.is_feasible(spec)]

    def _skip(self, params: dict[str, Any], values: dict[str, Any]) -> None:
        """Exclude an infeasible configuration, and count it unless the cluster has no room for
        it."""
        self._add_draw(params, is_known=True)
        self.num_skipped += any(map(self._infeasible.has_room, self._specs(values)))

    def _specs(self, values: dict[str, Any]) -> list[RunSpec]:
        if self._placer is None:
            return [self._study.run_spec(values)]
        settings = {key: value for key, value in values.items() if key != GLOBAL_BATCH}
        placements = self._placer.factors.placements_for(values)
        return [
            self._study.run_spec(settings | speed_values(placement)) for placement in placements
        ]

    def _choose(self, trial: optuna.Trial, name: str, specs: list[RunSpec]) -> RunSpec:
        """Choose the placement of a trial, and return its run spec; an interrupted trial keeps its
        placement."""
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
