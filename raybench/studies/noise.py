"""The critical batch of a scaling study by its gradients, from any run of two workers or more."""

import math
import statistics
from collections.abc import Sequence

from raybench.core.record import Evaluation
from raybench.results.load import StudyResults
from raybench.results.scaling.kinds import series_of
from raybench.scaling.noise_scale import NoiseScale, critical_batch
from raybench.studies.fits import specs_of


def critical_batches(results: StudyResults) -> dict[str, list[float]]:
    """Return, for each series, the critical batch that each run's gradients tell of, if they do."""
    specs = specs_of(results)
    series = dict(zip(specs, series_of(list(specs.values())), strict=True))
    found: dict[str, list[float]] = {}
    for row in results.scaling_runs.to_dict("records"):
        batch = specs[row["cell"]].global_batch_size
        value = of_run(results.evaluations.get(row["trial"], ()), batch)
        if math.isfinite(value):
            found.setdefault(series[row["cell"]], []).append(value)
    return found


def of_run(curve: Sequence[Evaluation], global_batch_size: int) -> float:
    """Return the critical batch of a run, averaged over its progress; NaN where it tells none."""
    state, scales = NoiseScale(), []
    for point in curve:
        if point.noise_scale is not None:
            state = state.after(point.noise_scale)
            scales.append(state.b_simple)
    return critical_batch(scales, [global_batch_size] * len(scales))


def noise_sentence(values: Sequence[float]) -> str:
    """Say what runs of a series tell of the critical batch."""
    middle, runs = statistics.median(values), len(values)
    spread = f", {min(values):,.3g} to {max(values):,.3g}" if runs > 1 else ""
    return (
        f"By the noise of the gradients the critical batch is about {middle:,.3g} "
        f"({runs} run{'s' if runs != 1 else ''}{spread}); right within a factor of three, as such "
        "figures go."
    )
