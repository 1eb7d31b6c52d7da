"""Sampler and pruner by the curve model (`stats/curve_model.py`), for any Optuna study.

    sampler = CurveSampler(target=0.95, seed=0)
    study = optuna.create_study(
        direction="maximize", sampler=sampler, pruner=CurvePruner(sampler)
    )

Objectives report their metric by samples or seconds of training, `trial.report(value, step)`, and
prune where `trial.should_prune()`. raybench's own search uses the model without these
(`curve_search.py`), as it knows how fast each configuration runs.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from raybench.search.curve_search import PARTS, SPAN, CurvePolicy
from raybench.stats.curve_model import Array, CurveModel

Params = dict[str, Any]
SpaceOf = dict[str, BaseDistribution]


class CurveSampler(BaseSampler):
    """Proposes what may come to the target with the least training, by all curves reported so far.

    The first trials, and parameters that not all trials have, are drawn at random.

    Args:
        target: Value of the metric that is to be reached; None: the best values seen so far count
            as one.
        baseline: Value of an answer that never looks; None: the worst first report counts as that.
        seed: Of the random draws.
        policy: Constants of the search; those of rates and batches are not used here.
    """

    def __init__(
        self,
        *,
        target: float | None = None,
        baseline: float | None = None,
        seed: int | None = None,
        policy: CurvePolicy | None = None,
    ) -> None:
        self._target, self._baseline = target, baseline
        self._policy = policy or CurvePolicy()
        self._rng, self._random = np.random.default_rng(seed), RandomSampler(seed=seed)
        self._space = IntersectionSearchSpace(include_pruned=True)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> SpaceOf:
        """Return the parameters that all trials have, and that can differ."""
        found = self._space.calculate(study)
        return {name: one for name, one in found.items() if not one.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: SpaceOf
    ) -> dict[str, Any]:
        """Return the next values of the parameters; none among the first trials, or before
        anything was reported."""
        trials = study.get_trials(deepcopy=False)
        num_before = sum(one.number < trial.number for one in trials)
        if not search_space or num_before < self._policy.num_first:
            return {}
        model = self.model_of(study, search_space)
        if not model.is_known:
            return {}
        candidates = self._candidates(model, trials, search_space)
        points = np.array([_point(one, search_space) for one in candidates])
        running = [
            _point(one.params, search_space)
            for one in trials
            if one.state == TrialState.RUNNING
            and not one.intermediate_values
            and search_space.keys() <= one.params.keys()
        ]
        known = np.array([one.point for one in model.curves.values() if one.amounts])
        expected = model.expected_improvements(
            points,
            np.zeros(len(points)),
            float(model.means(known).min()),
            pending=np.array(running),
            explore=self._policy.explore,
        )
        return candidates[int(np.argmax(expected))]

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value of a parameter at random."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Draw other numbers than a copy of this sampler in another process."""
        self._rng = np.random.default_rng()
        self._random.reseed_rng()

    def model_of(self, study: Study, search_space: SpaceOf) -> CurveModel:
        """Return the model of all that the study's trials have reported."""
        sign = -1.0 if study.direction == StudyDirection.MINIMIZE else 1.0
        model = CurveModel(
            sum(isinstance(one, CategoricalDistribution) for one in search_space.values()),
            sum(not isinstance(one, CategoricalDistribution) for one in search_space.values()),
            baseline=None if self._baseline is None else sign * self._baseline,
            target=None if self._target is None else sign * self._target,
            settings=self._policy.model,
        )
        for trial in study.get_trials(deepcopy=False):
            if not search_space.keys() <= trial.params.keys():
                continue
            run, best, reached = str(trial.number), -math.inf, None
            model.begin(run, _point(trial.params, search_space))
            for step, value in sorted(trial.intermediate_values.items()):
                if not math.isfinite(value) or step <= 0:
                    continue
                best = max(best, sign * value)
                if self._target is not None and reached is None and best >= sign * self._target:
                    reached = float(step)
                model.observe(run, float(step), best, reached)
            is_over = trial.state == TrialState.COMPLETE
            model.curves[run].has_missed = self._target is not None and is_over and reached is None
        model.refresh()
        return model

    def _candidates(
        self, model: CurveModel, trials: Sequence[FrozenTrial], space: SpaceOf
    ) -> list[Params]:
        number = self._policy.num_candidates
        found = [{name: self._draw(one) for name, one in space.items()} for _ in range(number)]
        by_run = {str(one.number): one for one in trials}
        names = [name for name, curve in model.curves.items() if curve.amounts]
        means = model.means(np.array([model.curves[name].point for name in names]))
        for at in np.argsort(means)[: self._policy.num_best]:
            good = {name: by_run[names[at]].params[name] for name in space}
            found.append(good)
            for name, distribution in space.items():
                found += [good | {name: one} for one in _beside(distribution, good[name])]
        return found

    def _draw(self, distribution: BaseDistribution) -> Any:
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices[int(self._rng.integers(len(distribution.choices)))]
        return _at(distribution, float(self._rng.random()))


class CurvePruner(BasePruner):
    """Stops trials that should come to the target later than the best by more than their error.

    Args:
        sampler: The study's sampler, whose model it asks.
        min_trials: Trials that have reported, before which none is stopped.
    """

    def __init__(self, sampler: CurveSampler, *, min_trials: int = 4) -> None:
        self._sampler, self._min_trials = sampler, min_trials

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial should stop after what it has reported."""
        space = {name: one for name, one in trial.distributions.items() if not one.single()}
        model = self._sampler.model_of(study, space)
        run = str(trial.number)
        others = [one for name, one in model.curves.items() if one.amounts and name != run]
        curve = model.curves.get(run)
        if curve is None or not curve.amounts or len(others) < self._min_trials:
            return False
        if curve.reached is not None:
            return False
        done = [one for one in others if one.reached is not None] or others
        best = float(model.means(np.array([one.point for one in done])).min())
        policy = self._sampler._policy
        most = policy.stop if done[0].reached is not None else policy.stop_early
        mean, variance = model.belief(run)
        return mean - best > most * math.sqrt(variance + policy.model.floor**2)


def _point(params: Params, space: SpaceOf) -> Array:
    """Return a configuration's point: categories first, then numbers."""
    categories, numbers = [], []
    for name, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            categories.append(float(distribution.to_internal_repr(params[name])))
        else:
            numbers.append(SPAN * _share(distribution, params[name]))
    return np.array([*categories, *numbers])


def _share(distribution: BaseDistribution, value: float) -> float:
    """Return where in its range a number lies, evenly on the scale of that."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    if distribution.log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _at(distribution: BaseDistribution, share: float) -> int | float:
    """Return the inverse of `_share`, on the steps of the range."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    share = min(max(share, 0.0), 1.0)
    value = low * (high / low) ** share if distribution.log else low + share * (high - low)
    if step is not None:
        value = low + round((value - low) / step) * step
    value = min(max(value, low), high)
    return int(value) if isinstance(distribution, IntDistribution) else float(value)


def _beside(distribution: BaseDistribution, value: Any) -> list[Any]:
    """Return values near one; of categories all others."""
    if isinstance(distribution, CategoricalDistribution):
        return [one for one in distribution.choices if one != value]
    return [_at(distribution, _share(distribution, value) + part) for part in PARTS]
