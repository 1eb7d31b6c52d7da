"""SMAC3 (Lindauer et al., JMLR 2022) as a contestant."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer import GRACE
from peer_axes import AxesPeer, Axis, Tool, Values
from recorded import Point, Space

MOST = 1_000_000
"""Trials: nothing but the replay ends the search."""


class Smac(Tool):
    """A facade of SMAC3 at its defaults, by ask and tell.

    "budget": the multi-fidelity facade (random forest, Hyperband, eta 3) over seconds of
    training; a higher budget trains anew, as its target functions do. "seeds": the facade for
    hyperparameters, told that runs are noisy: it races configurations over up to three seeds.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        seed: int,
        max_seconds: float,
        folder: Path,
        by: str = "budget",
        grace: float = GRACE,
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
        for axis in axes:
            if axis.when is not None:
                parent, value = axis.when
                space.add(ConfigSpace.EqualsCondition(space[axis.name], space[parent], value))
        facade: Any
        budgets: dict[str, float] = {}
        if by == "budget":
            facade = smac.MultiFidelityFacade
            budgets = {"min_budget": grace * max_seconds, "max_budget": max_seconds}
        else:
            facade = smac.HyperparameterOptimizationFacade
        scenario = smac.Scenario(
            space,
            deterministic=by == "budget",
            n_trials=MOST,
            seed=seed,
            output_directory=folder,
            **budgets,
        )
        self.facade = facade(
            scenario, _never_called(by == "budget"), overwrite=True, logging_level=False
        )
        self.asked: dict[str, Any] = {}
        self.is_exhausted = False

    def ask(self, trial: str) -> Values | None:
        """Ask; it says so where every configuration of a finite space has been seen."""
        if self.is_exhausted:
            return None
        try:
            self.asked[trial] = self.facade.ask()
        except self._exhausted:
            self.is_exhausted = True
            return None
        return dict(self.asked[trial].config)

    def goes_on(self, trial: str, point: Point) -> bool:
        """Train up to the budget."""
        budget = self.asked[trial].budget
        return budget is None or point.train_s < budget

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Tell the score there, and what it took."""
        del stop
        value = self._value(cost=point.score, time=point.train_s)
        self.facade.tell(self.asked[trial], value)

    def named(self) -> Values | None:
        """Return the incumbent."""
        incumbents = self.facade.intensifier.get_incumbents()
        return dict(incumbents[0]) if incumbents else None


def _never_called(has_budget: bool) -> Any:
    """Return a target function of the signature that a facade checks; ask and tell call none."""

    def train_to(config: Any, seed: int = 0, budget: float = 0.0) -> float:
        raise AssertionError(f"asked and told, never called: {config}, {seed}, {budget}")

    def train(config: Any, seed: int = 0) -> float:
        raise AssertionError(f"asked and told, never called: {config}, {seed}")

    return train_to if has_budget else train


class Smac3(AxesPeer):
    """SMAC3 over a table's space."""

    def __init__(self, space: Space, seed: int, folder: Path, by: str = "budget"):
        self.by = by
        super().__init__(space, seed, folder)

    def build(self, axes: Sequence[Axis], seed: int, max_seconds: float, folder: Path) -> Tool:
        """Build the facade."""
        return Smac(axes, seed, max_seconds, folder, self.by)
