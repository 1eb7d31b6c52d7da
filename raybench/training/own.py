"""User training loops: the `Run` object that a loop receives, and the worker that runs it.

The user's function runs in its own thread. At every `Run.report` the function hands over an
evaluation and waits until the driver decides whether to continue, so that `OwnTrainer.evaluations`
behaves like `training.run.run`: same ledger (seconds by phase), stop rule, records and checkpoints.
A command, too, is run by such a function (`training.command`).
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
from raybench.spec.objective import StopRule
from raybench.spec.own_loop import is_command
from raybench.spec.run import RunSpec
from raybench.spec.schedule import scaled_rate
from raybench.spec.text import shorten
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import AWAY, CPU_NAMES, WORKER_PHASES, Ledger, merge_ranks
from raybench.stats.record import Evaluation
from raybench.training.adapter import (
    LAUNCHER_VARIABLES,
    LoopAdapter,
    Strategy,
    environment_of_device,
    environment_of_rank,
    settings_kept,
)
from raybench.training.base import DistributedContext, find_part
from raybench.training.memory import give_back
from raybench.training.ranks import Call, Position, mismatch
from raybench.training.saved import foreign_state_error

UNREPORTED_S, UNREPORTED_BUDGETS = 60.0, 3.0
"""Longest training without a report: UNREPORTED_S seconds, or UNREPORTED_BUDGETS times
`max_train_seconds` if that is more."""
GRACE_S = 60.0
"""Seconds that the user's function may take to return after it was told to stop."""
LOOK_S = 1.0
"""Seconds between two checks of a loop that has not reported."""
MAX_REASON = 200
"""Characters of a framework's error that our error message quotes."""


class Stopped(BaseException):
    """Raised in the user's function if it trains or reports after `Run.report` told it to stop."""


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
        """All keys of the run spec."""
        self.model: dict[str, Any] = dict(spec.model)
        """Your own settings: the keys under `model`."""
        self.learning_rate = scaled_rate(spec)
        """Learning rate after `learning_rate_scaling`."""
        self.batch_size_per_worker = spec.batch_size_per_worker
        self.global_batch_size = spec.global_batch_size
        """Samples per optimizer step over all workers, gradient accumulation included."""
        self.optimizer: str = spec.optimizer
        self.seed = spec.seed
        self.rank = world.rank
        """Rank of this worker, from 0 to `num_workers` - 1."""
        self.num_workers = spec.num_workers
        self.device = str(getattr(world, "torch_device", world.device))
        """Device of this worker: `cpu`, `cuda:0`."""
        self._folder: Path | None = None
        self.strategy: Any = getattr(world, "strategy", None)
        """The `tf.distribute.Strategy` of all workers in TensorFlow, otherwise None."""
        earlier = resume.evaluations if resume else ()
        self._world, self._ledger = world, ledger
        adapter_class = (
            LoopAdapter if spec.framework == "python" else find_part(spec.framework, "own").Adapter
        )
        self._adapter: LoopAdapter = adapter_class(world)
        self._memory = self._adapter.memory()
        self._metric = spec.objective.judged_by
        self._rule = StopRule(
            spec.objective,
            values=[evaluation.value for evaluation in earlier],
            train_seconds=[evaluation.train_s for evaluation in earlier],
        )
        self._last: Evaluation | None = earlier[-1] if earlier else None
        """Evaluation of the last report."""
        self._epoch: int | None = None
        """Number of epochs that `epochs` has started; None if the loop does not use `epochs`."""
        self._state: bytes | None = None
        self._is_fresh = False
        """Whether `_state` belongs to the next report."""
        self._test: float | None = None
        self.note: str | None = None
        """Remark on the run for the user, one sentence."""
        self._reports: queue.Queue[Evaluation | BaseException | None] = queue.Queue()
        """Evaluations and errors from the loop's thread; None once the loop has returned."""
        self._stops: queue.Queue[bool] = queue.Queue()
        """Replies to the reports: whether to stop."""
        self._is_stopped = False
        self._num_calls = 0
        """Calls so far that synchronize the ranks (`ranks.Call`)."""
        self._waits_at: Call | None = None
        self._num_exchanges = self._adapter.num_exchanges() or 0
        """Collectives of the loop up to the last synchronizing call; only later ones are compared
        between ranks, as point-to-point messages may make totals differ."""

    @property
    def folder(self) -> Path:
        """Temporary folder of this run, shared by its workers on a host; removed after the run."""
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def epochs(self) -> Iterator[int]:
        """Yield the epochs 0, 1, ... below the run spec's `epochs`.

        A resumed run starts at its next epoch. Ends early once `report` has returned True.
        """
        for epoch in range(self._epoch or 0, math.ceil(self.spec.epochs)):
            if self._is_stopped:
                return
            self._epoch = epoch + 1
            yield epoch

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Context manager: count the time inside as training time.

        Collective: all workers must enter and leave it together. May be entered several times
        between two reports. Do evaluation, setup and the compilation of a first step outside.
        """
        self._refuse_stopped()
        self._synchronize_ranks(Call.TRAINING)
        self._ledger.enter("train")
        try:
            yield
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

        Collective: all workers must call it. The values of several workers are averaged, without
        those that are None. A value that is not finite ends the run as failed (`nan`).

        Args:
            value: The objective's metric on the validation set.
            samples: Training samples of all workers together since the last report.
            test: The same metric on the test set; only recorded.
            **metric: The objective's metric by its name, instead of `value`.

        Returns:
            Whether to stop training.

        Raises:
            UserError: The value is not one number, a metric such as accuracy is not in [0, 1],
                `samples` is less than 1, the keyword is not the objective's metric, or there was
                no training time since the last report.
        """
        self._refuse_stopped()
        number = self._value(value, metric)
        if samples < 1:
            raise _misuse(
                f"samples={samples}; pass the number of training samples of all workers since "
                "the last report, 1 or more."
            )
        self._adapter.synchronize()
        self._ledger.enter("report")
        numbers = [math.nan if number is None else number, float(number is None), float(samples)]
        # A command trains in a process of its own.
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
        """Return the next evaluation, computed from numbers that are the same on all ranks."""
        if not values:
            raise _misuse(f"no worker has reported the {self._metric.name}.")
        value = values[0] if len(set(values)) == 1 else sum(values) / len(values)
        last, train_s = self._last, ledger["train"]
        interval = train_s - (last.train_s if last else 0.0)
        if interval <= 0:
            raise _misuse(
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
            failure="nan" if failed else None,
            memory_peak_bytes=memory or None,
        )
        return self._last

    def prepare(self, model: Any, *, strategy: Strategy = "ddp") -> Any:
        """Move a PyTorch model to the run's device and, with several workers, wrap or shard it;
        models of other frameworks are returned unchanged.

        Args:
            model: The model, with equal parameters on all workers.
            strategy: `ddp`: each worker holds the whole model (DistributedDataParallel). `fsdp`:
                parameters, gradients and optimizer state are sharded over the workers, one block of
                layers at a time (`torch.distributed.fsdp.fully_shard`); create the optimizer
                afterwards.

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
        return self._adapter.prepare(model, strategy)

    def save(self, state: Any) -> None:
        """Save the state from which the run can be resumed; call just before `report`.

        Only rank 0's state is kept. At a report it becomes a checkpoint if `checkpoint_every_s` has
        passed since the previous one; `raybench train` writes the last state to its folder.

        Args:
            state: Bytes, or numbers, strings, tensors, arrays, and lists and dicts of these. Of a
                PyTorch or Keras model, the weights are saved.
        """
        if self.rank:
            return
        before = self._ledger.phase
        self._ledger.enter("checkpoint")
        kind, content = ("bytes", state) if isinstance(state, bytes) else self._adapter.pack(state)
        self._state = None  # frees its memory for the new one
        self._state = json.dumps({"kind": kind, "epoch": self._epoch}).encode() + b"\n" + content
        self._is_fresh = True
        self._ledger.enter(before)

    def resume(self) -> Any:
        """Return the saved state from which a resumed run continues; None in a new run."""
        if self._state is None:
            return None
        kind, content = state_of(self._state)
        return content if kind == "bytes" else self._adapter.unpack(content)

    def elapsed_training(self) -> float:
        """Return the training seconds of this worker since the last report."""
        return self._ledger.seconds("train") - (self._last.train_s if self._last else 0.0)

    def override_training_time(self, train_s: float) -> None:
        """Set the training seconds since the last report to `train_s`, measured elsewhere.

        Surplus seconds become `eval`, those before the first report `setup`: a command starts up
        then. Missing seconds (a command trains on while its lines wait to
        be read) are taken from the phase `report`, which here includes waiting for the driver, then
        from `eval`, then from `setup`.
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
        """Return the values of every worker, by rank. Collective: all workers must call it.

        Args:
            values: Numbers of this worker; all workers must pass the same number of them.
        """
        return self._adapter.gather(values)

    def _value(self, value: float | None, metric: Mapping[str, float]) -> float | None:
        named = {OTHER_METRIC_NAMES.get(name, name): number for name, number in metric.items()}
        metric_name = self._metric.name
        if unknown := [name for name in named if name != metric_name]:
            raise _misuse(
                f"{', '.join(unknown)} is not the metric of the objective, {metric_name}; report "
                f"only {metric_name}, or set objective.metric."
            )
        if named and value is not None:
            raise _misuse(f"{metric_name} is reported twice; report it once.")
        given = named.get(metric_name, value)
        number = None if given is None else _number(metric_name, given)
        if number is None and self.num_workers == 1:
            raise _misuse(
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
        if self._is_stopped:
            raise Stopped

    def _synchronize_ranks(self, call: Call, *values: float) -> list[list[float]]:
        """Wait for all ranks at a synchronizing call; return the values of each rank.

        Rows have the same length for every call, so that ranks at different calls can exchange
        them and raise UserError.
        """
        self._adapter.synchronize()
        rest = [0.0] * (_NUM_VALUES - len(values))
        self._num_calls, self._waits_at = self._num_calls + 1, call
        try:
            rows = self._adapter.gather([float(call), *values, *rest])
        except Exception as error:  # any framework error: a rank is lost or in another collective
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


def _misuse(what: str) -> UserError:
    """Return the error for an invalid call of `Run.report`."""
    return UserError(f"run.report: {what}", ErrorCode.USER_CODE)


def _number(name: str, value: Any) -> float:
    """Return a reported value as a float; it may be a number or a scalar of numpy or a framework.

    Raises:
        UserError: The value is a bool or a string, or has more than one element.
    """
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        if not is_truth and not isinstance(value, str | bytes):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        pass  # an array, or not a number at all: raised below
    raise _misuse(
        f"{name} must be one number (found a {type(value).__name__}: "
        f"{shorten(' '.join(repr(value).split()), 40)})."
    )


_NAMES = (*WORKER_PHASES, *CPU_NAMES)
_NUM_VALUES = 4 + len(_NAMES)
"""Number of values that `Run.report` exchanges, more than any other synchronizing call."""


def state_of(saved: bytes) -> tuple[str, bytes]:
    """Return kind (`bytes`, `torch` or `arrays`) and content of a state that `Run.save` kept."""
    head, _, content = saved.partition(b"\n")
    return str(json.loads(head)["kind"]), content


STATE_FILES = {"bytes": "state.bin", "torch": "state.pt", "arrays": "state.npz"}
"""Name of the file to which `raybench train` writes a loop's last state, by kind of state."""


class OwnTrainer:
    """Worker side of a run with a user training loop; used instead of a `BaseTrainer`."""

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
        """Prepare to run `loop`.

        Args:
            spec: The run spec.
            loop: The user's function; called with a `Run`, in its own thread.
            world: The workers of the group.
            ledger: Seconds of this worker by phase.
            resume: Evaluations so far of a resumed run.
            compare: Called about once a second with this rank's position; returns a sentence if the
                ranks can never synchronize again (`ranks.parting` of all positions).
        """
        self._loop, self._spec, self._ledger = loop, spec, ledger
        self._compare = compare
        self._name = "the command" if is_command(spec.workload) else spec.workload
        self._whose = f" on rank {world.rank}" if spec.num_workers > 1 else ""
        self._left: str | None = None
        """How the function ended without an error, such as `returned`; None until then."""
        self.run = Run(spec, world, ledger, resume=resume)
        self.notes: list[str] = []
        """Remarks on the run for the user, in sentences."""
        self._exchanges: tuple[int | None, float] = None, time.monotonic()
        """Number of collectives that the loop has begun, and the time of its last change."""
        self._thread = threading.Thread(target=self._call, name=self._name, daemon=True)

    def evaluations(self) -> Iterator[Evaluation]:
        """Yield the evaluation of every report; the last one has `stop` or `failure` set.

        If the function returns by itself, its last evaluation is yielded again with `stop` set.
        Raises UserError if the function fails.
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
                reported = replace(self.run._last, stop="epochs")
            yield reported
            if reported.stop or reported.failure:
                return
            self.run._stops.put(False)

    def finish(self) -> float | None:
        """Stop the function; return the metric on the test set, or None if it was not reported.

        Raises UserError if the function fails or does not return.
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
        return self.run._test

    def state(self) -> bytes | None:
        """Return the state saved for the last report, or None; b"" on ranks other than 0."""
        if self.run.rank:
            return b""
        return self.run._state if self.run._is_fresh else None

    def restore(self, state: bytes) -> None:
        """Continue from a state that `state` returned."""
        try:
            head = json.loads(state.partition(b"\n")[0])
            self.run._epoch, self.run._state = head["epoch"], state
            self.run.resume()
        except (ValueError, KeyError, TypeError) as error:
            raise foreign_state_error(error) from None

    def save(self) -> bytes:
        """Return the last state passed to `Run.save`; b"" if there is none."""
        return self.run._state or b""

    def input_seconds(self) -> float:
        """Return 0: the time that a user's loop waits for data is unknown."""
        return 0.0

    def close(self) -> None:
        """Release the framework's memory."""
        self.finish()
        gc.collect()  # before `end`: objects in reference cycles would keep their GPU memory
        self.run._adapter.end()
        give_back()

    def _next(self) -> Evaluation | BaseException | None:
        """Wait for the next report, an error, or None once the function has returned."""
        budget_s = UNREPORTED_BUDGETS * self._spec.objective.max_train_seconds
        while True:
            with contextlib.suppress(queue.Empty):
                reported = self.run._reports.get(timeout=LOOK_S)
                if reported is None:
                    self._check_deadlock()  # tells ranks that wait for this one that it has left
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
        """Send this rank's position for comparison; return a sentence if the ranks can never
        synchronize again."""
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
                left=self._left,
                num_exchanges=number,
                still_s=now - self._exchanges[1],
                place=user_code_place(self._stack()),
            )
        )

    def _stack(self) -> traceback.StackSummary:
        """Return the stack of the loop's thread; empty once it has ended."""
        return traceback.extract_stack(sys._current_frames().get(self._thread.ident or 0))

    def _call(self) -> None:
        """Call the user's function; runs in its own thread."""
        outcome: BaseException | None = None
        try:
            with user_code_errors(f"{self._name} failed{self._whose}"), settings_kept():
                random.seed(self._spec.seed)
                np.random.seed(self._spec.seed)  # noqa: NPY002 (a user's loop may draw from it)
                self.run._adapter.begin(self._spec.seed)
                self._set_surroundings()
                try:
                    self._loop(self.run)
                    self._left = "returned"
                except SystemExit as ended:
                    if ended.code:
                        raise
                    self._left = f"sys.exit({'' if ended.code is None else ended.code})"
        except Stopped:
            self._left = "returned"  # the loop went on although `report` returned True
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised)
            outcome = error
        self.run._reports.put(outcome)

    def _set_surroundings(self) -> None:
        """Set the run's folder and, for torch, the variables by which libraries find the other
        workers.

        For a single worker these are removed, as in a script that is started directly. The command
        line is that of a script without arguments, for loops that parse it.
        """
        run = self.run
        sys.argv[:] = [self._spec.workload.rpartition(":")[0]]
        if self._spec.framework == "torch":
            if run.num_workers > 1:  # before these are removed: reads MASTER_ADDR, set by Ray
                found = environment_of_rank(run.rank, run.device, run.gather)
            else:
                found = environment_of_device(run.device)
            for name in LAUNCHER_VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(found)
        number = random.SystemRandom().randrange(1 << 50)
        if run.num_workers > 1:
            number = round(run.gather([float(number)])[0][0])
        _remove_left_folders()  # after the gather: no rank is in the previous run any more
        run._folder = Path(tempfile.gettempdir()) / f"run-{number:x}"
        _left_folders[:] = [run._folder]


_left_folders: list[Path] = []
"""Temporary folder of this process's last run; empty before the first run."""


@atexit.register
def _remove_left_folders() -> None:
    """Remove the last run's temporary folder; called before the next run and at process exit."""
    for folder in _left_folders:
        shutil.rmtree(folder, ignore_errors=True)


class PlainWorld(DistributedContext):
    """Distributed context for framework `python`, which has a single worker."""

    rank, num_workers, through = 0, 1, "none"
    gpus: tuple[int, ...] = ()

    def __init__(self, device: str) -> None:
        self.device = device

    def _adder(self, num_values: int) -> Callable[[], float]:
        return lambda: 0.0

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of the single worker."""
        return [values]
