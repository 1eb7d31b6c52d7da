"""Cache of throughput fits in a test process, because each takes a second."""

from collections.abc import Iterator

import pytest

from raybench.scaling import averaged
from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.measurements import Observed
from raybench.scaling.throughput import PRIORS, Priors

KNOWN = {}


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
    """Omit Pollux's law, the slowest to fit, in tests that do not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaged, "PUBLISHED_LAWS", (averaged.ernest,))
        yield
