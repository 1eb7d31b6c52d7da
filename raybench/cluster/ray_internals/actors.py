"""What Ray says of an actor's process: a sign of life, and its words for a lost one."""

from collections.abc import Iterable
from typing import Any

import ray


def has_lost_one(actors: Iterable[Any], *, timeout_s: float) -> bool:
    """Whether one of the actors has died, or gives no sign of life for `timeout_s`.

    Ray learns of a node that has gone after many seconds only; an actor that is at work answers
    at once, since a Train worker trains in a thread beside.

    Every actor answers `__ray_ready__`, which Ray uses in its own documentation but does not
    promise. Where an actor has no such method none is taken for lost.
    """
    answers = [getattr(actor, "__ray_ready__", None) for actor in actors]
    try:
        ray.get([answer.remote() for answer in answers if answer is not None], timeout=timeout_s)
    except ray.exceptions.RayError:
        return True
    return False


def is_lost_process(words: str) -> bool:
    """Whether Ray's words for an error name a lost process: a paragraph of guesses around it.

    Ray Train hands on the words alone, not the error. Where they change they are shown as they
    are.
    """
    return "worker process has died" in words


OUT_OF_REACH = (
    "ActorUnavailableError",
    "actor is temporarily unavailable",
    "NodeDiedError",
    "node was terminated unexpectedly",
)


def is_out_of_reach(words: str) -> bool:
    """Whether Ray's words for an error name a process that did not answer: its host, or the way
    there. As for lost ones, words that change are shown as they are."""
    return any(part in words for part in OUT_OF_REACH)


def has_not_started(words: str) -> bool:
    """Whether Ray Train's words are those for workers that did not start in time."""
    return "worker group startup timed out" in words
