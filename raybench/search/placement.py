"""Predict step times from the trials of a search, and choose the placement of the next trial.

A placement determines how steps are executed: framework, worker count, batch size per worker, GPU
model, compilation mode, accumulation steps. The step time depends on the placement and on the
optimizer, not on the learning rate, so a few measured steps predict the training time on other
placements. The model is that of Pollux (Qiao 2021, arXiv 2008.12260, eq. 8-11) with gamma = 1, so
communication does not overlap computation: a forward and backward pass has a constant cost and a
cost per sample, and more workers add communication.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
from scipy.optimize import nnls

from raybench.search.factorisation import Factors, with_placement
from raybench.spec.run import Placement, RunSpec

OPTIMIZER_PENALTY = 0.05
"""Weight of the ridge penalty on the costs of optimizers in the fit; a long measurement has weight
1."""
EFFICIENT = 0.5
"""Smallest throughput per worker of the placement chosen for a trial, relative to the placement
with the highest throughput per worker."""
OWN_STEPS = 50
"""Number of measured steps of a setup at which its measured and its modeled step time have equal
weight in the prediction."""

Setup = tuple[Placement, str]
"""Placement and optimizer, which together determine the step time."""
Lane = tuple[str, str | None, str, str, int, int]
"""All properties of a placement but worker count and batch size: framework, GPU model, precision,
compilation mode, accumulation steps and prefetched batches. Each lane has its own step-time
model."""
MOST_SYNERGY = 1.25
"""Largest factor by which the speedup from changing two keys together is assumed to exceed the
product of the speedups from changing each of them alone."""
COMPILE_SHARE = 0.1
"""Fraction of the training seconds so far that may be spent on test compilations. The search is
expected to last about as long again, and compilation to save about a tenth of that time."""
TYPICAL_COMPILE_S = {"default": 20.0, "reduce-overhead": 20.0, "max-autotune": 60.0, "xla": 4.0}
"""Seconds to compile a small network on two cores; used until a trial has compiled."""


_lane: Callable[[Placement], Lane] = attrgetter(
    "framework", "accelerator_type", "precision", "compile", "accumulate", "prefetch"
)


def _workers(placement: Placement) -> tuple[Lane, int]:
    """Return the lane and worker count of a placement."""
    return _lane(placement), placement.num_workers


class StepTime:
    """Predicts seconds per optimizer step by a linear model with non-negative coefficients.

    The step time T of lane f with optimizer o, `k` workers and `n` samples per worker is

        T = a(f) + b(f) n + [a'(f, k) + b'(f, k) n  unless k is the fewest measured] + c(f, o)

    The fit minimizes relative errors. b' is zero until a worker count was measured at two batch
    sizes, since the cost of more workers is mostly communication, which does not depend on the
    batch size. An optimizer that was not measured in a lane gets the mean cost of the optimizers
    that were. The prediction for a measured setup is a weighted geometric mean of the measured step
    time (weight: number of measured steps) and the modeled step time (weight: OWN_STEPS), because
    libraries choose kernels by tensor shape, so a setup may deviate from a smooth model by 15 %.
    """

    def __init__(self) -> None:
        self._totals: dict[Lane, dict[Setup, list[float]]] = {}
        """Totals [measured steps, seconds], keyed by lane and then by setup."""
        self._batches: dict[tuple[Lane, int], set[int]] = {}
        self._fits: dict[Lane, Callable[[Setup], float]] = {}

    def observe(
        self, placement: Placement, optimizer: str, *, steps: float, seconds: float
    ) -> None:
        """Add a measurement: training seconds, and the number of optimizer steps done in them."""
        if steps <= 0 or not seconds > 0:
            return
        lane = _lane(placement)
        totals = self._totals.setdefault(lane, {})
        total = totals.setdefault((placement, optimizer), [0.0, 0.0])
        self._batches.setdefault(_workers(placement), set()).add(placement.batch_size_per_worker)
        total[0] += steps
        total[1] += seconds
        self._fits.pop(lane, None)

    def batches(self, placement: Placement) -> set[int]:
        """Return the batch sizes per worker that were measured in the lane and with the worker
        count of a placement."""
        return self._batches.get(_workers(placement), set())

    def step_s(self, placement: Placement, optimizer: str) -> float | None:
        """Return the predicted seconds per step.

        The result is None if the lane of the placement was never measured with this worker count.
        """
        if not self.batches(placement):
            return None
        lane = _lane(placement)
        if lane not in self._fits:
            self._fits[lane] = self._fit(lane)
        return self._fits[lane]((placement, optimizer))

    def _fit(self, lane: Lane) -> Callable[[Setup], float]:
        """Fit the model to the measurements of a lane; return a function that predicts seconds per
        step."""
        totals = self._totals[lane]
        measured = list(totals)
        counts = sorted({placement.num_workers for placement, _ in measured})
        optimizers = sorted({optimizer for _, optimizer in measured})
        batches = {
            k: {p.batch_size_per_worker for p, _ in measured if p.num_workers == k} for k in counts
        }
        wide = [k for k in counts[1:] if len(batches[k]) > 1]

        def row(setup: Setup) -> np.ndarray:
            placement, optimizer = setup
            n, k = float(placement.batch_size_per_worker), placement.num_workers
            # An optimizer that was not measured gets the mean cost of the others.
            spread = 1.0 / len(optimizers) if optimizer not in optimizers else 0.0
            return np.array(
                [1.0, n]
                + [float(k == other) for other in counts[1:]]
                + [n * (k == other) for other in wide]
                + [spread or float(optimizer == name) for name in optimizers]
            )

        design = np.array([row(setup) for setup in measured])
        done, spent = np.array(list(totals.values())).T
        seconds = spent / done
        # Long measurements have more weight, up to a limit.
        weights = np.minimum(1.0, np.sqrt(done / 50))
        scale = weights / seconds
        widths = np.maximum(design.max(axis=0), 1.0)
        # If each optimizer was measured at one batch size, optimizer and batch effects cannot be
        # separated; the penalty assigns the difference to the batch.
        penalty = np.zeros((len(optimizers), design.shape[1]))
        penalty[:, -len(optimizers) :] = (
            np.eye(len(optimizers)) * OPTIMIZER_PENALTY / np.median(seconds)
        )
        rows = np.vstack([design * scale[:, None], penalty]) / widths
        coefficients = nnls(rows, np.append(seconds * scale, np.zeros(len(penalty))))[0] / widths

        @cache
        def step_s(setup: Setup) -> float:
            predicted = max(float(row(setup) @ coefficients), 1e-9)
            if setup not in totals:
                return predicted
            steps, spent_s = totals[setup]
            weight = steps / (steps + OWN_STEPS)
            return float(predicted ** (1 - weight) * (spent_s / steps) ** weight)

        return step_s


class Placer:
    """Chooses the placement (framework, workers, ...) of each trial of a factorized space.

    The first trials are also probes: each runs on a placement whose step time is not known yet.
    Placements with few workers are probed first, and placements with more workers only if the times
    with fewer do not rule out that they are faster. Later trials run on the fastest of the
    placements whose throughput per worker is at least the fraction EFFICIENT of the highest.
    Compilation is probed once the study has trained long enough to repay it (`COMPILE_SHARE`).

    Args:
        factors: The factorized space.
        is_feasible: Function that returns False for a run that is expected to fail.
        wait_s: Function that returns the predicted seconds until a given number of workers is free.
    """

    def __init__(
        self,
        factors: Factors,
        *,
        is_feasible: Callable[[RunSpec], bool] = lambda spec: True,
        wait_s: Callable[[int], float] = lambda num_workers: 0.0,
    ) -> None:
        self.factors, self.wait_s = factors, wait_s
        self._is_feasible = is_feasible
        self._model = StepTime()
        self._totals: dict[str, tuple[int, float]] = {}
        self._probing: dict[str, Placement] = {}
        self._num_samples: list[float] = []
        self._compile_s: dict[Lane, float] = {}
        """Compilation seconds, keyed by lane. They are the minimum, since the first compilation
        also loads libraries."""
        self._first_compile_s: dict[tuple[Lane, int], float] = {}
        """Seconds of the first compilation, keyed by lane and batch size per worker, since each
        batch size is compiled separately."""
        self._typical_s = dict(TYPICAL_COMPILE_S)
        self._trained_s = 0.0
        """Training seconds of all trials so far."""
        self._all_placements = factors.all_placements
        self._counts = {placement.num_workers for placement in self._all_placements}
        self._uncompiled = {
            placement.framework for placement in self._all_placements if placement.compile == "none"
        }

    def observe(self, trial: str, spec: RunSpec, *, samples: int, train_s: float) -> None:
        """Update the total samples and seconds of a trial; a repeated call has no effect.

        Args:
            trial: Name of the trial.
            spec: Run spec of the trial.
            samples: Training samples so far, of all workers.
            train_s: Training seconds so far.
        """
        before = self._totals.get(trial, (0, 0.0))
        if samples <= before[0]:
            return
        self._totals[trial] = samples, train_s
        self._trained_s += train_s - before[1]
        self._probing.pop(trial, None)
        self._model.observe(
            spec.placement,
            spec.optimizer,
            steps=(samples - before[0]) / spec.global_batch_size,
            seconds=train_s - before[1],
        )

    def choose(self, trial: str, optimizer: str, options: Sequence[Placement]) -> Placement:
        """Choose the placement of a new trial.

        Args:
            trial: Name of the trial.
            optimizer: Optimizer of the trial.
            options: Feasible placements for the global batch size of the trial, most workers first.
        """
        # Compiled placements are probed last, since uncompiled ones may rule them out.
        order = [option for option in reversed(options) if not self.wait_s(option.num_workers)]
        order.sort(key=lambda option: (option.compile != "none", option.accumulate))
        for option in order:
            if self._is_next_probe(option, optimizer, options):
                self._probing[trial] = option
                return option
        step_s = self._timed(optimizer, options)
        timed = {option: self._trial_s(option, seconds) for option, seconds in step_s.items()}
        if not timed:  # every option is being probed or must wait: use the fewest workers
            return options[-1]
        cost = min(option.num_workers * seconds for option, seconds in timed.items())
        efficient = {
            option: seconds
            for option, seconds in timed.items()
            if cost / (option.num_workers * seconds) >= EFFICIENT
        }
        return min(
            efficient, key=lambda option: efficient[option] + self.wait_s(option.num_workers)
        )

    def _trial_s(self, option: Placement, step_s: float) -> float:
        """Return the seconds, including compilation, of a trial that trains on as many samples as
        the median trial."""
        samples = np.median(self._num_samples) if self._num_samples else 0.0
        steps = max(float(samples) / option.samples, 1.0)
        return steps * step_s + self._compile_s.get(_lane(option), 0.0)

    def ended(self, trial: str, spec: RunSpec, *, samples: int, compile_s: float) -> None:
        """Record the end of a trial.

        If the trial measured no step, its placement may be probed again.

        Args:
            trial: Name of the trial.
            spec: Run spec of the trial.
            samples: Training samples of the trial, of all workers.
            compile_s: Seconds that the trial spent on compilation.
        """
        self._probing.pop(trial, None)
        self._num_samples.append(samples)
        if spec.compile != "none":
            lane = _lane(spec.placement)
            self._compile_s[lane] = min(compile_s, self._compile_s.get(lane, compile_s))
            if (key := (lane, spec.batch_size_per_worker)) not in self._first_compile_s:
                self._first_compile_s[key] = self._typical_s[spec.compile] = compile_s

    def ratios(self, spec: RunSpec) -> dict[Placement, float]:
        """Return the predicted training time on each placement, relative to the placement of
        `spec`.

        Placements without a prediction are left out. The result is empty if the step time on the
        placement of `spec` cannot be predicted.
        """
        timed = self._timed(spec.optimizer, self._options(spec))
        step_s = timed.get(spec.placement)
        return {} if step_s is None else {option: s / step_s for option, s in timed.items()}

    def seconds_per_sample(self, optimizer: str, values: dict[str, Any]) -> list[tuple[int, float]]:
        """Return (workers, training seconds per sample) for each placement of a configuration.

        If the worker count of a placement was not measured in its lane (see `Lane`), a step is
        assumed to take as long as with the largest smaller count that was measured. A placement
        without such a count is left out.
        """
        speeds = []
        for placement in self.factors.placements_for(values):
            step_s = self._model.step_s(placement, optimizer)
            if step_s is None and (nearest := self._nearest_measured(placement)) is not None:
                step_s = self._model.step_s(nearest, optimizer)
            if step_s is not None:
                speeds.append((placement.num_workers, step_s / placement.samples))
        return speeds

    def own_seconds_per_sample(self, spec: RunSpec) -> float | None:
        """Return the predicted training seconds per sample on the placement of a run spec; None if
        unknown."""
        step_s = self._model.step_s(spec.placement, spec.optimizer)
        return None if step_s is None else step_s / spec.global_batch_size

    def totals(self, trial: str) -> tuple[int, float]:
        """Return (samples, training seconds) of a trial so far."""
        return self._totals.get(trial, (0, 0.0))

    def _nearest_measured(self, option: Placement) -> Placement | None:
        """Return `option` with the largest smaller worker count that was measured in its lane; None
        if no smaller count was measured."""
        counts = sorted((k for k in self._counts if k < option.num_workers), reverse=True)
        fewer = (replace(option, num_workers=count) for count in counts)
        return next((placement for placement in fewer if self._model.batches(placement)), None)

    def ratio_to_fastest(self, spec: RunSpec) -> float:
        """Return the predicted time on the fastest placement, relative to the placement of `spec`.

        The ratio is 1 if unknown.
        """
        return min(self.ratios(spec).values(), default=1.0)

    def ratio_to_cheapest(self, spec: RunSpec) -> float:
        """Return the predicted worker-seconds on the cheapest placement, relative to the placement
        of `spec`; 1 if unknown."""
        ratios = self.ratios(spec).items()
        costs = (option.num_workers / spec.num_workers * ratio for option, ratio in ratios)
        return min(costs, default=1.0)

    def others(self, spec: RunSpec) -> list[Placement]:
        """Return the feasible placements for the global batch size of a run spec, without its
        own."""
        return [option for option in self._options(spec) if option != spec.placement]

    def _options(self, spec: RunSpec) -> list[Placement]:
        """Return the feasible placements for the global batch size of a run spec."""
        return [
            placement
            for placement in self.factors.placements_for_spec(spec)
            if placement == spec.placement or self._is_feasible(with_placement(spec, placement))
        ]

    def _is_next_probe(
        self, option: Placement, optimizer: str, options: Sequence[Placement]
    ) -> bool:
        """Return whether to probe a placement next.

        The result is False while a running trial probes the same lane and worker count.
        """
        if any(_workers(probed) == _workers(option) for probed in self._probing.values()):
            return False
        lane, count = _workers(option)
        fewer = [
            narrower
            for narrower in options
            if _lane(narrower) == lane and narrower.num_workers < count
        ]
        if any(self._is_open(narrower, optimizer, options) for narrower in fewer):
            return False  # fewer workers are probed first, and may rule out this placement
        if self._is_open(option, optimizer, options):
            return True
        # A second batch size separates the cost per sample from the cost per step.
        batches = self._batches(lane)
        if len(batches) != 1 or option.batch_size_per_worker in batches or not self._repays(option):
            return False
        if option.compile == "none":
            return True
        # Compiling for a second batch size is worthwhile only if it can become the fastest.
        same = replace(option, batch_size_per_worker=max(batches))
        factor = min(1.0, option.batch_size_per_worker / max(batches))
        bound_s = factor * (self._model.step_s(same, optimizer) or 0.0)
        return bound_s <= min(self._timed(optimizer, options).values(), default=np.inf)

    def _is_open(self, option: Placement, optimizer: str, options: Sequence[Placement]) -> bool:
        """Return whether a placement has not been measured yet and could be the fastest.

        A placement is ruled out if a lower bound on its step time is not below the step time of the
        fastest placement so far. The bound is the step time with fewer workers, which were measured
        and communicate less.
        """
        if self._model.batches(option) or not self._repays(option):
            return False
        timed = self._timed(optimizer, options)
        nearest = self._nearest_measured(option)
        if nearest is None:
            bound_s = _bound_from_other_lanes(option, timed)
        else:
            bound_s = self._model.step_s(nearest, optimizer)
            batches = self._model.batches(nearest)
            # With a single batch size, the whole step may scale with the samples.
            if bound_s is not None and len(batches) == 1:
                same = replace(nearest, batch_size_per_worker=max(batches))
                scaled_s = self._model.step_s(same, optimizer) or 0.0
                bound_s = min(bound_s, scaled_s * option.batch_size_per_worker / max(batches))
        return bound_s is None or not timed or bound_s < min(timed.values())

    def _repays(self, option: Placement) -> bool:
        """Return whether the study has trained long enough to repay compilation for a placement.

        Always True for an uncompiled placement, and if the framework has no uncompiled placement.
        """
        if option.compile == "none" or option.framework not in self._uncompiled:
            return True
        due = [
            placement
            for placement in (*self._probing.values(), option)
            if placement.compile != "none"
        ]
        compiled_s = sum(self._first_compile_s.values())
        compiled_s += sum(self._typical_s[placement.compile] for placement in due)
        return compiled_s <= COMPILE_SHARE * self._trained_s

    def _batches(self, lane: Lane) -> set[int]:
        """Return the batch sizes per worker at which a lane was measured or is being probed."""
        running = self._probing.values()
        batches = {
            placement.batch_size_per_worker for placement in running if _lane(placement) == lane
        }
        for placement in self._all_placements:
            if _lane(placement) == lane:
                batches |= self._model.batches(placement)
        return batches

    def _timed(self, optimizer: str, options: Sequence[Placement]) -> dict[Placement, float]:
        """Return the predicted seconds per step of each placement for which there is a
        prediction."""
        step_s = {option: self._model.step_s(option, optimizer) for option in options}
        return {option: seconds for option, seconds in step_s.items() if seconds is not None}


def _bound_from_other_lanes(option: Placement, timed: dict[Placement, float]) -> float | None:
    """Return a lower bound on the seconds per step of a placement in an unmeasured lane.

    The bound assumes that the speedups by two keys multiply (up to MOST_SYNERGY). It needs three
    measured lanes: two that differ from the lane of `option` in one key each, and one that differs
    in both keys. The result is None without such lanes. `timed` contains the predicted seconds per
    step, keyed by placement.
    """
    target = _lane(option)
    lanes: dict[tuple[object, ...], float] = {
        _lane(placement): step_s
        for placement, step_s in timed.items()
        if placement.num_workers == option.num_workers
    }
    bounds = []
    for other_lane, step_s in lanes.items():
        differ = [key for key, value in enumerate(target) if value != other_lane[key]]
        between = [(*target[:key], other_lane[key], *target[key + 1 :]) for key in differ]
        if len(between) == 2 and all(lane in lanes for lane in between):
            bounds.append(lanes[between[0]] * lanes[between[1]] / step_s)
    return min(bounds) / MOST_SYNERGY if bounds else None
