"""Network between hosts, measured: how many times longer an all-reduce takes there than inside a
host, as the prior of the law's network.

Figures alone count, not names: hosts with a fast network card for each GPU have a ratio near one,
those behind Ethernet ten and more.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raybench.scaling.measurements import NINE_OF_TEN
from raybench.scaling.throughput import PRIORS, Priors
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

SURE = 0.2
"""Standard deviation of the logarithm of a measured ratio: a training's exchange is in buckets, and
beside its compute, an all-reduce of the same bytes is neither."""
LARGE = 2**20
"""Bytes from which on gradients are exchanged; smaller sums are left out."""
LEAST, MOST = 0.01, 1000.0


@dataclass(frozen=True)
class NetworkRatio:
    """Ratio of an exchange's seconds between hosts to those inside, and how sure that is."""

    ratio: float
    log_sd: float

    @property
    def priors(self) -> Priors:
        """The law's priors with it."""
        return PRIORS | {"log_network": (math.log(self.ratio), self.log_sd)}

    def words(self) -> str:
        """Say it in a sentence."""
        low, high = (self.ratio * math.exp(side * NINE_OF_TEN * self.log_sd) for side in (-1, 1))
        return (
            f"The network given: between nodes an exchange takes {self.ratio:.2g} times ({low:.2g} "
            f"to {high:.2g}) what it takes within one."
        )


def read_network(text: str) -> NetworkRatio:
    """Return what `--network` names: a ratio, or the file that `raybench doctor --json` wrote."""
    try:
        ratio = float(text)
    except ValueError:
        return _measured(Path(text))
    if not LEAST <= ratio <= MOST:
        raise UserError(
            f"--network {clean(text)[:40]}: is no ratio; write how many times longer an all-reduce "
            f"takes between hosts than inside, {LEAST:g} to {MOST:g}, or the name of a file.",
            ErrorCode.INVALID_VALUE,
        )
    return NetworkRatio(ratio, SURE)


def _measured(path: Path) -> NetworkRatio:
    """Return the ratio at the sizes that a doctor measured between hosts and inside."""
    source = clean(str(path))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found = found.get("details") or found
        between, inside = found["network"], found["inside"]
        if between and inside:
            logs = np.log([_as_of_two(between), _as_of_two(inside)])
            ratios = logs[0] - logs[1]
            ratio = float(np.exp(np.mean(ratios)).clip(LEAST, MOST))
            return NetworkRatio(ratio, math.hypot(SURE, float(np.std(ratios))))
    except OSError as error:
        raise UserError(
            f"--network {source}: is no ratio, and no file that can be read ({error.strerror}).",
            ErrorCode.NOT_FOUND,
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(
        f"{source}: holds no all-reduce times both between hosts and inside one, as `raybench "
        "doctor --json` prints of two hosts with two workers' room; write the ratio: --network 3.",
        ErrorCode.INVALID_FILE,
    )


def _as_of_two(level: dict[str, Any]) -> list[float]:
    """Return a level's seconds as if two took part: 2 (e - 1) / e of the bytes pass with e ends."""
    ends = level["workers"]
    part = ends / (2 * (ends - 1))
    return [one["seconds"] * part for one in level["sizes"] if one["bytes"] >= LARGE]
