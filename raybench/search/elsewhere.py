"""Where else to look than at the leader: within another optimizer, where its own trials did best.

TPE stays with the optimizer that did best early, and an optimizer at a rate that does not suit
it looks worse than it is. So where TPE repeats itself, trials go to the others: their own trials
say at which rates and batches each does best.
"""

import random
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from raybench.core.space import Choices, Space
from raybench.search.propose import propose
from raybench.search.samplers import build_sampler

OPTIMIZER = "optimizer"


class Elsewhere:
    """Draws from the trials of another optimizer than the best."""

    def __init__(self, space: Space, fixed: dict[str, Any], *, seed: int, num_earlier: int) -> None:
        """`num_earlier` as of `build_sampler`."""
        self._space, self._fixed = space, fixed
        self._sampler = build_sampler("tpe", seed=seed, num_earlier=num_earlier)
        self._rng = random.Random(seed + 1_000_003 * num_earlier)

    def draw(self, trials: list[FrozenTrial], scores: dict[int, float]) -> dict[str, Any] | None:
        """Return the parameters to try; None where only one optimizer is searched.

        `scores` are those of ended trials by number, lower is better.
        """
        dimension = self._space.get(OPTIMIZER)
        if not isinstance(dimension, Choices) or len(dimension.values) < 2:
            return None
        optimizers = [str(value) for value in dimension.values]
        chosen = choose_other(optimizers, trials, scores, self._rng)
        own = [trial for trial in trials if trial.params[OPTIMIZER] == chosen]
        study = optuna.create_study(sampler=self._sampler)
        study.add_trials([trial for trial in own if trial.state.is_finished()])
        study.enqueue_trial({OPTIMIZER: chosen})
        trial = study.ask()
        propose(trial, self._space, self._fixed)
        return dict(trial.params)


def choose_other(
    optimizers: list[str], trials: list[FrozenTrial], scores: dict[int, float], rng: random.Random
) -> str:
    """Return an optimizer that was never tried, else one that is not the best.

    Of those, the second best is drawn with weight 1, the next with 1 / 2, and so on.
    """
    tried = {trial.params[OPTIMIZER] for trial in trials}
    untried = [optimizer for optimizer in optimizers if optimizer not in tried]
    if untried:
        return untried[0]
    best = dict.fromkeys(optimizers, float("inf"))
    for trial in trials:
        name = trial.params[OPTIMIZER]
        best[name] = min(best[name], scores.get(trial.number, float("inf")))
    others = sorted(optimizers, key=lambda name: best[name])[1:]
    weights = [1 / (1 + rank) for rank in range(len(others))]
    return rng.choices(others, weights)[0]
