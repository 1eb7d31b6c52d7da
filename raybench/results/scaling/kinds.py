"""Which cells of a scaling study belong together: those of a speed-up curve, and of its baseline.

Of a **series** are cells that differ in workers, nodes and batch size alone; a throughput model is
fitted to each. Of a **kind** are cells of one scaling, topology, framework, strategy, workload and
dataset (whatever else they have): a speed-up is over the best of a kind with one worker.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from raybench.core.scaling_study import Scaling
from raybench.core.spec import RunSpec

GRID_KEYS = ("num_workers", "batch_size_per_worker", "seed")
"""What cells of a series differ in, beside the nodes they were on."""
NAMED_ALONE = ("framework", "strategy", "workload", "dataset.name", "optimizer", "precision")
"""Keys whose values say enough in a label."""
SYNTHETIC_KEYS = ("dataset.shape", "dataset.num_classes", "dataset.num_samples")
"""Keys that are read for `dataset.name: synthetic` alone."""


class Topology(NamedTuple):
    """What workers have and where they are put; how many nodes that takes follows from it."""

    accelerators: str
    placement_strategy: str
    cpus_per_worker: int
    gpus_per_worker: float

    @property
    def words(self) -> str:
        """For a table or a sentence."""
        each = f"{self.cpus_per_worker} CPU{'s' if self.cpus_per_worker != 1 else ''}"
        if self.gpus_per_worker:
            each += f" and {self.gpus_per_worker:g} {self.accelerators or 'GPU'}"
        return f"{each} a worker" + (", spread" if self.placement_strategy == "spread" else "")


def topology_of(spec: RunSpec, accelerators: str) -> Topology:
    """Return the topology of runs of a spec that were on such GPUs ("": none)."""
    return Topology(
        accelerators, spec.placement_strategy, spec.cpus_per_worker, spec.gpus_per_worker
    )


def kind_of(scaling: Scaling, spec: RunSpec, topology: Topology) -> tuple[Any, ...]:
    """Return what cells must have in common for one to be the other's baseline."""
    data = json.dumps(spec.dataset.model_dump(mode="json"), sort_keys=True)
    # Runs without exchange are no training: they are compared with each other alone.
    exchanges = spec.exchange_gradients
    own = spec.framework, spec.strategy, spec.workload
    return scaling, topology, *own, data, exchanges


def series_of(specs: Sequence[RunSpec]) -> list[str]:
    """Return each spec's series: the keys in which the specs differ, and its values of them.

    Framework and workload are always told, a workload by its class where that is enough. What is
    off, or as usual where it is on or off, is not: it is what is told of others that differs.
    """
    classes = _class_names({spec.workload for spec in specs})
    flat = [_read_keys(spec) | {"workload": classes[spec.workload]} for spec in specs]
    keys = dict.fromkeys(key for one in flat for key in one if key not in GRID_KEYS)
    values = {key: {json.dumps(one[key]) for one in flat if key in one} for key in keys}
    first = ("framework", "workload")
    told = [*first, *(key for key in keys if key not in first and len(values[key]) > 1)]
    words = [[_words(key, one[key]) for key in told if key in one] for one in flat]
    return [", ".join(filter(None, one)) for one in words]


def _read_keys(spec: RunSpec) -> dict[str, Any]:
    """Return a spec's keys, dotted, without those that its dataset does not read."""
    flat = _flat(spec.document())
    unread = () if spec.dataset.name == "synthetic" else SYNTHETIC_KEYS
    return {key: value for key, value in flat.items() if key not in unread}


def _class_names(workloads: set[str]) -> dict[str, str]:
    """Return the class of each `module:Class`, or all of it where two have one name."""
    names = {one: one.rpartition(":")[2] for one in workloads}
    return names if len(set(names.values())) == len(names) else {one: one for one in workloads}


def _words(key: str, value: Any) -> str:
    """Return what a label says of a key: "" of what is off, or as usual."""
    if isinstance(value, bool):
        if key in RunSpec.model_fields and RunSpec.model_fields[key].default is value:
            return ""
        return key if value else f"no {key}"
    if value in (None, "none", 0):
        return ""
    if (key, value) == ("dataset.name", "workload"):
        return "data of its own"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shown if key in NAMED_ALONE else f"{key} {shown}"


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
