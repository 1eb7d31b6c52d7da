"""How many other trials ran beside a trial."""

from collections.abc import Iterable


class Neighbours:
    """Remembers the most others for every trial that runs."""

    def __init__(self) -> None:
        self._most: dict[str, int] = {}

    def running(self, trials: Iterable[str]) -> None:
        """Note that these run at this moment."""
        names = list(trials)
        for name in names:
            self._most[name] = max(len(names) - 1, self._most.get(name, 0))

    def ended(self, trial: str) -> int:
        """Forget a trial; return the most others that ran beside it."""
        return self._most.pop(trial, 0)
