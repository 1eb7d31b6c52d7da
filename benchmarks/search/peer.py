"""What the search tools that raybench is compared with share, and random search.

Each peer (`peer_ray.py`, `peer_optuna.py`, `peer_syne.py`) drives one library's real objects by
its own protocol, in the order in which that library's own loop calls it (Tune's
`TuneController`, Syne Tune's `Tuner`, Optuna's ask and tell). All minimise `Point.score`. Where a
library leaves a choice, the one that searched best here was taken; the comments say what was
seen.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
from recorded import Config, Point, Space

GRACE = 1 / 64
"""No trial is stopped before this share of max_train_seconds: an eighth of the best time."""
THOUSANDTHS = 1000
"""max_train_seconds in the integer resource of Optuna and Syne Tune."""


class Peer:
    """What all peers share: no early stopping, and the best finished trial as the incumbent."""

    def __init__(self, space: Space, seed: int, folder: Path):
        self.space = space
        self.seed = seed
        self.configs: dict[str, Config] = {}
        self._best: tuple[float, Config] | None = None
        # Ray's brackets and Syne Tune's candidates come from the global generators.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002

    def suggest(self, trial: str) -> Config | None:
        """Propose and remember a trial."""
        config = self.propose(trial)
        if config is not None:
            self.configs[trial] = config
        return config

    def propose(self, trial: str) -> Config | None:
        """Ask the library."""
        raise NotImplementedError

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Go on."""
        return True

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Keep the best, then tell the library."""
        if self._best is None or point.score < self._best[0]:
            self._best = (point.score, self.configs[trial])
        self.told(trial, point, stop)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Tell the library."""

    def incumbent(self) -> Config | None:
        """Return the finished trial with the best score."""
        return self._best[1] if self._best else None

    def elapsed(self, point: Point) -> int:
        """Return train seconds in thousandths of max_train_seconds."""
        share = point.train_s / self.space.objective.max_train_seconds
        return max(1, round(THOUSANDTHS * share))


class Random(Peer):
    """Uniform over the space, no early stopping."""

    def __init__(self, space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        self.rng = np.random.default_rng(seed)

    def propose(self, trial: str) -> Config:
        """Draw every dimension."""
        optimizer = str(self.rng.choice(list(self.space.rates)))
        return Config(
            optimizer,
            self.space.rate(optimizer, float(self.rng.random())),
            int(self.rng.choice(self.space.batch_sizes_per_worker)),
            int(self.rng.choice(self.space.num_workers)),
        )


def result_of(point: Point) -> dict[str, Any]:
    """Return what a training function would report to Tune or Syne Tune."""
    return {
        "training_iteration": point.evaluation,
        "train_s": point.train_s,
        "accuracy": point.value,
        "score": point.score,
    }
