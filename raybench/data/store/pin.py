"""Which stored dataset a session reads, kept from its first worker on a machine to its last: a
file that changes meanwhile would give later trials other data than earlier ones."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from raybench.data.store.source import Source

_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextlib.contextmanager
def pinning(folder: Path) -> Iterator[None]:
    """Keep keys in `folder`, which lives as long as a session, while datasets are loaded here."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def key_for(source: Source) -> str:
    """Return the key that the session has read `source` by first: its own where nobody has.

    Outside of `pinning` it is always its own.
    """
    folder = _folder.get()
    if folder is None:
        return source.key
    content = json.dumps([source.name, str(source.path.absolute()), source.shown_options])
    file = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.pin"
    if not file.is_file():
        _write_once(file, source.key)
    return file.read_text()


def _write_once(file: Path, text: str) -> None:
    """Write a file, whole or not at all, that another process may be writing too: first is kept."""
    handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(handle, "w") as opened:
        opened.write(text)
    with contextlib.suppress(FileExistsError):
        os.link(part, file)
    Path(part).unlink()
