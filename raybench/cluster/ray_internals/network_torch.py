"""Torch's process groups: of several hosts over the interface that was tried, of one host through
a file.

Ray's own way on one host starts a store of torch's on rank 0, which listens on all addresses of
the machine and knows no token. Extends what Ray Train offers to backends (`on_start` of a
`TorchConfig`'s `backend_cls`); imported in the process of the trainer only, where Ray has it.
"""

from pathlib import Path
from typing import Any

import ray
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from raybench.cluster.ray_internals.rendezvous import (
    can_be_tried,
    connect,
    hide_gpus,
    is_known,
)
from raybench.training.base import find_part


class LocalTorchConfig(TorchConfig):  # type: ignore[misc, unused-ignore]
    """A `TorchConfig` whose workers are all on this host."""

    meeting_file: str = ""
    """File that the ranks find each other by; a new one for every group."""

    @property
    def backend_cls(self) -> type:
        """Return what sets the workers up."""
        return LocalTorchBackend


class LocalTorchBackend(_TorchBackend):  # type: ignore[misc, unused-ignore]
    """Makes the process group through a file; one worker alone needs none."""

    def on_start(self, worker_group: Any, backend_config: LocalTorchConfig) -> None:
        """Let every rank join; called by Ray Train once the workers are there."""
        size = len(worker_group)
        if not is_known(worker_group):
            if size > 1:
                super().on_start(worker_group, backend_config)
            return
        hide_gpus(worker_group)
        if size == 1:
            return
        gpus = worker_group.get_resources_per_worker().get("GPU", 0)
        joining = [
            worker_group.execute_single_async(
                rank,
                _join,
                backend="nccl" if gpus else "gloo",
                member=rank,
                size=size,
                file=backend_config.meeting_file,
                timeout_s=backend_config.timeout_s,
            )
            for rank in range(size)
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: LocalTorchConfig) -> None:
        """Leave the group, where there is one."""
        if len(worker_group) > 1:
            super().on_shutdown(worker_group, backend_config)
        Path(backend_config.meeting_file).unlink(missing_ok=True)


def _join(**arguments: Any) -> None:
    find_part("torch", "world").meet_in_file(**arguments)


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
