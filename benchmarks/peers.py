"""The search tools that raybench is compared with, as real library objects.

Each class drives one library by its own protocol, in the order in which that library's own loop
calls it (Tune's `TuneController`, Syne Tune's `Tuner`, Optuna's ask and tell). All minimise
`Point.score`. Where a library leaves a choice, the one that searched best here was taken; the
comments say what was seen.
"""

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from replay import Config, Point, Space

GRACE = 1 / 64
"""No trial is stopped before this share of max_train_seconds: an eighth of the best time."""
THOUSANDTHS = 1000
"""max_train_seconds in the integer resource of Optuna and Syne Tune."""


class Peer:
    """What all peers share: no early stopping, and the best finished trial as the incumbent."""

    def __init__(self, space: Space, seed: int, folder: Path):
        self.space = space
        self.seed = seed
        self.configs: dict[str, Config] = {}
        self._best: tuple[float, Config] | None = None
        # Ray's brackets and Syne Tune's candidates come from the global generators.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002

    def suggest(self, trial: str) -> Config | None:
        """Propose and remember a trial."""
        config = self.propose(trial)
        if config is not None:
            self.configs[trial] = config
        return config

    def propose(self, trial: str) -> Config | None:
        """Ask the library."""
        raise NotImplementedError

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Go on."""
        return True

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Keep the best, then tell the library."""
        if self._best is None or point.score < self._best[0]:
            self._best = (point.score, self.configs[trial])
        self.told(trial, point, stop)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Tell the library."""

    def incumbent(self) -> Config | None:
        """Return the finished trial with the best score."""
        return self._best[1] if self._best else None

    def elapsed(self, point: Point) -> int:
        """Return train seconds in thousandths of max_train_seconds."""
        share = point.train_s / self.space.objective.max_train_seconds
        return max(1, round(THOUSANDTHS * share))


class Random(Peer):
    """Uniform over the space, no early stopping."""

    def __init__(self, space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        self.rng = np.random.default_rng(seed)

    def propose(self, trial: str) -> Config:
        """Draw every dimension."""
        optimizer = str(self.rng.choice(list(self.space.rates)))
        return Config(
            optimizer,
            self.space.rate(optimizer, float(self.rng.random())),
            int(self.rng.choice(self.space.batch_sizes_per_worker)),
            int(self.rng.choice(self.space.num_workers)),
        )


def result_of(point: Point) -> dict[str, Any]:
    """Return what a training function would report to Tune or Syne Tune."""
    return {
        "training_iteration": point.evaluation,
        "train_s": point.train_s,
        "accuracy": point.accuracy,
        "score": point.score,
    }


class TuneScheduler:
    """Ray's ASHA, called as `TuneController` calls it; it reads nothing of a trial but its id.

    A trial that its own stop criterion ends (`stop={...}`: target, max_train_seconds) reaches
    the scheduler with `on_trial_complete` only, a stopped one with both calls. Seen in its
    source: a result enters the highest rung that it reached, and a trial's next results enter
    the lower ones that it skipped, with scores that are better than they were at that rung.
    (Syne Tune's ASHA is adapted from it and does the same.)
    """

    def __init__(self, space: Space, by: str):
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self.scheduler = AsyncHyperBandScheduler(
            time_attr=by,
            metric="score",
            mode="min",
            reduction_factor=4,
            **(
                {"max_t": space.num_evaluations, "grace_period": 1}
                if by == "training_iteration"
                else {
                    "max_t": space.objective.max_train_seconds,
                    "grace_period": GRACE * space.objective.max_train_seconds,
                }
            ),
        )

    def add(self, trial: str) -> None:
        """Register a new trial."""
        self.scheduler.on_trial_add(None, SimpleNamespace(trial_id=trial))

    def goes_on(self, trial: str, point: Point) -> bool:
        """Ask whether the trial continues."""
        stub = SimpleNamespace(trial_id=trial)
        return bool(self.scheduler.on_trial_result(None, stub, result_of(point)) == "CONTINUE")

    def end(self, trial: str, point: Point) -> None:
        """Tell of a trial's end, for whatever reason."""
        self.scheduler.on_trial_complete(None, SimpleNamespace(trial_id=trial), result_of(point))


class RandomAsha(Random):
    """Random with Ray's ASHA on training seconds."""

    def __init__(self, space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        self.scheduler = TuneScheduler(space, "train_s")

    def propose(self, trial: str) -> Config:
        """Draw and register."""
        self.scheduler.add(trial)
        return super().propose(trial)

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler."""
        return self.scheduler.goes_on(trial, point)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Tell the scheduler."""
        self.scheduler.end(trial, point)


def ask_optuna(trial: Any, space: Space, rates: str) -> Config:
    """Suggest in Optuna's define-by-run manner.

    The rate is one name per optimizer ("conditional"), or the share of the optimizer's range
    under one name ("shared").
    """
    optimizer = trial.suggest_categorical("optimizer", list(space.rates))
    if rates == "conditional":
        low, high = space.rates[optimizer]
        rate = trial.suggest_float(f"rate_{optimizer}", low, high, log=True)
    else:
        rate = space.rate(optimizer, trial.suggest_float("rate", 0.0, 1.0))
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
        rates: str = "conditional",
    ):
        super().__init__(space, seed, folder)
        self.rates = rates
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
        return ask_optuna(self.trials[trial], self.space, self.rates)

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


class Ray(Peer):
    """Stock Ray: OptunaSearch (define by run, its own TPE) with ASHA.

    A stopped trial is told to OptunaSearch like a finished one, with its last score; that is
    what `TuneController.stop_trial` does. The result that stops or ends a trial does not reach
    `Searcher.on_trial_result`.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        folder: Path,
        by: str = "train_s",
        rates: str = "conditional",
        priors: tuple[Config, ...] = (),
    ):
        super().__init__(space, seed, folder)
        from ray.tune.search.optuna import OptunaSearch

        self.rates = rates

        def define(trial: Any) -> None:
            ask_optuna(trial, space, rates)

        self.searcher = OptunaSearch(
            space=define,
            metric="score",
            mode="min",
            seed=seed,
            points_to_evaluate=[self.point_of(config) for config in priors] or None,
        )
        self.scheduler = TuneScheduler(space, by)

    def point_of(self, config: Config) -> dict[str, Any]:
        """Return a configuration under the names of `ask_optuna`."""
        shared = self.space.share(config.optimizer, config.rate)
        rate = (
            {f"rate_{config.optimizer}": config.rate}
            if self.rates == "conditional"
            else {"rate": shared}
        )
        return {
            "optimizer": config.optimizer,
            **rate,
            "batch": config.batch_size_per_worker,
            "workers": config.num_workers,
        }

    def propose(self, trial: str) -> Config:
        """Suggest, then register with the scheduler."""
        found = self.searcher.suggest(trial)
        self.scheduler.add(trial)
        optimizer = found["optimizer"]
        rate = (
            found[f"rate_{optimizer}"]
            if self.rates == "conditional"
            else self.space.rate(optimizer, found["rate"])
        )
        return Config(optimizer, rate, found["batch"], found["workers"])

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler; the searcher hears of it if the trial goes on."""
        if not self.scheduler.goes_on(trial, point):
            return False
        self.searcher.on_trial_result(trial, result_of(point))
        return True

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Complete the trial in both, whatever ended it."""
        self.scheduler.end(trial, point)
        self.searcher.on_trial_complete(trial, result=result_of(point))


class Syne(Peer):
    """A Syne Tune scheduler over a flat space, called as its `Tuner` calls it.

    BORE and CQR learn from ended trials only, ASHABORE and ASHACQR from every trial's last
    report. BORE scores its 500 candidates one by one (0.2 s of CPU a suggestion), CQR fits five
    boosted ensembles; both at their defaults.
    """

    def __init__(
        self, space: Space, seed: int, folder: Path, method: str = "ASHACQR", by: str = "time"
    ):
        super().__init__(space, seed, folder)
        from syne_tune import config_space
        from syne_tune.backend.trial_status import Trial
        from syne_tune.optimizer import baselines

        self._trial = Trial
        self.by = by
        batches, workers = space.batch_sizes_per_worker, space.num_workers
        resource: dict[str, Any] = {}
        if method.startswith("ASHA"):
            resource = {
                "time_attr": "resource",
                "max_t": THOUSANDTHS if by == "time" else space.num_evaluations,
                "grace_period": round(GRACE * THOUSANDTHS) if by == "time" else 1,
            }
        self.scheduler = getattr(baselines, method)(
            {
                "optimizer": config_space.choice(list(space.rates)),
                "rate": config_space.uniform(0.0, 1.0),
                "batch": config_space.logfinrange(
                    batches[0], batches[-1], len(batches), cast_int=True
                ),
                "workers": config_space.logfinrange(
                    workers[0], workers[-1], len(workers), cast_int=True
                ),
            },
            metric="score",
            do_minimize=True,
            random_seed=seed,
            **resource,
        )
        self.trials: dict[str, Any] = {}

    def propose(self, trial: str) -> Config | None:
        """Suggest, then add the trial."""
        suggestion = self.scheduler.suggest()
        if suggestion is None:
            return None
        found = suggestion.config
        self.trials[trial] = self._trial(len(self.trials), dict(found), datetime.now())
        self.scheduler.on_trial_add(self.trials[trial])
        return Config(
            found["optimizer"],
            self.space.rate(found["optimizer"], found["rate"]),
            found["batch"],
            found["workers"],
        )

    def result(self, point: Point) -> dict[str, Any]:
        """Return a report, with the resource that ASHA counts."""
        resource = self.elapsed(point) if self.by == "time" else point.evaluation
        return {**result_of(point), "resource": resource}

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler."""
        decision = self.scheduler.on_trial_result(self.trials[trial], self.result(point))
        return bool(decision == "CONTINUE")

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Remove a stopped trial, complete one that ended by itself after its last report."""
        if stop == "stopped":
            self.scheduler.on_trial_remove(self.trials[trial])
            return
        # A last report may be answered with STOP, and is then not followed by `complete`.
        if self.on_evaluation(trial, point):
            self.scheduler.on_trial_complete(self.trials[trial], self.result(point))
        else:
            self.scheduler.on_trial_remove(self.trials[trial])
