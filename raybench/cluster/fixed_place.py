"""A scaling policy that asks no autoscaler; imported only where Ray has what it extends."""

from typing import Any

from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy


class FixedPlace(FixedScalingPolicy):  # type: ignore[misc, unused-ignore]
    """As many workers as asked for, on the nodes that are there."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Register nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Ask for nothing."""

    def _send_resource_request(self) -> None:
        """Ask for nothing."""

    def _cancel_resource_request(self) -> None:
        """There is nothing to take back."""
