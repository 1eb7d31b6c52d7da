"""TensorFlow's TF_CONFIG over the interface that was tried; Ray makes it as it always does.

Extends what Ray Train offers to backends (`on_start` of a `TensorflowConfig`'s `backend_cls`);
imported in the process of the trainer only, where Ray has what it extends.
"""

import json
import os
from typing import Any

from ray.train.tensorflow import TensorflowConfig
from ray.train.tensorflow.config import _TensorflowBackend

from raybench.cluster.connectivity import Place, with_hosts
from raybench.cluster.ray_internals.rendezvous import can_be_tried, connect, each


class NetworkTensorflowConfig(TensorflowConfig):  # type: ignore[misc, unused-ignore]
    """A `TensorflowConfig` for workers on several hosts."""

    interface: str | None = None
    """The network interface that the user named; none derives each host's."""

    @property
    def backend_cls(self) -> type:
        """Return what sets the workers up."""
        return NetworkTensorflowBackend


class NetworkTensorflowBackend(_TensorflowBackend):  # type: ignore[misc, unused-ignore]
    """Ray's own, once the workers are known to reach each other."""

    def on_start(self, worker_group: Any, backend_config: NetworkTensorflowConfig) -> None:
        """Set and try the interface, then let Ray go on; called once the workers are there."""
        if not can_be_tried(worker_group):
            super().on_start(worker_group, backend_config)
            return
        places = connect(worker_group, backend_config.interface)
        super().on_start(worker_group, backend_config)
        each(worker_group, _use_addresses, [(places,) for _ in places])


def _use_addresses(places: list[Place]) -> None:
    """In a worker: let TensorFlow meet at the addresses that were tried."""
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = with_hosts(config["cluster"]["worker"], places)
    os.environ["TF_CONFIG"] = json.dumps(config)
