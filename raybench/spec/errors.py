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
    """Result of a command; `--json` prints it."""

    code: int
    place: str | None = None
    """The results folder or URL that holds what was found; None where nothing was written."""
    answer: Sequence[str] = ()
    """Sentences; none: those of the results."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Details that the command alone has, as plain data."""
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


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a sentence about an unknown name: the nearest known one, in whatever case;
    if none is near `otherwise`, or all of them."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    if close:
        return f"did you mean '{by_lower[close[0]]}'?"
    return otherwise or f"there are {', '.join(by_lower.values())}."


REMOVED = {
    **dict.fromkeys(
        (f"{name} --hosts" for name in ("compare", "scale", "train", "tune")),
        "diagnose names the worker that the others wait for",
    ),
    "optimizer lion": "name a library's class: keras:Lion, torch:pytorch_optimizer.Lion",
    "optimizer nadamw": "name a library's class: torch:NAdam, keras:Nadam",
    "optimizer schedule_free_adamw": "name a library's class: torch:schedulefree.AdamWScheduleFree",
    "transfer --check": "it was of muP, which made the rate of a large model no better known",
    "report --as": "best.yaml holds every number of the winner",
    "key mup_base": "it made the rate of a large model no better known; leave it out, and give "
    "transfer studies of several sizes",
    "key spot": "name its price as that of a machine; losses of machines are not predicted",
    "watch": "the command that runs a study shows it, --log tensorboard and optuna-dashboard "
    "DIR/optuna.log follow it from elsewhere, and report reads what is recorded so far",
}
"""Replacements of removed commands, options, keys and values, as ends of sentences. Names are as a
user writes them: an option after the name of its command, a key after the word "key"."""


def removed(name: str) -> str | None:
    """Return the end of a sentence that refuses a removed name, without its period; None for any
    other name."""
    instead = REMOVED.get(name)
    return None if instead is None else f"was removed; {instead}"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()
