"""Trials that wait for their group: each learns of its grant, and what it has waited for."""

import asyncio
from collections.abc import Callable, Mapping

from raybench.cluster.admission import Admission, Grant
from raybench.cluster.protocol import STOPPED, RunFailed
from raybench.cluster.ray_internals.free import available, taken_by_others
from raybench.cluster.trainers import PoolOptions
from raybench.core.placement import Placement

LOOK_S = 2.0
"""Seconds between two looks at what others on the cluster hold, while a trial waits."""
Books = Callable[[], Mapping[str, Mapping[str, float]]]


class Queue:
    """The admission, with a future for everyone who waits; lives in the pool's event loop."""

    def __init__(
        self, admission: Admission, options: PoolOptions, books: Books = available
    ) -> None:
        """`books`: what every node has free by Ray's account; nobody else uses a Ray of ours."""
        self._admission, self._options, self._books = admission, options, books
        self._granted: dict[str, asyncio.Future[Grant]] = {}
        self._waited_for: dict[str, str] = {}

    async def wait(self, trial: str, placement: Placement) -> tuple[Grant, str | None]:
        """Return the grant when it comes, and what was missing until then, if anything was.

        RunFailed if the trial is sent away first. However long it takes: that others have the
        machines is no failure of the trial.
        """
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._granted[trial] = granted
        self._admission.submit(trial, placement)
        try:
            await self._look()
            self.admit()
            while not granted.done():
                self._note(trial)
                await asyncio.wait({granted}, timeout=LOOK_S)
                if not granted.done() and self._admission.waiting[0][0] == trial:
                    await self._look()
                    self.admit()
            return granted.result(), self._waited_for.get(trial)
        finally:
            self._granted.pop(trial, None)
            self._waited_for.pop(trial, None)

    def admit(self) -> None:
        """Tell everyone whose turn it is now."""
        for grant in self._admission.admit():
            future = self._granted[grant.trial]
            if not future.done():
                future.set_result(grant)

    def send_away(self, trial: str) -> None:
        """End a trial's waiting, if it waits."""
        self._admission.cancel(trial)
        waiting = self._granted.pop(trial, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(RunFailed(STOPPED, "the run was stopped"))

    def trials(self) -> list[str]:
        """Return who waits."""
        return list(self._granted)

    def missing(self) -> dict[str, str]:
        """Return what each of them waits for, at this moment."""
        return self._admission.missing()

    def _note(self, trial: str) -> None:
        missing = self._admission.missing().get(trial)
        if missing is not None:
            self._waited_for[trial] = missing

    async def _look(self) -> None:
        """Learn what others hold on a cluster that is not ours alone."""
        if self._options.is_local:
            return
        free = await asyncio.to_thread(self._books)
        held = self._admission.held()
        if not self._options.reserves_cpus:  # Ray's books know of our GPUs alone
            held = [(0.0, gpus) for _, gpus in held]
        self._admission.taken = taken_by_others(self._admission.nodes, held, free)
