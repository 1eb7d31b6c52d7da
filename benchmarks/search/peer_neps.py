"""NePS's PriorBand (Mallik et al., NeurIPS 2023) as a contestant."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer import GRACE, THOUSANDTHS
from peer_axes import AxesPeer, Axis, Tool, Values
from recorded import Point

FIDELITY = "thousandths"
"""Name of the fidelity: thousandths of max_train_seconds."""


class PriorBand(Tool):
    """PriorBand at its defaults (Hyperband, eta 3), by ask and tell.

    The prior of each axis has medium confidence. A promoted trial that had ended by itself has
    nothing left to train, so its score is reported again at once.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        seed: int,
        max_seconds: float,
        folder: Path,
    ):
        import neps
        import torch
        from neps.optimizers.algorithms import priorband

        del folder
        self.max_seconds = max_seconds
        # The samplers draw from the global generators.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        space: dict[str, Any] = {
            FIDELITY: neps.HPOInteger(round(GRACE * THOUSANDTHS), THOUSANDTHS, is_fidelity=True)
        }
        for axis in axes:
            prior = {"prior": axis.prior, "prior_confidence": "medium"}
            if axis.choices:
                space[axis.name] = neps.HPOCategorical(list(axis.choices), **prior)
            else:
                space[axis.name] = neps.HPOFloat(0.0, 1.0, **prior)
        self.search = neps.AskAndTell(priorband(neps.SearchSpace(space)))
        self.asked: dict[str, Any] = {}
        self.ended: dict[str, float] = {}
        """Scores of trials that ended by themselves, by the library's names."""

    def ask(self, trial: str) -> Values:
        """Return the values of the next trial that has something left to train."""
        while True:
            asked = self.search.ask()
            before = asked.metadata.previous_trial_id
            if before not in self.ended:
                break
            self.ended[asked.id] = self.ended[before]
            self.search.tell(asked, {"objective_to_minimize": self.ended[before]})
        self.asked[trial] = asked
        return dict(asked.config)

    def goes_on(self, trial: str, point: Point) -> bool:
        """Return whether the fidelity of the trial is not yet reached."""
        share = self.asked[trial].config[FIDELITY] / THOUSANDTHS
        return point.train_s < share * self.max_seconds

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Report the score at the end of a trial."""
        asked = self.asked[trial]
        self.search.tell(asked, {"objective_to_minimize": point.score})
        if stop != "stopped":
            self.ended[asked.id] = point.score


Neps = partial(AxesPeer, PriorBand)
"""PriorBand over a table's space, with raybench's first configuration as the prior."""
