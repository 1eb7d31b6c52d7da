"""A training loop of the user's own as a run: what it is given (`Run`), and how a worker runs it.

The user's function has a thread of its own. At every `Run.report` it hands an evaluation over and
waits until the driver says whether it goes on, so that `evaluations` is what `training.run.run` is
of a Workload: the same ledger, stop rule, records and checkpoints. A command is such a function
too (`training.command`).
"""

import contextlib
import gc
import io
import json
import math
import queue
import random
import sys
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from raybench.data.memory import GIB
from raybench.models.user_code import user_code_errors, user_code_place
from raybench.spec.errors import UserError
from raybench.spec.metric import OTHER_METRIC_NAMES, ROUNDING
from raybench.spec.objective import StopRule
from raybench.spec.own_loop import is_command
from raybench.spec.run import RunSpec
from raybench.spec.schedule import scaled_rate
from raybench.spec.text import shorten
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import AWAY, CPU_NAMES, WORKER_PHASES, Ledger, merge_ranks
from raybench.stats.record import Evaluation
from raybench.training import loop_signals
from raybench.training.base import World, find_part
from raybench.training.memory import give_back
from raybench.training.ranks import Call, Position, mismatch
from raybench.training.saved import not_ours
from raybench.training.settings import settings_kept

LEAST_S, TIMES = 60.0, 3.0
"""A loop that trains for so many times `max_train_seconds` without a report, `LEAST_S` at the
least, has forgotten to."""
GRACE_S = 60.0
"""Seconds that a function may take to return after it was told to stop."""
LOOK_S = 1.0
MAX_WHY = 200
"""Characters of a framework's error in a sentence."""
LEFT_BYTES = 2 * GIB
"""Bytes that all runs together may leave in memory: more is a leak, and workers are replaced."""


class Stopped(BaseException):
    """Raised in a function that trains or reports after `Run.report` has told it to stop."""


class Run:
    """One training as a loop of your own sees it: what to train with, and whom to report to.

    `--train train.py:train` calls `train(run)` once for every run, on every worker. The random
    numbers of Python, numpy and the framework are seeded with `seed` before.
    """

    def __init__(
        self, spec: RunSpec, world: World, ledger: Ledger, *, resume: RunState | None = None
    ) -> None:
        """`resume`: the run so far, where it is continued."""
        self.spec = spec
        """All keys of the run spec."""
        self.model: dict[str, Any] = dict(spec.model)
        """Your own settings: what stands under `model`."""
        self.learning_rate = scaled_rate(spec)
        """After `learning_rate_scaling`."""
        self.batch_size_per_worker = spec.batch_size_per_worker
        self.global_batch_size = spec.global_batch_size
        """Samples of an optimizer step, of all workers: times `accumulate`, too."""
        self.optimizer: str = spec.optimizer
        self.seed = spec.seed
        self.rank = world.rank
        """0 of `num_workers` is the first."""
        self.num_workers = spec.num_workers
        self.device = str(getattr(world, "torch_device", world.device))
        """Device of this worker: `cpu`, `cuda:0`."""
        self.strategy: Any = getattr(world, "strategy", None)
        """TensorFlow's `tf.distribute.Strategy` of all workers; None of others."""
        earlier = resume.evaluations if resume else ()
        self._world, self._ledger = world, ledger
        self._part = (
            Part() if spec.framework == "python" else find_part(spec.framework, "own").Part()
        )
        self._metric = spec.objective.judged_by
        self._rule = StopRule(
            spec.objective,
            values=[one.value for one in earlier],
            train_seconds=[one.train_s for one in earlier],
        )
        self._samples = resume.samples if resume else 0
        self._index = resume.index if resume else 0
        self._train_s = resume.train_s if resume else 0.0
        """Training seconds up to the last report."""
        self._epoch: int | None = None
        """Epochs that `epochs` has begun; None where it is not used."""
        self._state: bytes | None = None
        self._is_fresh = False
        """Whether `_state` is that of the next report."""
        self._test: float | None = None
        self.note: str | None = None
        """Remark on how it ran, in a sentence."""
        self._told: queue.Queue[Evaluation | BaseException | None] = queue.Queue()
        """Reports that the loop hands over; None once it has returned."""
        self._goes_on: queue.Queue[bool] = queue.Queue()
        self._is_stopped = False
        self._num_calls = 0
        """Calls so far at which all ranks meet."""
        self._waits_at: Call | None = None
        self._num_exchanges = self._part.num_exchanges() or 0
        """Collectives of the loop's own up to the last call at which all ranks met: point-to-point
        messages may have made them differ between ranks."""

    def epochs(self) -> Iterator[int]:
        """Yield 0, 1, ... up to the run spec's `epochs`, from where a continued run is; ends early
        once `report` has said stop."""
        for epoch in range(self._epoch or 0, math.ceil(self.spec.epochs)):
            if self._is_stopped:
                return
            self._epoch = epoch + 1
            yield epoch

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Put what is done inside on the clock, on all workers alike; any number of times between
        two reports. All else (evaluation, set-up, what compiles a first step) is another phase."""
        self._refuse_stopped()
        self._meet(Call.TRAINING)
        self._ledger.enter("train")
        try:
            yield
            self._meet(Call.TRAINED)
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
        """Report an evaluation: `report(accuracy=0.91, samples=50_000)`; return whether to stop.

        `value`, or under its name the objective's metric, on the validation set: of several workers
        the mean of what they report, where one may report none. `samples`: what all workers have
        trained since the last report, together. `test`: the same metric on the test set, for the
        record alone. A value that is not finite ends the run as failed (`nan`).
        """
        self._refuse_stopped()
        given = self._value(value, metric)
        if samples < 1:
            raise UserError(
                f"run.report: samples={samples}; name the training samples of all workers since "
                "the last report, 1 or more."
            )
        self._part.synchronise(self._world)
        self._ledger.enter("report")
        own = [math.nan if given is None else given, float(given is None), float(samples)]
        seconds = self._ledger.snapshot()
        rows = self._meet(Call.REPORT, *own, *(seconds[name] for name in _NAMES))
        ledger = merge_ranks([dict(zip(_NAMES, row[3:], strict=True)) for row in rows])
        evaluation = self._evaluation(
            [row[0] for row in rows if not row[1]], round(max(row[2] for row in rows)), ledger
        )
        self._test = self._test if test is None else float(test)
        self._told.put(evaluation)
        self._is_stopped = self._goes_on.get()
        self._is_fresh = False
        self._ledger.enter("setup")
        return self._is_stopped

    def _evaluation(
        self, values: list[float], samples: int, ledger: Mapping[str, float]
    ) -> Evaluation:
        """Return the next point of the curve, from numbers that all ranks share."""
        if not values:
            raise UserError(f"run.report: no worker has named the {self._metric.name}.")
        value = values[0] if len(set(values)) == 1 else sum(values) / len(values)
        train_s, index = ledger["train"], self._index
        if train_s <= self._train_s:
            raise UserError(
                "run.report: nothing was on the clock since the last report; train in `with "
                "run.training():`."
            )
        interval, self._train_s = train_s - self._train_s, train_s
        self._samples, self._index = self._samples + samples, index + 1
        failed = not math.isfinite(value)
        stop = self._rule.update(value=value, train_s=train_s, finished=False)
        return Evaluation(
            index=index,
            epoch=float(self._epoch or index + 1),
            samples=self._samples,
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
        )

    def prepare(self, model: Any) -> Any:
        """Return a model of PyTorch on the run's device, of several workers in
        DistributedDataParallel; any other as it is."""
        return self._part.prepare(model, self._world)

    def save(self, state: Any) -> None:
        """Hand over what the run can be continued from; before the report that it belongs to.

        Bytes, or numbers, text, tensors, arrays and lists and dicts of them; a model of PyTorch or
        Keras stands for its weights. That of rank 0 counts. It is kept every `checkpoint_every_s`,
        at a report, and the last one is what `raybench train` leaves in its folder.
        """
        if self.rank:
            return
        before = self._ledger.phase
        self._ledger.enter("checkpoint")
        kind, content = ("bytes", state) if isinstance(state, bytes) else self._part.pack(state)
        self._state = None  # its memory is taken by the new one
        self._state = json.dumps({"kind": kind, "epoch": self._epoch}).encode() + b"\n" + content
        self._is_fresh = True
        self._ledger.enter(before)

    def resume(self) -> Any:
        """Return what `save` was given where the run is continued; None at its beginning."""
        if self._state is None:
            return None
        kind, content = state_of(self._state)
        return content if kind == "bytes" else self._part.unpack(content)

    def on_clock(self) -> float:
        """Return the seconds on this worker's clock since the last report."""
        return self._ledger.seconds("train") - self._train_s

    def took(self, train_s: float, rest: str = "eval") -> None:
        """Set the training seconds since the last report, which somebody else has measured.

        What was on the clock beyond them is of the phase `rest`. What lacks, as where a command
        trains on while its lines wait, comes from the phases that ran meanwhile: from waiting for
        the driver (whose own account counts that as `report`), then evaluation, then set-up.
        """
        lack_s = train_s - self.on_clock()
        self._ledger.move(max(-lack_s, 0.0), "train", rest)
        waited_s = self._ledger.seconds("report") + self._ledger.seconds(AWAY)
        for phase, most_s in (
            ("report", waited_s),
            ("eval", self._ledger.seconds("eval")),
            ("setup", self._ledger.seconds("setup")),
        ):
            part_s = min(max(lack_s, 0.0), most_s)
            self._ledger.move(part_s, phase, "train")
            lack_s -= part_s

    def _value(self, value: float | None, metric: Mapping[str, float]) -> float | None:
        named = {OTHER_METRIC_NAMES.get(name, name): one for name, one in metric.items()}
        wanted = self._metric.name
        if unknown := [name for name in named if name != wanted]:
            raise UserError(
                f"run.report: {', '.join(unknown)} is not what runs are judged by, {wanted}; name "
                "that alone, or set objective.metric."
            )
        if named and value is not None:
            raise UserError(f"run.report: {wanted} stands there twice; name it once.")
        given = named.get(wanted, value)
        found = None if given is None else _number(wanted, given)
        if found is None and self.num_workers == 1:
            raise UserError(f"run.report: name it, as run.report({wanted}=..., samples=...).")
        if found is None or not self._metric.is_share:
            return found
        if found < -ROUNDING or found > 1 + ROUNDING:
            raise UserError(f"run.report: {wanted}={found:g} is no share; report 0.91, not 91.")
        return found if math.isnan(found) else min(max(found, 0.0), 1.0)

    def _refuse_stopped(self) -> None:
        if self._is_stopped:
            raise Stopped

    def _meet(self, call: Call, *values: float) -> list[list[float]]:
        """Wait for all ranks at a call; return the values of each. UserError if another rank is at
        another call: all rows have one length, so that the ranks meet and can tell."""
        self._part.synchronise(self._world)
        rest = [0.0] * (_NUM_VALUES - len(values))
        self._num_calls, self._waits_at = self._num_calls + 1, call
        try:
            rows = self._part.gather(self._world, [float(call), *values, *rest])
        except Exception as error:  # any of a framework's: another rank is lost, or elsewhere
            why = shorten(" ".join(f"{type(error).__name__}: {error}".split()), MAX_WHY)
            raise UserError(
                f"{self.spec.workload}: rank {self.rank} waited at {call.words} for the others, "
                f"which take part in another exchange or are lost; give all ranks as many batches "
                f"and the same calls ({why}).",
                details=traceback.format_exc(),
            ) from error
        self._num_exchanges, self._waits_at = self._part.num_exchanges() or 0, None
        if (sentence := mismatch([Call(round(row[0])) for row in rows])) is not None:
            raise UserError(f"{self.spec.workload}: {sentence}.")
        return [row[1:] for row in rows]


def _number(name: str, value: Any) -> float:
    """Return a reported value as a float: a number, or a scalar of numpy or a framework.

    Raises:
        UserError: it is a truth value, text, or of more than one element.
    """
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        if not is_truth and not isinstance(value, str | bytes):
            return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        pass  # an array, or nothing like a number: said below
    raise UserError(
        f"run.report: {name} must be one number (found a {type(value).__name__}: "
        f"{shorten(' '.join(repr(value).split()), 40)})."
    )


_NAMES = (*WORKER_PHASES, *CPU_NAMES)
_NUM_VALUES = 3 + len(_NAMES)
"""Values of `Run.report`, the call that hands over the most."""


def state_of(saved: bytes) -> tuple[str, bytes]:
    """Return the kind of what `Run.save` was given (`bytes`, `torch` or `arrays`) and its bytes."""
    head, _, content = saved.partition(b"\n")
    return str(json.loads(head)["kind"]), content


STATE_FILES = {"bytes": "state.bin", "torch": "state.pt", "arrays": "state.npz"}
"""Files in which `raybench train` leaves the state of a loop, by its kind."""
_first_bytes: list[int] = []
"""Memory of this process after its first run."""


class OwnTrainer:
    """A worker's side of a run whose loop is the user's own, in place of a `Trainer`."""

    num_parameters = None
    batch_statistics = False

    def __init__(
        self,
        spec: RunSpec,
        loop: Callable[[Run], object],
        world: World,
        ledger: Ledger,
        *,
        resume: RunState | None = None,
        compare: Callable[[Position], str | None] = lambda position: None,
    ) -> None:
        """`compare` is given this rank's position now and then, and returns a sentence where the
        ranks can never meet again (`ranks.parting` of all positions)."""
        self._loop, self._spec, self._ledger = loop, spec, ledger
        self._compare = compare
        self._name = "the command" if is_command(spec.workload) else spec.workload
        self._whose = f" on rank {world.rank}" if spec.num_workers > 1 else ""
        self._left: str | None = None
        """End of the function without an error; None before."""
        self.run = Run(spec, world, ledger, resume=resume)
        self._exchanges: tuple[int | None, float] = None, time.monotonic()
        """Collectives that the loop has begun, and when that number was last seen to change."""
        self._last = resume.evaluations[-1] if resume else None
        self._thread = threading.Thread(target=self._call, name=self._name, daemon=True)

    def evaluations(self) -> Iterator[Evaluation]:
        """Yield at every report; the last has `stop` or `failure`, and comes again where the
        function returns by itself. UserError for what goes wrong in it."""
        self._thread.start()
        while True:
            told = self._next()
            if isinstance(told, BaseException):
                raise told
            if told is None:
                if self._last is None:
                    metric = self._spec.objective.judged_by.name
                    raise UserError(
                        f"{self._name} ended{self._whose} and has not reported its {metric}."
                    )
                told = replace(self._last, stop="epochs")
            self._last = told
            yield told
            if told.stop or told.failure:
                return
            self.run._goes_on.put(False)

    def finish(self) -> float | None:
        """Let the function return; give the metric on the test set, where it has reported one.

        UserError where it does not return, or fails, although it was told to stop.
        """
        if self._thread.ident is None:
            return None
        self.run._goes_on.put(True)
        self._thread.join(GRACE_S)
        if self._thread.is_alive():
            raise UserError(
                f"{self._name} has gone on for {GRACE_S:.0f} s after run.report had said stop; "
                "return where it is True."
            )
        while not self.run._told.empty():
            if isinstance(told := self.run._told.get(), BaseException):
                raise told
        return self.run._test

    def note(self) -> str | None:
        """Return what there is to say of how it ran, in a sentence; None: nothing."""
        return self.run.note or loop_signals.note()

    def state(self) -> bytes | None:
        """Return what `Run.save` was given last; None without, b"" on all ranks but the first."""
        if self.run.rank:
            return b""
        return self.run._state if self.run._is_fresh else None

    def restore(self, state: bytes) -> None:
        """Go on from what `state` returned."""
        try:
            head = json.loads(state.partition(b"\n")[0])
            self.run._epoch, self.run._state = head["epoch"], state
            self.run.resume()
        except (ValueError, KeyError, TypeError) as error:
            raise not_ours(error) from None

    def save(self) -> bytes:
        """Return what `Run.save` was given last; nothing where it never was."""
        return self.run._state or b""

    def input_seconds(self) -> float:
        """Return 0: what waits for data is not known of a loop of the user's own."""
        return 0.0

    def close(self) -> None:
        """Release what the framework holds; UserError where runs leave more and more memory."""
        self.finish()
        gc.collect()  # first: what is still referred to in circles stays in a GPU's cache
        self.run._part.end()
        give_back()
        used = psutil.Process().memory_info().rss
        _first_bytes[:] = _first_bytes or [used]
        if used - _first_bytes[0] > LEFT_BYTES:
            raise UserError(
                f"{self._name} has left {(used - _first_bytes[0]) / GIB:.1f} GiB in memory since "
                "its first run here: the workers are replaced."
            )

    def _next(self) -> Evaluation | BaseException | None:
        most_s = max(LEAST_S, TIMES * self._spec.objective.max_train_seconds)
        while True:
            with contextlib.suppress(queue.Empty):
                told = self.run._told.get(timeout=LOOK_S)
                if told is None:
                    self._parting()  # others may wait for this rank: they learn that it has left
                return told
            if (sentence := self._parting()) is not None:
                stack = "".join(self._stack().format())
                return UserError(f"{self._name}: {sentence}.", details=stack)
            trained_s = self._ledger.seconds("train") - self.run._train_s
            if trained_s > most_s:
                return UserError(
                    f"{self._name} has trained for {trained_s:.0f} s without a report{self._whose},"
                    f" and max_train_seconds is {self._spec.objective.max_train_seconds:g}."
                )

    def _parting(self) -> str | None:
        """Compare this rank's position with the others'."""
        run = self.run
        if run.num_workers == 1:
            return None
        number, now = run._part.num_exchanges(), time.monotonic()
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
        """Return what the loop is doing; nothing once it has ended."""
        return traceback.extract_stack(sys._current_frames().get(self._thread.ident or 0))

    def _call(self) -> None:
        """Run the user's function; in its own thread."""
        told: BaseException | None = None
        try:
            with user_code_errors(f"{self._name} failed{self._whose}"), settings_kept():
                random.seed(self._spec.seed)
                np.random.seed(self._spec.seed)  # noqa: NPY002 (what a user's loop may draw from)
                self.run._part.begin(self.run._world, self._spec.seed)
                try:
                    self._loop(self.run)
                    self._left = "returned"
                except SystemExit as ended:
                    if ended.code:
                        raise
                    self._left = f"sys.exit({'' if ended.code is None else ended.code})"
        except Stopped:
            self._left = "returned"  # it did not look at what report returned
        except BaseException as error:  # noqa: BLE001 (user code may raise anything; it is raised)
            told = error
        self.run._told.put(told)


class PlainWorld(World):
    """The place of a worker of framework `python`, which has no others to talk to."""

    rank, num_workers, through = 0, 1, "none"
    gpus: tuple[int, ...] = ()

    def __init__(self, device: str) -> None:
        self.device = device

    def _adder(self, num_values: int) -> Callable[[], float]:
        return lambda: 0.0

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of the one worker."""
        return [values]


class Part:
    """Functions that a loop needs of its framework: of `python` nothing; torch and tensorflow have
    their own, in a module of this name."""

    def begin(self, world: Any, seed: int) -> None:
        """Seed a run, in the thread of the loop; Python and numpy are."""

    def synchronise(self, world: Any) -> None:
        """Wait for the devices of whatever library the loop has imported: calls of JAX and of
        PyTorch on GPUs return before their work is done."""
        if (jax := sys.modules.get("jax")) is not None:
            jax.effects_barrier()
            jax.block_until_ready([one for one in jax.live_arrays() if not one.is_deleted()])
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def gather(self, world: Any, values: list[float]) -> list[list[float]]:
        """Return every rank's values, in rank order, apart from what the loop itself exchanges."""
        rows: list[list[float]] = world.gather(values)
        return rows

    def num_exchanges(self) -> int | None:
        """Return the number of collectives that the loop has begun so far; None if unknown."""
        return None

    def prepare(self, model: Any, world: Any) -> Any:
        """Return a model as `Run.prepare` does."""
        return model

    def end(self) -> None:
        """Release what the framework holds of a run."""

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Return a kind and the bytes of plain data and arrays; UserError for anything else."""
        return "arrays", pack_arrays(state)

    def unpack(self, content: bytes) -> Any:
        """Return what `pack` was given."""
        return unpack_arrays(content)


PLAIN = (bool, int, float, str, type(None))


def pack_arrays(state: Any) -> bytes:
    """Return plain data and whatever numpy takes for an array as an `.npz` file, without pickle.

    UserError for anything else.
    """
    arrays: list[Any] = []

    def plain(value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, dict):
            return {"keys": list(map(str, value)), "values": [plain(one) for one in value.values()]}
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        arrays.append(np.asarray(value))
        if arrays[-1].dtype.hasobject:
            raise not_savable(value)
        return {"array": len(arrays) - 1}

    buffer, tree = io.BytesIO(), json.dumps(plain(state))
    named = {str(index): one for index, one in enumerate(arrays)}
    np.savez(buffer, allow_pickle=False, tree=np.array(tree), **named)
    return buffer.getvalue()


def unpack_arrays(content: bytes) -> Any:
    """Return what `pack_arrays` was given; tuples as lists."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise not_ours(error) from None

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[str(value["array"])]
        return dict(zip(value["keys"], map(whole, value["values"]), strict=True))

    return whole(json.loads(str(arrays["tree"])))


def not_savable(value: object) -> UserError:
    """Return the error of what `Run.save` cannot keep."""
    return UserError(
        f"run.save: a {type(value).__name__} cannot be kept; hand over numbers, text, arrays or "
        "tensors, and lists and dicts of them, or bytes of your own making."
    )
