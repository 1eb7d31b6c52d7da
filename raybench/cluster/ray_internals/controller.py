"""Run Ray Train's controller in the calling thread.

Importing this module raises ImportError if the installed Ray lacks one of the classes.
"""

import asyncio
import inspect
from typing import Any

from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup


class FixedPlace(FixedScalingPolicy):  # type: ignore[misc, unused-ignore]
    """Scaling policy: a fixed number of workers on the existing nodes, without an autoscaler."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Do nothing; Ray's own method registers with the autoscaler."""

    def _maybe_send_resource_request(self) -> None:
        """Do nothing; the pool sends the requests."""

    def _send_resource_request(self) -> None:
        """Do nothing; the pool sends the requests."""

    def _cancel_resource_request(self) -> None:
        """Do nothing; there is no request."""


class ReleasingWorkerGroup(WorkerGroup):  # type: ignore[misc, unused-ignore]
    """Ray's worker group; also releases its resources if the workers start but fail to connect.

    In Ray, the workers of such a group and its placement group (their reserved resources) end with
    the controller's actor. Here the controller's process stays alive, and the next group would wait
    for the resources forever.
    """

    started: list[Any] = []
    """Worker groups of the trainer that have begun to start."""
    _reserved: Any = None
    """Ray's placement group; None before it is created."""

    def _create_placement_group(self, *arguments: Any, **named: Any) -> Any:
        """Create the placement group as Ray does, and keep a reference to it."""
        self._reserved = super()._create_placement_group(*arguments, **named)
        return self._reserved

    def end(self) -> None:
        """Remove the placement group; this ends the workers, even if they are still starting."""
        if self._reserved is not None:
            self._reserved.shutdown()

    def _start(self) -> None:
        """Start the workers; release all resources if that fails."""
        self.started.append(self)
        try:
            super()._start()
        except Exception:
            if self.has_started():
                self.abort()
            raise


GROUP_PARTS = ("_start", "has_started", "abort", "_create_placement_group")
"""Methods of Ray's worker group that are called or overridden here."""


def is_as_expected() -> bool:
    """Whether the installed Ray has everything that is called or overridden here."""
    overridden = [name for name, part in vars(FixedPlace).items() if inspect.isfunction(part)]
    return (
        hasattr(TrainController, "worker_group_cls")
        and all(hasattr(WorkerGroup, name) for name in GROUP_PARTS)
        and inspect.iscoroutinefunction(getattr(TrainController, "run", None))
        and hasattr(TrainController, "get_result")
        and all(hasattr(FixedScalingPolicy, name) for name in overridden)
    )


def run_controller(arguments: dict[str, Any], started: list[Any]) -> Any:
    """Run Ray Train's controller until the training ends, and return the training's result.

    Args:
        arguments: The arguments with which Ray's trainer creates its controller.
        started: List to which every worker group is added when it begins to start.
    """
    policy: Any = arguments.get("scaling_policy")
    if type(policy) is FixedScalingPolicy:
        arguments = arguments | {"scaling_policy": FixedPlace(policy.scaling_config)}
    controller = TrainController(**arguments)
    controller.worker_group_cls = type(
        "ReleasingWorkerGroup", (ReleasingWorkerGroup,), {"started": started}
    )
    asyncio.run(controller.run())
    return controller.get_result()
