"""What a tool is told of a study, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raybench.core.record import Evaluation, Role, RunRecord
from raybench.core.spec import RunSpec

Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as a tool is told of it."""

    name: str
    """Its own in the study; cleaned, but from a file all the same."""
    role: Role
    spec: RunSpec
    began: float
    """Unix seconds at which its training clock would have been at 0, had it run through."""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """A configuration that won."""

    title: str
    """What it is: `fastest`, `cheapest`; of several models of GPU `fastest on H100`."""
    trial: str
    config: str
    """It in one line."""
    is_confirmed: bool
    """Whether `figures` are of runs with new seeds; otherwise of the search's one run."""
    figures: dict[str, float]
    """Seconds to the target and their 90 % interval, worker-seconds, runs, hits, the metric."""
    spec: RunSpec


class Sink(Protocol):
    """Writes to one tool; whatever goes wrong is raised, and ends this tool's logging alone.

    Calls for a run are `start`, then `points`, then `end` or `cut_off`; runs overlap. A run that
    is started again (its workers were lost, the study was interrupted) stands in the tool once:
    `start` is given what it returned for the earlier attempt, and takes that away.
    """

    place: str
    """Where it writes, without secrets: what lies elsewhere has not been written here."""

    def has(self, name: str) -> bool:
        """Whether a run that was written is still there, as far as that is known."""

    def start(self, run: Run, earlier: str | None) -> str:
        """Begin a run, in place of the `earlier` one; return its name in the tool."""

    def points(self, run: Run, points: Sequence[Evaluation]) -> None:
        """Add evaluations to a run's curve."""

    def end(self, run: Run, record: RunRecord) -> None:
        """End a run with what is known of it."""

    def cut_off(self, run: Run) -> None:
        """End a run that has no record: nobody trains it any more."""

    def winners(self, winners: Sequence[Winner], earlier: str | None) -> str:
        """Write a study's winners, in place of what was written of it `earlier`; return its
        name in the tool."""

    def flush(self) -> None:
        """Let what was written be seen."""

    def close(self) -> str:
        """End; return where to look, for the end of a sentence."""
