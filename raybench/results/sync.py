"""Brings a spool below its URL in the background, and says when it cannot."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raybench.core.errors import StudyError
from raybench.results.bucket import Bucket, BucketError
from raybench.results.lease import BEAT_S, Lease, LeaseLostError
from raybench.results.spool import Upload
from raybench.results.spool_checkpoints import CheckpointUpload

SYNC_S = 2.0
"""What is older than this is uploaded, or on its way."""
RETRY_S = 5.0
CLOSE_S = 30.0
"""In the end, a store that does not answer is asked for so long."""


class Sync:
    """Three threads, because an upload may take minutes: records, checkpoints, the lease."""

    def __init__(
        self, folder: Path, bucket: Bucket, lease: Lease, warn: Callable[[str], None]
    ) -> None:
        self.folder, self._bucket, self._lease, self._warn = folder, bucket, lease, warn
        self._upload = Upload(folder, bucket, self._may_write)
        self._checkpoints = CheckpointUpload(folder, bucket, self._may_write)
        self._end = threading.Event()
        self._troubles: dict[str, str] = {}
        """What the last round of a thread met, already said."""
        self._saying = threading.Lock()
        self._fault: BaseException | None = None
        """What ended the threads before their time."""
        self._threads = [
            threading.Thread(target=self._until_end, args=[name, work, pause], daemon=True)
            for name, work, pause in (
                ("records", self._upload.run, SYNC_S),
                ("checkpoints", self._checkpoints.run, SYNC_S),
                ("lease", lease.beat, BEAT_S),
            )
        ]

    def start(self, keys: Sequence[str]) -> None:
        """Start; `keys` are the objects that are there."""
        self._upload.resume(keys)
        self._checkpoints.resume(keys)
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise StudyError if the study was taken over; what else ended a thread is raised, too."""
        if isinstance(self._fault, LeaseLostError):
            raise StudyError(
                f"{self._fault}; what this driver measured and did not upload is in {self.folder}."
            )
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Upload what is left, trying for CLOSE_S, and give the lease back."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        self.check()
        deadline = time.monotonic() + CLOSE_S
        waiting = f"uploading what is left is tried for {CLOSE_S:g} s."
        has_said = bool(self._troubles)
        if has_said:
            self._warn(f"{self._bucket.url}: {waiting}")
        while True:
            try:
                self._may_write()
                self._upload.run()
                self._checkpoints.run()
                self._lease.release()
                return
            except LeaseLostError as lost:
                self._fault = lost
                self.check()
            except BucketError as error:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"{error} Nothing is lost: {self._left()} in {self.folder} alone, and the "
                        "same command on this machine uploads them."
                    ) from None
                if not has_said:
                    self._warn(f"{_begin(error)}; {waiting}")
                has_said = True
                time.sleep(min(RETRY_S, CLOSE_S / 3))

    def _left(self) -> str:
        num_records, num_files = self._upload.left()
        num_files += self._checkpoints.num_left()
        records = "1 record" if num_records == 1 else f"{num_records} records"
        files = "1 file" if num_files == 1 else f"{num_files} files"
        return f"{records} and {files} are"

    def _until_end(self, name: str, work: Callable[[], None], pause: float) -> None:
        try:
            while not self._end.wait(pause):
                try:
                    if name in self._troubles:
                        self._lease.beat()  # a round without news asks the store for nothing
                    work()
                except BucketError as error:
                    self._say(name, error)
                    self._end.wait(RETRY_S - SYNC_S)
                else:
                    self._say_well(name)
        except BaseException as error:  # noqa: BLE001 (a thread's: `check` raises it)
            self._fault = self._fault or error
            self._end.set()
            is_said = isinstance(error, LeaseLostError | StudyError)
            reason = str(error).rstrip(".") if is_said else f"{error!r} ended the upload"
            with self._saying:
                if self._fault is error:
                    self._warn(f"{reason}; results are kept in {self.folder} alone.")

    def _may_write(self) -> None:
        """Ask the lease before each object, if it may have been taken over meanwhile."""
        if not self._lease.is_held:
            self._lease.beat()

    def _say(self, name: str, error: BucketError) -> None:
        """Say a trouble once, not at each attempt nor of each thread: an id in it may differ."""
        kind = _begin(error).partition("(")[0]
        with self._saying:
            is_new = kind not in self._troubles.values()
            self._troubles[name] = kind
        if is_new:
            self._warn(f"{_begin(error)}; it is tried again, results are kept in {self.folder}.")

    def _say_well(self, name: str) -> None:
        with self._saying:
            had_trouble = self._troubles.pop(name, None) is not None
            is_well = had_trouble and not self._troubles
        if is_well:
            self._warn(f"{self._bucket.url}: takes results again; everything is uploaded.")


def _begin(error: BucketError) -> str:
    """Return the sentence of an error, to be gone on with."""
    return str(error).rstrip(".")
