"""Search libraries on a pool of recorded runs, used as documented.

They make one run at a time, which favors those that learn from every run. The pool is a space of
categories: the optimizer, and which of its listed settings. Each library names its best single
trial.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer_axes import Axis, Tool, Values, limits
from peer_flaml import Flaml
from peer_optuna import OptunaTool
from peer_ray import RayTool, TuneScheduler
from pool_policies import Outcome
from pool_worlds import Draws, Pool, Run
from recorded import Point

GROUP = "optimizer"
MISS = 2.0
"""Score of the worst miss above log(max_seconds), as `raybench.spec.objective.MISS_WEIGHT`."""
GRACE = 1 / 8
"""Share of max_seconds before which no run is stopped. Runs of pools are evaluated 40 to 110 times
in max_seconds, and their schedules decay over all of it, so a 64th, as in the tables, would be one
or two evaluations."""
MAX_TRIALS = 8
"""Maximum number of a tool's trials over the number of configurations, whatever its budget."""


def axes_of(pool: Pool) -> tuple[Axis, ...]:
    """Return the axes of a pool: the group, and the setting within each group."""
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
    """Return the option with these values of `axes_of`."""
    groups = pool.groups
    group = str(values[GROUP]) if len(groups) > 1 else next(iter(groups))
    return pool.find(group, int(values[group]))


def choose(trial: Any, axes: Sequence[Axis]) -> None:
    """Suggest the axes that apply by Optuna's define-by-run API."""
    values: Values = {}
    for axis in axes:
        if axis.when is None or values[axis.when[0]] == axis.when[1]:
            values[axis.name] = trial.suggest_categorical(axis.name, list(axis.choices))


def optuna_tool(
    axes: Sequence[Axis], seed: int, max_seconds: float, folder: Path, pruner: str
) -> Tool:
    """Return Optuna over the axes of a pool."""
    define = partial(choose, axes=axes)
    return OptunaTool(define, seed, max_seconds, pruner=pruner, grace=GRACE, is_parallel=False)


def ray_tool(axes: Sequence[Axis], seed: int, max_seconds: float, folder: Path) -> Tool:
    """Return stock Ray over the axes of a pool; ASHA counts seconds."""
    scheduler = TuneScheduler(limits(max_seconds), "train_s", GRACE)
    return RayTool(partial(choose, axes=axes), seed, scheduler)


TOOLS: dict[str, tuple[str, Any]] = {
    "Optuna, no pruner": ("optuna", partial(optuna_tool, pruner="none")),
    "Optuna, Hyperband": ("optuna", partial(optuna_tool, pruner="hyperband")),
    "Ray Tune, Optuna and ASHA": ("ray", ray_tool),
    "FLAML BlendSearch, ASHA": ("flaml", partial(Flaml, grace=GRACE)),
    "FLAML CFO, ASHA": ("flaml", partial(Flaml, method="CFO", grace=GRACE)),
}
"""Needed module and maker (axes, seed, max_seconds, folder) of each tool, by name."""


def points_of(pool: Pool, run: Run) -> tuple[list[Point], str]:
    """Return the evaluations of a run, and what ends it if the tool does not stop it."""
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
    """Let a tool run options until `budget_s` is spent (the last run ends); name its best run."""
    spent, best, named = 0.0, math.inf, None
    number = 0
    while spent < budget_s and number < MAX_TRIALS * len(pool.options):
        trial = f"t{number}"
        values = tool.ask(trial)
        if values is None:
            break  # the tool proposes nothing more
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
    np.random.seed(seed)  # noqa: NPY002  Ray draws its brackets from the global generator
    tool: Tool = TOOLS[name][1](axes_of(pool), seed, pool.max_seconds, folder)
    return tool
