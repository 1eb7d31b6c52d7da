"""User training loops: the `Run` object that a loop receives, and the worker that runs the loop.

The user's function runs in a separate thread. In every call of `Run.report`, the thread passes on
an evaluation and waits until the driver has decided whether to continue. Therefore
`OwnTrainer.evaluations` behaves like `training.run.run`, with the same ledger (seconds by phase),
stop rule, records and checkpoints. A user's command is run by a function of raybench that takes
the place of the user's function (`command.run_command`).
"""

import atexit
import contextlib
import gc
import json
import math
import os
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raybench.models.user_code import user_code_errors, user_code_place
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import OTHER_METRIC_NAMES, ROUNDING
from raybench.spec.objective import StopReason, StopRule
from raybench.spec.own_loop import is_command
from raybench.spec.run import RunSpec
from raybench.spec.schedule import scaled_rate
from raybench.spec.text import shorten
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import AWAY, CPU_NAMES, WORKER_PHASES, Ledger, merge_ranks
from raybench.stats.record import Evaluation, Failure
from raybench.training.adapter import (
    LAUNCHER_VARIABLES,
    LoopAdapter,
    Strategy,
    environment_of_device,
    environment_of_rank,
    settings_restored,
)
from raybench.training.base import DistributedContext, find_part
from raybench.training.machine import give_back
from raybench.training.ranks import Call, Position, mismatch
from raybench.training.saved import foreign_state_error

UNREPORTED_S, UNREPORTED_BUDGETS = 60.0, 3.0
"""Maximum training time without a report: UNREPORTED_S seconds or UNREPORTED_BUDGETS times
`max_train_seconds`, whichever is more."""
GRACE_S = 60.0
"""Seconds within which the user's function must return after `Run.report` has returned True."""
LOOK_S = 1.0
"""Seconds between two checks of a loop while its next report is awaited."""
SEPARATE_MODELS = (
    "the workers exchanged nothing in the process group of all workers while they trained, so each "
    "trained a separate model; wrap the model with run.prepare"
)
"""Note to the user about a loop that trains a separate model on each worker."""
MAX_REASON = 200
"""Maximum number of characters that an error message quotes from a framework's error."""


class Stopped(BaseException):
    """Raised in the user's function if it trains or reports after `Run.report` returned True."""


class Run:
    """A run, as passed to your training loop: the settings to train with and where to report.

    `--train train.py:train` calls `train(run)` once per run, on every worker. Python, numpy and the
    framework are seeded with `seed` before the call.

    Example:
        >>> def train(run: raybench.Run) -> None:
        ...     for epoch in run.epochs():
        ...         with run.training():
        ...             ...  # train one epoch
        ...         if run.report(accuracy=0.91, samples=50_000):
        ...             return
        >>> raybench.train(train="own_loop.py:train", dry_run=True).plan["workload"]
        'own_loop.py:train'
    """

    def __init__(
        self,
        spec: RunSpec,
        world: DistributedContext,
        ledger: Ledger,
        *,
        resume: RunState | None = None,
    ) -> None:
        """Create a run; `resume` holds the earlier evaluations of a resumed run."""
        self.spec = spec
        """The run spec, with all its keys."""
        self.model: dict[str, Any] = dict(spec.model)
        """Your own settings: the keys under `model` in the run spec."""
        self.learning_rate = scaled_rate(spec)
        """Learning rate to train with, after `learning_rate_scaling`."""
        self.batch_size_per_worker = spec.batch_size_per_worker
        """Number of samples that each worker processes at once."""
        self.global_batch_size = spec.global_batch_size
        """Number of samples of all workers in an optimizer step, including gradient accumulation.
        """
        self.optimizer: str = spec.optimizer
        """Name of the optimizer."""
        self.seed = spec.seed
        """Seed of the run."""
        self.rank = world.rank
        """Rank of this worker, from 0 to `num_workers` - 1."""
        self.num_workers = spec.num_workers
        """Number of workers."""
        self.device = str(getattr(world, "torch_device", world.device))
        """Device of this worker, such as `cpu` or `cuda:0`."""
        self._folder: Path | None = None
        self.strategy: Any = getattr(world, "strategy", None)
        """The `tf.distribute.Strategy` of all workers in TensorFlow; None in other frameworks."""
        earlier = resume.evaluations if resume else ()
        self._world, self._ledger = world, ledger
        is_python = spec.framework == "python"
        adapter_class = LoopAdapter if is_python else find_part(spec.framework, "world").Adapter
        self._adapter: LoopAdapter = adapter_class(world)
        self._memory = self._adapter.memory()
        self._metric = spec.objective.judged_by
        self._rule = StopRule(
            spec.objective,
            values=[evaluation.value for evaluation in earlier],
            train_seconds=[evaluation.train_s for evaluation in earlier],
        )
        self._last: Evaluation | None = earlier[-1] if earlier else None
        """Evaluation of the last report; None before the first report."""
        self._epoch: int | None = None
        """Number of epochs that `epochs` has started; None if the loop does not use `epochs`."""
        self._state: bytes | None = None
        """Last state passed to `save`, or the state from which the run is resumed."""
        self._is_fresh = False
        """Whether `_state` was saved after the last report was answered, so that it belongs to the
        next report."""
        self._test: float | None = None
        """Last value of the metric on the test set; None if it was not reported."""
        self.note: str | None = None
        """Remark for the user about the run, one sentence; None for no remark."""
        self._reports: queue.Queue[Evaluation | BaseException | None] = queue.Queue()
        """Evaluations and errors from the loop's thread; None once the loop has returned."""
        self._stops: queue.Queue[bool] = queue.Queue()
        """Answers to the reports: whether the loop has to stop."""
        self._is_stopped = False
        """Whether the last report was answered with True, to stop."""
        self._num_calls = 0
        """Number of synchronizing calls (`ranks.Call`) that the loop has begun."""
        self._waits_at: Call | None = None
        """Synchronizing call at which this rank waits; None while the loop runs."""
        self._num_exchanges = self._adapter.num_exchanges() or 0
        """Number of collectives that the loop had begun at its last synchronizing call. Only later
        collectives are compared between ranks, because point-to-point messages are counted, too,
        and may make the totals of the ranks differ."""
        self._may_be_joint = spec.num_workers == 1 or is_command(spec.workload)
        """Whether the workers may train a common model: the loop has called `prepare`, or they have
        exchanged something in `training`, or it is unknown whether they have."""

    @property
    def folder(self) -> Path:
        """Temporary folder of this run, shared by its workers on a host; removed after the run."""
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def epochs(self) -> Iterator[int]:
        """Yield the number of each epoch to train, from 0 to one less than `epochs` in the run
        spec.

        A resumed run starts with the epoch after its checkpoint. The iterator ends early once
        `report` has returned True.
        """
        for epoch in range(self._epoch or 0, math.ceil(self.spec.epochs)):
            if self._is_stopped:
                return
            self._epoch = epoch + 1
            yield epoch

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Context manager that counts the time inside as training time.

        Collective: all workers must enter and leave it together. It may be entered several times
        between two reports. Evaluation, setup and the compilation of the first step belong outside.
        """
        self._refuse_stopped()
        self._synchronize_ranks(Call.TRAINING)
        self._ledger.enter("train")
        try:
            yield
            # An unknown number (None) differs, too.
            self._may_be_joint |= self._adapter.num_exchanges() != self._num_exchanges
            self._synchronize_ranks(Call.TRAINED)
        finally:
            self._ledger.enter("eval")

    def report(
        self,
        value: float | None = None,
        *,
        samples: int,
        test: float | None = None,
        **metric: float,
    ) -> bool:
        """Report an evaluation: `report(accuracy=0.91, samples=50_000)`.

        Collective: all workers must call it. The values of all workers are averaged, leaving out
        those that are None. A value that is not finite ends the run as failed (`nan`).

        Args:
            value: Value of the objective's metric on the validation set.
            samples: Number of training samples of all workers together since the last report.
            test: Value of the same metric on the test set; it is only recorded.
            **metric: Value of the objective's metric under its name, instead of `value`.

        Returns:
            Whether to stop training.

        Raises:
            UserError: An argument is invalid, such as an accuracy outside [0, 1], `samples` below
                1, or a keyword that is not the objective's metric. Or there was no training time
                since the last report, or the call is inside `training`.
        """
        self._refuse_stopped()
        if self._ledger.phase == "train":
            raise _report_error(
                "call it outside of `with run.training():`, so that evaluation does not count as "
                "training."
            )
        number = self._metric_value(value, metric)
        if samples < 1:
            raise _report_error(
                f"samples={samples}; pass the number of training samples of all workers since "
                "the last report, 1 or more."
            )
        self._adapter.synchronize()
        self._ledger.enter("report")
        numbers = [math.nan if number is None else number, float(number is None), float(samples)]
        # A command trains in another process, whose memory is unknown.
        is_elsewhere = is_command(self.spec.workload)
        memory = 0.0 if is_elsewhere else float(self._memory.peak() or 0)
        seconds = self._ledger.snapshot()
        rows = self._synchronize_ranks(
            Call.REPORT, *numbers, memory, *(seconds[name] for name in _NAMES)
        )
        ledger = merge_ranks([dict(zip(_NAMES, row[4:], strict=True)) for row in rows])
        most, memory = (max(row[at] for row in rows) for at in (2, 3))
        values = [row[0] for row in rows if not row[1]]
        evaluation = self._evaluation(values, round(most), round(memory), ledger)
        self._test = self._test if test is None else float(test)
        self._reports.put(evaluation)
        self._is_stopped = self._stops.get()
        self._is_fresh = False
        self._ledger.enter("setup")
        return self._is_stopped

    def _evaluation(
        self, values: list[float], samples: int, memory: int, ledger: Mapping[str, float]
    ) -> Evaluation:
        """Return the evaluation of a report, computed from numbers that are equal on all ranks.

        Args:
            values: Values of the metric that the ranks have reported.
            samples: Number of training samples of all workers since the last report.
            memory: Peak memory in bytes of the worker that uses most; 0 if unknown.
            ledger: Seconds by phase, merged over all ranks.
        """
        if not values:
            raise _report_error(f"no worker has reported the {self._metric.name}.")
        value = values[0] if len(set(values)) == 1 else sum(values) / len(values)
        last, train_s = self._last, ledger["train"]
        interval = train_s - (last.train_s if last else 0.0)
        if interval <= 0:
            raise _report_error(
                "no training time since the last report; train inside `with run.training():`."
            )
        index = last.index + 1 if last else 0
        failed = not math.isfinite(value)
        stop = self._rule.update(value=value, train_s=train_s, finished=False)
        self._last = Evaluation(
            index=index,
            epoch=float(self._epoch or index + 1),
            samples=samples + (last.samples if last else 0),
            train_s=train_s,
            train_loss=math.nan,
            value=value,
            learning_rate=self.learning_rate,
            samples_per_s=samples / interval,
            ledger=dict(ledger) | {"input": 0.0},
            best_value=self._rule.best_value,
            time_to_target_s=self._rule.time_to_target_s,
            stop=None if failed else stop,
            failure=Failure.NAN if failed else None,
            memory_peak_bytes=memory or None,
        )
        return self._last

    def prepare(self, model: Any, *, strategy: Strategy = "ddp") -> Any:
        """Prepare a PyTorch model for training: move it to the run's device and, with several
        workers, wrap or shard it.

        Models of other frameworks are returned unchanged.

        Args:
            model: The model, with equal parameters on all workers.
            strategy: With `ddp`, each worker has the whole model (DistributedDataParallel). With
                `fsdp`, parameters, gradients and optimizer state are sharded over the workers, one
                block of layers at a time (`torch.distributed.fsdp.fully_shard`); the optimizer must
                be created afterwards.

        Raises:
            UserError: `strategy` is unknown, or is `fsdp` in a framework other than torch.
        """
        if strategy not in ("ddp", "fsdp") or (
            strategy == "fsdp" and self.spec.framework != "torch"
        ):
            raise UserError(
                f"run.prepare: strategy {strategy!r} is not available in {self.spec.framework}; "
                "use ddp, or in torch also fsdp.",
                ErrorCode.USER_CODE,
            )
        self._may_be_joint = True
        return self._adapter.prepare(model, strategy)

    def save(self, state: Any) -> None:
        """Save the state from which the run can be resumed; call just before `report`.

        Only the state of rank 0 is kept. At the next report, it becomes a checkpoint if
        `checkpoint_every_s` seconds have passed since the previous checkpoint. `raybench train`
        writes the last state to the folder of the run.

        Args:
            state: Bytes; or numbers, strings, tensors, arrays, and lists and dicts of these. For a
                PyTorch or Keras model, its weights are saved.
        """
        if self.rank:
            return
        before = self._ledger.phase
        self._ledger.enter("checkpoint")
        kind, content = ("bytes", state) if isinstance(state, bytes) else self._adapter.pack(state)
        self._state = None  # free the memory of the previous state before the new one is built
        self._state = json.dumps({"kind": kind, "epoch": self._epoch}).encode() + b"\n" + content
        self._is_fresh = True
        self._ledger.enter(before)

    def resume(self) -> Any:
        """Return the state, as passed to `save`, from which a resumed run continues; None in a new
        run."""
        if self._state is None:
            return None
        kind, content = state_of(self._state)
        return content if kind == "bytes" else self._adapter.unpack(content)

    def elapsed_training(self) -> float:
        """Return the training seconds of this worker since the last report."""
        return self._ledger.seconds("train") - (self._last.train_s if self._last else 0.0)

    def override_training_time(self, train_s: float) -> None:
        """Set the training seconds since the last report to `train_s`, as measured by a command.

        If fewer seconds were counted as training, the missing ones are moved from other phases,
        since the command continues to train while its lines wait to be read: first from `report`
        (including the time of waiting for the driver), then from `eval`, then from `setup`. If more
        seconds were counted, the surplus is moved to `eval`; before the first report to `setup`,
        because the surplus then includes the start of the command.
        """
        lack_s = train_s - self.elapsed_training()
        surplus_phase = "setup" if self._last is None else "eval"
        self._ledger.move(max(-lack_s, 0.0), "train", surplus_phase)
        waited_s = self._ledger.seconds("report") + self._ledger.seconds(AWAY)
        for phase, most_s in (
            ("report", waited_s),
            ("eval", self._ledger.seconds("eval")),
            ("setup", self._ledger.seconds("setup")),
        ):
            part_s = min(max(lack_s, 0.0), most_s)
            self._ledger.move(part_s, phase, "train")
            lack_s -= part_s

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of all workers: one row per worker, in rank order.

        Collective: all workers must call it.

        Args:
            values: Numbers of this worker; all workers must pass equally many.
        """
        return self._adapter.gather(values)

    def _metric_value(self, value: float | None, metric: Mapping[str, float]) -> float | None:
        """Return the value of the objective's metric from the arguments of `report`; None if this
        worker reports none.

        Raises:
            UserError: The arguments are invalid.
        """
        named = {OTHER_METRIC_NAMES.get(name, name): number for name, number in metric.items()}
        metric_name = self._metric.name
        if unknown := [name for name in named if name != metric_name]:
            raise _report_error(
                f"{', '.join(unknown)} is not the metric of the objective, {metric_name}; report "
                f"only {metric_name}, or set objective.metric."
            )
        if named and value is not None:
            raise _report_error(f"{metric_name} is reported twice; report it once.")
        given = named.get(metric_name, value)
        number = None if given is None else _to_float(metric_name, given)
        if number is None and self.num_workers == 1:
            raise _report_error(
                f"the metric is missing; call run.report({metric_name}=..., samples=...)."
            )
        if number is None or not self._metric.is_share:
            return number
        if number < -ROUNDING or number > 1 + ROUNDING:
            source = "the command" if is_command(self.spec.workload) else "run.report"
            raise UserError(
                f"{source}: {metric_name}={number:g} is not between 0 and 1; report "
                f"{number / 100:g}, or give percent another name: objective.metric: "
                f"{metric_name}_percent, objective.direction: max.",
                ErrorCode.USER_CODE,
            )
        return number if math.isnan(number) else min(max(number, 0.0), 1.0)

    def _refuse_stopped(self) -> None:
        """Raise Stopped if `report` has returned True."""
        if self._is_stopped:
            raise Stopped

    def _synchronize_ranks(self, call: Call, *values: float) -> list[list[float]]:
        """Wait for all ranks at a synchronizing call, and return the values of each rank.

        The ranks exchange equally many numbers at every call. Therefore ranks that are at different
        calls notice the mismatch, and raise UserError.
        """
        self._adapter.synchronize()
        rest = [0.0] * (_NUM_VALUES - len(values))
        self._num_calls, self._waits_at = self._num_calls + 1, call
        try:
            rows = self._adapter.gather([float(call), *values, *rest])
        # The framework may raise any error if a rank is lost or takes part in another collective.
        except Exception as error:
            why = shorten(" ".join(f"{type(error).__name__}: {error}".split()), MAX_REASON)
            raise UserError(
                f"{self.spec.workload}: rank {self.rank} waited at {call.words} for the others, "
                f"which take part in another collective or are lost; give all ranks equally many "
                f"batches and the same calls ({why}).",
                ErrorCode.USER_CODE,
                details=traceback.format_exc(),
            ) from error
        self._num_exchanges, self._waits_at = self._adapter.num_exchanges() or 0, None
        if (sentence := mismatch([Call(round(row[0])) for row in rows])) is not None:
            raise UserError(f"{self.spec.workload}: {sentence}.", ErrorCode.USER_CODE)
        return [row[1:] for row in rows]


def _report_error(what: str) -> UserError:
    """Return the error for an invalid call of `Run.report`."""
    return UserError(f"run.report: {what}", ErrorCode.USER_CODE)


def _to_float(name: str, value: Any) -> float:
    """Return a reported value as a float: a number, or an array or tensor with a single element.

    Raises:
        UserError: The value is a bool or a string, or has several elements.
    """
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        if not is_truth and not isinstance(value, str | bytes):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        pass  # an array, or not a number at all: raised below
    raise _report_error(
        f"{name} must be one number (found a {type(value).__name__}: "
        f"{shorten(' '.join(repr(value).split()), 40)})."
    )


_NAMES = (*WORKER_PHASES, *CPU_NAMES)
"""Keys of a worker's ledger, of which all values are seconds."""
_NUM_VALUES = 4 + len(_NAMES)
"""Number of values that `Run.report` exchanges between the ranks; other synchronizing calls need
fewer."""


def state_of(saved: bytes) -> tuple[str, bytes]:
    """Return the kind (`bytes`, `torch` or `arrays`) and the content of a state that was saved with
    `Run.save`."""
    head, _, content = saved.partition(b"\n")
    return str(json.loads(head)["kind"]), content


class OwnTrainer:
    """Runs a user's training loop on one worker; takes the place of a `BaseTrainer`."""

    num_parameters = None
    batch_statistics = False

    def __init__(
        self,
        spec: RunSpec,
        loop: Callable[[Run], object],
        world: DistributedContext,
        ledger: Ledger,
        *,
        resume: RunState | None = None,
        compare: Callable[[Position], str | None] = lambda position: None,
    ) -> None:
        """Create a trainer; `evaluations` starts the loop.

        Args:
            spec: The run spec.
            loop: The user's function; called with a `Run`, in a separate thread.
            world: The group of workers.
            ledger: Seconds of this worker by phase.
            resume: State of a resumed run, with its earlier evaluations; None for a new run.
            compare: Function that is called about once a second with this rank's position in the
                loop. If the ranks can never synchronize again, it returns a sentence that says so
                (from `ranks.parting`); otherwise None.
        """
        self._loop, self._spec, self._ledger = loop, spec, ledger
        self._compare = compare
        self._name = "the command" if is_command(spec.workload) else spec.workload
        self._whose = f" on rank {world.rank}" if spec.num_workers > 1 else ""
        """Phrase that names this worker's rank in messages; empty for a single worker."""
        self._end_reason: str | None = None
        """How the function has ended, such as `returned`; None while it runs or if it failed."""
        self.run = Run(spec, world, ledger, resume=resume)
        self.notes: list[str] = []
        """Remarks for the user about the run, one sentence each."""
        self._exchanges: tuple[int | None, float] = None, time.monotonic()
        """Number of collectives that the loop has begun since its last synchronizing call, and the
        time (`time.monotonic`) at which this number changed last."""
        self._thread = threading.Thread(target=self._call, name=self._name, daemon=True)

    def evaluations(self) -> Iterator[Evaluation]:
        """Start the loop, and yield the evaluation of every report.

        The last evaluation has `stop` or `failure` set. If the function returns before that, its
        last evaluation is yielded once more with `stop` set.

        Raises:
            UserError: The function has failed.
        """
        self._thread.start()
        while True:
            reported = self._next()
            if isinstance(reported, BaseException):
                raise reported
            if reported is None:
                if self.run._last is None:
                    metric = self._spec.objective.judged_by.name
                    raise UserError(
                        f"{self._name} ended{self._whose} without reporting its {metric}.",
                        ErrorCode.USER_CODE,
                    )
                reported = replace(self.run._last, stop=StopReason.EPOCHS)
            yield reported
            if reported.stop or reported.failure:
                return
            self.run._stops.put(False)

    def finish(self) -> float | None:
        """Stop the loop; return the metric on the test set, or None if it was not reported.

        Raises:
            UserError: The function has failed, or does not return within GRACE_S seconds.
        """
        if self._thread.ident is None:
            return None
        self.run._stops.put(True)
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            raise UserError(
                f"{self._name} still runs {GRACE_S:.0f} s after run.report returned True; return "
                "from the function then.",
                ErrorCode.USER_CODE,
            )
        while not self.run._reports.empty():
            if isinstance(reported := self.run._reports.get(), BaseException):
                raise reported
        if self.run.note is not None:
            self.notes.append(self.run.note)
        if self.run._last is not None and not self.run._may_be_joint:
            self.notes.append(SEPARATE_MODELS)
        return self.run._test

    def state(self) -> bytes | None:
        """Return the state that the loop saved just before its last report; None if it saved none.

        Ranks other than 0 return b"".
        """
        if self.run.rank:
            return b""
        return self.run._state if self.run._is_fresh else None

    def restore(self, state: bytes) -> None:
        """Set the state from which the loop continues, as returned by the method `state`; call
        before `evaluations`."""
        try:
            head = json.loads(state.partition(b"\n")[0])
            self.run._epoch, self.run._state = head["epoch"], state
            self.run.resume()
        except (ValueError, KeyError, TypeError) as error:
            raise foreign_state_error(error) from None

    def save(self) -> bytes:
        """Return the last state that the loop has saved; b"" if there is none."""
        return self.run._state or b""

    def input_seconds(self) -> float:
        """Return 0, because the time that a user's loop waits for data is unknown."""
        return 0.0

    def close(self) -> None:
        """Stop the loop and release the framework's memory."""
        self.finish()
        gc.collect()  # before `end`, because objects in reference cycles keep their GPU memory
        self.run._adapter.end()
        give_back()

    def _next(self) -> Evaluation | BaseException | None:
        """Wait for the next report.

        Returns:
            The evaluation of the report, an error, or None if the function has returned.
        """
        budget_s = UNREPORTED_BUDGETS * self._spec.objective.max_train_seconds
        while True:
            with contextlib.suppress(queue.Empty):
                reported = self.run._reports.get(timeout=LOOK_S)
                if reported is None:
                    self._check_deadlock()  # ranks that wait for this rank learn that it has left
                return reported
            if (sentence := self._check_deadlock()) is not None:
                stack = "".join(self._stack().format())
                return UserError(f"{self._name}: {sentence}.", ErrorCode.USER_CODE, details=stack)
            trained_s = self.run.elapsed_training()
            if trained_s > max(UNREPORTED_S, budget_s):
                return UserError(
                    f"{self._name} has trained for {trained_s:.0f} s without a report{self._whose},"
                    f" and max_train_seconds is {self._spec.objective.max_train_seconds:g}.",
                    ErrorCode.USER_CODE,
                )

    def _check_deadlock(self) -> str | None:
        """Compare this rank's position in the loop with those of the other ranks; return a sentence
        if the ranks can never synchronize again, otherwise None."""
        run = self.run
        if run.num_workers == 1:
            return None
        number, now = run._adapter.num_exchanges(), time.monotonic()
        number = None if number is None else number - run._num_exchanges
        if number != self._exchanges[0]:
            self._exchanges = number, now
        return self._compare(
            Position(
                rank=run.rank,
                num_calls=run._num_calls,
                waits_at=run._waits_at,
                is_training=self._ledger.phase == "train",
                left=self._end_reason,
                num_exchanges=number,
                still_s=now - self._exchanges[1],
                place=user_code_place(self._stack()),
            )
        )

    def _stack(self) -> traceback.StackSummary:
        """Return the stack of the loop's thread; empty once the thread has ended."""
        return traceback.extract_stack(sys._current_frames().get(self._thread.ident or 0))

    def _call(self) -> None:
        """Call the user's function, and put its error or None into the queue of reports; runs in
        the loop's thread."""
        outcome: BaseException | None = None
        try:
            with user_code_errors(f"{self._name} failed{self._whose}"), settings_restored():
                random.seed(self._spec.seed)
                np.random.seed(self._spec.seed)  # noqa: NPY002 (a user's loop may draw from it)
                self.run._adapter.begin(self._spec.seed)
                self._set_process_environment()
                try:
                    self._loop(self.run)
                    self._end_reason = "returned"
                except SystemExit as ended:
                    if ended.code:
                        raise
                    self._end_reason = f"sys.exit({'' if ended.code is None else ended.code})"
        except Stopped:
            self._end_reason = "returned"  # the loop has continued although `report` returned True
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised)
            outcome = error
        self.run._reports.put(outcome)

    def _set_process_environment(self) -> None:
        """Set the command line, the environment variables and the temporary folder of the loop.

        The command line is that of a script without arguments, for loops that parse it. With torch
        and several workers, LAUNCHER_VARIABLES are set, so that libraries find the other workers.
        With torch and a single worker, they are removed, as for a script that is started directly.
        """
        run = self.run
        sys.argv[:] = [self._spec.workload.rpartition(":")[0]]
        if self._spec.framework == "torch":
            # Computed before the variables are removed, because Ray has set MASTER_ADDR.
            if run.num_workers > 1:
                environment = environment_of_rank(run.rank, run.device, run.gather)
            else:
                environment = environment_of_device(run.device)
            for name in LAUNCHER_VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(environment)
        number = random.SystemRandom().randrange(1 << 50)
        if run.num_workers > 1:
            number = round(run.gather([float(number)])[0][0])
        _remove_last_folder()  # after the gather, when all ranks have left the previous run
        run._folder = Path(tempfile.gettempdir()) / f"run-{number:x}"
        _last_folders[:] = [run._folder]


_last_folders: list[Path] = []
"""Temporary folder of this process's last run; empty before the first run."""


@atexit.register
def _remove_last_folder() -> None:
    """Remove the last run's temporary folder; called before the next run and at process exit."""
    for folder in _last_folders:
        shutil.rmtree(folder, ignore_errors=True)


class PlainWorld(DistributedContext):
    """Distributed context of the framework `python`, which has a single worker."""

    rank, num_workers, through = 0, 1, "none"
    gpus: tuple[int, ...] = ()

    def __init__(self, device: str) -> None:
        self.device = device

    def _adder(self, num_values: int) -> Callable[[], float]:
        return lambda: 0.0

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of the single worker."""
        return [values]
