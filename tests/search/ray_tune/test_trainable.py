"""A trial to Ray Tune: one run after the other in the same actor."""

from typing import Any

import pytest

from raybench.search import ray_tune as trainable
from raybench.search.ray_tune import OUTCOME, TuneTrainable, outcome_of
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome
from tests.search.stage import FIRST, REACHED


class Client:
    """Stands for a RunClient: gives `outcomes` and is finished once."""

    outcomes: list[RunOutcome] = []
    made: list[tuple[Any, ...]] = []

    def __init__(self, pool: Any, name: str, spec: RunSpec, *, keep: bool) -> None:
        self.made.append((pool, name, spec, keep))
        self.left, self.num_finished = list(self.outcomes), 0

    def step(self) -> RunOutcome:
        return self.left.pop(0)

    def finish(self) -> RunOutcome:
        self.num_finished += 1
        return RunOutcome(evaluation=REACHED.evaluation, is_over=True, concurrent=3)


def test_the_trainable_sends_outcomes_and_takes_the_next_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is over gives its workers back before Tune hears of it."""

    class Own(Client):
        outcomes = [FIRST, REACHED]
        made: list[tuple[Any, ...]] = []

    monkeypatch.setattr(trainable, "RunClient", Own)
    one = TuneTrainable.__new__(TuneTrainable)  # Tune's own set-up wants a trial's folder
    spec = RunSpec(objective=Objective(target=0.95, max_train_seconds=10))
    one.setup({"trial": "0000", "spec": spec}, pool="pool", keep=False)
    first = one.step()
    assert (outcome_of(first), first["done"], first["train_s"]) == (FIRST, False, 1.0)
    assert first["score"] == FIRST.score(spec.objective)
    last = one.step()
    assert (outcome_of(last).concurrent, last["done"]) == (3, True)
    assert last["score"] == REACHED.score(spec.objective)
    # Of every number in the open Tune keeps running averages.
    assert set(last) == {"train_s", "score", "done", OUTCOME}
    other = spec.model_copy(update={"learning_rate": 0.5})
    assert one.reset_config({"trial": "0001", "spec": other}) is True
    assert Own.made == [("pool", "0000", spec, False), ("pool", "0001", other, False)]


def test_a_run_that_failed_before_its_first_evaluation_has_a_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Own(Client):
        outcomes = [RunOutcome(is_over=True, failure="timeout", message="no room")]

        def finish(self) -> RunOutcome:
            return self.outcomes[0]

    monkeypatch.setattr(trainable, "RunClient", Own)
    one = TuneTrainable.__new__(TuneTrainable)
    one.setup({"trial": "0000", "spec": RunSpec()}, pool=None, keep=True)
    result = one.step()
    assert (result["train_s"], result["done"]) == (0.0, True)
    assert result["score"] == outcome_of(result).score(RunSpec().objective)
