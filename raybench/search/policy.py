"""The constants of a search, in one place: what is tried first, what is drawn, who goes on.

Those of a study's other phases stand where they are used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Draw = Literal["sampler", "neighbour", "random"]
Reference = Callable[[Sequence[float]], float]
"""Of times to the target in order, at least one: the time that others are compared with."""

BASE_RATES: Mapping[str, float] = MappingProxyType(
    {
        "adam": 1e-3,
        "radam": 1e-3,
        "lamb": 3e-3,
        "sgd": 0.03,
        "lars": 0.5,
        "adamw": 1e-3,
        # Its updates are as large as Adam's (AlgoPerf's baseline takes 1.75e-3, 2306.07179).
        "nadamw": 1e-3,
        # A third to a tenth of AdamW's (Chen et al. 2023, arXiv 2302.06675, section 5).
        "lion": 2e-4,
        # 2.5e-3 in AlgoPerf, 1 to 10 times that of a schedule (Defazio et al. 2024, 2405.15682).
        "schedule_free_adamw": 2.5e-3,
        # That of AdamW: updates are scaled to be as large (Liu et al. 2025, arXiv 2502.16982).
        "muon": 1e-3,
    }
)


def first_best(times: Sequence[float]) -> float:
    """Return the first of times in order."""
    return times[0]


def third_best(times: Sequence[float]) -> float:
    """Return the third of times in order; of fewer, the last."""
    return times[min(3, len(times)) - 1]


@dataclass(frozen=True, kw_only=True)
class SearchPolicy:
    """How a search goes about it; none of it changes what a run is. Benchmarks vary it."""

    base_rates: Mapping[str, float] = field(default_factory=lambda: BASE_RATES)
    """Usual learning rates of the optimizers at a global batch of 64."""
    haste: float = 3.0
    """Factor on usual rates where seconds to a target count. These are usual for the accuracy at
    the end; soonest at a target are the largest stable ones, about ten times as large."""
    startup_trials: int = 10
    """Trials before TPE begins to model; every other one of them has a usual rate."""
    num_modelled: int = 300
    """TPE models so many of the trials that have ended, the latest, and the best of all: what it
    does takes time in proportion. Searches of fewer trials see no difference."""
    draws: tuple[Draw, ...] = ("sampler", "sampler", "neighbour", *20 * ("random",))
    """Where a proposal comes from, and after each repetition the next one: TPE twice (then it has
    said all it knows of where to look), what lies next to the best trials, chance; then a
    repetition is accepted where the space has no end."""
    patience: int = 500
    """Draws of which every one is known to fail, after which all that is left is taken to fail."""
    resolution: float = 0.04
    """Share of a range within which two values are not told apart: of three decades of learning
    rates, a factor of 1.3."""
    step: float = 0.08
    """Share of a range to a neighbour: of three decades, a factor of 1.7; integers move by 1 at
    least."""
    num_best: int = 3
    """Of so many best trials the neighbours are tried, those of the best first."""
    rungs: bool = True
    """Whether trials are stopped that others beat at equal seconds."""
    first_rung: float = 1 / 32
    """Share of max_train_seconds after which a hopeless trial may be stopped."""
    rung_factor: float = 4.0
    """Ratio of the seconds of two rungs; the best 1 / `rung_factor` of a rung go on."""
    num_compared: int = 8
    """Finished trials that the cap compares with: the fastest and the cheapest by what is known of
    them."""
    reference: Reference = third_best
    """Which of their times the cap stands on. On the best one, which was lucky, it stops a fifth of
    the configurations truly within 10 % of the best, on the third one a thirtieth, for 3 % more
    seconds of search. Winners of a race of 24 are within 5 / 10 % then in 55 / 64 of 100 searches
    instead of 51 / 57, without a cap in 60 / 67 for 6 % more (120 searches each,
    recorded grids). In 20 whole searches of `mnist_mlp` by chance it is no gain: 16
    instead of 17."""
    efficient: float = 0.5
    """A trial runs on more workers while these do at least this share of the work per worker
    that those of the most economical placement do."""


DEFAULT = SearchPolicy()
