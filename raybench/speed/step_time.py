"""A model of the step time: what was measured on some placements, carried to others.

Speed depends on framework, workers, batch and optimizer, not on the learning rate; so a few
measured steps tell what a training would take elsewhere. The form is that of Pollux without
overlap (Qiao 2021, arXiv 2008.12260, eq. 8-11 with gamma 1): a pass costs a constant and a part
per sample; more workers add communication.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import nnls

from raybench.core.spec import Placement

PULL = 0.05
"""Weight of the pull of optimizer costs to zero, beside relative errors of weight one."""


Setup = tuple[Placement, str]
"""What a step's time depends on: where it runs, and the optimizer."""
Row = Callable[[Setup], np.ndarray]


class StepTime:
    """Seconds of one optimizer step, by a linear model with coefficients of at least zero.

    For `n` samples per worker, `k` workers, framework f and optimizer o:

        T = a(f) + b(f) n + [a'(f, k) + b'(f, k) n  where k is not the fewest measured] + c(f, o)

    fitted to relative errors. b' is left at zero until a group was measured at two batch
    sizes: what more workers cost is first of all communication, which is the same for every
    batch. An optimizer that was not measured in a framework costs what the others do there.
    """

    def __init__(self) -> None:
        self._totals: dict[str, dict[Setup, list[float]]] = {}
        """Steps and seconds measured, by framework."""
        self._batches: dict[Placement, set[int]] = {}
        self._fits: dict[str, Callable[[Setup], float]] = {}
        self._designs: dict[str, tuple[Row, np.ndarray, int]] = {}
        self._known: dict[str, dict[Setup, float | None]] = {}
        """What was asked of the present fits, by framework."""

    def observe(
        self, placement: Placement, optimizer: str, *, steps: float, seconds: float
    ) -> None:
        """Add measured seconds of training and the optimizer steps done in them."""
        if steps <= 0 or not seconds > 0:
            return
        totals = self._totals.setdefault(placement.framework, {})
        total = totals.setdefault((placement, optimizer), [0.0, 0.0])
        self._batches.setdefault(placement.group, set()).add(placement.batch_size_per_worker)
        total[0] += steps
        total[1] += seconds
        self._fits.pop(placement.framework, None)
        self._known.pop(placement.framework, None)

    def batches(self, group: Placement) -> set[int]:
        """Return the batch sizes per worker at which a kind of worker group was measured."""
        return self._batches.get(group.group, set())

    def step_s(self, placement: Placement, optimizer: str) -> float | None:
        """Return the predicted seconds of a step; None where such a group was never measured."""
        framework, setup = placement.framework, (placement, optimizer)
        known = self._known.setdefault(framework, {})
        if setup not in known:
            known[setup] = self._predicted(setup)
        return known[setup]

    def _predicted(self, setup: Setup) -> float | None:
        framework = setup[0].framework
        if not self.batches(setup[0]):
            return None
        if framework not in self._fits:
            self._fits[framework] = self._fit(framework)
        return self._fits[framework](setup)

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

    def _fit(self, framework: str) -> Callable[[Setup], float]:
        totals = self._totals[framework]
        if framework not in self._designs or len(self._designs[framework][1]) != len(totals):
            self._designs[framework] = self._design(list(totals))
        row, design, num_optimizers = self._designs[framework]
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
        return lambda setup: max(float(row(setup) @ found), 1e-9)
