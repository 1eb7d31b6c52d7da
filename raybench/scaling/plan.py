"""Plans: predicted time and cost to reach the target, for combinations of machines, worker count
and batch size, and the best of these.

A job is one training on rented machines, and a cloud bills all of it. Machines and the worker group
start, data and model are set up, and the first step is compiled; then the model is trained and
evaluated until it reaches the target. The training seconds are the number of samples needed at the
global batch size (`samples_to_target`), divided by the batch size, times the seconds of a step. The
errors of both predictions and the scatter between runs are independent, so their relative intervals
are added in quadrature.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from raybench.scaling.cells import median_time
from raybench.scaling.measurements import NINE_OF_TEN, Predicted
from raybench.scaling.samples_to_target import SamplesToTarget, middles
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.scaling_study import CPU, MachinePrice

TIE = 0.05
"""Rows of a plan within this fraction of the best time (or cost) are tied. Among tied rows, the one
with the lowest cost (or time) wins, so that a trivial predicted gain does not change the answer
(petuum/adaptdl issue 27)."""
FASTEST, CHEAPEST = "fastest", "cheapest"
WITHIN, IN_TIME = "fastest within the budget", "cheapest by the deadline"
KEYS = ["gpu_type", "num_workers", "num_nodes", "global_batch_size"]
NO_GPU = "CPU"
"""Name that stands for the GPU model of workers without GPUs."""
MONEY, WORKER_SECONDS = "money", "worker-seconds"
"""Units of cost. Without prices, a worker costs 1 per second, so the cost is in worker-seconds."""
HOUR = 3600.0
DRAWS = 2000
"""Number of draws of a job's duration from which a probability is computed."""


StepModel = Callable[[Sequence[tuple[int, int, int]]], Sequence[Predicted]]
"""Function that predicts the seconds of a step on one kind of worker, for each (workers, nodes,
samples per worker and step)."""


class Overhead(NamedTuple):
    """Time of a job (training on rented machines) in addition to its steps, measured on runs."""

    fixed_s: float = 0.0
    """Seconds for starting the worker group, loading data and model, and compiling."""
    per_sample_s: float = 0.0
    """Seconds for evaluating, saving and reporting, per training sample."""
    stalls: float = 1.0
    """Training seconds, divided by (number of steps x median seconds of a step)."""


@dataclass(frozen=True)
class Offer:
    """A machine type that can be rented, with its price."""

    name: str
    terms: MachinePrice
    is_by_worker: bool = False
    """True if single workers are rented; False if whole machines are rented and filled with
    workers."""

    @property
    def kind(self) -> str:
        """Kind of worker: the GPU model, as in `gpu_type` of a throughput model, or NO_GPU."""
        return NO_GPU if self.terms.accelerator.lower() == CPU else self.terms.accelerator

    def machines(self, workers: int) -> int:
        """Return the number of machines needed for `workers`."""
        return -(-workers // self.terms.workers)


def by_worker(kind: str, hourly: float = HOUR) -> Offer:
    """Return an offer of single workers at a price per hour (by default, 1 per second)."""
    terms = MachinePrice(accelerator=kind, workers=1, price=hourly, billing_step_s=0.0)
    return Offer(kind, terms, is_by_worker=True)


def offers_of(
    kinds: Sequence[str], price: Mapping[str, MachinePrice] | float | None
) -> list[Offer]:
    """Return the offers (machines or single workers) that provide kinds of worker that were
    measured.

    Args:
        kinds: Kinds of worker that were measured.
        price: Machines with their prices by name, or the price of a worker-hour. None if each
            worker costs 1 per second.

    Raises:
        UserError: No machine has a kind that was measured.
    """
    if not isinstance(price, Mapping):
        return [by_worker(kind, HOUR if price is None else price) for kind in kinds]
    all_offers = [Offer(name, terms) for name, terms in price.items()]
    if not (offers := [offer for offer in all_offers if offer.kind in kinds]):
        kinds_with_price = ", ".join(dict.fromkeys(offer.kind for offer in all_offers))
        raise UserError(
            f"prices: are for {kinds_with_price}, but {', '.join(kinds)} was measured; add a "
            "machine whose accelerator has one of these names.",
            ErrorCode.UNKNOWN_NAME,
        )
    return offers


def bill(seconds: Any, hourly: Any, step_s: Any) -> Any:
    """Return the cost of a job, rounded up to the billing increment.

    Args:
        seconds: Duration of the job in seconds.
        hourly: Price per hour.
        step_s: Billing increment in seconds; 0 to bill exactly.

    Each argument is a number or a column of numbers.
    """
    # 1e-9 covers rounding errors.
    steps = np.ceil(seconds / np.where(step_s > 0, step_s, 1.0) - 1e-9)
    return hourly / HOUR * np.where(step_s > 0, steps * step_s, seconds)


def plan(
    samples: SamplesToTarget,
    step_times: Mapping[str, StepModel],
    *,
    layouts: Sequence[tuple[int, int]],
    batch_sizes: Sequence[int],
    offers: Sequence[Offer] | None = None,
    overhead: Callable[[str, int], Overhead] = lambda kind, workers: Overhead(),
    run_spread: float | None = None,
) -> pd.DataFrame:
    """Return a plan: a table with one row for each offer, layout and global batch size.

    Args:
        samples: Fitted curve of samples to target by global batch size.
        step_times: Functions that predict step times, by kind of worker (gpu_type).
        layouts: Pairs (workers, nodes). If whole machines are rented, they are filled with workers
            and the number of nodes is ignored.
        batch_sizes: Global batch sizes. There is no row for a batch size that does not divide
            evenly among the workers or cannot reach the target (`SamplesToTarget.reaches`).
        offers: Machines or workers that can be rented; None if each worker costs 1 per second.
        overhead: Function that returns the overhead of a job, given the kind of worker and the
            worker count.
        run_spread: Half-width of the 90 % interval of the log seconds of a run, around the median
            of its cell; None to compute it from the spread of `samples`.

    Returns:
        | column | meaning |
        |---|---|
        | offer, machines | name of the rented machine type; number of machines |
        | gpu_type, num_workers, num_nodes | kind, number and nodes of the workers |
        | batch_size_per_worker, global_batch_size | samples of a step |
        | samples, step_s | predicted median samples to target; seconds of a step |
        | fixed_s | seconds of the job before training begins |
        | work_s, low_work_s, high_work_s | seconds of training and evaluation; 90 % interval |
        | seconds, low_s, high_s | seconds of the whole job; 90 % interval |
        | hourly, billing_step_s | price of all machines; billing increment in seconds |
        | cost, low_cost, high_cost | cost of the job |
        | extrapolated | whether the batch size lies outside the measured range |

    Raises:
        UserError: No row is left.
    """
    spread = NINE_OF_TEN * samples.spread if run_spread is None else run_spread
    needs = samples.predict(batch_sizes)[["samples", "low", "high"]].to_numpy(dtype=float)
    by_batch = dict(zip(batch_sizes, needs.tolist(), strict=True))
    low_batch, high_batch = samples.tried
    rows: list[dict[str, Any]] = []
    for offer in offers_of(list(step_times), None) if offers is None else offers:
        sizes = {(k, n if offer.is_by_worker else offer.machines(k)): None for k, n in layouts}
        cells = [
            (workers, nodes, batch)
            for workers, nodes in sizes
            for batch in batch_sizes
            if batch >= workers and not batch % workers and samples.reaches(batch)
        ]
        steps = step_times[offer.kind]([(k, n, batch // k) for k, n, batch in cells])
        for (workers, nodes, batch), step in zip(cells, steps, strict=True):
            need, low, high = by_batch[batch]
            job_overhead = overhead(offer.kind, workers)
            work_s = (
                need / batch * step.value * job_overhead.stalls + job_overhead.per_sample_s * need
            )
            below = math.hypot(math.log(need / low), math.log(step.value / step.low), spread)
            above = math.hypot(math.log(high / need), math.log(step.high / step.value), spread)
            row: dict[str, Any] = {
                "offer": offer.name,
                "gpu_type": offer.kind,
                "num_workers": workers,
                "num_nodes": nodes,
                "machines": offer.machines(workers),
                "batch_size_per_worker": batch // workers,
                "global_batch_size": batch,
                "samples": need,
                "step_s": step.value,
                "fixed_s": offer.terms.startup_s + job_overhead.fixed_s,
                "hourly": offer.machines(workers) * offer.terms.price,
                "billing_step_s": offer.terms.billing_step_s,
                "extrapolated": not low_batch <= batch <= high_batch,
            }
            ends = {"seconds": ("", 0.0), "low_s": ("low_", -below), "high_s": ("high_", above)}
            for name, (end, shift) in ends.items():
                row[f"{end}work_s"] = work_s * math.exp(shift)
                row[name] = row["fixed_s"] + row[f"{end}work_s"]
            rows.append(row)
    if not rows:
        raise UserError(
            "plan: no batch size that reached the target divides evenly among the workers; choose "
            "other batch sizes or worker counts",
            ErrorCode.INVALID_VALUE,
        )
    table = pd.DataFrame(rows)
    for name, column in (("cost", "seconds"), ("low_cost", "low_s"), ("high_cost", "high_s")):
        table[name] = bill(table[column], table["hourly"], table["billing_step_s"])
    return table


def chance(row: Mapping[Any, Any], *, seconds: float = math.inf, budget: float = math.inf) -> float:
    """Return the probability that a job stays within a deadline and a budget.

    The log of `work_s` is assumed to be normal, with different widths below and above the median.

    Args:
        row: Row of a plan, which describes the job.
        seconds: Deadline: maximum seconds of the job.
        budget: Maximum cost of the job.
    """
    quantiles = ndtri(middles(DRAWS))
    halves = [abs(math.log(row[key] / row["work_s"])) for key in ("low_work_s", "high_work_s")]
    work_s = row["work_s"] * np.exp(quantiles / NINE_OF_TEN * np.where(quantiles < 0, *halves))
    drawn = row["fixed_s"] + work_s
    bills = bill(drawn, row["hourly"], row["billing_step_s"])
    return float(np.mean((drawn <= seconds) & (bills <= budget)))


def with_measured(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a plan with columns for the measured times of runs.

    Args:
        table: The plan.
        runs: One row per run, with the columns num_workers, global_batch_size and work_s (seconds
            of training and evaluation to the target; missing if never reached), and with gpu_type
            and num_nodes if the plan has several of them.

    Returns:
        The plan with four more columns, which are missing in rows without runs:

        | column | meaning |
        |---|---|
        | measured_s | seconds of the job, with the median work_s of its runs; infinite if most |
        |  | runs missed the target |
        | measured_cost | cost of the job |
        | error | predicted / measured seconds - 1 |
        | within | whether measured_s lies in the 90 % interval of the prediction |
    """
    needed = [key for key in KEYS if key in runs.columns]
    work_s = runs.groupby(needed)["work_s"].agg(median_time).rename("measured_s")
    joined = table.join(work_s, on=needed)
    joined["measured_s"] += joined["fixed_s"]
    joined["measured_cost"] = bill(joined["measured_s"], joined["hourly"], joined["billing_step_s"])
    joined["error"] = joined["seconds"] / joined["measured_s"] - 1
    inside = joined["measured_s"].between(joined["low_s"], joined["high_s"])
    joined["within"] = inside.astype("boolean").mask(joined["measured_s"].isna())
    return joined


def answers(
    table: pd.DataFrame, *, budget: float | None = None, deadline_s: float | None = None
) -> pd.DataFrame:
    """Return the best rows of a plan.

    There are up to four: FASTEST, CHEAPEST, WITHIN (the fastest within the budget) and IN_TIME (the
    cheapest within the deadline). FASTEST is the cheapest of the rows within TIE of the fastest, so
    that no money is spent on a trivial gain. CHEAPEST is the fastest of the rows within TIE of the
    cheapest. An answer is left out if no row qualifies.

    Args:
        table: The plan.
        budget: Maximum cost, in the unit of the costs.
        deadline_s: Maximum seconds.

    Returns:
        The rows with more columns:

        | column | meaning |
        |---|---|
        | answer | name of the answer |
        | keeps_budget, keeps_deadline | probability of staying within the budget or deadline, if |
        |  | there is one |
        | loss | measured value of the row / best measured value - 1, with a plan from |
        |  | `with_measured` |
    """
    measured = {"seconds": "measured_s", "cost": "measured_cost"}
    rows = []
    for name, column, tie_column, limit in (
        (FASTEST, "seconds", "cost", np.inf),
        (CHEAPEST, "cost", "seconds", np.inf),
        (WITHIN, "seconds", "cost", budget),
        (IN_TIME, "cost", "seconds", deadline_s),
    ):
        if limit is None or (allowed := table[table[tie_column] <= limit]).empty:
            continue
        tied = allowed[allowed[column] <= allowed[column].min() * (1 + TIE)]
        best_row = tied.sort_values([tie_column, column], kind="stable").iloc[0].to_dict()
        row = {"answer": name} | best_row
        if budget is not None:
            row["keeps_budget"] = chance(best_row, budget=budget)
        if deadline_s is not None:
            row["keeps_deadline"] = chance(best_row, seconds=deadline_s)
        if "measured_s" in table.columns:
            best = float(table.loc[table[measured[tie_column]] <= limit, measured[column]].min())
            row["loss"] = float(best_row[measured[column]]) / best - 1  # NaN if not measured
        rows.append(row)
    return pd.DataFrame(rows)
