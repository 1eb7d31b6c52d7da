"""Two races whose runs are shared, and the order in which a round begins."""

import pytest

from raybench.search.race import CAP, Race, Races, in_turns
from raybench.spec.run import RunSpec
from raybench.stats.replicates import Replicate
from raybench.stats.standing import Candidate, Run

STAGES = ((2, 1), (2, 1))
SECONDS = {"a": 4.0, "b": 5.0, "c": 7.0}
WORKERS = {"a": 4, "b": 2, "c": 1}


def races() -> tuple[Race, Race, Races]:
    """a and b race over seconds, c and b over worker-seconds."""

    def candidate(name: str) -> Candidate:
        return Candidate(name, Replicate(SECONDS[name], is_hit=True), WORKERS[name])

    fastest = Race([candidate("a"), candidate("b")], STAGES, axis="seconds")
    cheapest = Race([candidate("c"), candidate("b")], STAGES, axis="worker_seconds")
    return fastest, cheapest, Races([fastest, cheapest])


def test_a_run_of_both_races_is_run_once_and_known_to_both() -> None:
    fastest, cheapest, both = races()
    assert both.due() == [Run("a", 0), Run("b", 0), Run("c", 0)]
    both.learn(Run("b", 0), Replicate(5.0, is_hit=True))
    assert fastest.due() == [Run("a", 0)]
    assert cheapest.due() == [Run("c", 0)]
    both.learn(Run("a", 0), Replicate(4.0, is_hit=True))
    both.learn(Run("c", 0), Replicate(7.0, is_hit=True))
    assert both.due() == [Run("a", 1), Run("b", 1), Run("c", 1)]


def test_a_run_has_lost_where_it_is_too_slow_for_every_race_that_asks_for_it() -> None:
    fastest, cheapest, both = races()
    both.learn(Run("a", 0), Replicate(4.0, is_hit=True))
    alone = fastest.cap_s("b")
    assert alone is not None
    assert alone >= 4.0 * CAP
    assert both.cap_s(Run("b", 0)) is None, "the cheapest one has run once by now"
    both.learn(Run("c", 0), Replicate(7.0, is_hit=True))
    assert cheapest.cap_s("b") == pytest.approx(alone * 7.0 / 2 / 4.0)
    assert both.cap_s(Run("b", 0)) == alone


def test_equal_groups_follow_one_another_and_every_round_begins_with_another() -> None:
    specs = {
        name: RunSpec(num_workers=workers)
        for name, workers in zip("abcd", (1, 2, 1, 2), strict=True)
    }
    runs = [Run(name, number) for number in range(2) for name in specs]
    order = [(run.name, run.round) for run in in_turns(runs, specs)]
    assert "".join(name for name, _ in order) == "acbd" + "cbda"
    assert [number for _, number in order] == [0] * 4 + [1] * 4
