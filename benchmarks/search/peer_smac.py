"""SMAC3 (Lindauer et al., JMLR 2022) as a contestant."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peer import GRACE
from peer_axes import AxesPeer, Axis, Tool, Values
from recorded import Point

MAX_TRIALS = 1_000_000
"""Number of trials, so large that only the replay ends the search."""


class Smac(Tool):
    """SMAC3's multi-fidelity facade at its defaults, by ask and tell.

    A random forest and Hyperband (eta 3) over seconds of training; a higher budget trains anew, as
    its target functions do.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        seed: int,
        max_seconds: float,
        folder: Path,
    ):
        import ConfigSpace
        import smac
        from smac.main.exceptions import ConfigurationSpaceExhaustedException
        from smac.runhistory.dataclasses import TrialValue

        self._value, self._exhausted = TrialValue, ConfigurationSpaceExhaustedException
        self.max_seconds = max_seconds
        space = ConfigSpace.ConfigurationSpace(seed=seed)
        for axis in axes:
            if axis.choices:
                space.add(ConfigSpace.Categorical(axis.name, axis.choices, ordered=axis.is_ordered))
            else:
                space.add(ConfigSpace.Float(axis.name, (0.0, 1.0)))
        scenario = smac.Scenario(
            space,
            deterministic=True,
            n_trials=MAX_TRIALS,
            seed=seed,
            output_directory=folder,
            min_budget=GRACE * max_seconds,
            max_budget=max_seconds,
        )
        self.facade = smac.MultiFidelityFacade(
            scenario, _never_called, overwrite=True, logging_level=False
        )
        self.asked: dict[str, Any] = {}
        self.is_exhausted = False

    def ask(self, trial: str) -> Values | None:
        """Return the next values; None once all configurations of a finite space were proposed."""
        if self.is_exhausted:
            return None
        try:
            self.asked[trial] = self.facade.ask()
        except self._exhausted:
            self.is_exhausted = True
            return None
        return dict(self.asked[trial].config)

    def goes_on(self, trial: str, point: Point) -> bool:
        """Return whether the budget of the trial is not yet spent."""
        budget = self.asked[trial].budget
        return budget is None or point.train_s < budget

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Report score and seconds at the end of a trial."""
        del stop
        value = self._value(cost=point.score, time=point.train_s)
        self.facade.tell(self.asked[trial], value)


def _never_called(config: Any, seed: int = 0, budget: float = 0.0) -> float:
    """Target function with the signature that the facade checks; ask and tell never call it."""
    raise AssertionError(f"called with {config}, {seed}, {budget}")


Smac3 = partial(AxesPeer, Smac)
"""SMAC3 over a table's space."""
