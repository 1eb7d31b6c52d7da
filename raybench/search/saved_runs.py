"""The checkpoints of a study's runs: in its folder, and with the pool that continues runs.

`checkpoints/0007/` is of the run `0007` (`core.checkpoint`). It goes when the run's record is
written, unless the run was cut off: interrupted, stopped early by the search, or lost once too
often. A run of the same name and spec is continued from it, in whatever session: an interrupted
trial is, when the same command is run again. One that the search has stopped is continued by
`raybench train SPEC.yaml --out NEW`, SPEC.yaml being its spec (`raybench.load(DIR).specs["0007"]`)
and `checkpoints/0007` copied to `NEW/checkpoints/0000`.
"""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import ray

from raybench.core.checkpoint import latest_checkpoint, write_checkpoint
from raybench.core.errors import StudyError, UserError
from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.core.standing import is_told
from raybench.results.store import Store

FOLDER = "checkpoints"


class SavedRuns:
    """Brings checkpoints from the pool to the folder, in a thread of its own, and back.

    A context manager: its end waits until all is written, and raises what went wrong.
    """

    def __init__(
        self,
        pool: Any,
        store: Store,
        *,
        say: Callable[[str], None],
        on_fault: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """`say` tells the user a sentence; `on_fault` is told at once why nothing was written."""
        self._pool, self._store, self._say, self._on_fault = pool, store, say, on_fault
        self._fault: Exception | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=FOLDER)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._writer.shutdown(wait=True)
        if self._fault is not None and kind is None:
            raise self._fault

    def resume(self, name: str, spec: RunSpec) -> tuple[Evaluation, ...]:
        """Let a run that is about to start be continued; return its curve so far, if it is.

        What cannot serve it is put aside, and said: it begins anew.
        """
        folder = self._folder(name)
        try:
            found = latest_checkpoint(folder, spec)
        except UserError as error:
            _put_aside(folder)
            self._say_anew(str(error), name)
            return ()
        if found is None:
            return ()
        for sentence in found.refused:
            self._say(sentence)
        ray.get(self._pool.restore.remote(name, found))
        return found.state.evaluations

    def save(self, name: str) -> None:
        """Write the checkpoint of a run that the pool holds now, soon."""
        self._writer.submit(self._noting_faults, self._write, name)

    def refused(self, name: str, why: str) -> None:
        """Put aside what the workers of a run have refused, and say it; the run began anew."""
        self._say_anew(why, name)
        # In its turn: what is saved from now on is of the new run.
        self._writer.submit(self._noting_faults, _put_aside, self._folder(name))

    def again(self, name: str) -> None:
        """Drop the checkpoint of a run that is to begin anew, and let it."""
        self._writer.submit(self._noting_faults, self._forget, name, False).result()
        ray.get(self._pool.again.remote(name))

    def over(self, record: RunRecord) -> None:
        """Drop the checkpoint of a run whose record is written, unless the run was cut off."""
        is_answer = is_told(record) if record.phase == "confirm" else record.is_answer
        is_kept = not is_answer or record.stop == "interrupted"
        self._writer.submit(self._noting_faults, self._forget, record.trial, is_kept)

    def _say_anew(self, why: str, name: str) -> None:
        aside = _aside(self._folder(name))
        self._say(f"{why} Run {name} begins anew; what was there is now {aside}.")

    def _write(self, name: str) -> None:
        checkpoint = ray.get(self._pool.checkpoint.remote(name))
        if checkpoint is not None and self._fault is None:
            self._store.check()
            write_checkpoint(self._folder(name), checkpoint)

    def _forget(self, name: str, is_kept: bool) -> None:
        self._pool.forget.remote(name)
        folder = self._folder(name)
        if not is_kept and folder.is_dir():
            shutil.rmtree(folder)

    def _noting_faults(self, work: Callable[..., None], *given: object) -> None:
        try:
            work(*given)
        except (OSError, StudyError, ray.exceptions.RayError) as error:
            self._fault = self._fault or error
            self._on_fault(error)

    def _folder(self, name: str) -> Path:
        return self._store.folder / FOLDER / name


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.refused")


def _put_aside(folder: Path) -> None:
    """Move a run's folder, if there is one, to where nobody looks for checkpoints."""
    if folder.is_dir():
        shutil.rmtree(_aside(folder), ignore_errors=True)
        folder.replace(_aside(folder))
