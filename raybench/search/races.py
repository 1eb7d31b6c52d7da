"""The race for the fastest and the race for the cheapest, whose runs serve both."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from raybench.core.repeats import Repeat
from raybench.core.spec import RunSpec
from raybench.search.race import Race, Run


class Races:
    """Several races at once: a run that more than one of them asks for is run once."""

    def __init__(self, races: Sequence[Race]) -> None:
        self._races = list(races)

    def due(self) -> list[Run]:
        """Return the runs of the present stages that are not known yet, each once, by rounds."""
        found = dict.fromkeys(run for race in self._races for run in race.due())
        return sorted(found, key=lambda run: run.round)

    def learn(self, run: Run, repeat: Repeat) -> None:
        """Take what a run has taken."""
        for race in self._races:
            race.learn(run.name, run.round, repeat)

    def cap_s(self, run: Run) -> float | None:
        """Return the train seconds after which a run has lost wherever it is asked for.

        None while it may still win.
        """
        caps = [race.cap_s(run.name) for race in self._races if _asks(race, run)]
        known = [cap for cap in caps if cap is not None]
        return max(known) if known and len(known) == len(caps) else None


def _asks(race: Race, run: Run) -> bool:
    """Whether a run matters to a race; beyond the last stage (`race.more`), to all it runs in."""
    if race.stages:
        return run in race.due()
    return any(one.name == run.name for one in race.contenders)


def in_turns(runs: Sequence[Run], specs: Mapping[str, RunSpec]) -> list[Run]:
    """Return runs round by round, in the order in which they shall begin.

    Those that need equal worker groups follow one another, so that few are opened; each round
    begins with another one, so that nobody is always the last, which has no company.
    """
    found: list[Run] = []
    for number, of_round in groupby(runs, key=lambda run: run.round):
        row = sorted(of_round, key=lambda run: repr(specs[run.name].placement.group))
        turn = number % len(row)
        found += [*row[turn:], *row[:turn]]
    return found
