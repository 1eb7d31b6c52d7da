"""Cores of a run: given to it, and taken back."""

import os

import pytest

from raybench.cluster import worker


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_run_without_cores_of_its_own_is_free_of_the_last_one_s() -> None:
    every = os.sched_getaffinity(0)
    try:
        worker.pin((min(every),))
        assert os.sched_getaffinity(0) == {min(every)}
        worker.pin(())
        assert os.sched_getaffinity(0) == worker.ALL_CORES
    finally:
        os.sched_setaffinity(0, every)
