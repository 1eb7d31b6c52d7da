"""Brings a spool below its URL in the background, and says when it cannot."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from raybench.core.errors import StudyError
from raybench.results.bucket import Bucket, BucketError
from raybench.results.lease import BEAT_S, Lease, LeaseLostError
from raybench.results.spool import Upload

SYNC_S = 2.0
"""What is older than this is uploaded, or on its way."""
RETRY_S = 5.0
CLOSE_S = 30.0
"""In the end, a store that does not answer is asked for so long."""


class Sync:
    """Two threads: one uploads, one keeps the lease (an upload may take minutes)."""

    def __init__(
        self, folder: Path, bucket: Bucket, lease: Lease, warn: Callable[[str], None]
    ) -> None:
        self.folder, self._bucket, self._lease, self._warn = folder, bucket, lease, warn
        self._upload = Upload(folder, bucket, self._may_write)
        self._end = threading.Event()
        self._trouble = ""
        """What the last round met, already said."""
        self._saying = threading.Lock()
        self._fault: BaseException | None = None
        """What ended the threads before their time."""
        self._threads = [
            threading.Thread(target=self._until_end, args=[work, pause], daemon=True)
            for work, pause in ((self._round, SYNC_S), (self._beat, BEAT_S))
        ]

    def start(self, keys: list[str]) -> None:
        """Start; `keys` are the objects that are there."""
        self._upload.resume(keys)
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
        while True:
            try:
                if not self._lease.is_held:
                    self._lease.beat()
                self._upload.run()
                self._lease.release()
                return
            except LeaseLostError as lost:
                self._fault = lost
                self.check()
            except BucketError as error:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"{error} Nothing is lost: what could not be uploaded is in {self.folder}, "
                        "and the same command on this machine uploads it."
                    ) from None
                self._say(str(error))
                time.sleep(min(RETRY_S, CLOSE_S / 3))

    def _until_end(self, work: Callable[[], None], pause: float) -> None:
        try:
            while not self._end.wait(pause):
                try:
                    work()
                except BucketError as error:
                    self._say(str(error))
                    self._end.wait(RETRY_S - SYNC_S)
        except BaseException as error:  # noqa: BLE001 (a thread's: `check` raises it)
            self._fault = error
            self._end.set()
            reason = error if isinstance(error, LeaseLostError) else f"{error!r} ended the upload"
            self._warn(f"{reason}; results are kept in {self.folder} alone.")

    def _round(self) -> None:
        if self._trouble:
            self._lease.beat()  # a round without news asks the store for nothing
        self._upload.run()
        if self._trouble:
            self._trouble = ""
            self._warn(f"{self._bucket.url}: takes results again; everything is uploaded.")

    def _beat(self) -> None:
        self._lease.beat()

    def _may_write(self) -> None:
        """Ask the lease before each object, if it may have been taken over meanwhile."""
        if not self._lease.is_held:
            self._lease.beat()

    def _say(self, sentence: str) -> None:
        """Say a trouble once, not at each attempt: an id in it may differ."""
        kind = sentence.partition("(")[0]
        with self._saying:
            is_new = kind != self._trouble
            self._trouble = kind
        if is_new:
            self._warn(
                f"{sentence.rstrip('.')}; it is tried again, results are kept in {self.folder}."
            )
