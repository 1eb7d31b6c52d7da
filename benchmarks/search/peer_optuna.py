"""Optuna alone as a contestant."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from peer import GRACE, THOUSANDTHS
from peer_axes import Tool, ToolPeer, Values
from recorded import Point, Space

PRUNERS: dict[str, Callable[[int], optuna.pruners.BasePruner]] = {
    # A factor of three gives four brackets: the documentation advises "about 4 - 6".
    "hyperband": lambda lowest: optuna.pruners.HyperbandPruner(
        min_resource=lowest, max_resource=THOUSANDTHS, reduction_factor=3
    ),
    "halving": lambda lowest: optuna.pruners.SuccessiveHalvingPruner(
        min_resource=lowest, reduction_factor=4
    ),
    "none": lambda lowest: optuna.pruners.NopPruner(),
}


class OptunaTool(Tool):
    """TPE and a pruner over thousandths of max_train_seconds, by ask and tell.

    If the last report of a trial is both at the target and a reason to prune, the target counts.
    """

    def __init__(
        self,
        define: Callable[[Any], None],
        seed: int,
        max_seconds: float,
        *,
        pruner: str,
        grace: float = GRACE,
        is_parallel: bool = True,
    ):
        """`define` suggests the values of a trial; `is_parallel` sets TPE's `constant_liar`."""
        self._define, self._max_seconds = define, max_seconds
        self._study = optuna.create_study(
            # Hyperband draws its brackets from the study's name.
            study_name=f"study{seed}",
            sampler=optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=is_parallel, seed=seed
            ),
            pruner=PRUNERS[pruner](round(grace * THOUSANDTHS)),
        )
        self._trials: dict[str, optuna.Trial] = {}

    def ask(self, trial: str) -> Values:
        """Suggest the values of a trial."""
        self._trials[trial] = self._study.ask()
        self._define(self._trials[trial])
        return dict(self._trials[trial].params)

    def goes_on(self, trial: str, point: Point) -> bool:
        """Report an evaluation and ask the pruner."""
        self._trials[trial].report(
            point.score, max(1, round(THOUSANDTHS * point.train_s / self._max_seconds))
        )
        return not self._trials[trial].should_prune()

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Record the end of a trial."""
        if stop == "stopped":
            self._study.tell(self._trials[trial], state=optuna.trial.TrialState.PRUNED)
            return
        self.goes_on(trial, point)  # The pruner enters a trial into a rung when it is asked.
        self._study.tell(self._trials[trial], point.score)


def suggest(trial: Any, space: Space) -> None:
    """Suggest a configuration by Optuna's define-by-run API, with one rate for each optimizer."""
    optimizer = trial.suggest_categorical("optimizer", list(space.rates))
    low, high = space.rates[optimizer]
    trial.suggest_float(f"rate_{optimizer}", low, high, log=True)
    trial.suggest_categorical("batch", list(space.batch_sizes_per_worker))
    trial.suggest_categorical("workers", list(space.num_workers))


def optuna_peer(space: Space, seed: int, folder: Path, pruner: str) -> ToolPeer:
    """Return Optuna over a table's space."""
    define, limit = partial(suggest, space=space), space.objective.max_train_seconds
    return ToolPeer(partial(OptunaTool, define, seed, limit, pruner=pruner), space, seed, folder)
