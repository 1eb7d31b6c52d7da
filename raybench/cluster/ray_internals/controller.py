"""Ray Train's controller in the calling thread; imported only where Ray has what it extends."""

import asyncio
import inspect
from typing import Any

from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup


class FixedPlace(FixedScalingPolicy):  # type: ignore[misc, unused-ignore]
    """Scaling policy: the workers asked for, on the nodes that are there; asks no autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Register nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Ask for nothing."""

    def _send_resource_request(self) -> None:
        """Ask for nothing."""

    def _cancel_resource_request(self) -> None:
        """There is nothing to take back."""


class StartedOrGone(WorkerGroup):  # type: ignore[misc, unused-ignore]
    """A worker group that gives its resources back when its workers start, but do not connect.

    Ray forgets such a group: its workers and their reservation end with the controller's actor.
    Here that process lives on, and the next group would wait for them without end.
    """

    started: list[Any] = []
    """Groups of its trainer that began to start."""
    _reserved: Any = None

    def _create_placement_group(self, *arguments: Any, **named: Any) -> Any:
        """Reserve as Ray does, and remember what."""
        self._reserved = super()._create_placement_group(*arguments, **named)
        return self._reserved

    def end(self) -> None:
        """End its processes, wherever its start has come to: they go with what they reserve."""
        if self._reserved is not None:
            self._reserved.shutdown()

    def _start(self) -> None:
        """Start, or leave nothing behind."""
        self.started.append(self)
        try:
            super()._start()
        except Exception:
            if self.has_started():
                self.abort()
            raise


GROUP_PARTS = ("_start", "has_started", "abort", "_create_placement_group")


def is_as_expected() -> bool:
    """Whether Ray has what is called and overridden here."""
    overridden = [name for name, part in vars(FixedPlace).items() if inspect.isfunction(part)]
    return (
        hasattr(TrainController, "worker_group_cls")
        and all(hasattr(WorkerGroup, name) for name in GROUP_PARTS)
        and inspect.iscoroutinefunction(getattr(TrainController, "run", None))
        and hasattr(TrainController, "get_result")
        and all(hasattr(FixedScalingPolicy, name) for name in overridden)
    )


def run_controller(arguments: dict[str, Any], started: list[Any]) -> Any:
    """Run a controller made of the trainer's `arguments` to its end; return the result.

    `started` is given every worker group as it begins to start.
    """
    policy: Any = arguments.get("scaling_policy")
    if type(policy) is FixedScalingPolicy:
        arguments = arguments | {"scaling_policy": FixedPlace(policy.scaling_config)}
    controller = TrainController(**arguments)
    controller.worker_group_cls = type("StartedOrGone", (StartedOrGone,), {"started": started})
    asyncio.run(controller.run())
    return controller.get_result()
