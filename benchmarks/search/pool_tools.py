"""Search libraries on a pool of recorded runs: they choose options and stop runs, as documented.

One run at a time, which favours those that learn from every run. The pool is a space of
categories: the optimizer, and which of its listed settings. Each names its best single trial, as
its documentation does.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer import THOUSANDTHS, result_of
from peer_axes import Axis, Tool, Values, limits
from peer_flaml import Flaml
from peer_ray import TuneScheduler
from pool_policies import Outcome
from pool_worlds import Draws, Pool, Run
from recorded import Point

GROUP = "optimizer"
MISS = 2.0
"""How far the worst miss scores above the log of max_seconds, as in `core.objective`."""
GRACE = 1 / 8
"""No run is stopped before this share of max_seconds. Pools are evaluated 40 to 110 times in it and
their schedules decay over all of it: a 64th, as in the tables, is one or two evaluations."""
MOST = 8
"""Trials of a tool at most, over the pool's configurations, whatever is left of its budget."""


def axes_of(pool: Pool) -> tuple[Axis, ...]:
    """Return the pool as axes: the group, and for each group which of its settings."""
    groups = pool.groups
    first = Axis(GROUP, tuple(groups))
    if len(groups) == 1:
        ((group, settings),) = groups.items()
        return (Axis(group, tuple(settings), is_ordered=True),)
    return (
        first,
        *(Axis(group, tuple(each), when=(GROUP, group)) for group, each in groups.items()),
    )


def option_of(pool: Pool, values: Values) -> int:
    """Return the option that the values of `axes_of` choose."""
    groups = pool.groups
    group = str(values[GROUP]) if len(groups) > 1 else next(iter(groups))
    return pool.find(group, int(values[group]))


class OptunaTool(Tool):
    """Optuna alone: TPE, and one of its pruners, over thousandths of max_seconds."""

    def __init__(
        self, axes: Sequence[Axis], seed: int, max_seconds: float, folder: Path, *, has_pruner: bool
    ):
        import optuna

        del folder
        self.axes, self.max_seconds = axes, max_seconds
        lowest = round(GRACE * THOUSANDTHS)
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if has_pruner:
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=lowest, max_resource=THOUSANDTHS, reduction_factor=3
            )
        self.study = optuna.create_study(
            study_name=f"study{seed}",
            sampler=optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
            pruner=pruner,
        )
        self.trials: dict[str, Any] = {}

    def ask(self, trial: str) -> Values:
        """Ask."""
        self.trials[trial] = self.study.ask()
        return choose(self.trials[trial], self.axes)

    def goes_on(self, trial: str, point: Point) -> bool:
        """Report, and ask the pruner."""
        self.trials[trial].report(point.score, self._step(point))
        return not self.trials[trial].should_prune()

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Tell the end."""
        import optuna

        if stop == "stopped":
            self.study.tell(self.trials[trial], state=optuna.trial.TrialState.PRUNED)
            return
        self.trials[trial].report(point.score, self._step(point))
        # Asked for its bookkeeping only: it is what enters a trial into a rung.
        self.trials[trial].should_prune()
        self.study.tell(self.trials[trial], point.score)

    def _step(self, point: Point) -> int:
        return max(1, round(THOUSANDTHS * point.train_s / self.max_seconds))


class RayTool(Tool):
    """Ray Tune: OptunaSearch and ASHA by seconds, called as `TuneController` calls them."""

    def __init__(self, axes: Sequence[Axis], seed: int, max_seconds: float, folder: Path):
        from ray.tune.search.optuna import OptunaSearch

        del folder

        def define(trial: Any) -> None:
            choose(trial, axes)

        self.searcher = OptunaSearch(space=define, metric="score", mode="min", seed=seed)
        self.scheduler = TuneScheduler(limits(max_seconds), "train_s", GRACE)

    def ask(self, trial: str) -> Values:
        """Suggest, then register with the scheduler."""
        found: Values = self.searcher.suggest(trial)
        self.scheduler.add(trial)
        return found

    def goes_on(self, trial: str, point: Point) -> bool:
        """Ask the scheduler; the searcher hears of it if the trial goes on."""
        if not self.scheduler.goes_on(trial, point):
            return False
        self.searcher.on_trial_result(trial, result_of(point))
        return True

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Complete the trial in both, whatever ended it."""
        del stop
        self.scheduler.end(trial, point)
        self.searcher.on_trial_complete(trial, result=result_of(point))


def choose(trial: Any, axes: Sequence[Axis]) -> Values:
    """Suggest in Optuna's define-by-run manner: only what applies."""
    values: Values = {}
    for axis in axes:
        if axis.when is None or values[axis.when[0]] == axis.when[1]:
            values[axis.name] = trial.suggest_categorical(axis.name, list(axis.choices))
    return values


TOOLS: dict[str, tuple[str, Any]] = {
    "Optuna, no pruner": ("optuna", partial(OptunaTool, has_pruner=False)),
    "Optuna, Hyperband": ("optuna", partial(OptunaTool, has_pruner=True)),
    "Ray Tune, Optuna and ASHA": ("ray", RayTool),
    "FLAML BlendSearch, ASHA": ("flaml", partial(Flaml, grace=GRACE)),
    "FLAML CFO, ASHA": ("flaml", partial(Flaml, method="CFO", grace=GRACE)),
}
"""Name: its module, maker(axes, seed, max_seconds, folder)."""


def points_of(pool: Pool, run: Run) -> tuple[list[Point], str]:
    """Return a run as tools see it, and what ends it by itself."""
    points: list[Point] = []
    best = -math.inf
    for seconds, metric in zip(run.seconds.tolist(), run.metric.tolist(), strict=True):
        best = max(best, metric) if math.isfinite(metric) else best
        is_hit = run.reached_s <= seconds
        missing = (pool.target - best) / (pool.target - pool.start)
        score = math.log(pool.max_seconds) + MISS * min(max(missing, 0.0), 1.0)
        if is_hit:
            score = math.log(run.reached_s)
        reached = run.reached_s if is_hit else None
        points.append(Point(len(points) + 1, 0, seconds, metric, best, score, reached))
        if is_hit:
            return points, "target"
    return points, "max_train_seconds"


def replay(pool: Pool, tool: Tool, draws: Draws, budget_s: float) -> Outcome:
    """Let a tool train until it has spent `budget_s` (the last run ends), and name its best run."""
    spent, best, named = 0.0, math.inf, None
    number = 0
    while spent < budget_s and number < MOST * len(pool.options):
        trial = f"t{number}"
        values = tool.ask(trial)
        if values is None:
            break  # it has nothing left that it wants trained
        option = option_of(pool, values)
        points, stop = points_of(pool, draws.next(option))
        end = next((point for point in points[:-1] if not tool.goes_on(trial, point)), None)
        last, stop = (points[-1], stop) if end is None else (end, "stopped")
        tool.tell(trial, last, stop)
        spent += last.train_s
        number += 1
        if last.time_to_target_s is not None and last.score < best:
            best, named = last.score, option
    return Outcome(named, spent, number)


def seeded(pool: Pool, name: str, seed: int, folder: Path) -> Tool:
    """Build a tool for a pool."""
    np.random.seed(seed)  # noqa: NPY002  Ray's brackets come from it
    made: Tool = TOOLS[name][1](axes_of(pool), seed, pool.max_seconds, folder)
    return made
