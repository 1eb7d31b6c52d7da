"""Runs by batch size: medians where some runs missed, and how far runs lie apart."""

import numpy as np
import pandas as pd
import pytest

from raybench.scaling.samples_to_target import read
from raybench.spec.errors import UserError


def runs(batch, samples, **more) -> pd.DataFrame:
    return pd.DataFrame({"batch_size": batch, "samples_to_target": samples} | more)


def only(table):
    (size,) = read(table).batch_sizes
    return size


def test_runs_are_taken_together_by_their_batch_size() -> None:
    small, large = read(runs([64, 16, 16], [300.0, 100, None], note=["a", "b", "c"])).batch_sizes
    assert (small.batch_size, small.num_runs, small.num_reached) == (16, 2, 1)
    assert (large.batch_size, large.samples, large.at_least) == (64, 300, None)


@pytest.mark.parametrize(
    ("samples", "spent", "median"),
    [
        ([5, 3, 9], None, 5),
        ([5, 3, 9, 7], None, 6),
        ([5, 3, None], None, 5),  # of unknown length: longer than all that reached it
        ([5, 3, None], [5, 3, 20], 5),
        ([5, 3, 9, None, None], None, 9),
        ([8, 4, None, None], [8, 4, 20, 30], None),
        # One was given up at once, before it could tell: as if it had not been there.
        ([5, 3, 9, None], [5, 3, 9, 1], 5),
        # Given up between: those that went on decide (share 2/3, then 2/3 * 1/2).
        ([5, 9, None], [5, 9, 7], 9),
    ],
)
def test_the_median_knows_of_runs_that_missed(samples, spent, median) -> None:
    table = runs([32] * len(samples), samples, **({"samples_spent": spent} if spent else {}))
    if median is None:
        # Another size, as a table without any median is refused.
        table = pd.concat([table, runs([64], [1.0], samples_spent=[1.0])])
        size = read(table).batch_sizes[0]
    else:
        size = only(table)
    assert size.samples == median


def test_the_median_with_times_cut_is_unbiased_enough() -> None:
    """Half of 2,000 runs are cut at random times: the plain median of what is left is far off."""
    rng = np.random.default_rng(0)
    times, cut = rng.exponential(100, 2000) + 50, rng.uniform(50, 300, 2000)
    reached = np.where(times <= cut, times, np.nan)
    found = only(runs([8] * 2000, reached, samples_spent=np.minimum(times, cut))).samples
    truth = 50 + 100 * np.log(2)
    assert found == pytest.approx(truth, rel=0.05)
    assert np.nanmedian(reached) < 0.9 * truth


def test_where_most_missed_what_was_spent_is_a_bound() -> None:
    table = runs(
        [8, 8, 8, 16, 16, 32],
        [None, None, 50, None, None, 40],
        samples_spent=[70, 90, 50, None, None, None],
    )
    eight, sixteen, _ = read(table).batch_sizes
    assert (eight.samples, eight.at_least, eight.num_reached) == (None, 70, 1)
    assert (sixteen.samples, sixteen.at_least) == (None, None)


def test_the_spread_is_that_of_most_runs() -> None:
    """The tenfold misprint of one run in twenty does not widen it."""
    rng = np.random.default_rng(1)
    samples = 1000 * np.exp(0.05 * rng.standard_normal(400))
    clean = read(runs(np.repeat([8, 16, 32, 64], 100), samples)).spread
    samples[::20] *= 10
    dirty = read(runs(np.repeat([8, 16, 32, 64], 100), samples)).spread
    assert clean == pytest.approx(0.05, rel=0.15)
    assert dirty < 1.3 * clean
    assert read(runs([8, 16], [10, 20])).spread == 0
    assert read(runs([8, 8, 16, 16], [10, 10, 20, 20])).spread > 0


def test_without_a_median_anywhere_it_says_so() -> None:
    with pytest.raises(UserError, match=r"at no batch size.*train longer"):
        read(runs([8, 16], [None, None]))
