"""FLAML's tuner (Wang et al., ICLR 2021) as a contestant."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peer import GRACE, result_of
from peer_axes import AxesPeer, Axis, Tool, Values, limits
from peer_ray import TuneScheduler
from recorded import Point

FAILURES = 100
"""`max_failure` of `flaml.tune.run`."""


class Flaml(Tool):
    """BlendSearch or CFO, with training seconds as the cost, under Ray's ASHA.

    Set up as by `flaml.tune.run(..., scheduler="asha", use_ray=True)`, without a cheap
    configuration (`low_cost_partial_config`) or a starting point. The searcher proposes nothing if
    it would repeat itself, and is then asked again, as often as by `tune.run`.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        seed: int,
        max_seconds: float,
        folder: Path,
        method: str = "BlendSearch",
        grace: float = GRACE,
    ):
        import flaml
        from flaml import tune

        del folder
        space = {
            axis.name: tune.choice(list(axis.choices)) if axis.choices else tune.uniform(0.0, 1.0)
            for axis in axes
        }
        for axis in axes:
            if axis.is_ordered:
                space[axis.name].ordered = True
        self.searcher = getattr(flaml, method)(
            metric="score", mode="min", space=space, seed=seed, cost_attr="train_s"
        )
        self.scheduler = TuneScheduler(limits(max_seconds), "train_s", grace)
        self.configs: dict[str, Values] = {}
        self.names: dict[str, str] = {}
        """The searcher's names of trials, by the replay's."""

    def ask(self, trial: str) -> Values | None:
        """Return the searcher's values, and register the trial with the scheduler."""
        for number in range(FAILURES):
            name = f"{trial}.{number}"
            found = self.searcher.suggest(name)
            if found is not None:
                self.names[trial], self.configs[trial] = name, found
                self.scheduler.add(trial)
                return dict(found)
        return None

    def result(self, trial: str, point: Point) -> dict[str, Any]:
        """Return the report of a training function with the configuration that Tune adds."""
        return {**result_of(point), "config": self.configs[trial]}

    def goes_on(self, trial: str, point: Point) -> bool:
        """Ask the scheduler; report the evaluation to the searcher if the trial goes on."""
        if not self.scheduler.goes_on(trial, point):
            return False
        self.searcher.on_trial_result(self.names[trial], self.result(trial, point))
        return True

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Complete the trial in scheduler and searcher, whatever ended it."""
        del stop
        self.scheduler.end(trial, point)
        self.searcher.on_trial_complete(self.names[trial], self.result(trial, point))


FlamlTune = partial(AxesPeer, Flaml)
"""FLAML over a table's space."""
