"""Pools of recorded runs: their data, and cost and winner of a study on one."""

import math
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def worlds(module: Any) -> Any:
    return module("pool_worlds")


@pytest.fixture
def make(worlds: Any) -> Any:
    """Build a pool from seconds to the target; infinite: 100 s without it."""

    def run(seconds: float) -> Any:
        last = seconds if math.isfinite(seconds) else 100.0
        times = np.array([last / 4, last / 2, last])
        value = 1.0 if math.isfinite(seconds) else 0.5
        return worlds.Run(times, np.array([0.1, 0.4, value]), seconds)

    def pool(*options: tuple[float, ...]) -> Any:
        made = [
            worlds.Option("adam" if number % 2 else "sgd", number // 2, tuple(map(run, seconds)))
            for number, seconds in enumerate(options)
        ]
        return worlds.Pool("made up", tuple(made), 100.0, 2, target=1.0, start=0.0)

    return pool


def test_recorded_pools_agree_with_their_notes(worlds, data):
    pools = {pool.name: pool for pool in worlds.pools(data("algoperf"))}
    reached = {
        name: sum(math.isfinite(run.reached_s) for o in pools[name].options for run in o.runs)
        for name in worlds.ALGOPERF
    }
    assert list(reached.values()) == [60, 126, 65, 35, 73]
    assert pools["criteo1tb"].best_s == pytest.approx(5042.69)
    for pool in pools.values():
        for option in pool.options:
            for run in option.runs:
                assert len(run.seconds) == len(run.metric) >= 1
                # The target is reached at the recorded time, and not before.
                hits = run.seconds[run.metric >= pool.target - 1e-9]
                first = float(hits[0]) if len(hits) else math.inf
                assert first == pytest.approx(run.reached_s, rel=1e-3) or first < run.reached_s
                # A run ends at an evaluation, and not before its first one.
                assert run.spent_s <= max(pool.max_seconds * 1.02, run.seconds[0])
    squad = pools["zeus squad"]
    assert (len(squad.options), len(squad.options[0].runs)) == (7, 10)


def test_without_noise_every_policy_names_the_best(make, worlds, module):
    policies = module("pool_policies")
    pool = make(*[(float(seconds),) * 5 for seconds in (80, 20, 60, 40)])
    spent = {}
    for name, policy in policies.POLICIES.items():
        rng = np.random.default_rng(3)
        outcome = policy(pool, worlds.Draws(pool, rng), rng)
        assert outcome.named == 1, name
        spent[name] = outcome.seconds
    assert spent["one run each, the fastest"] == 200
    assert spent["raybench's search, no repetitions"] <= 200
    assert spent[policies.RACED] > spent["raybench's search, no repetitions"]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("Optuna, Hyperband", "optuna"),
        pytest.param("Ray Tune, Optuna and ASHA", "ray.tune", marks=pytest.mark.all),
    ],
)
def test_a_library_spends_its_budget_and_names_a_clear_winner(
    make, worlds, module, tmp_path, name, library
):
    pytest.importorskip(library)
    tools = module("pool_tools")
    pool = make((80.0,) * 3, (10.0,) * 3, (math.inf,) * 3, (90.0,) * 3)
    draws = worlds.Draws(pool, np.random.default_rng(0))
    tool = tools.seeded(pool, name, 0, tmp_path)
    outcome = tools.replay(pool, tool, draws, 600.0)
    assert outcome.named == 1
    ended_early = outcome.num_runs == tools.MAX_TRIALS * 4 or tool.ask("one more") is None
    assert 600 <= outcome.seconds <= 700 or ended_early
