"""The two exceptions whose message is one sentence for the user, exit codes, and removed names."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DONE, FAILED, WRONG_INPUT, NOT_REACHED, INTERRUPTED = 0, 1, 2, 3, 130
UNDECIDED, WORSE, NO_DIFFERENCE = 4, 5, 6
"""Exit codes: success; the study failed; invalid input; no winner, because no run reached the
target or the best one is no better than the baseline; Ctrl-C. Of `compare`: undecided, more runs
are needed; B is worse; B is as good as A."""


@dataclass(frozen=True)
class Ended:
    """Result of a command; `--json` prints it."""

    code: int
    place: str | None = None
    """Results folder or URL; None if nothing was written."""
    answer: Sequence[str] = ()
    """Sentences; by default those of the results."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further details, as plain data."""
    error: tuple[Literal["user", "study", "interrupted"], str] | None = None


class UserError(ValueError):
    """Invalid input; the message is one sentence that says what to do.

    Commands print the message without a traceback and exit with code 2. Unprintable characters
    become printable: line breaks, terminal escapes, halves of surrogate pairs.

    Args:
        message: The sentence.
        details: Further text, such as the traceback of the user's code.
    """

    details: str | None

    def __init__(self, message: object = "", details: str | None = None) -> None:
        super().__init__("".join(map(_printable, str(message))))
        self.details = details


class StudyError(Exception):
    """The study cannot continue, although the input is valid; the message is one sentence.

    Commands print the message without a traceback and exit with code 1.
    """


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a sentence about an unknown name.

    It is the closest known name, regardless of case; if none is close, `otherwise` or all names.
    """
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
