"""What speed costs: configurations by seconds and worker-seconds to the target, and their front."""

import pandas as pd

from raybench.results.analyses import not_dominated as not_dominated
from raybench.results.analyses import pareto_front as pareto_front
from raybench.results.load import StudyResults
from raybench.results.verdict import judge


def configurations(results: StudyResults) -> pd.DataFrame:
    """Return the rows of `results.configurations` that reached the target, fastest first.

    Their seconds are what configurations are compared by, expected running times: so are
    time_to_target_s and worker_seconds_to_target here, low_s and high_s the 90 % interval of a
    confirmed one. None with best_at_budget. Where runs were on several models of GPU, those on the
    winner's alone.
    """
    table = results.configurations
    if (verdict := judge(results)) is not None:
        kind = results.runs[verdict.fastest].accelerators
        table = table[[results.runs[trial].accelerators == kind for trial in table["trial"]]]
    compared = {
        "time_to_target_s": table["expected_s"],
        "worker_seconds_to_target": table["num_workers"] * table["expected_s"],
        "low_s": table["expected_low_s"],
        "high_s": table["expected_high_s"],
    }
    is_reached = table["expected_s"].notna() & results.is_timed
    reached = table.assign(**compared)[is_reached]
    return reached.sort_values("time_to_target_s", kind="stable", ignore_index=True)
