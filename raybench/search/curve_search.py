"""Propose trials and stop them early, using the curve model (`stats/curve_model.py`).

The predicted time to target of a configuration is a product. The curve model predicts the number of
samples to the target, and the placer (`placement.py`) predicts the seconds per sample. If the space
is not factorized (`factorisation.py`), the curve model predicts seconds directly. "Amount of
training" means samples in the first case and seconds in the second.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from raybench.search.candidates import Axes, ConfigurationSpace, Values
from raybench.search.factorisation import GLOBAL_BATCH
from raybench.search.placement import Placer
from raybench.search.sampling.default_rates import initial_configurations, rate_factor
from raybench.spec.objective import TIME, StopReason
from raybench.spec.run import RunSpec, value_of
from raybench.spec.space import Space, known_values
from raybench.spec.study import StudySpec
from raybench.spec.text import identity
from raybench.stats.curve_model import Array, CurveModel, ModelSettings
from raybench.stats.record import Evaluation, Failure, RunRecord, State
from raybench.stats.standing import Axis

LEAST_LEFT = 0.05
"""A running trial is assumed to need at least this fraction of its predicted total samples more."""
SPEED_SETTINGS = ("optimizer", "framework", "precision", GLOBAL_BATCH)
"""Keys that determine on which placements (framework, workers, ...) a configuration can run, and
its speed on each of them."""


class Decision(Enum):
    """Decision about a running trial after an evaluation: whether it continues, or why it stops."""

    CONTINUE = None
    """The trial may still become the best."""
    STOP_SLOW = StopReason.SCHEDULER
    """The trial is predicted to reach the target later than the best trial, and the difference
    exceeds the error of the prediction."""
    STOP_CAP = StopReason.CAP
    """The trial's next evaluation comes later than `search.cap_factor` times the best time."""

    @property
    def stop(self) -> StopReason | None:
        """Stop reason for the trial's record; None for CONTINUE."""
        return self.value


@dataclass(frozen=True)
class CurvePolicy:
    """Constants that control proposals and early stopping."""

    num_first: int = 8
    """Number of trials before the model proposes any. They alternate between good starting points
    (such as default learning rates) and random configurations."""
    num_narrow: int = 8
    """Number of random draws for each random first trial. The draw that needs the fewest workers is
    used, so that the first trials need not wait for workers."""
    num_candidates: int = 250
    """Number of random candidates per proposal."""
    num_best: int = 8
    """Number of good configurations whose neighbors become candidates."""
    explore: float = 1.5
    """Factor on the model's standard deviations when proposals are ranked; a larger factor explores
    more."""
    earlier_sd: float = 0.3
    """Standard deviation added to log samples to target for runs of an earlier study
    (`--seed-from`), because they may have used other machines or software versions."""
    most_runs: int = 4
    """Largest number of runs of the same configuration in the search. More runs would make the
    model overconfident about neighboring configurations."""
    stop: float = 1.5
    """A trial is stopped if its predicted log time exceeds that of the best trial by this number of
    standard deviations."""
    stop_early: float = 1.0
    """Number of standard deviations used instead of `stop` while no trial has reached the
    target."""
    best_rate: float = 1.7
    """Expected log(best learning rate / default learning rate), before any trial. It is above 0
    because a target is reached fastest near the largest stable learning rate, while the default
    learning rate gives the best final accuracy."""
    rate_width: float = 2.2
    """Distance of the log learning rate from its expected best value at which the prior mean of log
    samples to target is 0.5 above its minimum."""
    most_off: float = 2.0
    """Largest increase of the prior mean of log samples to target, caused by a bad learning
    rate."""
    batch_slope: float = 0.3
    """Prior standard deviation of d(log samples to target) / d(log batch size)."""
    model: ModelSettings = field(default_factory=ModelSettings)


class CurveSearch:
    """Proposes trials and stops them early, based on the curve model.

    It stops trials with every `search.sampler`, but proposes trials only with sampler `model`. With
    `grid`, whose result is exact, a trial is stopped only once it can become neither the fastest
    nor the cheapest. With `nsga2`, which searches the Pareto front of seconds and worker-seconds, a
    trial is stopped only if both its seconds and its worker-seconds are predicted to be high.

    The curve model counts the amount of training of a run in samples, or in training seconds if
    there is no placer that predicts the seconds per sample.

    Args:
        study: The study; its target must be set.
        space: The sampled space.
        placer: Predicts the speed of configurations; None if the space is not factorized.
        policy: Constants that control proposals and early stopping.
        num_earlier: Number of runs in earlier sessions. It changes the random numbers of a resumed
            search.
    """

    def __init__(
        self,
        study: StudySpec,
        space: Space,
        placer: Placer | None,
        policy: CurvePolicy,
        *,
        num_earlier: int = 0,
    ) -> None:
        self._study, self._space, self._placer, self._policy = study, space, placer, policy
        objective, self._fixed_values = study.objective, known_values(study.fixed, {})
        self._objective = objective
        self._metric, self._is_timed = objective.judged_by, objective.kind == TIME
        self._rng = np.random.default_rng(study.search.seed + 1_000_003 * num_earlier)
        self._axes = Axes(space, study.fixed)
        self._configurations = ConfigurationSpace(
            space, self._fixed_values, self._rng, widen=study.search.widen
        )
        sign, base = self._metric.sign, objective.baseline_value
        self.model = CurveModel(
            self._axes.num_categories,
            len(self._axes.numbers),
            baseline=None if base is None else sign * base,
            target=sign * objective.target
            if self._is_timed and objective.target is not None
            else None,
            settings=policy.model,
            slopes=[policy.batch_slope * (key == GLOBAL_BATCH) for key in self._axes.numbers],
            expected=self._expected if self._is_timed else None,
        )
        self._starts: list[dict[str, Any]] = []
        if study.search.priors:
            self._starts = initial_configurations(space, study.fixed, factor=rate_factor(study))
        self._values: dict[str, dict[str, Any]] = {}
        self._running: set[str] = set()
        self._earlier: set[str] = set()
        """Names of the runs of earlier studies (`--seed-from`)."""
        self._reached: list[str] = []
        """Names of the trials of this study that reached the target."""
        self._is_exact = study.search.sampler == "grid"
        self._judged_axes: list[Axis] = ["seconds"]
        if study.search.sampler in ("grid", "nsga2"):
            self._judged_axes.append("worker_seconds")

    # Proposals.

    def propose(self, number: int, is_open: Callable[[Values], bool]) -> list[dict[str, Any]]:
        """Return configurations to run next, best first, as dicts of sampled keys and values.

        Args:
            number: Number of trials so far.
            is_open: Function that returns whether a configuration may be proposed.
        """
        self.model.refresh()
        if number < self._policy.num_first or not self.model.is_known:
            start = self._start(number)
            drawn = (self._configurations.draw() for _ in range(self._policy.num_candidates))
            return [start, *drawn] if is_open(start) else list(filter(is_open, drawn))
        candidates = [values for values in self._candidates() if is_open(values)]
        if not candidates:
            return []
        best = self.best_log_seconds()
        if best is None:  # only runs of earlier studies are known
            best = float(self.means_of(self.model.modeled).min())
        running = [self.model.curves[name] for name in self._running]
        pending = np.array([curve.point for curve in running if not curve.amounts])
        points = self._axes.points(candidates)
        expected = self.model.expected_improvements(
            points,
            self._offsets(candidates),
            best,
            pending=pending,
            explore=self._policy.explore,
        )
        expected *= self._wait_factors(candidates, points)
        expected[self._num_runs(points) >= self._policy.most_runs] = -1.0
        return [candidates[index] for index in np.argsort(-expected, kind="stable")]

    def _num_runs(self, points: Array) -> Array:
        """Return the number of trials of this study at each point so far, shape [n]."""
        if not (names := self._study_trials):
            return np.zeros(len(points))
        run_points = np.array([self.model.curves[name].point for name in names])
        distances = np.abs(
            np.nan_to_num(points[:, None], nan=-99) - np.nan_to_num(run_points, nan=-99)
        )
        return np.asarray((distances <= self._axes.tolerances).all(axis=2).sum(axis=1))

    def start_with(self, configurations: Sequence[dict[str, Any]]) -> None:
        """Use configurations known to be good for the first trials.

        Every second first trial remains random.

        Args:
            configurations: Values by sampled key, best first; keys without a value are drawn.
        """
        distinct: dict[str, dict[str, Any]] = {}
        for values in configurations:
            distinct.setdefault(identity(values), values)
        self._starts = [*list(distinct.values())[: self._policy.num_first // 2], *self._starts]

    def _start(self, number: int) -> dict[str, Any]:
        """Return the configuration of first trial `number` (from 0).

        An even-numbered trial has a good starting point (from earlier runs, or with a default
        learning rate) while there are any; the others are random.
        """
        start = self._draw_narrow()
        if number % 2 == 0 and number // 2 < len(self._starts):
            start = self._configurations.draw(self._starts[number // 2])
        return start

    @property
    def _study_trials(self) -> list[str]:
        """Names of this study's trials in the model."""
        return [name for name in self.model.modeled if name not in self._earlier]

    def _draw_narrow(self) -> dict[str, Any]:
        """Draw several random configurations; return the one that can run on the fewest workers."""
        if self._placer is None:
            return self._configurations.draw()
        placements = self._placer.factors.placements_for
        drawn = [self._configurations.draw() for _ in range(self._policy.num_narrow)]
        return min(drawn, key=lambda values: min(p.num_workers for p in placements(values)))

    def _candidates(self) -> list[dict[str, Any]]:
        candidates = [self._configurations.draw() for _ in range(self._policy.num_candidates)]
        for values in self._best(self._policy.num_best):
            candidates += [values, *self._configurations.around(values)]
        return candidates

    def _best(self, number: int) -> list[dict[str, Any]]:
        """Return the `number` best tried configurations, shortest predicted time first, without
        those that lie outside the space."""
        names = self.model.modeled
        best: dict[str, dict[str, Any]] = {}
        for index in np.argsort(self.means_of(names)):
            values = self._values[names[index]]
            best.setdefault(str(values), values)
            if len(best) == number:
                break
        return [values for values in best.values() if self._configurations.lies_inside(values)]

    # Observations.

    def begin(self, trial: str, spec: RunSpec) -> None:
        """Add a trial to the model before it starts."""
        values = {key: value_of(spec, key) for key in self._space if key != GLOBAL_BATCH}
        if GLOBAL_BATCH in self._space:
            values[GLOBAL_BATCH] = spec.global_batch_size
        self._values[trial] = values
        self._running.add(trial)
        self.model.begin(trial, self._axes.point(values))

    def learn_earlier(self, values: Values, record: RunRecord, curve: Sequence[Evaluation]) -> None:
        """Add a run of an earlier study of the same task as an observation with more noise.

        No trial is stopped by comparison with such a run, and it does not count as a repeat of its
        configuration.

        Args:
            values: Configuration of the run, by sampled key.
            record: Record that the run would have under the objective of this study.
            curve: Evaluations of the run.
        """
        name = f"earlier {len(self._earlier)}"
        self._earlier.add(name)
        self._values[name] = dict(values)
        extra_sd = self._policy.earlier_sd
        self.model.begin(name, self._axes.point(values), extra_sd=extra_sd)
        self._learn(replace(record, trial=name), curve)

    def observe(self, trial: str, evaluation: Evaluation) -> None:
        """Add an evaluation of a running trial to the model."""
        self._observe(
            trial,
            evaluation.samples,
            evaluation.train_s,
            evaluation.best_value,
            evaluation.time_to_target_s,
        )
        if not self._reached or len(self.model.curves[trial].amounts) == 1:
            self.refresh()

    def end(self, record: RunRecord) -> None:
        """Add the final result of a trial to the model, and refit."""
        self._end(record)
        self.refresh()

    def _end(self, record: RunRecord) -> None:
        self._running.discard(record.trial)
        trained = record.samples, record.ledger["train"]
        self._observe(record.trial, *trained, record.best_value, record.time_to_target_s)
        curve, is_over = self.model.curves[record.trial], record.state == State.COMPLETE
        curve.has_missed = self._is_timed and is_over and record.time_to_target_s is None
        curve.has_failed = record.failure == Failure.NAN

    def refresh(self) -> None:
        """Refit the model, except with `grid`, which does not use it."""
        if not self._is_exact:
            self.model.refresh()

    def learn(self, record: RunRecord, curve: Sequence[Evaluation]) -> None:
        """Add a finished trial of an earlier session with its evaluations."""
        self.begin(record.trial, record.spec)
        self._learn(record, curve)

    def resume(self, trial: str, curve: Sequence[Evaluation]) -> None:
        """Add the evaluations of an interrupted trial that now continues."""
        best: float | None = None
        for point in curve:
            best = self._metric.best([point.value, *([] if best is None else [best])])
            self._observe(trial, point.samples, point.train_s, best, None)

    def _learn(self, record: RunRecord, curve: Sequence[Evaluation]) -> None:
        self.resume(record.trial, curve)
        self._end(record)

    def _observe(
        self, trial: str, samples: int, train_s: float, best: float | None, reached_s: float | None
    ) -> None:
        if best is None or not samples or train_s <= 0 or not math.isfinite(best):
            return
        amount = self._amount(samples, train_s)
        reached = None
        if reached_s is not None and self._is_timed:
            reached = amount * min(reached_s / train_s, 1.0)
            if trial not in self._reached and trial not in self._earlier:
                self._reached.append(trial)
        self.model.observe(trial, amount, self._metric.sign * best, reached)

    def _amount(self, samples: int, train_s: float) -> float:
        """Return the amount of training in the unit of the model: samples, or seconds without a
        placer."""
        return train_s if self._placer is None else float(samples)

    # Predictions.

    def judge(self, trial: str, evaluation: Evaluation) -> Decision:
        """Return the decision about a trial after its latest evaluation."""
        if self._objective.target is not None and self._metric.reaches(
            evaluation.value, self._objective.target
        ):
            return Decision.CONTINUE  # more evaluations at the target may be needed (`hold`)
        decisions = [self._judge(trial, evaluation, axis) for axis in self._judged_axes]
        return Decision.CONTINUE if Decision.CONTINUE in decisions else decisions[0]

    def _judge(self, trial: str, evaluation: Evaluation, axis: Axis) -> Decision:
        """Return the decision about a trial by one axis only (seconds or worker-seconds)."""
        cap = self._study.search.cap_factor
        if self._is_exact:
            best = self._best_measured(axis) if self._reached else None
        else:
            best = self.best_log_seconds(axis)
        if best is None:
            return Decision.CONTINUE
        offset = float(self._offsets([self._values[trial]], axis)[0])
        if self._reached and cap is not None:
            soonest = math.log(self._next_amount(evaluation)) + offset
            if soonest > best + math.log(cap):
                return Decision.STOP_CAP
        if self._is_exact or not self.model.curves[trial].amounts:
            return Decision.CONTINUE
        is_early = self._is_timed and not self._reached
        num_deviations = self._policy.stop_early if is_early else self._policy.stop
        mean, variance = self.model.posterior(trial)
        is_slow = mean + offset - best > num_deviations * math.sqrt(
            variance + self.model.settings.floor**2
        )
        return Decision.STOP_SLOW if is_slow else Decision.CONTINUE

    def _next_amount(self, evaluation: Evaluation) -> float:
        """Return the amount of training (samples or seconds) at a trial's next evaluation.

        A trial that has not reached the target needs at least this amount. Evaluations are equally
        spaced in samples. If the amount is in seconds, the interval before the first evaluation may
        include warm-up, so it is not extrapolated.
        """
        amount = self._amount(evaluation.samples, evaluation.train_s)
        if self._placer is None and evaluation.index == 0:
            return amount
        return amount * (evaluation.index + 2) / (evaluation.index + 1)

    def best_log_seconds(self, axis: Axis = "seconds") -> float | None:
        """Return the smallest predicted log seconds (or log worker-seconds) to target of any trial.

        Trials that missed the target are considered only if none reached it. The result is None if
        the model has no trials of this study.
        """
        if not (names := self._study_trials):
            return None
        reached = [name for name in names if self.model.curves[name].reached is not None]
        return float(self.means_of(reached or names, axis).min())

    def _best_measured(self, axis: Axis) -> float:
        """Return the smallest log seconds (or log worker-seconds) to target of the trials that
        reached it, computed from their measured samples or seconds."""
        measured = np.log([self.model.curves[name].reached or math.inf for name in self._reached])
        offsets = self._offsets([self._values[name] for name in self._reached], axis)
        return float((measured + offsets).min())

    def ranked(self) -> list[str]:
        """Return the names of the trials that reached the target, shortest predicted time first."""
        if not self._reached:
            return []
        times = self.means_of(self._reached)
        return [self._reached[index] for index in np.argsort(times, kind="stable")]

    def expected_log_s(self, trial: str) -> float | None:
        """Return a trial's predicted log seconds to target; None if unknown."""
        if trial not in self._values or not self.model.is_known:
            return None
        return self._mean_of(trial) + float(self._offsets([self._values[trial]])[0])

    def means_of(self, names: Sequence[str], axis: Axis = "seconds") -> Array:
        """Return each trial's predicted log seconds or log worker-seconds to target, shape [n]."""
        points = np.array([self.model.curves[name].point for name in names])
        offsets = self._offsets([self._values[name] for name in names], axis)
        return self.model.means(points) + offsets

    def _offsets(self, configurations: Sequence[Values], axis: Axis = "seconds") -> Array:
        """Return the number to add to each configuration's log amount of training to get its log
        time to target, shape [n].

        With a placer, this is the log of the seconds (or worker-seconds) per sample on each
        configuration's best placement; a configuration whose speed cannot be predicted gets the
        smallest value of all. Without a placer, amounts are seconds already, so the result is 0 for
        seconds and the log worker count for worker-seconds.
        """
        is_cost = axis == "worker_seconds"
        if self._placer is None:
            workers = [
                values.get("num_workers", self._fixed_values["num_workers"])
                for values in configurations
            ]
            return np.log(workers if is_cost else np.ones(len(configurations)))
        rates = [
            [seconds * (workers if is_cost else 1) for workers, seconds in speeds]
            for speeds in self._seconds_per_sample(configurations)
        ]
        lowest = min((rate for placements in rates for rate in placements), default=1.0)
        return np.log([min(placements, default=lowest) for placements in rates])

    def _seconds_per_sample(
        self, configurations: Sequence[Values]
    ) -> list[list[tuple[int, float]]]:
        """Return one list per configuration: (workers, seconds per sample) of each placement whose
        speed can be predicted."""
        assert self._placer is not None
        speeds: dict[tuple[str, ...], list[tuple[int, float]]] = {}
        keys = [tuple(str(values.get(key)) for key in SPEED_SETTINGS) for values in configurations]
        for key, values in zip(keys, configurations, strict=True):
            if key not in speeds:
                optimizer = values.get("optimizer", self._fixed_values["optimizer"])
                speeds[key] = self._placer.seconds_per_sample(optimizer, dict(values))
        return [speeds[key] for key in keys]

    def _wait_factors(self, candidates: Sequence[Values], points: Array) -> Array:
        """Return a factor in (0, 1] per configuration that penalizes waiting for workers, shape
        [n].

        The factor is the shortest training time on any placement, divided by the shortest sum of
        training time and wait. Waiting is penalized because free workers would sit idle meanwhile.
        """
        factors = np.ones(len(candidates))
        if self._placer is None:
            return factors
        amounts = np.exp(self.model.means(points))
        counts = {placement.num_workers for placement in self._placer.factors.all_placements}
        wait_s = {count: self._placer.wait_s(count) for count in counts}
        rates_by_candidate = self._seconds_per_sample(candidates)
        for index, (rates, amount) in enumerate(zip(rates_by_candidate, amounts, strict=True)):
            if rates:
                train_s = min(amount * seconds for _, seconds in rates)
                total_s = min(wait_s[workers] + amount * seconds for workers, seconds in rates)
                factors[index] = train_s / total_s
        return factors

    def left_s(self, trial: str, spec: RunSpec) -> float:
        """Return the predicted remaining training seconds of a running trial.

        The result is 0 if the speed of the trial is unknown. It is the rest of its training limit
        if the curve model has no observations yet.
        """
        if self._placer is None or (seconds := self._placer.own_seconds_per_sample(spec)) is None:
            return 0.0
        samples, train_s = self._placer.totals(trial)
        limit_s = max(self._study.objective.max_train_seconds - train_s, 0.0)
        if not self.model.is_known:
            return limit_s
        amount = math.exp(self._mean_of(trial))
        return min(max(amount - samples, LEAST_LEFT * amount) * seconds, limit_s)

    def _mean_of(self, trial: str) -> float:
        """Return the log amount of training that a trial is predicted to need to the target."""
        curve = self.model.curves[trial]
        if curve.amounts:
            return self.model.posterior(trial)[0]
        return float(self.model.means(curve.point[None, :])[0])

    def _expected(self, points: Array) -> Array:
        """Return the prior mean of the log amount of training to target at each point, shape [n].

        It depends only on the learning rate.
        """
        if "learning_rate" not in self._axes.numbers:
            return np.zeros(len(points))
        axis = self._axes.num_categories + self._axes.numbers.index("learning_rate")
        distances = (
            np.nan_to_num(points[:, axis]) - self._policy.best_rate
        ) / self._policy.rate_width
        return np.asarray(np.minimum(0.5 * distances**2, self._policy.most_off))
