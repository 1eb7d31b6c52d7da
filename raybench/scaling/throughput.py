"""The law of a step's time over workers, nodes, samples and passes, and its parameters' priors.

Compute of one pass, in seconds, for b samples per worker: flat until the device is full, then
linear (q = 1 is the usual affine law), k^kappa for stragglers among k workers:

    C = k^kappa (f^q + (c b)^q)^(1/q)

Exchange of gradients, as ring all-reduce (Patarasuk and Yuan 2009: 2 (e - 1) / e of the bytes pass
the slowest link of e ends; psi 1, or less of that), with powers for what else grows: latencies,
trees, congestion. Between n nodes with m workers each, the ring has from n ends (a sum within each
node first) to k (flat):

    S = 0                                                       for one worker
    S = A (2 (k - 1) / k)^psi (k / 2)^rho                       within a node
    S = A R (2 (e - 1) / e)^psi (n / 2)^rho_n m^rho_m           between nodes, e = n m^h

with h and psi in 0..1. The last of s passes hides the exchange in part (p-norm of Pollux, Qiao
2021, arXiv 2008.12260, eq. 11: gamma 1 hides nothing, 10 nearly all), and the whole step the way
of the samples to the workers of a node, who share it:

    T = (((s - 1) C + (C^gamma + S^gamma)^(1/gamma))^4 + (F s b m)^4)^(1/4)
"""

from dataclasses import dataclass

import numpy as np

from raybench.scaling.cells import Floats, Layout

NO_EXCHANGE = -60.0
"""Logarithm of the seconds that one worker exchanges: nothing, and still a number."""
FEED_OVERLAP = 4.0
"""Exponent with which reading samples hides behind the step: prefetching does it nearly whole."""


@dataclass(frozen=True)
class Prior:
    """A normal distribution of a parameter before anything was measured."""

    mean: float
    sd: float


# Chosen by held-out error and coverage over the simulated clusters of
# benchmarks/scaling/throughput_model.py; halving or doubling any of them moves both little.
PRIORS = {
    # Seconds of a typical batch's linear part, log, relative to the median step measured.
    "log_pass": Prior(0.0, 2.0),
    # f over c b of the typical batch, log.
    "log_floor": Prior(-1.0, 1.2),
    # log(q - 1)
    "sharpness": Prior(-0.5, 1.0),
    # A over c b of the typical batch, log.
    "log_exchange": Prior(-2.0, 1.5),
    # rho
    "growth": Prior(0.1, 0.15),
    # R, log: how much slower the network between nodes is.
    "log_network": Prior(1.0, 1.0),
    # rho_n
    "growth_nodes": Prior(0.1, 0.15),
    # rho_m
    "growth_share": Prior(0.04, 0.1),
    # h, logit
    "flatness": Prior(1.0, 1.5),
    # (gamma - 1) / 9, logit
    "overlap": Prior(-1.5, 1.5),
    # kappa
    "straggling": Prior(0.005, 0.01),
    # F over c, log.
    "log_feed": Prior(-3.0, 1.0),
    # psi, logit: 1 is a ring, 0 costs no more with more ends.
    "ringness": Prior(1.5, 1.5),
}
NUM_PARAMETERS = len(PRIORS)


@dataclass(frozen=True)
class Scale:
    """What the parameters are relative to: a typical batch, and a typical pass in seconds."""

    batch: float
    seconds: float


@dataclass(frozen=True)
class Parameters:
    """The law's parameters, each a column with one entry for every set of them; names of PRIORS."""

    log_pass: Floats
    log_floor: Floats
    sharpness: Floats
    log_exchange: Floats
    growth: Floats
    log_network: Floats
    growth_nodes: Floats
    growth_share: Floats
    flatness: Floats
    overlap: Floats
    straggling: Floats
    log_feed: Floats
    ringness: Floats

    @classmethod
    def of(cls, units: Floats) -> "Parameters":
        """Return parameters from rows of them in units of their priors' spreads."""
        priors = PRIORS.items()
        return cls(
            **{
                name: prior.mean + prior.sd * units[:, i, None]
                for i, (name, prior) in enumerate(priors)
            }
        )

    @property
    def gamma(self) -> Floats:
        """The exponent of the overlap, 1 to 10."""
        return 1 + 9 * _logistic(self.overlap)


@dataclass(frozen=True)
class Law:
    """The law for some cells: rows of parameters in, rows of logarithms of seconds out."""

    scale: Scale
    layout: Layout

    def compute(self, at: Parameters) -> Floats:
        """Return log seconds of a pass."""
        q = 1 + np.exp(at.sharpness)
        linear = np.log(self.layout.batch / self.scale.batch)
        relative = np.logaddexp(q * at.log_floor, q * linear) / q
        slower = at.straggling * np.log(self.layout.workers)
        return np.asarray(np.log(self.scale.seconds) + at.log_pass + relative + slower)

    def exchange(self, at: Parameters) -> Floats:
        """Return log seconds of the exchange."""
        k, n, m = self.layout.workers, self.layout.nodes, self.layout.workers_per_node
        psi = _logistic(at.ringness)
        within = psi * _log_ring(k) + at.growth * np.log(k / 2)
        ends = n * m ** _logistic(at.flatness)
        grown = at.growth_nodes * np.log(n / 2) + at.growth_share * np.log(m)
        between = at.log_network + psi * _log_ring(ends) + grown
        of_two = np.log(self.scale.seconds) + at.log_pass + at.log_exchange
        return np.where(k > 1, of_two + np.where(n > 1, between, within), NO_EXCHANGE)

    def feed(self, at: Parameters) -> Floats:
        """Return log seconds in which a node's workers get their samples."""
        layout = self.layout
        samples = layout.batch / self.scale.batch * layout.workers_per_node * layout.accumulate
        return np.asarray(np.log(self.scale.seconds) + at.log_pass + at.log_feed + np.log(samples))

    def step(self, units: Floats) -> Floats:
        """Return log seconds of an optimizer step."""
        at = Parameters.of(units)
        compute = self.compute(at)
        last = np.logaddexp(at.gamma * compute, at.gamma * self.exchange(at)) / at.gamma
        earlier = self.layout.accumulate - 1
        # Logarithm of none is none, and stays so in the sum.
        logs = np.log(earlier, out=np.full_like(earlier, -np.inf), where=earlier > 0)
        worked = np.logaddexp(logs + compute, last)
        return np.logaddexp(FEED_OVERLAP * worked, FEED_OVERLAP * self.feed(at)) / FEED_OVERLAP

    def compute_share(self, unit: Floats) -> Floats:
        """Return by how much of a percent a step's last pass grows if compute grows by one."""
        at = Parameters.of(unit[None])
        shares = _logistic(at.gamma * (self.compute(at) - self.exchange(at)))
        return np.asarray(shares[0])


def _log_ring(ends: Floats) -> Floats:
    return np.log(np.maximum(2 * (ends - 1) / ends, 1e-9))


def _logistic(value: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(value, -500, 500)))
