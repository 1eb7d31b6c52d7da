"""Searches that are killed and resumed (`benchmarks/search/resumed.py`)."""

from typing import Any


def test_interrupted_trials_resume_and_none_runs_twice(bare, monkeypatch):
    contestant, resumed = bare("contestant"), bare("resumed")
    made = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(contestant.Raybench(arguments[1].space, arguments[2], arguments[3]))
        return made[-1]

    monkeypatch.setattr(resumed, "make", make)
    monkeypatch.setattr(resumed, "LIMIT", 4.0)
    killed = resumed.replay_one(("docstrings_throttled", 101, True))
    assert len(killed) == len(resumed.TIMES)
    (search,) = made
    ended = [record.trial for record in search.records.values()]
    assert len(ended) == len(set(ended))
    suggested = [name for name, _ in search._suggested.values()]
    assert len(suggested) > len(set(suggested)), "some were suggested again after a kill"
