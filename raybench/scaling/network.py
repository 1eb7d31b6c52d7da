"""What lies between hosts, measured: all-reduce times inside a host and between hosts, or how many
times longer it takes there, as the prior of the law's network.

Figures alone count, not names: a host with a fast network card for each GPU has a ratio near one,
one behind Ethernet ten and more.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from raybench.scaling.measurements import Count, read_rows
from raybench.scaling.throughput import PRIORS, Priors
from raybench.spec.errors import UserError
from raybench.spec.text import clean

SURE = 0.2
"""Standard deviation of the logarithm of a measured ratio: a training's exchange is in buckets, and
beside its compute, an all-reduce of the same bytes is neither."""
LARGE = 2**20
"""Bytes from which on gradients are exchanged; smaller ones count where there are no others."""
LEAST, MOST = 0.01, 1000.0


class Exchanged(BaseModel):
    """A row of a file of all-reduce times."""

    model_config = ConfigDict(frozen=True)

    num_workers: Annotated[int, Field(ge=2, le=1_000_000)]
    num_nodes: Count
    bytes: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Network:
    """How many times longer an exchange takes between hosts than inside, and how sure that is."""

    ratio: float
    log_sd: float

    @property
    def priors(self) -> Priors:
        """The law's priors with it."""
        return PRIORS | {"log_network": (math.log(self.ratio), self.log_sd)}

    def words(self) -> str:
        """Say it in a sentence."""
        low, high = (self.ratio * math.exp(side * 1.645 * self.log_sd) for side in (-1, 1))
        return (
            f"The network given: between nodes an exchange takes {self.ratio:.2g} times ({low:.2g} "
            f"to {high:.2g}) what it takes within one."
        )


def read_network(text: str) -> Network:
    """Return what `--network` names: a ratio, what `raybench doctor --json` printed, or a CSV file
    with the columns num_workers, num_nodes, bytes, seconds."""
    try:
        ratio = float(text)
    except ValueError:
        path = Path(text)
        return _from(_doctors(path) if path.suffix == ".json" else _rows(path), clean(text))
    if not LEAST <= ratio <= MOST:
        raise UserError(
            f"--network {clean(text)[:40]}: is no ratio; write how many times longer an all-reduce "
            f"takes between hosts than inside, {LEAST:g} to {MOST:g}, or the name of a file."
        )
    return Network(ratio, SURE)


def _rows(path: Path) -> list[Exchanged]:
    return list(read_rows(path, Exchanged).values())


def _doctors(path: Path) -> list[Exchanged]:
    """Return the times in a doctor's document, alone or as the details of an answer."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = found.get("details") or found
        levels = [(found["network"], len(found["hosts"])), (found["inside"], 1)]
        return [
            Exchanged(
                num_workers=level["workers"],
                num_nodes=min(nodes, level["workers"]),
                bytes=one["bytes"],
                seconds=one["seconds"],
            )
            for level, nodes in levels
            if level
            for one in level["sizes"]
        ]
    except OSError as error:
        raise UserError(f"{clean(str(path))}: cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{clean(str(path))}: is not what `raybench doctor --json` printed; write it anew."
        ) from None


def _from(rows: list[Exchanged], source: str) -> Network:
    """Return the ratio at the sizes that were measured at both levels."""
    logs: dict[bool, dict[float, list[float]]] = {False: {}, True: {}}
    for row in rows:
        # As if two took part: 2 (e - 1) / e of the bytes pass the slowest link of e ends.
        ends = row.num_workers if row.num_nodes == 1 else row.num_nodes
        unit = math.log(row.seconds * ends / (2 * (ends - 1)))
        logs[row.num_nodes > 1].setdefault(row.bytes, []).append(unit)
    both = sorted(logs[True].keys() & logs[False].keys())
    if not both:
        raise UserError(
            f"{source}: needs all-reduce times of the same number of bytes inside a host "
            "(num_nodes 1) and between hosts; measure both, or write their ratio: --network 3."
        )
    sizes = [size for size in both if size >= LARGE] or both
    ratios = [float(np.mean(logs[True][size]) - np.mean(logs[False][size])) for size in sizes]
    ratio = min(max(math.exp(float(np.mean(ratios))), LEAST), MOST)
    return Network(ratio, math.hypot(SURE, float(np.std(ratios))))
