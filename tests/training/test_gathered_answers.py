"""Metrics of a whole split in training: the answers of all samples, of any number of workers."""

from typing import Any

import numpy as np
import pytest
from local import ThreadWorld, new_trainer, on_ranks, small_spec, train

from raybench.data.whole_set import measure
from raybench.spec.metric import METRICS
from raybench.spec.objective import Objective
from raybench.training.run import _gathered, evaluate_split


def spec_of(framework: str, metric: str) -> Any:
    objective = Objective(kind="best_at_budget", metric=metric, max_train_seconds=1e6)
    return small_spec(framework, objective=objective, epochs=2.0)


@pytest.mark.parametrize("name", ["f1", "roc_auc"])
def test_a_run_is_judged_by_the_answers_for_all_samples(framework: str, name: str) -> None:
    curve, trainer = train(spec_of(framework, name))
    _, dataset, world = new_trainer(spec_of(framework, name))
    metric, labels = METRICS[name], np.asarray(dataset.validation.labels)
    totals = trainer.evaluate("validation", slice(0, len(labels)))
    assert totals.answers is not None
    assert totals.answers.shape[0] == len(labels)
    value, error = measure(metric, labels, totals.answers)
    assert curve[-1].value == pytest.approx(value)
    assert curve[-1].value_error == pytest.approx(error)
    assert value > (0.5 if name == "f1" else 0.9)
    assert 0 < evaluate_split(dataset, trainer, world, "test") <= 1
    trainer.close()


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("number", [7, 2])
def test_uneven_answers_of_workers_are_those_of_one(width: int, number: int) -> None:
    whole = np.arange(number * max(width, 1)).reshape((number, width) if width else (number,))

    def part(world: ThreadWorld) -> np.ndarray:
        own = whole[world.rank * number // 3 : (world.rank + 1) * number // 3]
        return _gathered(own if len(own) else None, world)

    for found in on_ranks(3, part):
        np.testing.assert_array_equal(found, whole)
