"""How a training scales: speed-up and efficiency of each number of workers."""

import pandas as pd

from raybench.results.analyses.frames import need

COLUMNS = (
    *("scaling", "curve", "num_workers", "global_batch_size", "samples_per_s"),
    *("speedup", "speedup_low", "speedup_high", "ideal"),
    *("efficiency", "efficiency_low", "efficiency_high"),
    *("input_share", "communication_share", "baseline", "n"),
)


def speed_ups(scaling: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-up curves of a scaling study, one row per number of workers.

    `scaling` is `StudyResults.scaling`, a row per cell; see `results.scaling.cells` for the
    columns. `ideal` is what the speed-up would be if nothing was lost: the number of workers. Cells
    without a single worker of their kind to compare with are left out.
    """
    need(scaling, "scaling", COLUMNS[:5])
    known = scaling[scaling["speedup"].notna()]
    table = known.assign(ideal=known["num_workers"].astype(float))
    return table[[*COLUMNS]].sort_values(
        ["scaling", "curve", "num_workers"], kind="stable", ignore_index=True
    )
