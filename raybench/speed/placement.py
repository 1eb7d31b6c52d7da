"""How fast configurations run, learnt from the trials themselves; where the next one should."""

from dataclasses import replace
from typing import Any

from raybench.speed.factorisation import Factors, Split, split_of
from raybench.speed.step_time import Setup, StepTime

EFFICIENT = 0.5
"""A trial runs on more workers while these do at least this share of the work per worker that
the most economical split does."""


class Placer:
    """Step times by the model, for a space that is taken apart.

    The first trials are its probes: each runs where nothing was measured yet, and their
    learning curves count as any other's. Few workers come first, and more of them only where
    they may be faster by what is known of the fewer. From then on a trial runs on the fastest
    split that is efficient.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self._model = StepTime()
        self._seen: dict[str, tuple[int, float]] = {}
        self._probing: dict[str, Split] = {}

    def observe(self, trial: str, spec: dict[str, Any], *, samples: int, train_s: float) -> None:
        """Take a trial's totals so far; taking the same twice changes nothing."""
        before = self._seen.get(trial, (0, 0.0))
        if samples <= before[0]:
            return
        self._seen[trial] = samples, train_s
        self._probing.pop(trial, None)
        per_step = spec["num_workers"] * spec["batch_size_per_worker"] * spec["accumulate"]
        self._model.observe(
            _setup(split_of(spec), spec["optimizer"]),
            steps=(samples - before[0]) / per_step,
            seconds=train_s - before[1],
        )

    def choose(self, trial: str, optimizer: str, options: list[Split]) -> Split:
        """Return the split a proposal shall run on, of those that would not fail.

        `options` are the splits of one global batch, widest first.
        """
        for split in reversed(options):
            if self._is_next_probe(split, optimizer, options):
                self._probing[trial] = split
                return split
        timed = self._timed(optimizer, options)
        if not timed:  # it is being measured at this moment: the most economical, as yet
            return options[-1]
        cost = min(split.num_workers * seconds for split, seconds in timed.items())
        efficient = {
            split: seconds
            for split, seconds in timed.items()
            if cost / (split.num_workers * seconds) >= EFFICIENT
        }
        return min(efficient, key=lambda split: efficient[split])

    def forget(self, trial: str) -> None:
        """Note that a trial ended; what it was to measure may be unmeasured still."""
        self._probing.pop(trial, None)

    def is_known(self, spec: dict[str, Any]) -> bool:
        """Whether the fastest split of a run spec's global batch can be told."""
        splits = self.factors.splits(spec)
        return bool(self._timed(spec["optimizer"], splits)) and not any(
            self._is_open(split, spec["optimizer"], splits) for split in splits
        )

    def ratios(self, spec: dict[str, Any]) -> dict[Split, float]:
        """Return by which factor a run's seconds are longer on every split that can be
        predicted; that of its own is 1. Empty where its own is not known."""
        timed = self._timed(spec["optimizer"], self.factors.splits(spec))
        own = timed.get(split_of(spec))
        return {} if own is None else {split: time / own for split, time in timed.items()}

    def to_fastest(self, spec: dict[str, Any]) -> float:
        """Return the factor from a run's seconds to those on its fastest split."""
        return min(self.ratios(spec).values(), default=1.0)

    def to_cheapest(self, spec: dict[str, Any]) -> float:
        """Return the factor from a run's worker-seconds to those on its cheapest split."""
        workers = spec["num_workers"]
        ratios = self.ratios(spec).items()
        return min((split.num_workers / workers * ratio for split, ratio in ratios), default=1.0)

    def _is_next_probe(self, split: Split, optimizer: str, options: list[Split]) -> bool:
        """Whether a run there would measure what has to be measured next, and no trial does."""
        if any(one.group == split.group for one in self._probing.values()):
            return False
        narrower = [one for one in options if _is_narrower(one, split)]
        if any(self._is_open(one, optimizer, options) for one in narrower):
            return False  # these come first: they may make this one pointless
        if self._is_open(split, optimizer, options):
            return True
        # A framework's second batch size tells what a sample costs, and what a step does.
        known = self._batches(split.framework)
        return len(known) == 1 and split.batch_size_per_worker not in known

    def _is_open(self, split: Split, optimizer: str, options: list[Split]) -> bool:
        """Whether a split was not measured and may be the fastest.

        At best its workers exchange no longer than the fewer ones that were measured.
        """
        if self._model.batches(split.group):
            return False
        counts = {one.num_workers for one in self.factors.all_splits}
        measured = [k for k in counts if self._model.batches((split.framework, k))]
        measured = [k for k in measured if k < split.num_workers]
        if not measured:
            return True
        at_best = self._model.step_s(_setup(replace(split, num_workers=max(measured)), optimizer))
        known = self._model.batches((split.framework, max(measured)))
        if at_best is not None and len(known) == 1:  # at best a step costs by its samples alone
            same = replace(split, num_workers=max(measured), batch_size_per_worker=max(known))
            whole = self._model.step_s(_setup(same, optimizer)) or 0.0
            at_best = min(at_best, whole * split.batch_size_per_worker / max(known))
        timed = self._timed(optimizer, options)
        return at_best is None or not timed or at_best < min(timed.values())

    def _batches(self, framework: str) -> set[int]:
        """Return the batch sizes per worker at which a framework was or is being measured."""
        running = self._probing.values()
        known = {one.batch_size_per_worker for one in running if one.framework == framework}
        for workers in {one.num_workers for one in self.factors.all_splits}:
            known |= self._model.batches((framework, workers))
        return known

    def _timed(self, optimizer: str, splits: list[Split]) -> dict[Split, float]:
        found = {split: self._model.step_s(_setup(split, optimizer)) for split in splits}
        return {split: seconds for split, seconds in found.items() if seconds is not None}


def _is_narrower(one: Split, other: Split) -> bool:
    return one.framework == other.framework and one.num_workers < other.num_workers


def _setup(split: Split, optimizer: str) -> Setup:
    return Setup(split.framework, split.num_workers, split.batch_size_per_worker, optimizer)
