"""As many trials at once as the cluster has room for at the moment."""

import time
from collections.abc import Callable
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter

from raybench.cluster.layout import Node
from raybench.cluster.session import Session

LOOK_S = 10.0
"""Seconds between two looks at the nodes; hosts take longer to come."""


class Following(Callback):  # type: ignore[misc, unused-ignore]
    """Changes Tune's limit as hosts come and go; nothing on a Ray of our own, which has one."""

    def __init__(
        self,
        searcher: ConcurrencyLimiter,
        session: Session,
        follow: Callable[[tuple[Node, ...]], int],
    ) -> None:
        self._searcher, self._session, self._follow = searcher, session, follow
        self._looked = time.monotonic()

    def __getstate__(self) -> dict[str, object]:
        """Give Ray Tune, which saves all that it is given, nothing."""
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Look now and then."""
        if self._session.is_local or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        self._searcher.max_concurrent = max(1, self._follow(self._session.nodes()))
