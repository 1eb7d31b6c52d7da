"""What each number of workers brought: by hand, and where none of them got there."""

import pandas as pd
import pytest

from raybench.results.analyses import WORKER_COLUMNS, by_workers
from raybench.spec.metric import ACCURACY

NAMES = ["trial", "config", "is_confirmed", "hits", "num_workers", "time_to_target_s"]


def ranked(*rows):
    """Configurations, best first, as a study has them."""
    table = pd.DataFrame(rows, columns=[*NAMES, "best_accuracy"])
    cost = table["num_workers"] * table["time_to_target_s"].astype(float)
    return table.assign(worker_seconds_to_target=cost)


def test_the_best_of_each_number_of_workers_beside_the_fewest():
    table = by_workers(
        ranked(
            ("b", "2x64", True, 3, 2, 4.0, 0.96),
            ("a", "1x64", True, 2, 1, 6.0, 0.96),
            ("lucky", "1x32", False, 1, 1, 3.0, 0.97),  # ran once, so it stands behind
            ("missed", "4x8", False, 0, 4, None, 0.81),
        ),
        ACCURACY,
    ).set_index("num_workers")
    assert list(table["trial"]) == ["a", "b", "missed"]
    assert list(table["tried"]) == [2, 1, 1]
    assert list(table["reached"]) == [2, 1, 0]
    two = table.loc[2]
    assert (two["seconds"], two["worker_seconds"]) == (4.0, 8.0)
    assert two["times_as_fast"] == pytest.approx(1.5)
    assert two["times_the_cost"] == pytest.approx(8 / 6)
    assert table.loc[4, ["seconds", "times_as_fast", "times_the_cost"]].isna().all()


def test_the_fewest_that_got_there_are_what_others_are_compared_with():
    table = by_workers(
        ranked(("b", "2x64", False, 1, 2, 4.0, 0.96), ("a", "1x64", False, 0, 1, None, 0.9)),
        ACCURACY,
    )
    assert list(table["times_as_fast"].fillna(0)) == [0, 1]


def test_nothing_to_compare():
    assert list(by_workers(ranked(), ACCURACY)) == [*WORKER_COLUMNS, "best_accuracy"]
