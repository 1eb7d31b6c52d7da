"""Replays recorded learning curves on a simulated clock, so that search tools can be compared.

A search tool (`Contestant`) proposes configurations and is told of every evaluation, exactly as
in a real search; only the training is looked up in a recorded table. One search takes seconds
instead of hours, and the best configuration is known.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from recorded import SLOTS, Config, Point, Task

START_COST = 0.05
"""Of a trial, before its first training second, over the best time to target."""
LIMIT, MAX_TRIALS = 400.0, 600
"""A search ends after this many best times to target, or trials."""
MARGINS = (0.20, 0.10, 0.05, 0.01)
"""How near the incumbent is to the best: a search is timed until each, and ends with the last."""


class Contestant(Protocol):
    """A search tool. Every evaluation is told once: the last one of a trial with `on_end` alone.

    A trial that the tool stops itself (`on_evaluation` returned False) gets `on_end` with the
    same point and stop "stopped"; other values of stop: "target", "max_train_seconds", "epochs".
    """

    def suggest(self, trial: str) -> Config | None:
        """Propose the next trial; None: nothing now (asked again later)."""

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Say whether the trial goes on."""

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Learn that the trial ended at this point."""

    def incumbent(self) -> Config | None:
        """Return what would be reported as best now."""


class Resumable(Contestant, Protocol):
    """A search tool whose process may be killed."""

    def resume(self) -> None:
        """Begin a new session from what was recorded; all running trials were interrupted."""

    def continues(self, trial: str) -> str | None:
        """Return the interrupted trial that a suggested one continues from its checkpoint."""


@dataclass
class _Running:
    name: str
    config: Config
    points: list[Point]
    stop: str
    began: float = 0.0


def search(
    task: Task,
    contestant: Contestant,
    *,
    rng: np.random.Generator | None = None,
    charge: float = 1.0,
    max_trials: int = MAX_TRIALS,
    until: float = min(MARGINS),
    limit: float = LIMIT,
    kills: Sequence[float] = (),
) -> dict[str, Any]:
    """Replay one search; return when the incumbent was first within each margin of the best.

    Eight slots; a trial of k workers holds k of them. First come, first served: a proposal that
    does not fit waits, and the next is asked for when it was placed and a slot is free. The
    tool's CPU seconds (times `charge`) advance the clock of the one driver that every event
    waits for. Times are in units of the best time to target; inf: never.

    At the times `kills`, in that unit, the process of a `Resumable` tool is killed: trials end, and
    go on from their last evaluation when the tool suggests them again.
    """
    clock, cpu, free, trials = 0.0, 0.0, SLOTS, 0
    order = itertools.count()
    events: list[tuple[float, int, _Running, int]] = []
    waiting: _Running | None = None
    index = 0
    within = dict.fromkeys(MARGINS, math.inf)
    held: list[tuple[float, float, Config | None]] = []
    stops: dict[str, int] = {}
    left, interrupted = list(kills), dict[str, tuple[_Running, int]]()

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal clock, cpu
        began = time.process_time()
        result = function(*arguments)
        spent = time.process_time() - began
        cpu += spent
        clock += charge * spent
        return result

    while clock <= limit * task.best_s and math.isinf(within.get(until, math.inf)):
        if left and clock >= left[0] * task.best_s:
            left.pop(0)
            interrupted |= {one.name: (one, index) for _, _, one, index in events}
            if waiting is not None:
                interrupted[waiting.name] = waiting, 0
            events, free, waiting = [], SLOTS, None
            contestant.resume()  # type: ignore[attr-defined]
        while free:
            if waiting is None and trials < max_trials:
                config = call(contestant.suggest, f"t{trials}")
                if config is not None:
                    waiting, index = _Running(f"t{trials}", config, *task.trial(config, rng)), 0
                    name = contestant.continues(waiting.name) if interrupted else None  # type: ignore[attr-defined]
                    if name is not None:
                        before, index = interrupted.pop(name)
                        waiting.points, waiting.stop = before.points, before.stop
                    trials += 1
            if waiting is None or waiting.config.num_workers > free:
                break
            done_s = waiting.points[index - 1].train_s if index else 0.0
            waiting.began = clock + START_COST * task.best_s - done_s
            free -= waiting.config.num_workers
            first = waiting.began + waiting.points[index].train_s
            heapq.heappush(events, (first, next(order), waiting, index))
            waiting = None
        if not events:
            break
        moment, _, trial, at = heapq.heappop(events)
        clock = max(clock, moment)
        point = trial.points[at]
        stop = trial.stop
        if at + 1 < len(trial.points):
            if call(contestant.on_evaluation, trial.name, point):
                following = trial.began + trial.points[at + 1].train_s
                heapq.heappush(events, (following, next(order), trial, at + 1))
                continue
            stop = "stopped"
        call(contestant.on_end, trial.name, point, stop)
        free += trial.config.num_workers
        stops[stop] = stops.get(stop, 0) + 1
        best = call(contestant.incumbent)
        true = task.tta(best) if best is not None else math.inf
        held.append((clock / task.best_s, true / task.best_s, best))
        for margin in MARGINS:
            if math.isinf(within[margin]) and true <= (1 + margin) * task.best_s:
                within[margin] = clock / task.best_s
    return {
        "within": within,
        "held": held,
        "clock": clock / task.best_s,
        "cpu_s": cpu,
        "trials": trials,
        "stops": stops,
    }
