"""The verdict on a training: what bounds it, with numbers, and what a change would bring."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raybench.core.spec import RunSpec
from raybench.core.step_times import bytes_exchanged
from raybench.scaling.gains import Gain, Outlook
from raybench.scaling.probes import Probe, Probes
from raybench.scaling.shares import Estimate, Part, Shares

NOT_SURE = "not sure"
WORTH = 1.05
"""Times the samples/s below which a change is not worth a try."""
NO_LOSS = 0.95
"""Of the samples/s: fewer workers that keep so much of them are the better choice."""
HEADS: dict[Part, str] = {
    "compute": "Compute-bound",
    "communication": "Communication-bound",
    "input": "Input-bound",
    "overhead": "Bound by the overhead of a small model or batch",
}


@dataclass(frozen=True)
class Verdict:
    """What was found of a run spec."""

    kind: str
    """The largest part of a step, or `not sure`."""
    shares: dict[Part, Estimate]
    step: Estimate
    """Seconds of a step as it is."""
    gains: list[Gain]
    """What to try, most first."""
    num_bytes: int
    """Exchanged by a worker in a step."""
    sentence: str

    def document(self) -> dict[str, object]:
        """Return it as plain data for a file."""
        return {
            "verdict": self.kind,
            "sentence": self.sentence,
            "step_s": vars(self.step),
            "shares": {part: vars(share) for part, share in self.shares.items()},
            "bytes_exchanged_per_step": self.num_bytes,
            "gains": [vars(gain) for gain in self.gains],
        }


def judge(
    spec: RunSpec,
    times: Mapping[Probe, Sequence[float]],
    *,
    num_nodes: int = 1,
    num_parameters: int = 0,
) -> Verdict:
    """Return the verdict from seconds of a step: one of each probe for each round."""
    probes = Probes.of(spec)
    shares = Shares.of(probes, times)
    outlook = Outlook.of(spec, probes, times, num_nodes)
    largest = shares.order[0]
    gains = CURES[largest](outlook)
    step = Estimate.of(np.array(times[probes.as_it_is], dtype=float))
    sent = bytes_exchanged(spec, num_parameters)
    found = {part: shares[part] for part in shares.order}
    kind = str(largest) if shares.is_sure else NOT_SURE
    parts = Parts(spec, found, step, sent, num_nodes, len(times[probes.as_it_is]))
    sentence = parts.sentence(largest, gains) if shares.is_sure else parts.doubt()
    return Verdict(kind, found, step, gains if shares.is_sure else [], sent, sentence)


@dataclass(frozen=True)
class Parts:
    """The parts of a step in words."""

    spec: RunSpec
    shares: dict[Part, Estimate]
    step: Estimate
    num_bytes: int
    num_nodes: int
    num_rounds: int

    def sentence(self, largest: Part, gains: list[Gain]) -> str:
        """Say what bounds the training, and what to try."""
        share = self.shares[largest]
        others = ", ".join(f"{part} {value.percent}" for part, value in self._others(largest))
        head = (
            f"{HEADS[largest]}: {share.percent} ({share.percents}) of a step of "
            f"{milliseconds(self.step.value)} is {self._what(largest)}; {others}"
        )
        if not gains:
            return f"{head}; no change of the run spec is predicted to bring 5 % more."
        return f"{head}; try {' or '.join(gain.words for gain in gains[:2])}."

    def doubt(self) -> str:
        """Say which parts are not distinguishable."""
        ordered = list(self.shares.items())
        named = " and ".join(f"{part} {one.percent} ({one.percents})" for part, one in ordered[:2])
        return (
            f"Not sure: the spread of {self.num_rounds} rounds hides what bounds a step of "
            f"{milliseconds(self.step.value)}, {named} are not distinguishable; leave the machine "
            "to it alone, or ask for more --repeats."
        )

    def _others(self, largest: Part) -> list[tuple[Part, Estimate]]:
        return [(part, share) for part, share in self.shares.items() if part != largest]

    def _what(self, part: Part) -> str:
        if part == "communication":
            workers = f"{self.spec.num_workers} workers"
            hosts = f" on {self.num_nodes} hosts" if self.num_nodes > 1 else ""
            return f"the exchange of {self.num_bytes / 1e6:.3g} MB of gradients by {workers}{hosts}"
        if part == "input":
            return "waiting for data"
        if part == "overhead":
            return "there whatever the number of samples: starting operations, updating weights"
        return "forward and backward"


def milliseconds(seconds: float) -> str:
    """Return seconds of a step for people."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _worth(gains: list[Gain]) -> list[Gain]:
    return sorted((one for one in gains if one.times >= WORTH), key=lambda one: -one.times)


def _cure_compute(outlook: Outlook) -> list[Gain]:
    return _worth([outlook.other_workers(2 * outlook.spec.num_workers), outlook.larger_batch()])


def _cure_communication(outlook: Outlook) -> list[Gain]:
    gains = [outlook.fewer_exchanges(), outlook.larger_batch()]
    if outlook.spec.gradient_compression == "none":
        gains.append(outlook.compression())
    fewer = outlook.other_workers(max(1, outlook.spec.num_workers // 2))
    return [*([fewer] if fewer.times >= NO_LOSS else []), *_worth(gains)]


def _cure_input(outlook: Outlook) -> list[Gain]:
    gains = [outlook.quicker_data()]
    if outlook.readers > outlook.spec.prefetch:
        gains.append(outlook.prefetch())
    return sorted(_worth(gains), key=lambda gain: gain.times)


def _cure_overhead(outlook: Outlook) -> list[Gain]:
    gains = _worth([outlook.larger_batch()])
    if outlook.spec.num_workers == 1:
        return gains
    fewer = outlook.other_workers(max(1, outlook.spec.num_workers // 2))
    return [*([fewer] if fewer.times >= NO_LOSS else []), *gains]


CURES: dict[Part, Callable[[Outlook], list[Gain]]] = {
    "compute": _cure_compute,
    "communication": _cure_communication,
    "input": _cure_input,
    "overhead": _cure_overhead,
}
