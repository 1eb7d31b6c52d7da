"""What to buy: seconds and money to the target over workers and batch sizes, and which to take.

Seconds to target are the samples that a global batch size needs (`samples_to_target`), over the
batch size, times the seconds of a step there. Both are uncertain and independent: their relative
intervals add in squares. Pure: tables in, tables out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from raybench.scaling.runs import median_time
from raybench.scaling.samples_to_target import SamplesToTarget
from raybench.spec.errors import UserError

TIE = 0.05
"""Configurations within this share of the best are a tie: the one that saves most elsewhere wins,
so that no answer flips for a trivial predicted gain (petuum/adaptdl issue 27)."""
ANSWERS = ("fastest", "cheapest", "fastest within the budget")
KEYS = ["gpu_type", "num_workers", "num_nodes", "global_batch_size"]


class StepSeconds(NamedTuple):
    """Predicted seconds of a step, and the ends of its 90 % interval."""

    step_s: float
    low_s: float
    high_s: float


StepTimes = Callable[[int, int, int], StepSeconds]
"""A throughput model of one kind of worker: workers, nodes and batch size per worker to a step."""


def plan(
    samples: SamplesToTarget,
    step_times: Mapping[str, StepTimes],
    *,
    layouts: Sequence[tuple[int, int]],
    batch_sizes: Sequence[int],
    prices: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Return a row for every kind of worker, layout (workers, nodes) and global batch size.

    `step_times` and `prices` (money per worker and hour) are by kind of worker (gpu_type). A batch
    size that does not divide among the workers, or at which the target is not within reach
    (`SamplesToTarget.reaches`), has no row.

    | column | holds |
    |---|---|
    | gpu_type, num_workers, num_nodes, batch_size_per_worker, global_batch_size | where |
    | samples, step_s | predicted median samples to target; seconds of a step |
    | seconds, low_s, high_s | predicted seconds to target, 90 % |
    | worker_seconds | seconds times workers |
    | money, low_money, high_money | at `prices`; NaN without |
    | extrapolated | the batch size lies outside of those with runs |
    """
    prices = prices or {}
    unknown = [kind for kind in step_times if prices and kind not in prices]
    if unknown:
        raise UserError(f"prices: no price for {unknown[0]!r}; name one for every kind of worker")

    predicted = samples.predict(batch_sizes)[["samples", "low", "high"]].to_numpy(dtype=float)
    low_batch, high_batch = samples.tried
    rows = []
    for kind, step_time in step_times.items():
        for workers, nodes in layouts:
            for batch, (need, low, high) in zip(batch_sizes, predicted.tolist(), strict=True):
                own, left = divmod(batch, workers)
                if left or not own or not samples.reaches(batch):
                    continue
                step = step_time(workers, nodes, own)
                seconds = need / batch * step.step_s
                below = math.hypot(math.log(need / low), math.log(step.step_s / step.low_s))
                above = math.hypot(math.log(high / need), math.log(step.high_s / step.step_s))
                rows.append(
                    {
                        "gpu_type": kind,
                        "num_workers": workers,
                        "num_nodes": nodes,
                        "batch_size_per_worker": own,
                        "global_batch_size": batch,
                        "samples": need,
                        "step_s": step.step_s,
                        "seconds": seconds,
                        "low_s": seconds * math.exp(-below),
                        "high_s": seconds * math.exp(above),
                        "extrapolated": not low_batch <= batch <= high_batch,
                    }
                )
    if not rows:
        raise UserError(
            "plan: no batch size divides among the workers and reached the target; ask for other "
            "batch sizes or numbers of workers"
        )
    table = pd.DataFrame(rows)
    hourly = table["gpu_type"].map(lambda kind: prices.get(kind, np.nan)).astype(float)
    table["worker_seconds"] = table["seconds"] * table["num_workers"]
    for name, column in (("money", "seconds"), ("low_money", "low_s"), ("high_money", "high_s")):
        table[name] = hourly * table["num_workers"] * table[column] / 3600
    return table


def with_measured(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Put beside a plan what was measured: one row a run in, the plan's rows out.

    `runs` has num_workers, global_batch_size, seconds_to_target (missing: never reached), and
    gpu_type and num_nodes where the plan has several of them. Added: measured_runs,
    measured_reached, measured_s (median, misses counted as infinite), measured_money, error
    (predicted over measured, less 1), within (measured_s lies in the interval). Where nothing was
    measured they are missing; where most runs missed, measured_s is infinite.
    """
    needed = [key for key in KEYS if key in runs.columns]
    measured = runs.groupby(needed)["seconds_to_target"].agg(
        measured_runs="size", measured_reached="count", measured_s=median_time
    )
    joined = table.join(measured, on=needed)
    hourly = joined["money"] / joined["seconds"]
    joined["measured_money"] = joined["measured_s"] * hourly
    joined["error"] = joined["seconds"] / joined["measured_s"] - 1
    inside = joined["measured_s"].between(joined["low_s"], joined["high_s"])
    joined["within"] = inside.astype("boolean").mask(joined["measured_s"].isna())
    return joined


def answers(table: pd.DataFrame, *, budget: float | None = None) -> pd.DataFrame:
    """Return the rows to take, with `answer`: fastest, cheapest, fastest within the budget.

    The cheapest costs least money, or fewest worker-seconds where there are no prices; `budget`
    is in the same. Within 5 % of the best in seconds the cheapest is taken, and within 5 % of the
    cheapest the fastest, so that a trivial gain buys no workers. With `with_measured`'s columns
    each answer has `best_measured`, the least that any measured row took in what was asked for,
    `loss`, how much more the row taken took, and `kept`, whether it kept the budget. An answer
    without a row is left out: nothing is within the budget.
    """
    cost = "money" if table["money"].notna().all() else "worker_seconds"
    wanted = [(ANSWERS[0], "seconds", cost, np.inf), (ANSWERS[1], cost, "seconds", np.inf)]
    if budget is not None:
        wanted.append((ANSWERS[2], "seconds", cost, budget))
    rows = []
    for name, least, then, limit in wanted:
        affordable = table[table[cost] <= limit]
        if affordable.empty:
            continue
        tied = affordable[affordable[least] <= affordable[least].min() * (1 + TIE)]
        taken = tied.sort_values([then, least], kind="stable").head(1)
        row: dict[str, object] = {"answer": name} | taken.to_dict("records")[0]
        if "measured_s" in table.columns:
            best = float(_measured(table, least)[_measured(table, cost) <= limit].min())
            row["best_measured"] = best  # NaN where nothing was measured
            row["loss"] = float(_measured(taken, least).iloc[0]) / best - 1
            row["kept"] = bool(_measured(taken, cost).iloc[0] <= limit)
        rows.append(row)
    return pd.DataFrame(rows)


def _measured(table: pd.DataFrame, column: str) -> "pd.Series[float]":
    """Return what was measured in the place of a predicted column."""
    if column == "worker_seconds":
        return table["measured_s"] * table["num_workers"]
    return table["measured_money" if column == "money" else "measured_s"]
