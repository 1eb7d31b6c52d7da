"""Ray Train's controller in the calling thread; imported only if Ray has the classes it extends."""

import asyncio
import inspect
from typing import Any

from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup


class FixedPlace(FixedScalingPolicy):  # type: ignore[misc, unused-ignore]
    """Scaling policy: a fixed number of workers on the present nodes; asks no autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Register nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Ask for nothing."""

    def _send_resource_request(self) -> None:
        """Ask for nothing."""

    def _cancel_resource_request(self) -> None:
        """Cancel nothing."""


class StartedOrGone(WorkerGroup):  # type: ignore[misc, unused-ignore]
    """A worker group that releases its resources if its workers start but do not connect.

    Ray leaves such a group's workers and placement group to end with the controller's actor. Here
    the controller's process stays, and the next group would wait for them forever.
    """

    started: list[Any] = []
    """Groups of the trainer that began to start."""
    _reserved: Any = None

    def _create_placement_group(self, *arguments: Any, **named: Any) -> Any:
        """Reserve as Ray does, and remember the reservation."""
        self._reserved = super()._create_placement_group(*arguments, **named)
        return self._reserved

    def end(self) -> None:
        """Remove the placement group, which ends its processes at any stage of the start."""
        if self._reserved is not None:
            self._reserved.shutdown()

    def _start(self) -> None:
        """Start, or release everything."""
        self.started.append(self)
        try:
            super()._start()
        except Exception:
            if self.has_started():
                self.abort()
            raise


GROUP_PARTS = ("_start", "has_started", "abort", "_create_placement_group")


def is_as_expected() -> bool:
    """Whether Ray has everything that is called and overridden here."""
    overridden = [name for name, part in vars(FixedPlace).items() if inspect.isfunction(part)]
    return (
        hasattr(TrainController, "worker_group_cls")
        and all(hasattr(WorkerGroup, name) for name in GROUP_PARTS)
        and inspect.iscoroutinefunction(getattr(TrainController, "run", None))
        and hasattr(TrainController, "get_result")
        and all(hasattr(FixedScalingPolicy, name) for name in overridden)
    )


def run_controller(arguments: dict[str, Any], started: list[Any]) -> Any:
    """Run a controller to its end and return its result.

    Args:
        arguments: the arguments that the trainer has for its controller.
        started: takes every worker group that begins to start.
    """
    policy: Any = arguments.get("scaling_policy")
    if type(policy) is FixedScalingPolicy:
        arguments = arguments | {"scaling_policy": FixedPlace(policy.scaling_config)}
    controller = TrainController(**arguments)
    controller.worker_group_cls = type("StartedOrGone", (StartedOrGone,), {"started": started})
    asyncio.run(controller.run())
    return controller.get_result()
