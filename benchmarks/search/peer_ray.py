"""Stock Ray Tune as a contestant: its Optuna searcher and its ASHA."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer import GRACE, Peer, Random, result_of
from peer_optuna import ask_optuna
from recorded import Config, Point, Space


class TuneScheduler:
    """Ray's ASHA, called as `TuneController` calls it; it reads nothing of a trial but its id.

    A trial that its own stop criterion ends (`stop={...}`: target, max_train_seconds) reaches
    the scheduler with `on_trial_complete` only, a stopped one with both calls. Seen in its
    source: a result enters the highest rung that it reached, and a trial's next results enter
    the lower ones that it skipped, with scores that are better than they were at that rung.
    (Syne Tune's ASHA is adapted from it and does the same.)
    """

    def __init__(self, space: Space, by: str, grace: float = GRACE):
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
                    "grace_period": grace * space.objective.max_train_seconds,
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
    ):
        super().__init__(space, seed, folder)
        from ray.tune.search.optuna import OptunaSearch

        def define(trial: Any) -> None:
            ask_optuna(trial, space)

        self.searcher = OptunaSearch(space=define, metric="score", mode="min", seed=seed)
        self.scheduler = TuneScheduler(space, by)

    def propose(self, trial: str) -> Config:
        """Suggest, then register with the scheduler."""
        values = self.searcher.suggest(trial)
        self.scheduler.add(trial)
        optimizer = values["optimizer"]
        rate = values[f"rate_{optimizer}"]
        return Config(optimizer, rate, values["batch"], values["workers"])

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
