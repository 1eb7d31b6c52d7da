"""What a user's code raises, as one sentence with the place in their file."""

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from raybench.core.errors import UserError

_LIBRARIES = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib"))
_OURS = str(Path(__file__).parents[1])
MAX_ERROR = 300
"""Characters of an error's own text that go into the sentence; all of it is in the details."""


@contextlib.contextmanager
def users_code(what: str, advice: str = "") -> Iterator[None]:
    """Turn what is raised inside into a UserError: `what`, file, line and error, `advice`.

    `details` of it holds the whole traceback. A UserError passes as it is; a `sys.exit` is an
    error too; Ctrl-C is none.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        kind = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else _describe(error)
        raise UserError(
            f"{what} ({_place(error)}{kind}){advice}.", details=traceback.format_exc()
        ) from error


def _describe(error: Exception) -> str:
    text = str(error)
    text = text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 3]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Return "file, line n: " of the last step in a file that is neither a library's nor ours."""
    steps = [
        step
        for step in traceback.extract_tb(error.__traceback__)
        if Path(step.filename).is_file()
        and not step.filename.startswith((*_LIBRARIES, _OURS))
        and "-packages" not in step.filename
    ]
    return f"{steps[-1].filename}, line {steps[-1].lineno}: " if steps else ""
