"""Stands for Ray's actor manager in Tune's controller: trials without actors, on a made-up clock.

For `scale_tune.py`, which measures what Tune's controller costs the driver.
"""

import heapq
import itertools
import pickle
import random
import time
from collections.abc import Callable
from typing import Any

from ray.air.execution._internal.tracked_actor import TrackedActor

from raybench.core.record import RunOutcome
from raybench.search.ray_tune import OUTCOME

RESULTS = 6
"""Of a trial, on average."""


def num_results(name: str, mean: int) -> int:
    """Return after how many results a trial is over."""
    return 1 + random.Random(name).randrange(2 * mean - 1)


class StandIn:
    """Does for Tune's controller what Ray's actor manager does, without actors."""

    leave_out: Callable[[float], None]
    """Is told the CPU seconds that stand for other processes."""
    courses: list[list[RunOutcome]]
    """Outcomes of a run, of every run spec."""

    def __init__(self, resource_manager: Any) -> None:
        self._pending: dict[TrackedActor, dict[str, Any]] = {}
        self._live_actors_to_ray_actors_resources: dict[TrackedActor, tuple[None, None]] = {}
        self._running: dict[TrackedActor, tuple[dict[str, Any], int]] = {}
        """Configuration and results so far."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._clock, self._ids = itertools.count(), 0.0, itertools.count()

    @property
    def num_live_actors(self) -> int:
        """Actors that have started."""
        return len(self._live_actors_to_ray_actors_resources)

    @property
    def num_pending_actors(self) -> int:
        """Actors that start with the next event."""
        return len(self._pending)

    @property
    def num_total_actors(self) -> int:
        """Both."""
        return self.num_live_actors + self.num_pending_actors

    @property
    def num_actor_tasks(self) -> int:
        """Events to come."""
        return len(self._events)

    def is_actor_started(self, tracked_actor: TrackedActor) -> bool:
        """Whether it has."""
        return tracked_actor in self._live_actors_to_ray_actors_resources

    def is_actor_failed(self, tracked_actor: TrackedActor) -> bool:
        """None does."""
        return False

    def add_actor(
        self, *, kwargs: dict[str, Any], on_start: Any, on_stop: Any, on_error: Any, **given: Any
    ) -> TrackedActor:
        """Take an actor that is to start."""
        actor = TrackedActor(next(self._ids), on_start, on_stop, on_error)
        self._pending[actor] = kwargs
        return actor

    def next(self, timeout: float | None = None) -> bool:
        """Handle the next event."""
        for actor, kwargs in self._pending.items():
            self._live_actors_to_ray_actors_resources[actor] = None, None
            self._running[actor] = kwargs["config"], 0
            self._after(0.0, lambda actor=actor: actor._on_start(actor))
        self._pending.clear()
        if not self._events:
            return False
        self._clock, _, event = heapq.heappop(self._events)
        event()
        return True

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> object:
        """Run a method of an actor; return its future."""
        if method_name == "train":
            self._train(tracked_actor, on_result)
        elif method_name == "reset":
            self._running[tracked_actor] = args[0], 0
            self._after(0.0, lambda: on_result(tracked_actor, True))
        else:
            assert method_name == "stop", method_name
        return object()

    def remove_actor(self, tracked_actor: TrackedActor, **given: Any) -> bool:
        """Stop an actor; whether it had started."""
        if self._pending.pop(tracked_actor, None) is not None:
            return False

        def stopped() -> None:
            del self._live_actors_to_ray_actors_resources[tracked_actor]
            if tracked_actor._on_stop:
                tracked_actor._on_stop(tracked_actor)

        self._after(0.0, stopped)
        return True

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        """Nothing to do: a trial that ends has no result to come."""

    def cleanup(self) -> None:
        """Forget what is to come."""
        self._events.clear()

    def _train(self, actor: TrackedActor, on_result: Any) -> None:
        began = time.process_time()
        config, index = self._running[actor]
        self._running[actor] = config, index + 1
        count = num_results(config["trial"], RESULTS)
        outcome = self.courses[int(config["trial"]) % len(self.courses)][index]
        seconds = outcome.evaluation.train_s / (index + 1) if outcome.evaluation else 0.0
        line = pickle.dumps(_result(config, outcome, index, is_over=index + 1 >= count))
        type(self).leave_out(time.process_time() - began)

        self._after(seconds, lambda: on_result(actor, pickle.loads(line)))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._clock + seconds, next(self._order), event))


def _result(
    config: dict[str, Any], outcome: RunOutcome, index: int, *, is_over: bool
) -> dict[str, Any]:
    """Return what a trial's actor would send: our part, and that which Tune's trainable adds."""
    train_s = outcome.evaluation.train_s if outcome.evaluation else 0.0
    return {
        "train_s": train_s,
        "score": -float(index),
        "done": is_over,
        OUTCOME: outcome,
        "trial_id": config["trial"],
        "training_iteration": index + 1,
        "iterations_since_restore": index + 1,
        "time_this_iter_s": 1.0,
        "time_total_s": train_s,
        "time_since_restore": train_s,
        "date": "2000-01-01_00-00-00",
        "timestamp": 0,
        "pid": 1,
        "hostname": "host",
        "node_ip": "127.0.0.1",
        "config": {"trial": config["trial"], "spec": config["spec"]},
    }
