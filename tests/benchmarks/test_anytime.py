"""Replays of `benchmarks/search/anytime.py`."""

import math
from typing import Any

import pytest


@pytest.fixture
def anytime(bare: Any) -> Any:
    return bare("anytime")


def test_the_last_incumbent_at_a_moment_counts(anytime):
    course = [(1.0, math.inf, None), (2.0, 3.0, "a"), (4.0, 1.5, "b"), (9.0, 1.0, "c")]
    held = [anytime.held_at(course, moment) for moment in (0.5, 1, 3, 4, 20)]
    assert [ratio for ratio, _ in held] == [math.inf, math.inf, 3, 1.5, 1]
    assert [config for _, config in held] == [None, None, "a", "b", "c"]


@pytest.mark.parametrize("name", ["raybench", "raybench, TPE"])
def test_a_search_is_replayed_until_its_limit(anytime, name):
    row = anytime.replay_one(("mnist_mlp", name, 0, 0.0, 2.0, {}))
    assert row["trials"] >= 4
    for kind in ("held", "expected"):
        assert all(1 <= ratio <= anytime.NOTHING for ratio in row[kind])
    repeated = anytime.replay_one(("mnist_mlp", name, 0, 0.0, 2.0, {}))
    assert repeated["held"] == row["held"]


def test_bars_for_all_tables_and_for_each(anytime):
    rows = [{"table": "a", "held": [2.0] * 7}, {"table": "b", "held": [1.0] * 7}]
    found = anytime.bars(rows)
    assert [(what, bar) for what, _, bar in found][:1] == [("all, 8 best times", 1.6)]
    assert [value for _, value, _ in found][:4] == pytest.approx([math.sqrt(2)] * 4)
    assert [value for _, value, _ in found][4:] == [2.0, 1.0]
