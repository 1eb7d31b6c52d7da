"""Optuna alone, as a contestant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from peer import GRACE, THOUSANDTHS, Peer
from recorded import Config, Point, Space


def ask_optuna(trial: Any, space: Space) -> Config:
    """Suggest by Optuna's define-by-run API, with one learning-rate parameter per optimizer."""
    optimizer = trial.suggest_categorical("optimizer", list(space.rates))
    low, high = space.rates[optimizer]
    rate = trial.suggest_float(f"rate_{optimizer}", low, high, log=True)
    batch = trial.suggest_categorical("batch", list(space.batch_sizes_per_worker))
    workers = trial.suggest_categorical("workers", list(space.num_workers))
    return Config(optimizer, rate, batch, workers)


class Optuna(Peer):
    """Optuna alone: TPE with its options for parallel search, a pruner, ask and tell.

    A last report can be both the target and a reason to prune; the target counts.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        folder: Path,
        pruner: str = "hyperband",
    ):
        super().__init__(space, seed, folder)
        lowest = round(GRACE * THOUSANDTHS)
        pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
            # Three gives four brackets: the documentation advises "about 4 - 6".
            "hyperband": lambda: optuna.pruners.HyperbandPruner(
                min_resource=lowest, max_resource=THOUSANDTHS, reduction_factor=3
            ),
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
                min_resource=lowest, reduction_factor=4
            ),
        }
        self.study = optuna.create_study(
            # Hyperband's brackets are drawn from the study's name.
            study_name=f"study{seed}",
            direction="minimize",
            sampler=optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, seed=seed
            ),
            pruner=pruners[pruner](),
        )
        self.trials: dict[str, optuna.Trial] = {}

    def propose(self, trial: str) -> Config:
        """Ask."""
        self.trials[trial] = self.study.ask()
        return ask_optuna(self.trials[trial], self.space)

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Report, and ask the pruner."""
        self.trials[trial].report(point.score, self.elapsed(point))
        return not self.trials[trial].should_prune()

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Tell the end."""
        if stop == "stopped":
            self.study.tell(self.trials[trial], state=optuna.trial.TrialState.PRUNED)
            return
        self.trials[trial].report(point.score, self.elapsed(point))
        # Asked for its bookkeeping only: it is what enters a trial into a rung.
        self.trials[trial].should_prune()
        self.study.tell(self.trials[trial], point.score)
