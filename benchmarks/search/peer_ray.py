"""Stock Ray Tune as a contestant: its Optuna searcher and its ASHA."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer import GRACE, Random, result_of
from peer_axes import Tool, ToolPeer, Values
from peer_optuna import suggest
from recorded import Config, Point, Space


class TuneScheduler:
    """Ray's ASHA, called as `TuneController` does; it reads only the id of a trial.

    For a trial that its own stop criterion ends (`stop={...}`: target, max_train_seconds), only
    `on_trial_complete` is called; for a stopped trial, both methods are. According to its source, a
    result enters the highest rung that it reached, and the next results of the trial enter the
    lower rungs that it skipped, with better scores than it had at these rungs. (Syne Tune's ASHA is
    adapted from it and does the same.)
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
        """Report the end of a trial, whatever ended it."""
        self.scheduler.on_trial_complete(None, SimpleNamespace(trial_id=trial), result_of(point))


class RandomAsha(Random):
    """Random search with Ray's ASHA on training seconds."""

    def __init__(self, space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        self.scheduler = TuneScheduler(space, "train_s")

    def propose(self, trial: str) -> Config:
        """Return a random configuration, and register its trial."""
        self.scheduler.add(trial)
        return super().propose(trial)

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler whether the trial goes on."""
        return self.scheduler.goes_on(trial, point)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Report the end of a trial to the scheduler."""
        self.scheduler.end(trial, point)


class RayTool(Tool):
    """Stock Ray: OptunaSearch (define by run, its own TPE) with ASHA.

    A stopped trial is reported to OptunaSearch like a finished one, with its last score, as
    `TuneController.stop_trial` does. The result that stops or ends a trial does not reach
    `Searcher.on_trial_result`.
    """

    def __init__(self, define: Callable[[Any], None], seed: int, scheduler: TuneScheduler):
        from ray.tune.search.optuna import OptunaSearch

        self._searcher = OptunaSearch(space=define, metric="score", mode="min", seed=seed)
        self._scheduler = scheduler

    def ask(self, trial: str) -> Values:
        """Suggest the values of a trial and register it with the scheduler."""
        values: Values = self._searcher.suggest(trial)
        self._scheduler.add(trial)
        return values

    def goes_on(self, trial: str, point: Point) -> bool:
        """Ask the scheduler; report the evaluation to the searcher if the trial goes on."""
        if not self._scheduler.goes_on(trial, point):
            return False
        self._searcher.on_trial_result(trial, result_of(point))
        return True

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Complete the trial in searcher and scheduler, whatever ended it."""
        del stop
        self._scheduler.end(trial, point)
        self._searcher.on_trial_complete(trial, result=result_of(point))


def ray_peer(space: Space, seed: int, folder: Path, by: str) -> ToolPeer:
    """Return stock Ray over a table's space; ASHA counts `by` seconds or epochs."""

    def build() -> Tool:
        return RayTool(partial(suggest, space=space), seed, TuneScheduler(space, by))

    return ToolPeer(build, space, seed, folder)
