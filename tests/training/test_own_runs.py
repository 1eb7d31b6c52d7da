"""Training loops of the user: clock, reports, stop, checkpoints and errors, on one worker and on
two, without Ray and mostly without a framework."""

import itertools
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_runs import Clock, ThreadWorld, run_on_ranks, single_worker
from user_loops import Worker, reporting_loop, run_on_two_ranks, spec_of

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import Objective
from raybench.stats.clock import WORKER_PHASES, Ledger
from raybench.training import own
from raybench.training.adapter import (
    LoopAdapter,
    pack_arrays,
    signal_handlers_ignored,
    unpack_arrays,
)
from raybench.training.own import OwnTrainer, Run, state_of
from tests.refusals import refused


@pytest.mark.parametrize(
    ("reported_s", "train_s", "setup_s"), [(0.25, 0.25, 3.75), (2, 2, 2), (9, 4, 0)]
)
def test_overridden_training_seconds_count(reported_s, train_s, setup_s):
    """Missing seconds are taken from other phases, at most their length; time before the first
    report is setup."""
    clock = Clock()

    def loop(run: Run) -> None:
        clock.now += 3.0
        with run.training():
            clock.now += 1.0
        run.override_training_time(reported_s)
        run.report(0.5, samples=100)

    point, _ = Worker(loop, clock=clock).run_to_end()
    assert (point.train_s, point.ledger["setup"]) == (train_s, setup_s)
    assert sum(point.ledger[name] for name in WORKER_PHASES) == 4.0


def test_clock_has_training_time_only():
    clock = Clock()

    def loop(run: Run) -> None:
        clock.now += 5.0  # set-up
        for _ in run.epochs():
            with run.training():
                clock.now += 2.0
            clock.now += 7.0  # other work
            with run.training():
                clock.now += 1.0
            clock.now += 10.0  # evaluation
            run.report(0.5, samples=300)

    curve = Worker(loop, clock=clock).run_to_end()
    assert [point.train_s for point in curve] == [3.0, 6.0, 9.0, 9.0]
    assert curve[0].ledger["setup"] == 5.0
    assert curve[1].ledger["eval"] == 34.0
    assert [point.samples for point in curve] == [300, 600, 900, 900]
    assert curve[0].samples_per_s == 100.0
    assert [point.epoch for point in curve] == [1.0, 2.0, 3.0, 3.0]
    assert [point.stop for point in curve] == [None, None, None, "epochs"]
    assert curve[-1].index == curve[-2].index, "the last point repeats the evaluation before it"
    assert all(point.memory_peak_bytes for point in curve)


LOSS = Objective(metric="loss", direction="min", target=0.01, max_train_seconds=9.0)


@pytest.mark.parametrize(
    ("values", "seconds", "changes", "ends"),
    [
        ((0.5, 0.95, 0.97), 1.0, {}, ("target", None, 2.0)),
        ((0.1, 0.2, 0.3), 600.0, {}, ("max_train_seconds", None, None)),
        ((0.1, math.nan, 0.3), 1.0, {"objective": LOSS}, (None, "nan", None)),
    ],
)
def test_target_budget_and_nan_end_the_run(values, seconds, changes, ends):
    clock = Clock()
    worker = Worker(reporting_loop(*values, seconds=seconds, clock=clock), clock=clock, **changes)
    first, last = worker.run_to_end()
    assert (first.stop, first.failure) == (None, None)
    assert (last.stop, last.failure, last.time_to_target_s, last.index) == (*ends, 1)


@pytest.mark.parametrize(
    ("checks_result", "uses_epochs"), [(False, True), (True, False), (False, False)]
)
def test_loop_ends_when_the_search_stops_it(checks_result, uses_epochs):
    """Also a loop that ignores the result of `report`."""

    def loop(run: Run) -> None:
        for _ in run.epochs() if uses_epochs else iter(int, 1):
            with run.training():
                time.sleep(0.001)
            if run.report(0.5, samples=1) and checks_result:
                break

    worker = Worker(loop, epochs=1e6)
    next(worker.trainer.evaluations())
    worker.trainer.close()
    assert not worker.trainer._thread.is_alive()


def raise_value_error(run: Run) -> None:
    raise ValueError("no such thing")


def report_while_training(run: Run) -> None:
    with run.training():
        run.report(0.5, samples=1)


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        (report_while_training, ["run.report", "outside of `with run.training():`"]),
        (raise_value_error, ["train.py:train", "test_own_runs.py", "ValueError: no such thing"]),
        (lambda run: sys.exit("enough"), ["sys.exit('enough')"]),
        (lambda run: None, ["accuracy"]),
        (lambda run: run.report(f1=0.5, samples=1), ["f1", "accuracy"]),
        (lambda run: run.report(0.5, samples=1), ["run.training()"]),
        (lambda run: run.report(accuracy=91, samples=1), ["=91", "0.91", "accuracy_percent"]),
        *(
            (partial(Run.report, value=value, samples=1), ["accuracy", type(value).__name__])
            for value in (True, np.bool_(1), "0.9", np.ones(2))
        ),
        (lambda run: run.report(samples=1), ["run.report(accuracy=..., samples=...)"]),
    ],
)
def test_error_of_a_loop_is_one_sentence(loop, names):
    with refused(ErrorCode.USER_CODE, *names) as caught:
        Worker(loop).run_to_end()
    assert "\n" not in str(caught.value)


def test_numpy_scalars_and_rounding_errors_are_accepted():
    values = (np.float32(0.5), np.array([0.25]), np.float64(1 + 1e-7), np.int64(0), -1e-8)
    curve = Worker(reporting_loop(*values), objective=Objective(kind="best_at_budget")).run_to_end()
    assert [point.value for point in curve[:-1]] == [0.5, 0.25, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("exchanges", "prepares", "is_noted"),
    [(0, False, True), (0, True, False), (1, False, False), (None, False, False)],
)
def test_workers_that_train_separate_models_are_noted(exchanges, prepares, is_noted, monkeypatch):
    """Also if the number of exchanges grows outside of training."""
    numbers = threading.local()

    def num_exchanges(adapter: LoopAdapter) -> int | None:
        return None if exchanges is None else getattr(numbers, "now", 0)

    def loop(run: Run) -> None:
        for _ in range(2):
            if prepares:
                run.prepare(None)
            with run.training():
                numbers.now = getattr(numbers, "now", 0) + (exchanges or 0)
            numbers.now += 1
            run.report(0.5, samples=1)

    def work(world: ThreadWorld) -> list[str]:
        spec = spec_of().model_copy(update={"num_workers": 2})
        trainer = OwnTrainer(spec, loop, world, Ledger("setup"))
        list(trainer.evaluations())
        trainer.finish()
        return trainer.notes

    monkeypatch.setattr(LoopAdapter, "num_exchanges", num_exchanges)
    for notes in run_on_ranks(2, work):
        assert ["run.prepare" in note for note in notes] == [True] * is_noted


def test_metric_name_need_not_be_an_identifier_and_its_test_value_is_kept():
    def loop(run: Run) -> None:
        with run.training():
            pass
        run.report(**{"metrics/mAP50-95(B)": 0.5}, samples=1, test=0.4)

    objective = Objective(metric="metrics/mAP50-95(B)", direction="max", target=0.9)
    trainer = Worker(loop, objective=objective).trainer
    assert next(trainer.evaluations()).value == 0.5
    assert trainer.finish() == 0.4


def test_loop_that_neither_reports_nor_returns_is_refused(monkeypatch):
    for name, value in (("GRACE_S", 0.05), ("UNREPORTED_S", 0.1), ("LOOK_S", 0.02)):
        monkeypatch.setattr(own, name, value)
    may_end = threading.Event()

    def never_reports(run: Run) -> None:
        with run.training():
            may_end.wait(60)

    def never_returns(run: Run) -> None:
        reporting_loop(0.5)(run)
        may_end.wait(60)

    objective = Objective(target=0.9, max_train_seconds=0.01)
    with refused(ErrorCode.USER_CODE, "train.py:train", "max_train_seconds"):
        Worker(never_reports, objective=objective).run_to_end()
    worker = Worker(never_returns)
    next(worker.trainer.evaluations())
    with refused(ErrorCode.USER_CODE, "train.py:train", "run.report"):
        worker.trainer.finish()
    may_end.set()


def test_runs_of_equal_seed_draw_equal_numbers():
    drawn: list[tuple[float, float]] = []

    def loop(run: Run) -> None:
        drawn.append((random.random(), float(np.random.rand())))  # noqa: NPY002
        reporting_loop(0.5)(run)

    for seed in (3, 3, 4):
        Worker(loop, seed=seed).run_to_end()
    assert drawn[0] == drawn[1] != drawn[2]


def test_run_resumes_from_its_checkpoint():
    resumed_states: list[Any] = []
    changes = {"epochs": 4.0, "checkpoint_every_s": 1e-9}

    def loop(run: Run) -> None:
        resumed_states.append(state := run.resume())
        total = 0 if state is None else state["total"]
        for epoch in run.epochs():
            with run.training():
                total += epoch + 1
            run.save({"total": total, "weights": [np.full(3, float(total))]})
            if run.report(0.1, samples=5):
                return

    first = Worker(loop, **changes)
    _, checkpoint = itertools.islice(first.checkpoints(), 2)
    first.trainer.close()

    second = Worker(loop, resume=checkpoint.state, **changes).trainer
    second.restore(checkpoint.weights)
    curve = list(second.evaluations())
    assert [point.index for point in curve] == [2, 3, 3]
    assert [point.epoch for point in curve] == [3.0, 4.0, 4.0]
    assert curve[-1].samples == 20
    assert curve[0].train_s > checkpoint.state.train_s
    np.testing.assert_equal(resumed_states, [None, {"total": 3, "weights": [np.full(3, 3.0)]}])
    kind, content = state_of(second.save())
    assert (kind, unpack_arrays(content)["total"]) == ("arrays", 10)
    second.close()


def test_checkpoint_needs_a_state_saved_since_the_last_report():
    def loop(run: Run) -> None:
        for epoch in run.epochs():
            with run.training():
                pass
            if epoch == 1:
                run.save(b"state")
            if run.report(0.1, samples=5):
                return

    worker = Worker(loop, checkpoint_every_s=1e-9)
    written = [checkpoint is not None for checkpoint in worker.checkpoints()]
    assert written == [False, True, False, False]
    assert state_of(worker.trainer.save()) == ("bytes", b"state")
    worker.trainer.close()


@pytest.mark.parametrize("state", [b"", b"no header\n", b'{"kind": "arrays", "epoch": 1}\nPK'])
def test_state_of_another_kind_is_refused(state):
    with pytest.raises(UserError):
        Worker(reporting_loop()).trainer.restore(state)


def test_only_arrays_and_plain_data_can_be_saved():
    state = {"a": [1, 2.5, "x", None, True], "b": {"c": np.arange(3)}, "d": np.float32(2)}
    np.testing.assert_equal(unpack_arrays(pack_arrays(state)), state)
    with refused(ErrorCode.USER_CODE, "run.save", "lock"):
        pack_arrays({"lock": threading.Lock()})


def test_report_of_workers_has_their_mean_and_the_slowest_clock():
    def loop(run: Run) -> None:
        for values in ((0.2, 0.4), (None, 0.5)):
            with run.training():
                time.sleep(0.002 * (1 + run.rank))
            if run.report(values[run.rank], samples=40):
                return

    (curve, curve_of_rank_1), errors = run_on_two_ranks(spec_of(), loop)
    assert errors == {}
    assert [point.value for point in curve] == [pytest.approx(0.3), 0.5, 0.5]
    assert [point.train_s for point in curve] == [point.train_s for point in curve_of_rank_1]
    assert curve[0].samples == 40


def test_saved_model_is_restored_by_its_weights(framework):
    world = single_worker(framework)

    def loop(run: Run) -> None:
        if framework == "torch":
            import torch

            saved: Any = {"model": run.prepare(torch.nn.Linear(3, 2)), "epoch": 4}
            assert run.device == "cpu"
        else:
            import keras

            saved = run.prepare(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
            assert run.strategy is not None
        with run.training():
            pass
        run.save(saved)
        run.report(0.5, samples=1)

    weights = []
    for _ in range(2):
        worker = Worker(loop, framework=framework, world=world)
        worker.run_to_end()
        run = worker.trainer.run
        state = run.resume()
        if framework == "torch":
            assert state["epoch"] == 4
            weights.append(state["model"]["weight"].numpy())
        else:
            weights.append(state[0])
        worker.trainer.close()
    np.testing.assert_array_equal(*weights)  # the seed is set before each


def test_signal_handler_of_a_loop_is_ignored_with_a_warning(caplog):
    """Trainers and loops for preemptible machines set handlers, also by `from signal import`."""
    before = signal.getsignal(signal.SIGTERM), signal.signal
    with signal_handlers_ignored():
        imported_signal = signal.signal

        def loop(run: Run) -> None:
            earlier = imported_signal(signal.SIGTERM, lambda *_: None)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            reporting_loop(0.95)(run)
            signal.signal(signal.SIGTERM, earlier)

        worker = Worker(loop)
        assert worker.run_to_end()[-1].stop == "target"
        assert "run.save" in caplog.text
        signal.signal(signal.SIGTERM, before[0])  # still allowed in the main thread
    assert (signal.getsignal(signal.SIGTERM), signal.signal) == before


def test_single_worker_sees_no_launcher_variables(monkeypatch):
    """Ray sets the variables for a single worker too, but a script started by hand has none."""
    pytest.importorskip("torch")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    environment = dict[str, str]()

    def loop(run: Run) -> None:
        environment.update(os.environ)
        reporting_loop(0.5)(run)

    Worker(loop, world=single_worker("torch"), framework="torch").run_to_end()
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & environment.keys()
    assert environment["ACCELERATE_USE_CPU"] == "true"
    assert (os.environ["RANK"], "ACCELERATE_USE_CPU" in os.environ) == ("0", False)


def test_folder_of_a_run_is_removed_before_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = list[Path]()

    def loop(run: Run) -> None:
        assert run.folder == run.folder
        assert not list(run.folder.iterdir())
        (run.folder / "file").touch()
        folders.append(run.folder)
        reporting_loop(0.5)(run)

    for _ in range(2):
        Worker(loop).run_to_end()
    assert [folder.exists() for folder in folders] == [False, True]
