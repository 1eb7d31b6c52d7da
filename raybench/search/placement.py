"""Step times of configurations, learnt from the trials themselves; the placement of the next one.

Speed depends on framework, GPU, compilation, workers, batch and optimizer, not on the learning
rate; so a few measured steps tell what a training would take elsewhere. The form is that of Pollux
without overlap (Qiao 2021, arXiv 2008.12260, eq. 8-11 with gamma 1): a pass costs a constant and a
part per sample; more workers add communication.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import nnls

from raybench.search.factorisation import Factors, placed
from raybench.spec.run import Placement, RunSpec

PULL = 0.05
"""Weight of the pull of optimizer costs to zero, beside relative errors of weight one."""


Setup = tuple[Placement, str]
"""Key of a step's time: the place where it runs, and the optimizer."""
Lane = tuple[str, str | None, str, str, int, int]
"""Framework, model of GPU, precision, compilation, passes and readers: step times of two of them
have nothing in common."""
Row = Callable[[Setup], np.ndarray]
MULTIPLY = 1.25
"""Two speed keys give together at most so many times the product of what each gives."""
COMPILE_SHARE = 0.1
"""Share of the seconds trained so far that is spent on compiling to learn whether that pays: as far
as is known, the search lasts as long again, and compiling saves a tenth of that or so."""
TYPICAL_COMPILE_S = {"default": 20.0, "reduce-overhead": 20.0, "max-autotune": 60.0, "xla": 4.0}
"""Seconds to compile a small network on two cores, until a search has measured its own."""


def _lane(placement: Placement) -> Lane:
    one, passes = placement, (placement.accumulate, placement.prefetch)
    return one.framework, one.accelerator_type, one.precision, one.compile, *passes


def _workers(placement: Placement) -> tuple[Lane, int]:
    return _lane(placement), placement.num_workers


class StepTime:
    """Seconds of one optimizer step, by a linear model with coefficients of at least zero.

    For `n` samples per worker, `k` workers, lane f and optimizer o:

        T = a(f) + b(f) n + [a'(f, k) + b'(f, k) n  where k is not the fewest measured] + c(f, o)

    fitted to relative errors. b' is left at zero until a group was measured at two batch
    sizes: what more workers cost is first of all communication, which is the same for every
    batch. An optimizer that was not measured in a lane costs what the others do there.
    """

    def __init__(self) -> None:
        self._totals: dict[Lane, dict[Setup, list[float]]] = {}
        """Steps and seconds measured."""
        self._batches: dict[tuple[Lane, int], set[int]] = {}
        self._fits: dict[Lane, Callable[[Setup], float]] = {}
        self._designs: dict[Lane, tuple[Row, np.ndarray, int]] = {}

    def observe(
        self, placement: Placement, optimizer: str, *, steps: float, seconds: float
    ) -> None:
        """Add measured seconds of training and the optimizer steps done in them."""
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
        """Return the batch sizes at which so many workers of its lane were measured."""
        return self._batches.get(_workers(placement), set())

    def step_s(self, placement: Placement, optimizer: str) -> float | None:
        """Return the predicted seconds of a step; None where such a group was never measured."""
        if not self.batches(placement):
            return None
        lane = _lane(placement)
        if lane not in self._fits:
            self._fits[lane] = self._fit(lane)
        return self._fits[lane]((placement, optimizer))

    def _design(self, measured: list[Setup]) -> tuple[Row, np.ndarray, int]:
        """Return what makes a row of a setup, the rows of those measured, and the optimizers.

        It takes longer than the fit itself, and stays as it is until another setup is measured.
        """
        counts = sorted({placement.num_workers for placement, _ in measured})
        optimizers = sorted({optimizer for _, optimizer in measured})
        batches = {
            k: {p.batch_size_per_worker for p, _ in measured if p.num_workers == k} for k in counts
        }
        wide = [k for k in counts[1:] if len(batches[k]) > 1]

        def row(setup: Setup) -> np.ndarray:
            placement, optimizer = setup
            n, k = float(placement.batch_size_per_worker), placement.num_workers
            # A share of each where it was not measured: the mean of those that were.
            spread = 1.0 / len(optimizers) if optimizer not in optimizers else 0.0
            return np.array(
                [1.0, n]
                + [float(k == other) for other in counts[1:]]
                + [n * (k == other) for other in wide]
                + [spread or float(optimizer == name) for name in optimizers]
            )

        return row, np.array([row(setup) for setup in measured]), len(optimizers)

    def _fit(self, lane: Lane) -> Callable[[Setup], float]:
        totals = self._totals[lane]
        if lane not in self._designs or len(self._designs[lane][1]) != len(totals):
            self._designs[lane] = self._design(list(totals))
        row, design, num_optimizers = self._designs[lane]
        done, spent = np.array(list(totals.values())).T
        seconds = spent / done
        # Long measurements weigh more, but a single one never decides alone.
        weights = np.minimum(1.0, np.sqrt(done / 50))
        scale = weights / seconds
        widths = np.maximum(design.max(axis=0), 1.0)
        # Optimizers seen at one batch size each could explain every difference between batches:
        # a weak pull to zero leaves to them what the batch does not explain.
        pull = np.zeros((num_optimizers, design.shape[1]))
        pull[:, -num_optimizers:] = np.eye(num_optimizers) * PULL / np.median(seconds)
        rows = np.vstack([design * scale[:, None], pull]) / widths
        found = nnls(rows, np.append(seconds * scale, np.zeros(len(pull))))[0] / widths
        return lru_cache(maxsize=None)(lambda setup: max(float(row(setup) @ found), 1e-9))


class Placer:
    """Step times by the model, for a space that is taken apart.

    The first trials are its probes: each runs where nothing was measured yet, and their
    learning curves count as any other's. Few workers come first, and more of them only where
    they may be faster by what is known of the fewer. From then on a trial runs on the fastest
    placement that is efficient: whose workers do at least the share `efficient` of the work per
    worker that those of the most economical one do. What has to be compiled is measured once the
    study has trained for long enough to repay it (`COMPILE_SHARE`).
    """

    def __init__(
        self,
        factors: Factors,
        *,
        efficient: float = 0.5,
        is_feasible: Callable[[RunSpec], bool] | None = None,
        num_failed: Callable[[], int] = lambda: 0,
        wait_s: Callable[[int], float] = lambda num_workers: 0.0,
    ) -> None:
        """`is_feasible` says whether a run would not fail, by what is known; without it, all fit
        in the passes that the space names.

        Its answers stay the same while `num_failed` does. `wait_s`: seconds until so many workers
        are free.
        """
        self.factors, self._num_failed = factors, num_failed
        self.wait_s = wait_s
        self._is_feasible = is_feasible or (lambda spec: spec.accumulate <= factors.most_passes)
        self._ratios: dict[int, tuple[RunSpec, dict[Placement, float]]] = {}
        """Ratios asked for since the last measurement, by the identity of the run spec."""
        self._failed_then = 0
        self._efficient = efficient
        self._model = StepTime()
        self._seen: dict[str, tuple[int, float]] = {}
        self._probing: dict[str, Placement] = {}
        self._num_samples: list[float] = []
        self._compile_s: dict[Lane, float] = {}
        """The least of each: the first may have loaded libraries."""
        self._first_compile_s: dict[tuple[Lane, int], float] = {}
        """Seconds of the first compilation, by batch size per worker too: another one is compiled
        anew."""
        self._typical_s = dict(TYPICAL_COMPILE_S)
        self._trained_s = 0.0
        """Training seconds of all trials."""
        self._every = factors.all_placements
        self._counts = {one.num_workers for one in self._every}
        self._uncompiled = {one.framework for one in self._every if one.compile == "none"}

    def observe(self, trial: str, spec: RunSpec, *, samples: int, train_s: float) -> None:
        """Take a trial's totals so far; taking the same twice changes nothing."""
        before = self._seen.get(trial, (0, 0.0))
        if samples <= before[0]:
            return
        self._seen[trial] = samples, train_s
        self._trained_s += train_s - before[1]
        self._probing.pop(trial, None)
        self._ratios.clear()
        self._model.observe(
            spec.placement,
            spec.optimizer,
            steps=(samples - before[0]) / spec.global_batch_size,
            seconds=train_s - before[1],
        )

    def choose(self, trial: str, optimizer: str, options: Sequence[Placement]) -> Placement:
        """Return where a proposal shall run, of the placements where it would not fail.

        `options` are those of one global batch, widest first.
        """
        # Few passes come before many, and what has to be compiled last: others may rule it out.
        order = [one for one in reversed(options) if not self.wait_s(one.num_workers)]
        order.sort(key=lambda one: (one.compile != "none", one.accumulate))
        for option in order:
            if self._is_next_probe(option, optimizer, options):
                self._probing[trial] = option
                return option
        step_s = self._timed(optimizer, options)
        timed = {option: self._trial_s(option, seconds) for option, seconds in step_s.items()}
        if not timed:  # it is being measured, or has to wait: the most economical, as yet
            return options[-1]
        cost = min(option.num_workers * seconds for option, seconds in timed.items())
        paying = {
            option: seconds
            for option, seconds in timed.items()
            if cost / (option.num_workers * seconds) >= self._efficient
        }
        return min(paying, key=lambda option: paying[option] + self.wait_s(option.num_workers))

    def _trial_s(self, option: Placement, step_s: float) -> float:
        """Return the seconds of a typical trial: compilation is not on the training clock, and
        repays in long ones alone."""
        samples = np.median(self._num_samples) if self._num_samples else 0.0
        steps = max(float(samples) / option.samples, 1.0)
        return steps * step_s + self._compile_s.get(_lane(option), 0.0)

    def ended(self, trial: str, spec: RunSpec, *, samples: int, compile_s: float) -> None:
        """Note that a trial ended; what it was to measure may be unmeasured still."""
        self._probing.pop(trial, None)
        self._num_samples.append(samples)
        if spec.compile != "none":
            lane = _lane(spec.placement)
            self._compile_s[lane] = min(compile_s, self._compile_s.get(lane, compile_s))
            if (new := (lane, spec.batch_size_per_worker)) not in self._first_compile_s:
                self._first_compile_s[new] = self._typical_s[spec.compile] = compile_s

    def is_known(self, spec: RunSpec) -> bool:
        """Whether the fastest placement of a run spec's global batch can be told."""
        options = self._options(spec)
        return bool(self._timed(spec.optimizer, options)) and not any(
            self._is_open(option, spec.optimizer, options) for option in options
        )

    def ratios(self, spec: RunSpec) -> dict[Placement, float]:
        """Return by which factor a run's seconds are longer on every placement that can be
        predicted; that of its own is 1. Empty where its own is not known."""
        if self._failed_then != self._num_failed():
            self._failed_then = self._num_failed()
            self._ratios.clear()
        if id(spec) not in self._ratios:
            timed = self._timed(spec.optimizer, self._options(spec))
            own = timed.get(spec.placement)
            found = {} if own is None else {option: s / own for option, s in timed.items()}
            self._ratios[id(spec)] = spec, found
        return self._ratios[id(spec)][1]

    def ways(self, optimizer: str, values: dict[str, Any]) -> list[tuple[int, float]]:
        """Return workers and seconds of training a sample of each placement of a proposal; without
        those of which nothing like them was measured.

        More workers than were measured are taken to exchange no longer than the fewer ones.
        """
        found = []
        for one in self.factors.of_values(values):
            step_s = self._model.step_s(one, optimizer) or self._step_at_best(one, optimizer)
            if step_s is not None:
                found.append((one.num_workers, step_s / one.samples))
        return found

    def own_way(self, spec: RunSpec) -> float | None:
        """Return the seconds of training a sample where a run is; None where nothing like it was
        measured."""
        step_s = self._model.step_s(spec.placement, spec.optimizer)
        return None if step_s is None else step_s / spec.global_batch_size

    def totals(self, trial: str) -> tuple[int, float]:
        """Return a trial's samples and training seconds so far."""
        return self._seen.get(trial, (0, 0.0))

    def _step_at_best(self, option: Placement, optimizer: str) -> float | None:
        fewer = [replace(option, num_workers=k) for k in self._counts if k < option.num_workers]
        measured = [one for one in fewer if self._model.batches(one)]
        nearest = max(measured, key=lambda one: one.num_workers, default=None)
        return None if nearest is None else self._model.step_s(nearest, optimizer)

    def to_fastest(self, spec: RunSpec) -> float:
        """Return the factor from a run's seconds to those on its fastest placement."""
        return min(self.ratios(spec).values(), default=1.0)

    def to_cheapest(self, spec: RunSpec) -> float:
        """Return the factor from a run's worker-seconds to those on its cheapest placement."""
        ratios = self.ratios(spec).items()
        costs = (option.num_workers / spec.num_workers * ratio for option, ratio in ratios)
        return min(costs, default=1.0)

    def others(self, spec: RunSpec) -> list[Placement]:
        """Return the other placements of a run spec's global batch where it would not fail."""
        return [one for one in self._options(spec) if one != spec.placement]

    def _options(self, spec: RunSpec) -> list[Placement]:
        return [
            one
            for one in self.factors.of_spec(spec, in_more_passes=True)
            if one == spec.placement or self._is_feasible(placed(spec, one))
        ]

    def _is_next_probe(
        self, option: Placement, optimizer: str, options: Sequence[Placement]
    ) -> bool:
        """Whether a run there would measure what has to be measured next, and no trial does."""
        if any(_workers(one) == _workers(option) for one in self._probing.values()):
            return False
        narrower = [one for one in options if _is_narrower(one, option)]
        if any(self._is_open(one, optimizer, options) for one in narrower):
            return False  # these come first: they may make this one pointless
        if self._is_open(option, optimizer, options):
            return True
        # A lane's second batch size tells what a sample costs, and what a step does.
        known = self._batches(_lane(option))
        if len(known) != 1 or option.batch_size_per_worker in known or not self._repays(option):
            return False
        if option.compile == "none":
            return True
        # To compile again for it, it has to be the fastest where a step costs least by the first.
        same = replace(option, batch_size_per_worker=max(known))
        grows = min(1.0, option.batch_size_per_worker / max(known))
        at_best = grows * (self._model.step_s(same, optimizer) or 0.0)
        return at_best <= min(self._timed(optimizer, options).values(), default=np.inf)

    def _is_open(self, option: Placement, optimizer: str, options: Sequence[Placement]) -> bool:
        """Whether a placement was not measured and may be the fastest.

        At best its workers exchange no longer than the fewer ones that were measured.
        """
        if self._model.batches(option) or not self._repays(option):
            return False
        timed = self._timed(optimizer, options)
        fewer = [replace(option, num_workers=k) for k in self._counts if k < option.num_workers]
        measured = [one for one in fewer if self._model.batches(one)]
        if not measured:
            at_best = _by_other_lanes(option, timed)
        else:
            nearest = max(measured, key=lambda one: one.num_workers)
            at_best = self._model.step_s(nearest, optimizer)
            known = self._model.batches(nearest)
            if at_best is not None and len(known) == 1:  # a step may cost by its samples alone
                same = replace(nearest, batch_size_per_worker=max(known))
                whole = self._model.step_s(same, optimizer) or 0.0
                at_best = min(at_best, whole * option.batch_size_per_worker / max(known))
        return at_best is None or not timed or at_best < min(timed.values())

    def _repays(self, option: Placement) -> bool:
        """Whether the study has trained for long enough to compile this, if it has the choice."""
        if option.compile == "none" or option.framework not in self._uncompiled:
            return True
        due = [one for one in (*self._probing.values(), option) if one.compile != "none"]
        compiled_s = sum(self._first_compile_s.values())
        compiled_s += sum(self._typical_s[one.compile] for one in due)
        return compiled_s <= COMPILE_SHARE * self._trained_s

    def _batches(self, lane: Lane) -> set[int]:
        """Return the batch sizes per worker at which a lane was or is being measured."""
        running = self._probing.values()
        known = {one.batch_size_per_worker for one in running if _lane(one) == lane}
        return known.union(*(self._model.batches(one) for one in self._every if _lane(one) == lane))

    def _timed(self, optimizer: str, options: Sequence[Placement]) -> dict[Placement, float]:
        found = {option: self._model.step_s(option, optimizer) for option in options}
        return {option: seconds for option, seconds in found.items() if seconds is not None}


def _by_other_lanes(option: Placement, timed: dict[Placement, float]) -> float | None:
    """Return the seconds of a step at best, where the gains of two keys multiply: by lanes that
    differ in one key, in another, and in both. None where no such three were measured."""
    own = _lane(option)
    lanes: dict[tuple[object, ...], float] = {
        _lane(one): step_s for one, step_s in timed.items() if one.num_workers == option.num_workers
    }
    found = []
    for both, step_s in lanes.items():
        differ = [key for key, value in enumerate(own) if value != both[key]]
        ones = [(*own[:key], both[key], *own[key + 1 :]) for key in differ]
        if len(ones) == 2 and all(one in lanes for one in ones):
            found.append(lanes[ones[0]] * lanes[ones[1]] / step_s)
    return min(found) / MULTIPLY if found else None


def _is_narrower(one: Placement, other: Placement) -> bool:
    return _lane(one) == _lane(other) and one.num_workers < other.num_workers
