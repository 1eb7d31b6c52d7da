"""A user's workload that notes when its process enters training; for clock_skew.py.

Importing it patches the ledger's `enter`: each rank appends the moment of every entry into
`train` to a file of its own below SKEW_FOLDER. `perf_counter` is one clock for all processes of
a host, so the moments of two ranks can be compared. It costs some microseconds an evaluation.
"""

import os
import time
from pathlib import Path

from raybench.core.clock import Ledger
from raybench.workloads.base import LayerWorkload
from raybench.workloads.shipped import WORKLOADS

SMALL = WORKLOADS["mnist_small"]()
_ENTER = Ledger.enter


def _enter(ledger: Ledger, phase: str) -> None:
    _ENTER(ledger, phase)
    if phase == "train" and (folder := os.environ.get("SKEW_FOLDER")):
        with (Path(folder) / f"{os.getpid()}.times").open("a") as file:
            file.write(f"{time.perf_counter():.6f}\n")


Ledger.enter = _enter  # type: ignore[method-assign]


class Skewed(LayerWorkload):
    """`mnist_small` under another name."""

    name = "skewed"
    input_shape = SMALL.input_shape
    num_classes = SMALL.num_classes
    layers = SMALL.layers
