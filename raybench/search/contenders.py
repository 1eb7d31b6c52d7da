"""The runs of a search that can be confirmed: what each took, and which are the best."""

from dataclasses import dataclass, field

from raybench.core.spec import RunSpec
from raybench.results.topology import Layout


@dataclass(frozen=True)
class Cost:
    """What a run that can be confirmed took."""

    trial: str
    spec: RunSpec
    rank: float
    """Lower is better: seconds to the target, or the metric, its sign turned where more is."""
    worker_seconds: float
    train_s: float
    """That a run takes in all."""
    layout: Layout


@dataclass(frozen=True)
class Contenders:
    """The best runs of a search on one model of GPU, best first; as many as a race begins with."""

    fastest: list[Cost] = field(default_factory=list)
    cheapest: list[Cost] = field(default_factory=list)
    """By worker-seconds; empty where seconds are the same for all."""

    def first(self, count: int) -> list[Cost]:
        """Return the first so many of both, each once."""
        both = [*self.fastest[:count], *self.cheapest[:count]]
        return list({cost.trial: cost for cost in both}.values())
