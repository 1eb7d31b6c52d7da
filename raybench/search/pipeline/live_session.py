"""The Ray session of a command: signals are taken again, and a warning of this Ray is said."""

import contextlib
from collections.abc import Iterator

from rich.console import Console

from raybench.cluster.session import Session, busy_sentence
from raybench.cluster.signals import Interrupt
from raybench.results.console import say


@contextlib.contextmanager
def live_session(address: str | None, interrupt: Interrupt, console: Console) -> Iterator[Session]:
    """Open a session for a command, and close it; a Ctrl-C meanwhile is raised once it is open."""
    if address is None and (sentence := busy_sentence()) is not None:
        say(console, sentence)
    with Session(address=address) as session, interrupt.needing(session.processes):
        interrupt.listen()  # again: what a library may have taken meanwhile
        interrupt.check()
        if session.warning is not None:
            say(console, session.warning)
        yield session
