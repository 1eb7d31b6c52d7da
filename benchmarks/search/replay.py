"""Replays recorded learning curves on a simulated clock, so that search tools can be compared.

A search tool (`Contestant`) proposes configurations and gets every evaluation, as in a real search;
only the training is looked up in a recorded table. A search takes seconds instead of hours, and the
best configuration is known.
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
"""Time between the start of a trial and its training, over the best time to target."""
LIMIT, MAX_TRIALS = 400.0, 600
"""A search ends after this multiple of the best time to target, or this many trials."""
MARGINS = (0.20, 0.10, 0.05, 0.01)
"""Distances of the incumbent from the best configuration. The time until each is recorded, and a
search ends with the last."""


class Contestant(Protocol):
    """A search tool. It gets every evaluation once; the last one of a trial only by `on_end`.

    If the tool stops a trial (`on_evaluation` returns False), `on_end` gets the same evaluation and
    the stop "stopped". Other stops are "target", "max_train_seconds" and "epochs".
    """

    def suggest(self, trial: str) -> Config | None:
        """Return the next configuration; None: nothing now (called again later)."""

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Record an evaluation; return whether the trial goes on."""

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Record the end of a trial at this evaluation."""

    def incumbent(self) -> Config | None:
        """Return the configuration that the tool would report as the best one now."""


class Resumable(Contestant, Protocol):
    """A search tool whose process may be killed."""

    def resume(self) -> None:
        """Begin a new session from the records; all running trials were interrupted."""

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
    """Replay one search in SLOTS slots, of which a trial of k workers takes k.

    A proposal that does not fit waits, and no further one is requested until it has started and a
    slot is free. All times are multiples of the best time to target; infinite means never.

    Args:
        task: The table and its target.
        contestant: The search tool.
        rng: Draws the seed of each trial; without it, recorded seeds are averaged.
        charge: The CPU seconds of the tool, times this, advance the clock.
        max_trials: Number of trials after which no more are requested.
        until: Margin at which the search ends.
        limit: Time at which the search ends.
        kills: Times at which the process of a `Resumable` tool is killed: running trials end, and
            resume from their last evaluation when the tool suggests them again.

    Returns:
        When the incumbent first was within each margin (`within`), the incumbent at the end of each
        trial with its true time to target (`held`), the time (`clock`), and the tool's CPU seconds,
        trials and their stops.
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
