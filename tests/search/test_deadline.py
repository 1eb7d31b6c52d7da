"""When a whole search ends: its budget, the user, or a fault of the study."""

import time

import pytest

from raybench.cluster.signals import Interrupt
from raybench.runs.deadline import Deadline
from raybench.search.ray_tune import TuneStopper


def test_the_search_is_over_when_what_is_left_is_set_aside() -> None:
    deadline = Deadline(100.0, began=time.perf_counter())
    assert 0 < deadline.left_s < 95, "closing takes its part"
    assert deadline.reason() is None
    deadline.reserve_s = 96.0
    assert deadline.reason() == "time_budget"
    stopper = TuneStopper(deadline)
    assert stopper("0000", {})
    assert not stopper.stop_all(), "trials end by themselves and give their workers back"
    deadline.reserve_s = 0.0
    assert deadline.reason() is None
    late = Deadline(100.0, began=time.perf_counter() - 100)
    assert late.reason() == "time_budget"


def test_an_interrupt_comes_before_the_budget() -> None:
    interrupt = Interrupt()
    deadline = Deadline(None, interrupt=interrupt)
    assert deadline.left_s == float("inf")
    assert deadline.reason() is None
    interrupt.is_set = True
    assert deadline.reason() == "interrupted"


def test_a_fault_ends_the_study_and_is_raised_after_it() -> None:
    deadline = Deadline(None)
    deadline.fault = OSError("gone")
    assert deadline.over
    with pytest.raises(OSError, match="gone"):
        deadline.raise_fault()
