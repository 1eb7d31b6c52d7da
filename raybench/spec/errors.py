"""The two error classes whose message is one sentence for the user, and what commands exit with."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DONE, FAILED, WRONG_INPUT, NOT_REACHED, INTERRUPTED = 0, 1, 2, 3, 130
UNDECIDED, WORSE, NO_DIFFERENCE = 4, 5, 6
"""Answered; the study failed; the user's input is wrong; nothing won: no run reached the target, or
what did best is no better than guessing; Ctrl-C. Of `compare`: more runs are needed, B is worse, it
is as good."""


@dataclass(frozen=True)
class Ended:
    """What a command ends with; `--json` prints it."""

    code: int
    place: str | None = None
    """The results folder or URL that holds what was found; None where nothing was written."""
    answer: Sequence[str] = ()
    """Sentences; none: those of the results."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the command alone says, as plain data."""
    error: tuple[Literal["user", "study", "interrupted"], str] | None = None


class UserError(ValueError):
    """The user's input is wrong; the message is one sentence that says what to do.

    Commands print it without a traceback and exit with code 2. What a file, a key or a library
    brings into it is made printable: no line break, no terminal escape, no half character.
    `details` is what helps beyond the sentence, such as the traceback of the user's code.
    """

    details: str | None

    def __init__(self, message: object = "", details: str | None = None) -> None:
        super().__init__("".join(map(_printable, str(message))))
        self.details = details


class StudyError(Exception):
    """The study cannot go on, and the user's input is not the reason; one sentence.

    Commands print it without a traceback and exit with code 1.
    """


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(known)}."


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()
