"""Torch's process group over the interface that was tried; Ray makes it as it always does.

Extends what Ray Train offers to backends (`on_start` of a `TorchConfig`'s `backend_cls`);
imported in the process of the trainer only, where Ray has what it extends.
"""

from typing import Any

from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from raybench.cluster.ray_internals.network_meeting import (
    can_be_tried,
    connect,
    hide_gpus,
    is_known,
)


class NetworkTorchConfig(TorchConfig):  # type: ignore[misc, unused-ignore]
    """A `TorchConfig` for workers on several hosts."""

    interface: str | None = None
    """The network interface that the user named; none derives each host's."""

    @property
    def backend_cls(self) -> type:
        """Return what sets the workers up."""
        return NetworkTorchBackend


class NetworkTorchBackend(_TorchBackend):  # type: ignore[misc, unused-ignore]
    """Ray's own, once the workers are known to reach each other."""

    def on_start(self, worker_group: Any, backend_config: NetworkTorchConfig) -> None:
        """Set and try the interface, then let Ray go on; called once the workers are there."""
        if is_known(worker_group):
            hide_gpus(worker_group)
        if not can_be_tried(worker_group):
            super().on_start(worker_group, backend_config)
            return
        connect(worker_group, backend_config.interface)
        super().on_start(worker_group, backend_config)
