"""The constants of a search: default learning rates, and how it proposes, stops and places trials.

Those of a study's other phases stand where they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

BASE_RATES: Mapping[str, float] = MappingProxyType(
    {
        "adam": 1e-3,
        "radam": 1e-3,
        "lamb": 3e-3,
        "sgd": 0.03,
        "lars": 0.5,
        "adamw": 1e-3,
        # That of AdamW: updates are scaled to be as large (Liu et al. 2025, arXiv 2502.16982).
        "muon": 1e-3,
    }
)
LINEAR = ("sgd", "lars")
"""Optimizers whose rate grows with the batch (Goyal 2017, arXiv 1706.02677); that of the
others grows with its square root (You 2020, arXiv 1904.00962)."""


@dataclass(frozen=True, kw_only=True)
class SearchPolicy:
    """How a search goes about it; none of it changes what a run is. Benchmarks vary it."""

    base_rates: Mapping[str, float] = field(default_factory=lambda: BASE_RATES)
    """Default learning rates of the optimizers at a global batch of 64."""
    haste: float = 3.0
    """Factor on default rates where seconds to a target count: these suit the accuracy at the end;
    soonest at a target are the largest stable ones, about ten times as large."""
    startup_trials: int = 10
    """Trials before TPE begins to model; every other one of them has a default rate."""
    num_modelled: int = 300
    """TPE models so many of the trials that have ended, the latest, and the best of all: what it
    does takes time in proportion. Searches of fewer trials see no difference."""
    patience: int = 500
    """Draws in a row that are known to fail, after which the search gives up."""
    rungs: bool = True
    """Whether trials are stopped that others beat at equal seconds."""
    first_rung: float = 1 / 32
    """Share of max_train_seconds after which a hopeless trial may be stopped."""
    rung_factor: float = 4.0
    """Ratio of the seconds of two rungs; the best 1 / `rung_factor` of a rung go on."""
    num_compared: int = 8
    """Finished trials that the cap compares with: the fastest and cheapest known."""
    compared_with: int = 3
    """The cutoff stands on the so-many-th best of their times; of fewer, on the last. On the best,
    which was lucky, it stops a fifth of the configurations truly within 10 % of the best, on the
    third one a thirtieth, for 3 % more seconds of search. Winners of a race of 24 are within 5 /
    10 % then in 55 / 64 of 100 searches instead of 51 / 57, without a cutoff in 60 / 67 for 6 %
    more (120 searches each, recorded grids)."""
    second_looks: float = 0.1
    """Share of the trials, the last ones, that run what was stopped in spite of standing well once
    more (`asha.SecondLooks`), as long as there is any."""
    efficient: float = 0.5
    """A trial runs on more workers while each does at least this share of the work that a worker of
    the most economical placement does."""


DEFAULT = SearchPolicy()
