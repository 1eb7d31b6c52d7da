"""Sampler and pruner for any Optuna study, based on the curve model (`stats/curve_model.py`).

    sampler = CurveSampler(target=0.95, seed=0)
    study = optuna.create_study(
        direction="maximize", sampler=sampler, pruner=CurvePruner(sampler)
    )

The objective function calls `trial.report(metric, step)`, where the step is the number of samples
or seconds trained so far, and raises `TrialPruned` if `trial.should_prune()`. raybench's own search
does not use these classes: `curve_search.py` also takes the speed of each configuration into
account.
"""

import math
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

from raybench.search.candidates import Axes, ConfigurationSpace
from raybench.search.curve_search import CurvePolicy
from raybench.spec.space import Choices, Range, Space, known_values
from raybench.stats.curve_model import CurveModel

Distributions = dict[str, BaseDistribution]


class CurveSampler(BaseSampler):
    """Proposes configurations expected to reach the target with the least training, given the
    learning curves reported so far.

    The first trials, and parameters that not all trials have, are drawn at random.

    Args:
        target: Metric value to reach; None uses a value that the best trials have reached.
        baseline: Metric value of a constant prediction; None uses the worst of the trials' first
            reports.
        seed: Seed of the random draws.
        policy: Constants that control the curve model and the proposals.
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

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        """Return the distributions of the parameters that all trials have, without parameters that
        have a single possible value."""
        shared = self._space.calculate(study)
        return {
            name: distribution for name, distribution in shared.items() if not distribution.single()
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        """Return values for the parameters of `search_space`.

        Returns {}, which makes Optuna draw at random, for the first trials and while nothing has
        been reported.
        """
        trials = study.get_trials(deepcopy=False)
        num_before = sum(other.number < trial.number for other in trials)
        if not search_space or num_before < self._policy.num_first:
            return {}
        model, axes = self.model_of(study, search_space)
        if not model.is_known:
            return {}
        by_run = {str(other.number): other for other in trials}
        means = model.means(np.array([model.curves[name].point for name in model.modeled]))
        candidates = ConfigurationSpace(space_of(search_space), known_values({}, {}), self._rng)
        drawn = [candidates.draw() for _ in range(self._policy.num_candidates)]
        for index in np.argsort(means)[: self._policy.num_best]:
            params = by_run[model.modeled[index]].params
            good = {name: params[name] for name in search_space}
            drawn += [good, *candidates.around(good)]
        running = [
            axes.point(other.params)
            for other in trials
            if other.state == TrialState.RUNNING
            and not other.intermediate_values
            and search_space.keys() <= other.params.keys()
        ]
        points = axes.points(drawn)
        expected = model.expected_improvements(
            points,
            np.zeros(len(points)),
            float(means.min()),
            pending=np.array(running),
            explore=self._policy.explore,
        )
        chosen = drawn[int(np.argmax(expected))]
        return {name: _on_step(search_space[name], value) for name, value in chosen.items()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value for a parameter."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Reseed, so that copies of this sampler in several processes draw different numbers."""
        self._rng = np.random.default_rng()
        self._random.reseed_rng()

    def model_of(self, study: Study, search_space: Distributions) -> tuple[CurveModel, Axes]:
        """Fit the curve model to the reports of all trials of a study.

        Returns:
            - The fitted model.
            - The axes, which convert parameters to input vectors of the model.
        """
        sign = -1.0 if study.direction == StudyDirection.MINIMIZE else 1.0
        axes = Axes(space_of(search_space), {})
        model = CurveModel(
            axes.num_categories,
            len(axes.numbers),
            baseline=None if self._baseline is None else sign * self._baseline,
            target=None if self._target is None else sign * self._target,
            settings=self._policy.model,
        )
        for trial in study.get_trials(deepcopy=False):
            if not search_space.keys() <= trial.params.keys():
                continue
            run, best, reached = str(trial.number), -math.inf, None
            model.begin(run, axes.point(trial.params))
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
        return model, axes


class CurvePruner(BasePruner):
    """Stops a trial that is predicted to reach the target later than the best trial, if the
    difference exceeds the prediction error.

    Args:
        sampler: Sampler of the same study, whose curve model is used.
        min_trials: Number of other trials that must have reported before a trial is stopped.
    """

    def __init__(self, sampler: CurveSampler, *, min_trials: int = 4) -> None:
        self._sampler, self._min_trials = sampler, min_trials

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial should stop, given what it has reported so far."""
        space = {
            name: distribution
            for name, distribution in trial.distributions.items()
            if not distribution.single()
        }
        model, _ = self._sampler.model_of(study, space)
        run = str(trial.number)
        others = [other for name, other in model.curves.items() if other.amounts and name != run]
        curve = model.curves.get(run)
        if curve is None or not curve.amounts or len(others) < self._min_trials:
            return False
        if curve.reached is not None:
            return False
        done = [other for other in others if other.reached is not None] or others
        best = float(model.means(np.array([other.point for other in done])).min())
        policy = self._sampler._policy  # noqa: SLF001
        num_deviations = policy.stop if done[0].reached is not None else policy.stop_early
        mean, variance = model.posterior(run)
        return mean - best > num_deviations * math.sqrt(variance + policy.model.floor**2)


def space_of(distributions: Distributions) -> Space:
    """Convert Optuna's distributions to a search space; the `step` of a distribution is ignored."""
    space: Space = {}
    for name, distribution in distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            space[name] = Choices(tuple(distribution.choices))
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            space[name] = Range(
                distribution.low,
                distribution.high,
                distribution.log,
                isinstance(distribution, IntDistribution),
            )
    return space


def _on_step(distribution: BaseDistribution, value: Any) -> Any:
    """Return the value nearest to `value` that the distribution's step allows."""
    if (
        isinstance(distribution, CategoricalDistribution)
        or (step := getattr(distribution, "step", None)) is None
    ):
        return value
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low = distribution.low
    return min(low + round((value - low) / step) * step, distribution.high)
