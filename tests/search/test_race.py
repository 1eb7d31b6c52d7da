"""The race: due runs, dropped candidates, misses, order of results, and regret."""

import math

import numpy as np
import pytest

from raybench.search.race import CAP_FACTOR, Race, Races
from raybench.stats.replicates import Replicate
from raybench.stats.standing import Candidate, RaceRun, runs_to_decide, stages

HIT, MISS = True, False


def candidates(*times: float | None) -> list[Candidate]:
    return [
        Candidate(name, None if seconds is None else Replicate(seconds, HIT), 1)
        for name, seconds in zip("abcd", times, strict=False)
    ]


def drive(
    race: Race, seconds: dict[str, float | None], spread: float = 0.0, *, is_timed: bool = True
) -> list[RaceRun]:
    """Run all that is due; None misses after 9 s. Later rounds are `spread` slower."""
    runs = []
    while due := race.due():
        for run in due:
            time = seconds[run.name]
            replicate = Replicate(9.0, MISS)
            if time is not None:
                replicate = Replicate(time + spread * run.round, HIT, is_timed)
            race.learn(run.name, run.round, replicate)
        runs += due
    return runs


def test_stages_spend_the_requested_runs_and_never_widen():
    for number in range(201):
        plan = stages(number)
        assert sum(count * runs for count, runs in plan) == number
        counts = [count for count, _ in plan]
        assert counts == sorted(counts, reverse=True)
    assert stages(24) == ((12, 1), (6, 1), (3, 2)), "the default"


def test_rounds_are_shared_and_halve_the_candidates():
    race = Race(candidates(1.0, 1.1, 1.2, 1.3), ((4, 1), (2, 2)), axis="seconds")
    assert race.due() == [RaceRun(name, 0) for name in "abcd"]
    runs = drive(race, {"a": 1.3, "b": 1.0, "c": 1.2, "d": 1.4}, spread=0.01)
    assert runs[4:] == [RaceRun("b", 1), RaceRun("a", 1), RaceRun("b", 2), RaceRun("a", 2)]
    assert race.due() == []
    assert race.leader() == "b"
    assert race.order() == ["b", "a", "c", "d"]


def test_slow_candidates_are_dropped_and_one_left_ends_the_race():
    race = Race(candidates(1.0, 1.01, 5.0, 6.0), ((4, 1), (4, 5)), axis="seconds")
    runs = drive(race, {"a": 1.0, "b": 1.02, "c": 5.5, "d": 6.0})
    assert set(race.dropped) == {"c", "d"}
    assert {run.name for run in runs[4:]} == {"a", "b"}
    alone = Race(candidates(1.0, 9.0), ((2, 1), (2, 5)), axis="seconds")
    assert len(drive(alone, {"a": 1.0, "b": 9.0})) == 2
    assert alone.leader() == "a"


def test_a_missing_run_of_the_search_is_not_a_miss():
    race = Race(candidates(None, 1.0), ((2, 1), (2, 2)), axis="seconds")
    drive(race, {"a": 0.7, "b": 1.0}, spread=0.001)
    assert race.leader() == "a"


def test_a_candidate_that_only_missed_is_dropped_while_others_hit():
    race = Race(candidates(None, 0.9, 1.0), ((3, 1), (2, 1)), axis="seconds")
    drive(race, {"a": None, "b": None, "c": 1.0})
    assert "a" in race.dropped
    assert race.leader() == "c"


def test_one_candidate_or_none_ends_the_race():
    race = Race(candidates(1.0), stages(24), axis="seconds")
    assert drive(race, {"a": 1.1}) == [RaceRun("a", 0)]
    assert race.leader() == "a"
    empty = Race([], stages(24), axis="seconds")
    assert empty.due() == []
    assert empty.leader() is None


def test_nothing_leads_without_a_hit():
    race = Race(candidates(None, None), stages(24), axis="seconds")
    drive(race, {"a": None, "b": None})
    assert race.due() == []
    assert race.leader() is None
    assert race.cap_s("a") is None
    assert race.dropped == {}


def world(seed: int) -> tuple[list[Candidate], np.ndarray]:
    """Thirty configurations, up to 40 % slower than the first; seeds 30 % apart."""
    rng = np.random.default_rng(seed)
    seconds = np.linspace(1.0, 1.4, 30)[:, None] * np.exp(0.3 * rng.normal(size=(30, 12)))
    order = np.argsort(seconds[:, 0])
    return [Candidate(str(i), Replicate(float(seconds[i, 0]), HIT), 1) for i in order], seconds


def race_in(
    candidates: list[Candidate], seconds: np.ndarray
) -> tuple[Race, dict[RaceRun, Replicate]]:
    race, learned = Race(candidates, stages(24), axis="seconds"), {}
    while due := race.due():
        for run in due:
            cap = race.cap_s(run.name) or math.inf
            taken = float(seconds[int(run.name), 1 + run.round])
            learned[run] = Replicate(min(taken, cap), taken <= cap)
            race.learn(run.name, run.round, learned[run])
    return race, learned


def test_the_outcome_does_not_depend_on_the_order_of_results():
    racing, seconds = world(0)
    race, learned = race_in(racing, seconds)
    # Runs of another race change no stage.
    learned[RaceRun("elsewhere", 0)] = Replicate(0.1, HIT)
    for order in (list(learned)[: len(learned) // 2], list(reversed(learned))):
        repeated = Race(racing, stages(24), axis="seconds")
        for run in order:
            repeated.learn(run.name, run.round, learned[run])
        while due := repeated.due():
            for run in due:
                repeated.learn(run.name, run.round, learned[run])
        assert repeated.order() == race.order()
        assert repeated.dropped == race.dropped


def test_more_runs_go_to_the_undecided_with_the_fewest_until_one_is_left():
    racing = candidates(1.0, 1.05, 1.1, 30.0)
    learned = {
        ("a", 0): Replicate(1.0, HIT),
        ("a", 1): Replicate(1.0, HIT),
        ("b", 0): Replicate(1.0, HIT),
    }
    assert runs_to_decide(racing, learned, 20, axis="seconds") == [RaceRun("c", 0)]
    true, spent = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 30.0}, 0
    while due := runs_to_decide(racing, learned, 200 - spent, axis="seconds"):
        spent += len(due)
        for run in due:
            assert (run.name, run.round) not in learned
            learned[run.name, run.round] = Replicate(true[run.name], HIT)
    assert 0 < spent < 200
    assert not any(name == "d" for name, _ in learned)
    assert runs_to_decide(racing[:1], {}, 20, axis="seconds") == []


def test_a_candidate_without_runs_is_undecided():
    racing = [*candidates(1.0), Candidate("cold", None, 1)]
    assert set(runs_to_decide(racing, {}, 20, axis="seconds")) == {
        RaceRun("a", 0),
        RaceRun("cold", 0),
    }
    missed = {("cold", 0): Replicate(9.0, is_hit=False)}
    assert runs_to_decide(racing, missed, 20, axis="seconds") == []


def test_values_are_raced_by_their_mean_without_a_cap():
    search_values = {"a": 0.10, "b": 0.11, "c": 0.12}
    racing = [
        Candidate(name, Replicate(value, HIT, is_timed=False), 1)
        for name, value in search_values.items()
    ]
    race = Race(racing, ((3, 1), (2, 1)), axis="seconds")
    drive(race, {"a": 0.14, "b": 0.10, "c": 0.12}, spread=0.001, is_timed=False)
    assert race.leader() == "b"
    assert race.cap_s("b") is None


def test_two_races_share_runs_and_a_run_is_capped_where_it_has_lost_both():
    """a and b race over seconds, c and b over worker-seconds."""
    seconds = {"a": 4.0, "b": 5.0, "c": 7.0}
    a, b, c = (
        Candidate(name, Replicate(seconds[name], HIT), workers)
        for name, workers in (("a", 4), ("b", 2), ("c", 1))
    )
    fastest = Race([a, b], ((2, 1), (2, 1)), axis="seconds")
    cheapest = Race([c, b], ((2, 1), (2, 1)), axis="worker_seconds")
    races = Races([fastest, cheapest])
    assert races.due() == [RaceRun("a", 0), RaceRun("b", 0), RaceRun("c", 0)]
    races.learn(RaceRun("a", 0), Replicate(4.0, HIT))
    alone = fastest.cap_s("b")
    assert alone is not None
    assert alone >= 4.0 * CAP_FACTOR
    assert races.cap_s(RaceRun("b", 0)) is None, "the cheapest has only its run of the search"
    races.learn(RaceRun("c", 0), Replicate(7.0, HIT))
    assert cheapest.cap_s("b") == pytest.approx(alone * 7.0 / 2 / 4.0)
    assert races.cap_s(RaceRun("b", 0)) == alone
    assert cheapest.leader() == "c", "although b takes fewer seconds"
    races.learn(RaceRun("b", 0), Replicate(5.0, HIT))
    assert races.due() == [RaceRun("a", 1), RaceRun("b", 1), RaceRun("c", 1)]
