"""A search whose results folder takes no more: it ends, and loses nothing that it knew."""

from dataclasses import replace
from pathlib import Path

import pytest

from raybench.results.records import read_records
from raybench.stats.record import RunOutcome
from tests.search.made_up import make_search
from tests.search.stage import CONTENT, FIRST, REACHED, SECOND, Stage


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("last", [REACHED, SECOND, replace(SECOND, is_over=True, failure="oom")])
def test_a_full_disk_ends_the_study_and_what_is_not_recorded_runs_again(
    last: RunOutcome, room: int, stage: Stage, tmp_path: Path
) -> None:
    """Also a trial that had ended by itself: the records are the truth."""
    stage.store.room = room
    asked = stage.trials.next()
    assert asked is not None
    name, spec = asked
    stage.trials.started(name)
    stage.trials.seen(name, FIRST)
    assert (stage.deadline.fault is None) == bool(room)
    stage.trials.seen(name, last)
    fault = stage.deadline.fault
    assert isinstance(fault, OSError)
    assert fault.strerror == "No space left for 1", "the first one"
    assert stage.deadline.interrupted
    stage.trials.ended(name)
    stage.trials.ended(name)
    assert stage.deadline.fault is fault
    assert [one.trial for one in stage.search.told] == [name]
    assert stage.trials.next() is None
    assert [line["kind"] for line in stage.lines()] == room * ["eval"]
    with pytest.raises(OSError, match="No space left for 1"):
        stage.deadline.raise_fault()
    again = make_search(tmp_path, CONTENT, runs=read_records(tmp_path).runs)
    assert again.num_finished == 0
    assert again.ask() == (name, spec)
