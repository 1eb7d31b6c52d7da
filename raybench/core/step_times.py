"""How long the optimizer steps between two evaluations took: a few numbers that hide no stall."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, Strict

Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of the optimizer steps since the last evaluation that had a whole global batch.

    The last step of an epoch has what is left: less to do, and so no part of this but for `max_s`.
    A step's time is that of the rank that took longest, from the end of the step before it (or the
    beginning of training) to its own end: waiting for data and for the other workers is in it.
    """

    num: Annotated[int, Strict(), Field(gt=0)]
    """Number of these steps."""
    median_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    p95_s: Seconds
    max_s: Seconds
    """The slowest of all steps, short ones too: a stall, where it is far above `p95_s`."""
    first_s: Seconds
    """The first of them, which may have more to do than the others."""

    @classmethod
    def of(cls, seconds: Sequence[float], short: Sequence[float] = ()) -> "StepTimes | None":
        """Return those of steps in their order; a NaN is a step whose time is not known.

        `short` are those of steps without a whole batch. None where no whole step's time is known.
        """
        known = [one for one in seconds if np.isfinite(one)]
        if not known:
            return None
        p25, median, p75, p95 = (float(one) for one in np.percentile(known, [25, 50, 75, 95]))
        return cls(
            num=len(known),
            median_s=median,
            p25_s=p25,
            p75_s=p75,
            p95_s=p95,
            max_s=max(one for one in (*known, *short) if np.isfinite(one)),
            first_s=known[0],
        )
