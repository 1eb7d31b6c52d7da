"""A trial to Ray Tune: a class trainable that drives one run in workers lent by the pool.

Tune reuses the actor for the next trial (`reset_config`), and a step is one evaluation. The
reservation Tune makes for it is nominal: workers are admitted by the pool.
"""

from typing import Any

from ray import tune

from raybench.cluster.run_client import RunClient
from raybench.core.outcome import RunOutcome

OUTCOME = "outcome"


class TuneTrainable(tune.Trainable):  # type: ignore[misc, unused-ignore]
    """One trial at a time; pool and isolation come with `tune.with_parameters`."""

    def setup(self, config: dict[str, Any], pool: Any = None, keep: bool = True) -> None:
        """Take a trial's configuration; nothing starts yet."""
        self._pool, self._keep = pool, keep
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial's configuration in the same actor."""
        self._spec = new_config["spec"]
        self._client = RunClient(self._pool, new_config["trial"], self._spec, keep=self._keep)
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation.

        Of every number in a result Tune keeps running averages for as long as the study lives:
        in the open stands only what it reads itself.
        """
        outcome = self._client.step()
        if outcome.is_over:
            outcome = self._client.finish()
        return {
            "train_s": outcome.evaluation.train_s if outcome.evaluation else 0.0,
            "score": outcome.score(self._spec.objective),
            tune.result.DONE: outcome.is_over,
            OUTCOME: outcome,
        }


def outcome_of(result: dict[str, Any]) -> RunOutcome:
    """Return what a trainable's step has sent; nothing known, for a trial without a result."""
    found = result.get(OUTCOME)
    return found if isinstance(found, RunOutcome) else RunOutcome()
