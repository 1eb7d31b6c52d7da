"""Callbacks with which an existing trainer times itself, reports its evaluations and is stopped.

    transformers.Trainer(..., callbacks=[HuggingFace(run)])

    lightning.Trainer(..., **Lightning(run).options)

    model.fit(..., callbacks=[Keras(run)])

Create the trainer inside your training function; it then connects to the other workers as in a
script started by `torchrun`. The argument `metric` is the trainer's name for the metric. The
default is the name of the objective's metric with the prefix `eval_` (HuggingFace) or `val_`
(Lightning, Keras). Each step counts as `run.batch_size_per_worker` samples on every worker (with
HuggingFace, times `accumulate`).

An interrupted run resumes from the trainer's own checkpoint. `Keras` does so by itself. `Lightning`
needs `fit(..., ckpt_path=callback.checkpoint)`. `HuggingFace` needs a `save_strategy` equal to the
`eval_strategy`, `output_dir=run.folder` and `train(resume_from_checkpoint=callback.checkpoint)`.

The trainer's library is imported when a callback is created. UserError is raised if it is missing,
if an evaluation lacks the metric, or if the trainer does not train on the workers of the run.
"""

import importlib
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from raybench.spec.errors import ErrorCode, UserError
from raybench.training.own import Run
from raybench.training.saved import foreign_state_error


class _Clock:
    """Training clock of a callback: only the time between a `start` and the next `pause` counts."""

    def __init__(self, run: Run, metric: str | None, prefix: str) -> None:
        self.run, self.metric = run, metric or f"{prefix}_{run.spec.objective.judged_by.name}"
        self.interval: Any = None
        self.steps, self.samples, self.first_s = 0, 0, 0.0
        self.is_first = True
        self.checkpoint = _unpack_checkpoint(run)

    def require_workers(self, number: int) -> None:
        """Raise UserError unless the trainer has as many processes as the run has workers."""
        if number != self.run.num_workers:
            raise UserError(
                f"the trainer trains in {number} process(es) and the run has "
                f"{self.run.num_workers} worker(s); create the trainer and its settings in "
                "the training function, without a launcher, device or strategy of your own.",
                ErrorCode.USER_CODE,
            )

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

    def save(self, folder: Path) -> None:
        """Save a folder, to which all ranks have written, as the checkpoint of the run.

        All ranks must call this method before `report`. It waits for all of them; then rank 0 saves
        the folder.
        """
        self.run.gather([0.0])
        if self.run.rank == 0:
            self.run.save(_pack_folder(folder))

    def report(self, values: Mapping[str, Any]) -> bool:
        """Report an evaluation; return whether to stop.

        The first step of a run may include compilation. At the first report, a first step that took
        longer than the mean of the other steps is therefore counted with that mean.

        Args:
            values: Values of the evaluation, keyed by the trainer's names of the metrics.
        """
        self.pause()
        if not self.steps:
            return False  # a validation without training, such as a sanity check
        if self.metric not in values:
            names = ", ".join(values) or "nothing"
            raise UserError(
                f"The validation has no {self.metric}, but {names}; set metric=.",
                ErrorCode.UNKNOWN_NAME,
            )
        if self.is_first and self.steps > 1:
            training_s = self.run.elapsed_training()
            even_s = (training_s - self.first_s) * self.steps / (self.steps - 1)
            self.run.override_training_time(min(even_s, training_s))
        samples, self.samples, self.steps, self.is_first = self.samples, 0, 0, False
        return self.run.report(float(values[self.metric]), samples=samples)


def HuggingFace(run: Run, metric: str | None = None) -> Any:  # noqa: N802
    """Return a callback for `transformers.Trainer` that reports every evaluation.

    Args:
        run: The run.
        metric: The trainer's name for the metric; by default `eval_` and the objective's metric.

    Returns:
        A `TrainerCallback`. Its attribute `checkpoint` is the folder to resume from, or None for a
        new run.

    Raises:
        UserError: Transformers is not installed.
    """
    clock, pending_metrics = _Clock(run, metric, "eval"), list[Mapping[str, Any]]()

    class Callback(_base("transformers", "TrainerCallback")):  # type: ignore[misc]
        checkpoint = clock.checkpoint

        def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
            clock.require_workers(args.world_size)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.step(run.global_batch_size)
            if control.should_evaluate or control.should_save:
                clock.pause()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            clock.pause()

        def on_evaluate(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            if control.should_save:
                # Reported with the checkpoint, which comes next.
                pending_metrics.append(keywords["metrics"])
            else:
                control.should_training_stop |= clock.report(keywords["metrics"])

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if pending_metrics:
                clock.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")
                control.should_training_stop |= clock.report(pending_metrics.pop())

        on_epoch_begin = on_step_begin

    return Callback()


def Lightning(run: Run, metric: str | None = None, *, save: bool = True) -> Any:  # noqa: N802
    """Return a callback for `lightning.Trainer` that reports every validation.

    Args:
        run: The run.
        metric: The trainer's name for the metric; by default `val_` and the objective's metric.
        save: Whether to save a checkpoint at every validation.

    Returns:
        A `Callback`. Its attribute `options` contains keyword arguments for `lightning.Trainer`:
        the callback itself, and settings for the workers of the run. Its attribute `checkpoint` is
        the file to resume from, or None for a new run.

    Raises:
        UserError: Lightning is not installed.
    """
    clock = _Clock(run, metric, "val")

    class Callback(_base("lightning.pytorch.callbacks", "Callback")):  # type: ignore[misc]
        checkpoint = clock.checkpoint and str(Path(clock.checkpoint) / LIGHTNING_FILE)
        options: dict[str, Any]

        def on_fit_start(self, trainer: Any, *_: Any) -> None:
            clock.require_workers(trainer.world_size)

        def on_train_batch_start(self, *_: Any) -> None:
            clock.start()

        def on_train_batch_end(self, *_: Any) -> None:
            clock.step(run.batch_size_per_worker * run.num_workers)

        def on_validation_start(self, *_: Any) -> None:
            clock.pause()

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            clock.pause()
            if save and clock.steps:
                folder = run.folder / "lightning"
                trainer.save_checkpoint(folder / LIGHTNING_FILE)
                clock.save(folder)
            trainer.should_stop |= clock.report(trainer.callback_metrics)

        on_train_epoch_start, on_train_epoch_end = on_train_batch_start, on_validation_start

    callback = Callback()
    callback.options = {
        "callbacks": [callback],
        "accelerator": "cpu" if run.device == "cpu" else "gpu",
        "devices": int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        "strategy": "ddp" if run.num_workers > 1 else "auto",
        "default_root_dir": str(run.folder),
    }
    return callback


def Keras(run: Run, metric: str | None = None, *, save: bool = True) -> Any:  # noqa: N802
    """Return a callback for Keras's `fit` that reports at the end of every epoch.

    Args:
        run: The run.
        metric: Keras's name for the metric; by default `val_` and the objective's metric.
        save: Whether to save a checkpoint at the end of every epoch.

    Returns:
        A `Callback`, which also resumes an interrupted run from its checkpoint.

    Raises:
        UserError: Keras is not installed, or the run has several workers.
    """
    if run.num_workers > 1:
        raise UserError(
            "fit of Keras 3 does not train on several workers; set num_workers: 1, or write the "
            "loop with run.strategy.run (docs/models.md).",
            ErrorCode.UNSUPPORTED,
        )
    clock = _Clock(run, metric, "val")

    backup = _base("keras.callbacks", "BackupAndRestore")(str(run.folder / "keras"))

    class Callback(_base("keras.callbacks", "Callback")):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            backup.set_model(self.model)
            if clock.checkpoint:
                Path(clock.checkpoint).rename(backup.backup_dir)
                backup.on_train_begin()

        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock.step(run.batch_size_per_worker * run.num_workers)
            if batch + 1 == self.params.get("steps"):
                clock.pause()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            clock.pause()
            if save:
                backup.on_epoch_end(epoch)
                clock.save(Path(backup.backup_dir))
            self.model.stop_training |= clock.report(logs or {})

        def on_test_begin(self, logs: Any = None) -> None:
            clock.pause()

        on_epoch_begin = on_train_batch_begin

    return Callback()


LIGHTNING_FILE = "last.ckpt"
"""Name of the file in the saved folder to which `lightning.Trainer` writes its checkpoint."""


def _pack_folder(folder: Path) -> bytes:
    """Return the files of a folder as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def _unpack_checkpoint(run: Run) -> str | None:
    """Extract the checkpoint of a resumed run to a folder that belongs to this rank.

    Returns:
        Path of the folder; None for a new run.
    """
    state = run.resume()
    if state is None:
        return None
    folder = run.folder / f"resumed-{run.rank}"
    try:
        with tarfile.open(fileobj=io.BytesIO(state)) as archive:
            _extract(archive, folder)
    except (TypeError, tarfile.TarError) as error:
        raise foreign_state_error(error) from None
    return str(folder)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive. Raise TarError if it contains anything but files and folders that lie
    inside `folder`.

    Python before 3.11.4, as in Debian 12, has no extraction filters, so members are checked here.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    for member in archive.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name} is no file inside the folder")
    archive.extractall(folder)


def _base(module: str, name: str) -> Any:
    """Import a library's module, and return its class from which callbacks are derived."""
    library = module.partition(".")[0]
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise UserError(
            f"{library} is not installed; `pip install {library}`.", ErrorCode.NOT_INSTALLED
        ) from None
