"""Checkpoints and output of a study's runs, copied from the worker pool to the study's folder.

`checkpoints/0007/` contains the checkpoints of the run `0007` (see `stats.checkpoint`). It is
removed when the record of the run is written, unless the run did not end by itself: it was
interrupted, stopped early by the search, or lost too often to faults of machines.

A later run with the same name and run spec starts from the checkpoint, so rerunning a command
resumes an interrupted trial. To continue a trial that the search has stopped, write its run spec,
`raybench.load(DIR).specs["0007"]`, to a file SPEC.yaml, copy `checkpoints/0007` to
`NEW/checkpoints/0000` and run `raybench train SPEC.yaml --out NEW`.
"""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import ray

from raybench.cluster.session_files import STATES_FOLDER, keep_end, link_or_copy
from raybench.results.store import Store
from raybench.spec.errors import StudyError, UserError
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import latest_checkpoint, write_checkpoint
from raybench.stats.record import Evaluation, Phase, Purpose, RunRecord

FOLDER = "checkpoints"
LOOK_S = 5.0
"""Seconds between two copies of the output of a running run."""
Result = TypeVar("Result")


def has_checkpoints(folder: Path, name: str) -> bool:
    """Return whether a study's folder has checkpoints of a run, from which it can continue."""
    return (folder / FOLDER / name).is_dir()


class SavedRuns:
    """Context manager that copies checkpoints and output of runs from the worker pool to a study's
    folder.

    From its creation on, the pool stores the states of runs in that folder too. Files are written
    in a background thread. On exit, the context manager waits until all files are written, and
    raises the first error.

    Args:
        pool: Handle of the `WorkerPool`.
        store: The study's folder.
        say: Prints a sentence.
        on_fault: Called immediately with every error of the background thread.
    """

    def __init__(
        self,
        pool: Any,
        store: Store,
        *,
        say: Callable[[str], None],
        on_fault: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._pool, self._store, self._say, self._on_fault = pool, store, say, on_fault
        self._fault: Exception | None = None
        shutil.rmtree(store.folder / STATES_FOLDER, ignore_errors=True)  # left by a killed session
        ray.get(pool.hold_states_in.remote(store.folder.absolute()))
        self._earlier: dict[str, bytes] = {}
        """Output of each resumed run before it was interrupted, by run name."""
        self._looked: dict[str, float] = {}
        """Time (`monotonic`) at which the output of each run was last written, by run name."""
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=FOLDER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._writer.shutdown(wait=True)
        shutil.rmtree(self._store.folder / STATES_FOLDER, ignore_errors=True)
        if self._fault is not None and kind is None:
            raise self._fault

    def resume(self, name: str, spec: RunSpec) -> tuple[Evaluation, ...]:
        """Send the checkpoint of a run, if there is one, to the worker pool before the run starts.

        A checkpoint of another run spec is moved to another folder, with a message.

        Returns:
            The evaluations up to the checkpoint; empty if the run starts from the beginning.
        """
        folder = self._folder(name)
        try:
            checkpoint = latest_checkpoint(folder, spec)
        except UserError as error:
            aside = folder.with_name(f"{folder.name}.refused")
            shutil.rmtree(aside, ignore_errors=True)
            folder.replace(aside)
            self._say(
                f"{error} Run {name} starts from its beginning; its old checkpoints are now "
                f"in {aside}."
            )
            return ()
        if checkpoint is None:
            return ()
        for sentence in checkpoint.refused:
            self._say(sentence)
        if (log := self._store.log_file(name)).is_file():
            self._earlier[name] = log.read_bytes()
        ray.get(self._pool.restore.remote(name, checkpoint))
        return checkpoint.state.evaluations

    def save(self, name: str) -> None:
        """Write the pool's newest checkpoint of a run, in the background."""
        self._writer.submit(self._noting_faults, self._write, name)

    def write_output(self, name: str) -> None:
        """Write the output of a run so far, in the background and at most once per LOOK_S
        seconds."""
        now = time.monotonic()
        if now - self._looked.setdefault(name, now) >= LOOK_S:
            self._looked[name] = now
            self._writer.submit(self._noting_faults, self._write_log, name)

    def log(self, name: str) -> Path | None:
        """Write the output of a run and wait for it; return the file, or None if there is no
        output."""
        return self._writer.submit(self._noting_faults, self._write_log, name).result()

    def finish(self, record: RunRecord) -> None:
        """Write the output of a run that has ended, and delete its checkpoints unless a later run
        may resume from them."""
        is_kept = not record.counts_for(
            Purpose.COMPARISON if record.phase == Phase.CONFIRM else Purpose.MEASUREMENT
        )
        self._looked.pop(record.trial, None)
        self._writer.submit(self._noting_faults, self._write_log, record.trial, True)
        self._writer.submit(self._noting_faults, self._forget, record.trial, is_kept)

    def _write(self, name: str) -> None:
        checkpoint = ray.get(self._pool.checkpoint.remote(name))
        if checkpoint is None or self._fault is not None:
            return
        self._store.check()
        place = partial(link_or_copy, checkpoint.weights)
        try:
            write_checkpoint(self._folder(name), checkpoint.state, place)
        except FileNotFoundError:
            if ray.get(self._pool.checkpoint.remote(name)) == checkpoint:
                raise
            # A newer checkpoint has replaced this one and will be written next.

    def _write_log(self, name: str, is_over: bool = False) -> Path | None:
        try:
            printed = ray.get(self._pool.printed.remote(name, is_over=is_over))
        except ray.exceptions.RayError:
            return None  # the pool is lost, which ends the study
        if not printed or self._fault is not None:
            return None
        return self._store.write_log(name, keep_end(self._earlier.get(name, b"") + printed))

    def _forget(self, name: str, is_kept: bool) -> None:
        self._pool.forget.remote(name)
        folder = self._folder(name)
        if not is_kept and folder.is_dir():
            shutil.rmtree(folder)

    def _noting_faults(self, function: Callable[..., Result], *arguments: object) -> Result | None:
        try:
            return function(*arguments)
        except (OSError, StudyError, ray.exceptions.RayError) as error:
            self._fault = self._fault or error
            self._on_fault(error)
            return None

    def _folder(self, name: str) -> Path:
        return self._store.folder / FOLDER / name
