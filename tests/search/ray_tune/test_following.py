"""The concurrency of a search follows the hosts that there are."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.search import ConcurrencyLimiter, Searcher

from raybench.cluster.admission import Capacity
from raybench.cluster.layout import Node
from raybench.runs.preflight import AUTOSCALED_CONCURRENCY, following
from raybench.search import ray_tune as module
from raybench.search.ray_tune import Following
from raybench.spec.study import build_study

A, B = Node(2, 0, "id-a", "a"), Node(4, 0, "id-b", "b")


class Endless(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"trial": trial_id}


@pytest.mark.parametrize(("is_local", "more"), [(False, True), (True, False)])
def test_a_host_that_joins_gets_trials(
    is_local: bool, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    limiter = ConcurrencyLimiter(Endless(), max_concurrent=1)
    session: Any = SimpleNamespace(is_local=is_local, nodes=lambda: (A, B))
    callback = Following(limiter, session, follow=len)
    assert limiter.suggest("0") is not None
    assert limiter.suggest("1") is None
    callback.on_step_end(0, [])
    assert (limiter.suggest("1") is not None) is more
    assert limiter.suggest("2") is None


def test_the_number_is_that_of_the_smallest_groups_unless_the_user_names_one() -> None:
    content = {
        "objective": {"target": 0.9},
        "space": {"num_workers": [1, 2]},
        "fixed": {"cpus_per_worker": 2},
    }
    study, space = build_study(content, "test")
    follow = following(study, space, Capacity((A,), 0.0))
    assert follow is not None
    assert (follow((A,)), follow((A, B)), follow(())) == (1, 3, 1)
    growing = following(study, space, Capacity((A,), 0.0, grows=True))
    assert growing is not None
    assert growing((A,)) == AUTOSCALED_CONCURRENCY
    study, space = build_study(content | {"search": {"concurrency": 2}}, "test")
    assert following(study, space, Capacity((A,), 0.0)) is None
