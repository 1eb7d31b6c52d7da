"""Fits of the same measurements are made once in a process of the tests: each takes a second."""

from collections.abc import Iterator

import pytest

from raybench.scaling import averaged
from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Observed
from raybench.scaling.throughput import PRIORS, Priors

KNOWN: dict[str, ThroughputModel] = {}


@pytest.fixture(scope="module", autouse=True)
def fitted_once() -> Iterator[None]:
    fit = ThroughputModel.fit

    def once(observed: Observed, priors: Priors = PRIORS) -> ThroughputModel:
        logs, repeats = observed.log_seconds.tolist(), observed.repeats.tolist()
        key = repr((observed.cells, logs, repeats, observed.noise, priors, averaged.PUBLISHED_LAWS))
        if key not in KNOWN:
            KNOWN[key] = fit(observed, priors)
        return KNOWN[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThroughputModel, "fit", once)
        yield


@pytest.fixture(scope="module")
def without_pollux() -> Iterator[None]:
    """Where it does not matter who extrapolates: fitting Pollux's law takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaged, "PUBLISHED_LAWS", (averaged.ernest,))
        yield
