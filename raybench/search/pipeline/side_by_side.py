"""Runs of a phase side by side, as many at once as there are slots."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from raybench.search.deadline import Deadline


def side_by_side(jobs: Sequence[Callable[[], None]], *, slots: int, deadline: Deadline) -> None:
    """Do all jobs, in the order in which they are given, each in a thread.

    Once `deadline` is over no more begin; those that run have to ask it themselves. What goes wrong
    in one ends the study: the others stop as for Ctrl-C, and it is raised when they have.
    """

    def do(job: Callable[[], None]) -> None:
        if deadline.over:
            return
        try:
            job()
        except Exception as error:
            deadline.ends_with(error)
            raise

    if not jobs:
        return
    with ThreadPoolExecutor(min(slots, len(jobs)), thread_name_prefix="race") as threads:
        done = [threads.submit(do, job) for job in jobs]
    deadline.raise_fault()  # the first of them
    for one in done:
        one.result()
