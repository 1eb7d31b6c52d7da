"""Report of `raybench compare`, which compares configurations by pairs of runs: numbers, sentences
and exit code."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raybench.results.store import COMPARISON, STUDY_FILE, StudyKind
from raybench.results.study import Study, once
from raybench.spec.documents import validate
from raybench.spec.errors import DONE, NO_DIFFERENCE, UNDECIDED, WORSE
from raybench.spec.objective import TIME, Objective
from raybench.spec.text import counted
from raybench.stats.record import Evaluation, Purpose, Role, RunRecord
from raybench.stats.replicates import Replicate
from raybench.stats.sequential import ALPHA, Comparison, PairOutcome, compare, pairs_needed
from raybench.stats.standing import difference, replicate_of

EXIT_CODES: dict[PairOutcome, int] = {
    "better": DONE,
    "undecided": UNDECIDED,
    "same": NO_DIFFERENCE,
    "worse": WORSE,
}
"""Exit codes, keyed by outcome of a comparison. If there are several alternatives, the first of
these outcomes that occurs determines the exit code."""


@dataclass(frozen=True)
class Side:
    """A configuration that is compared with others."""

    name: str
    """A, B, C, ...; A is the baseline, and the others are alternatives."""
    source: str
    """File from which the configuration was read."""
    label: str
    """The configuration in one line."""


@dataclass(frozen=True)
class Pairs:
    """The runs of a comparison so far.

    `runs[name][number]` is run `number` of the side `name`; runs with the same number form a pair.
    """

    sides: Sequence[Side]
    objective: Objective
    runs: Mapping[str, Mapping[int, Replicate]]
    smallest: float = 0.0
    """Smallest difference that matters to the user. It is a fraction of the seconds or of the
    metric value, or an absolute difference if the metric is a proportion."""
    errors: float = ALPHA
    """Family-wise error rate: probability that any of the comparisons leads to a wrong decision."""
    is_throughput: bool = False
    """Whether training seconds per sample are compared (`--metric samples_per_s`)."""

    @property
    def is_timed(self) -> bool:
        """Whether seconds (to the target or per sample) are compared, not values of the metric."""
        return self.is_throughput or self.objective.kind == TIME

    @property
    def _test_limits(self) -> tuple[float, float]:
        """Smallest difference that matters, in the unit of `differences`, and error rate of each
        comparison."""
        smallest = -math.log1p(-self.smallest) if self.is_timed else self.smallest
        return smallest, self.errors / max(1, len(self.sides) - 1)

    @property
    def level(self) -> str:
        """Confidence level of each interval as text: `90 %`, or more if there are more than two
        sides."""
        return f"{100 * (1 - 2 * self._test_limits[1]):.4g} %"

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Comparison of each alternative with the baseline, keyed by name of the alternative."""
        smallest, errors = self._test_limits
        return {
            side.name: compare(self.differences(side.name), smallest=smallest, errors=errors)
            for side in self.sides[1:]
        }

    @property
    def is_decided(self) -> bool:
        """Whether all comparisons are decided, so that no further pair is needed."""
        return all(comparison.outcome != "undecided" for comparison in self.comparisons.values())

    def differences(self, name: str) -> list[float]:
        """Return one number per pair, which is positive if the side `name` is better than the
        baseline.

        The number is the log ratio of the seconds, or the difference of the metric values. Unless
        the metric is a proportion, the difference is divided by the median of the baseline. The
        number is infinite if only one run of the pair reached the target, and NaN if neither did.
        """
        first, other = self.runs[self.sides[0].name], self.runs[name]
        hits = [run.seconds for run in first.values() if run.is_hit]
        unit = 1.0
        if not self.is_timed and not self.objective.judged_by.is_share and hits:
            unit = max(abs(statistics.median(hits)), 1e-12)
        pairs = [(first[number], other[number]) for number in sorted(first) if number in other]
        return [difference(*pair) / unit for pair in pairs]

    def more(self, name: str) -> int | None:
        """Return how many more pairs are probably needed to decide the comparison of side `name`;
        None if unknown."""
        smallest, errors = self._test_limits
        return pairs_needed(self.differences(name), smallest=smallest, errors=errors)


def pairs_of(
    sides: Sequence[Side],
    objective: Objective,
    records: Mapping[str, RunRecord],
    curves: Mapping[str, Sequence[Evaluation]],
    *,
    smallest: float,
    errors: float,
    is_throughput: bool = False,
) -> Pairs:
    """Return the pairs of runs in the records of a comparison.

    Runs that were cut short, were lost, or failed before they trained are left out.
    """
    runs: dict[str, dict[int, Replicate]] = {side.name: {} for side in sides}
    for trial, record in records.items():
        is_valid = record.counts_for(Purpose.MEASUREMENT) and not record.is_start_failure
        if record.role == Role.PAIR and is_valid and record.source in runs:
            curve = curves.get(trial, ())
            replicate = replicate_of(record, curve, baseline_value=objective.baseline_value)
            if is_throughput:
                seconds = seconds_per_sample(record, curve)
                replicate = Replicate(seconds or math.inf, is_hit=seconds is not None)
            runs[record.source][int(trial.rpartition("-")[2])] = replicate
    return Pairs(sides, objective, runs, smallest, errors, is_throughput)


def seconds_per_sample(record: RunRecord, curve: Sequence[Evaluation]) -> float | None:
    """Return the training seconds per sample of a run; None if it did not train.

    If there are several evaluations, only the training after the first evaluation counts.
    """
    samples, seconds = record.samples, record.ledger["train"]
    if len(curve) > 1:  # the time before the first evaluation includes warm-up
        samples, seconds = samples - curve[0].samples, seconds - curve[0].train_s
    return seconds / samples if samples > 0 and seconds > 0 else None


@once
def comparison_of(results: Study) -> Pairs | None:
    """Return the pairs of a study that `raybench compare` ran; None for any other study."""
    if results.kind is not StudyKind.COMPARISON:
        return None
    comparison = results.study[COMPARISON]
    where = f"{results.folder / STUDY_FILE}: study.objective"
    return pairs_of(
        [Side(**side) for side in comparison["sides"]],
        validate(Objective, results.study["study"]["objective"], where),
        results.runs,
        results.evaluations,
        smallest=comparison["smallest"],
        errors=comparison["errors"],
        is_throughput=comparison.get("is_throughput", False),
    )


def answer_lines(pairs: Pairs) -> list[str]:
    """Return one line per side, followed by one sentence per comparison."""
    return [*(_side_line(pairs, side) for side in pairs.sides), *sentences(pairs)]


def _side_line(pairs: Pairs, side: Side) -> str:
    runs = list(pairs.runs[side.name].values())
    hits = [run.seconds for run in runs if run.is_hit]
    if pairs.is_throughput:
        middle = f"{1 / statistics.median(hits):,.4g}" if hits else "none"
        outcome = f"{middle} samples/s in the median of {len(hits)} runs"
    elif pairs.is_timed:
        middle = f", {statistics.median(hits):.3g} s in the median" if hits else ""
        outcome = f"{len(hits)} of {len(runs)} runs reached the target{middle}"
    else:
        metric = pairs.objective.judged_by
        middle = metric.shown(-metric.sign * statistics.median(hits), digits=2) if hits else "none"
        outcome = f"{metric.words} {middle} in the median of {len(hits)} runs"
    return f"{side.name}  {side.label}  ({side.source}): {outcome}"


def sentences(pairs: Pairs) -> list[str]:
    """Return one sentence per comparison of an alternative with the baseline."""
    first, lines = pairs.sides[0].name, []
    for name, comparison in pairs.comparisons.items():
        after = f"after {counted(comparison.pairs, 'pair')}"
        interval = f"{pairs.level} interval {interval_words(pairs, comparison)}"
        if comparison.outcome == "undecided":
            more = pairs.more(name)
            tail = "." if more is None else f"; about {more} more are likely to decide (--runs)."
            lines.append(f"{name} and {first}: undecided {after} ({interval}){tail}")
            continue
        sentence = f"{name} is {comparison.outcome} than {first} by {_size(pairs, comparison)}"
        if comparison.outcome == "same":
            smallest = f"{100 * pairs.smallest:g} {_unit(pairs)}"
            sentence = f"Between {name} and {first} there is no difference of {smallest} or more"
        lines.append(f"{sentence} ({interval}) {after}.")
    return lines


def documents(pairs: Pairs) -> dict[str, Any]:
    """Return sides and comparisons as plain data for JSON.

    Effects are fractions; they are positive if the side is better than the baseline.
    """

    def share(value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else _percent(pairs, value) / 100

    return {
        "smallest": pairs.smallest,
        "sides": [
            {
                "name": side.name,
                "source": side.source,
                "configuration": side.label,
                "runs": len(pairs.runs[side.name]),
                "hits": sum(run.is_hit for run in pairs.runs[side.name].values()),
            }
            for side in pairs.sides
        ],
        "comparisons": [
            {
                "side": name,
                "beside": pairs.sides[0].name,
                "outcome": comparison.outcome,
                "pairs": comparison.pairs,
                "effect": share(comparison.effect),
                "low": share(comparison.low),
                "high": share(comparison.high),
                "more_pairs": pairs.more(name) if comparison.outcome == "undecided" else None,
            }
            for name, comparison in pairs.comparisons.items()
        ],
    }


def _percent(pairs: Pairs, difference: float) -> float:
    """Convert a number of `Pairs.differences` to percentage points or percent."""
    return 100 * (-math.expm1(-difference) if pairs.is_timed else difference)


def _unit(pairs: Pairs) -> str:
    return "points" if not pairs.is_timed and pairs.objective.judged_by.is_share else "%"


def _size(pairs: Pairs, comparison: Comparison) -> str:
    if comparison.effect is None:
        better = comparison.outcome == "better"
        if pairs.is_throughput:
            return "training at all" if better else "not training"
        return "reaching the target more often" if better else "missing the target"
    quantity = " of the seconds" if pairs.is_timed else ""
    quantity += " per sample" if pairs.is_throughput else ""
    return f"{abs(_percent(pairs, comparison.effect)):.1f} {_unit(pairs)}{quantity}"


def interval_words(pairs: Pairs, comparison: Comparison) -> str:
    """Return the interval of a comparison as text.

    Examples: `1.9 to 6.3 % better`, `3.1 % worse to 9.2 % better`, `at most 4.0 % better`.
    """

    def word(end: float) -> str:
        return f"{abs(end):.1f} {_unit(pairs)} {'worse' if end < 0 else 'better'}"

    finite = [
        _percent(pairs, end) for end in (comparison.low, comparison.high) if math.isfinite(end)
    ]
    if len(finite) == 2 and finite[0] * finite[1] >= 0:
        small, large = sorted(map(abs, finite))
        return f"{small:.1f} to {word(math.copysign(large, sum(finite)))}"
    if len(finite) == 2:
        return " to ".join(map(word, finite))
    if not finite:
        return "not known yet"
    is_least = (finite[0] >= 0) == math.isfinite(comparison.low)
    return f"at {'least' if is_least else 'most'} {word(finite[0])}"


def exit_code(pairs: Pairs) -> int:
    """Return the exit code of the command; see EXIT_CODES."""
    outcomes = {comparison.outcome for comparison in pairs.comparisons.values()}
    return next(code for outcome, code in EXIT_CODES.items() if outcome in outcomes)
