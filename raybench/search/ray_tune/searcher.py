"""Ray Tune asks for a configuration: a trial's name and its run spec."""

from typing import Any

from ray.tune.search import Searcher

from raybench.search.live_trials import LiveTrials


class TuneSearcher(Searcher):
    """Hands out the next trial; how trials end it does not need to hear here."""

    def __init__(self, trials: LiveTrials) -> None:
        super().__init__(metric="score", mode="min")
        self._trials = trials

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration for Tune, or that there is none; None: not now."""
        asked = self._trials.next()
        if asked is None:  # a trial that was disturbed may come again
            return None if self._trials.may_have_more else str(Searcher.FINISHED)
        name, spec = asked
        return {"trial": name, "spec": spec}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: the callback tells of every end."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal holds the study."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal holds the study."""
