"""Callbacks for existing trainers: they time the training, report evaluations and stop the run.

    transformers.Trainer(..., callbacks=[HuggingFace(run)])
    lightning.Trainer(callbacks=[Lightning(run)])
    model.fit(..., callbacks=[Keras(run)])

`metric` is the name of the metric in the trainer; the default is `eval_` or `val_` and the name of
the metric of the objective. A step counts as `run.batch_size_per_worker` samples on every worker. A
callback imports its library when it is made; it raises UserError if the library is missing, or if
an evaluation lacks the metric.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from raybench.spec.errors import ErrorCode, UserError
from raybench.training.own import Run


class _Clock:
    """Training clock of a callback: it runs from `start` to `pause`, repeatedly until a report."""

    def __init__(self, run: Run, metric: str | None, prefix: str) -> None:
        self.run, self.metric = run, metric or f"{prefix}_{run.spec.objective.judged_by.name}"
        self.interval: Any = None
        self.steps, self.samples, self.first_s = 0, 0, 0.0
        self.is_first = True

    def start(self) -> None:
        if self.interval is None:
            self.interval = self.run.training()
            self.interval.__enter__()

    def step(self, samples: int) -> None:
        self.steps, self.samples = self.steps + 1, self.samples + samples
        if self.steps == 1:
            self.first_s = self.run.elapsed_training()

    def pause(self) -> None:
        if self.interval is not None:
            self.interval.__exit__(None, None, None)
            self.interval = None

    def report(self, found: Mapping[str, Any]) -> bool:
        """Report an evaluation; return whether to stop.

        The first step of a run may compile: if it took longer than the mean of the other steps
        until the first report, it counts as that mean.
        """
        self.pause()
        if not self.steps:
            return False  # validation by itself
        if self.metric not in found:
            there = ", ".join(found) or "nothing"
            raise UserError(
                f"No {self.metric} at a validation ({there} is there); set metric=.",
                ErrorCode.UNKNOWN_NAME,
            )
        if self.is_first and self.steps > 1:
            found_s = self.run.elapsed_training()
            even_s = (found_s - self.first_s) * self.steps / (self.steps - 1)
            self.run.override_training_time(min(even_s, found_s))
        samples, self.samples, self.steps, self.is_first = self.samples, 0, 0, False
        return self.run.report(float(found[self.metric]), samples=samples)


def HuggingFace(run: Run, metric: str | None = None) -> Any:  # noqa: N802
    """Return a callback for `transformers.Trainer` that reports every evaluation."""
    clock = _Clock(run, metric, "eval")

    class Callback(_base("transformers", "TrainerCallback")):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.step(run.global_batch_size)
            if control.should_evaluate or control.should_save:
                clock.pause()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            clock.pause()

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= clock.report(more["metrics"])

        on_epoch_begin = on_step_begin

    return Callback()


def Lightning(run: Run, metric: str | None = None) -> Any:  # noqa: N802
    """Return a callback for `lightning.Trainer` that reports every validation."""
    clock = _Clock(run, metric, "val")

    class Callback(_base("lightning.pytorch.callbacks", "Callback")):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            clock.start()

        def on_train_batch_end(self, *_: Any) -> None:
            clock.step(run.batch_size_per_worker * run.num_workers)

        def on_validation_start(self, *_: Any) -> None:
            clock.pause()

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop |= clock.report(trainer.callback_metrics)

        on_train_epoch_start, on_train_epoch_end = on_train_batch_start, on_validation_start

    return Callback()


def Keras(run: Run, metric: str | None = None) -> Any:  # noqa: N802
    """Return a callback for `fit` of Keras that reports at the end of every epoch."""
    clock = _Clock(run, metric, "val")
    if run.num_workers > 1:
        raise UserError(
            "fit of Keras 3 does not train on several workers; set num_workers: 1, or write the "
            "loop with run.strategy.run (docs/models.md).",
            ErrorCode.UNSUPPORTED,
        )

    class Callback(_base("keras.callbacks", "Callback")):  # type: ignore[misc]
        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.step(run.batch_size_per_worker * run.num_workers)
            if batch + 1 == self.params.get("steps"):
                clock.pause()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training |= clock.report(logs or {})

        def on_test_begin(self, logs: Any = None) -> None:
            clock.pause()

        on_epoch_begin = on_train_batch_begin

    return Callback()


def _base(module: str, name: str) -> Any:
    """Return the base class of a library's callbacks."""
    library = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise UserError(
            f"{library} is not installed; `pip install {library}`.", ErrorCode.NOT_INSTALLED
        ) from None
