"""The run loop without a framework: resumed runs, checkpoints, and ranks that are threads, with
their clocks and step times."""

import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from local_runs import (
    Clock,
    FakeTrainer,
    RankContext,
    ThreadWorld,
    first_steps,
    run_on_ranks,
    thread_worlds,
    zeros_dataset,
)

from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import Step, StepLog, Totals
from raybench.training.run import Recording, run
from raybench.training.saved import Checkpoints

STEP_S, EVAL_S, STATE_S = 0.5, 0.25, 8.0
SAMPLES = 50
DATASET = zeros_dataset(SAMPLES // 2, repeat=2)


class Scripted(FakeTrainer):
    """Trainer with given accuracies and a clock of its own; steps take 4 times as long after
    `slow_after` evaluations."""

    def __init__(
        self, accuracies: list[float], *, evaluated: int = 0, slow_after: int = 99
    ) -> None:
        self.now, self.rates = 0.0, list[float]()
        self._accuracies, self._evaluated = accuracies, evaluated
        self._slow_after = slow_after

    def ledger(self, **options: Any) -> Ledger:
        return Ledger("setup", clock=lambda: self.now, **options)

    def warm_up(self, *steps: Step) -> None:
        self.now += 100.0

    def train(self, steps: list[Step]) -> float:
        self.now += STEP_S * len(steps) * (4 if self._evaluated >= self._slow_after else 1)
        self.rates += [step.learning_rate for step in steps]
        return float(sum(step.indices[0, 0] for step in steps))

    def evaluate(self, part: str, rows: slice) -> Totals:
        self.now += EVAL_S
        self._evaluated += 1
        return Totals(
            loss=0.0, value=self._accuracies[self._evaluated - 1] * 10, squares=0.0, samples=10
        )

    def state(self) -> bytes:
        self.now += STATE_S
        return b"state"

    def save(self) -> bytes:
        """The weights contain the number of evaluations."""
        return bytes([self._evaluated])

    def load(self, weights: bytes) -> None:
        (self._evaluated,) = weights


def spec_of(objective: Objective, **changes: object) -> RunSpec:
    content = {
        "dataset": DatasetSpec(),
        "objective": objective,
        "batch_size_per_worker": 8,
        "eval_every_samples": 20,
        "schedule": "cosine",
        "epochs": 4.0,
    }
    return RunSpec(**(content | changes))


def follow(
    spec: RunSpec, accuracies: list[float], earlier: list[Evaluation], slow_after: int = 99
) -> tuple[list[Evaluation], list[float], bytes]:
    """Run from the start, or resumed after `earlier`; return curve, rates and final weights."""
    resume = RunState.after(spec, earlier) if earlier else None
    trainer = Scripted(accuracies, evaluated=len(earlier), slow_after=slow_after)
    ledger = trainer.ledger(earlier=resume.ledger if resume else None)
    curve = list(run(spec, DATASET, trainer, *thread_worlds(1), ledger, resume=resume))
    return curve, trainer.rates, trainer.save()


OBJECTIVES = [
    Objective(target=0.9, hold=3),
    Objective(target=1.0, max_train_seconds=8.0),
    Objective(kind="best_at_budget", max_train_seconds=9.4),
    Objective(kind="best_at_budget", max_train_seconds=1e6),
]


@pytest.mark.parametrize(
    ("objective", "slow_after"),
    [*((objective, 99) for objective in OBJECTIVES), (OBJECTIVES[2], 4)],
)
def test_run_can_be_resumed_after_every_evaluation(objective, slow_after):
    """Also if the machine becomes slower, so that the last interval ends after the budget."""
    spec = spec_of(objective)
    accuracies = [0.2, 0.95, 0.3, 0.91, 0.92, 0.93, 0.94, 0.5, 0.6, 0.7, 0.1]
    curve, rates, weights = follow(spec, accuracies, [], slow_after)
    assert len(curve) > 3
    is_late = curve[-1].train_s > objective.max_train_seconds
    last_is_ignored = is_late and objective.kind == "best_at_budget"
    assert weights == bytes([len(curve) - last_is_ignored])
    assert (curve[-1].learning_rate, curve[-1].epoch) == (rates[-1], curve[-1].samples / SAMPLES)
    assert is_late or slow_after == 99
    for point in curve[:-1]:
        earlier = curve[: point.index + 1]
        rest, resumed_rates, resumed_weights = follow(spec, accuracies, earlier, slow_after)
        assert resumed_rates == rates[-len(resumed_rates) :]
        assert resumed_weights == weights
        for expected, resumed in zip(curve[point.index + 1 :], rest, strict=True):
            assert resumed.ledger["compile"] == expected.ledger["compile"] + 100.0
            assert replace(resumed, ledger={}) == replace(expected, ledger={})
            assert resumed.train_s == expected.train_s


class Slow(Scripted):
    """Trainer whose steps take `step_s` seconds each."""

    def __init__(self, step_s: float) -> None:
        super().__init__([0.5])
        self._step_s = step_s

    def train(self, steps: list[Step]) -> float:
        self.now += self._step_s * len(steps)
        return 0.1 * len(steps)


@pytest.mark.parametrize(
    ("kind", "step_s", "budget_s"),
    [("time_to_target", 0.5, 100.0), ("best_at_budget", 4.0, 60.0), ("best_at_budget", 90.0, 60.0)],
)
def test_interval_beyond_the_budget_is_cut(kind, step_s, budget_s):
    """On a slow machine, with 1,000 steps between evaluations."""
    objective = Objective(kind=kind, target=1.0, max_train_seconds=budget_s)
    spec = spec_of(objective, epochs=1000.0, eval_every_samples=8_000)
    trainer = Slow(step_s)
    (only,) = run(spec, zeros_dataset(SAMPLES), trainer, *thread_worlds(1), trainer.ledger())
    assert only.stop == "max_train_seconds"
    assert only.train_s == pytest.approx(max(budget_s, step_s), rel=0.07)
    assert only.train_loss == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("exchanges", [False, True])
def test_seconds_of_each_rank_are_known_without_exchange(exchanges):
    """Rank 1 takes four times as long; the clock has the seconds of the slowest rank."""
    changes = {"num_workers": 2, "batch_size_per_worker": 4, "exchange_gradients": exchanges}
    spec = spec_of(OBJECTIVES[3]).model_copy(update=changes)

    def train(world: ThreadWorld) -> list[Evaluation]:
        trainer = Scripted([0.5] * 20, slow_after=99 - 99 * world.rank)
        return list(run(spec, DATASET, trainer, world, trainer.ledger()))

    curve, curve_of_rank_1 = run_on_ranks(2, train)
    assert curve == curve_of_rank_1
    for point in curve:
        steps = (point.train_s - (curve[point.index - 1].train_s if point.index else 0.0)) / 2.0
        assert point.rank_s == (None if exchanges else (0.5 * steps, 2.0 * steps))
        assert len(point.rank_parts or ()) == (0 if exchanges else 2)


def saved_at(every: float, *, rank: int = 0, earlier: int = 0) -> list[int]:
    """Return the evaluations with a checkpoint; an interval takes 1.75 s or slightly more."""
    spec = spec_of(OBJECTIVES[3], checkpoint_every_s=every)
    accuracies = [0.5] * 30
    curve, _, _ = follow(spec, accuracies, [])
    resume = RunState.after(spec, curve[:earlier]) if earlier else None
    world = RankContext(rank, 2)
    checkpoints = Checkpoints(spec, world, resume=resume)
    trainer = Scripted(accuracies)
    ledger, saved = trainer.ledger(), []
    for evaluation in curve[earlier:]:
        before = ledger.seconds("checkpoint")
        checkpoint = checkpoints.after(evaluation, trainer.state, ledger)
        if ledger.seconds("checkpoint") > before:
            assert ledger.seconds("checkpoint") == before + STATE_S
            saved.append(evaluation.index)
            assert (checkpoint is None) == (rank > 0)
        if checkpoint is not None:
            assert checkpoint.weights == b"state"
            point = curve[evaluation.index]
            spent = point.ledger | {"checkpoint": before + STATE_S}
            expected = [*curve[: point.index], replace(point, ledger=spent)]
            assert checkpoint.state == RunState.after(spec, expected)
        ledger.enter("report")
    return saved


def test_checkpoint_is_written_after_enough_seconds():
    assert saved_at(1e-9) == list(range(9)), "no checkpoint after the last evaluation"
    assert saved_at(0.0) == []
    assert saved_at(300.0) == []
    few = saved_at(4.0)
    assert few == saved_at(4.0, rank=1), "all ranks save together"
    assert all(second - first in (2, 3) for first, second in itertools.pairwise(few))
    assert 1 <= few[0] <= 2
    assert saved_at(4.0, earlier=1)[0] > few[0], "a resumed run counts from its checkpoint"


EPOCH, WORKERS = 200, 8


class Exchanging(FakeTrainer):
    """Trainer that waits for the other ranks, like data-parallel training, and takes no time."""

    def __init__(self, world: ThreadWorld, seconds: list[float] | None = None) -> None:
        self._world, self._seconds = world, seconds or []

    def train(self, steps: list[Step]) -> float:
        self._world.gather([0.0])
        return 0.0

    def step_log(self) -> StepLog:
        return StepLog(seconds=self._seconds, part_squares=[], whole_squares=[])


def test_delay_of_a_command_is_not_on_the_clock():
    workers = {"num_workers": 2, "batch_size_per_worker": 16}
    spec = RunSpec(objective=Objective(target=1.0), epochs=5.0, **workers)
    clock = Clock()  # stands still, so that the load of the machine has no influence

    def seconds(world: ThreadWorld) -> float:
        ledger, train_seconds = Ledger("setup", clock=clock), []
        for evaluation in run(spec, zeros_dataset(64), Exchanging(world), world, ledger):
            train_seconds.append(evaluation.train_s)
            if world.rank == 1:  # its next command arrives late
                time.sleep(0.05)  # rank 0 continues meanwhile
                clock.now += 1.0
        return train_seconds[-1]

    assert run_on_ranks(2, seconds) == [0.0, 0.0], "the other rank's delay is on the clock"
    assert clock.now == 5.0


def recorded(batch_each: int) -> list[dict[str, Any]]:
    """Return the recording of each rank over three epochs, at one microsecond per sample."""
    spec = RunSpec(num_workers=WORKERS, batch_size_per_worker=batch_each)

    def record(world: ThreadWorld) -> dict[str, Any]:
        steps = first_steps(spec, zeros_dataset(EPOCH), world, 3 * EPOCH)
        seconds = [1e-6 * np.count_nonzero(step.weights) for step in steps]
        trainer = Exchanging(world, seconds)
        return Recording(spec, trainer, world, zeros_dataset(EPOCH)).end(steps)

    return run_on_ranks(WORKERS, record)


def test_short_steps_are_excluded_from_step_times():
    """200 samples in batches of 128: every second step has 72. Batches of 256 have only 200."""
    for recording in recorded(16):
        assert recording["steps"].num == 3
        for seconds in (recording["steps"].p25_s, recording["steps"].max_s):
            assert 128 / seconds == pytest.approx(WORKERS * 1e6)
    assert all(recording["steps"] is None for recording in recorded(32))
