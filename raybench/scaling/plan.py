"""Predicted time and cost of reaching the target on rented machines.

A plan has a row for each combination of machine type, worker count and batch size; `answers` are
its best rows. `target_plans` makes the plans of measured scaling studies.

A job is one training on rented machines, and a cloud bills all of it. Machines and the worker group
start, data and model are set up, and the first step is compiled; then the model is trained and
evaluated until it reaches the target. The training seconds are the number of samples needed at the
global batch size (`samples_to_target`), divided by the batch size, times the seconds of a step. The
errors of both predictions and the scatter between runs are independent, so their relative intervals
are added in quadrature.

Several studies may be passed if they measure the same training on different kinds of machines. The
curve of samples to target by batch size is then fitted to all of them together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from raybench.results.study import Study
from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.cells import MISSES, median_time
from raybench.scaling.fits import FittedSeries, study_runs
from raybench.scaling.measurements import NINE_OF_TEN, Cell, Predicted
from raybench.scaling.samples_to_target import SamplesToTarget, fit, middles, read
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.scaling_study import CPU, MONEY, WORKER_SECONDS, MachinePrice

TIE = 0.05
"""Fraction of the best time (or cost) within which rows of a plan are tied with the best. Among
tied rows, the one with the lowest cost (or time) wins, so that a trivial predicted gain does not
change the answer (petuum/adaptdl issue 27)."""
FASTEST, CHEAPEST = "fastest", "cheapest"
WITHIN, IN_TIME = "fastest within the budget", "cheapest by the deadline"
KEYS = ["gpu_type", "num_workers", "num_nodes", "global_batch_size"]
NO_GPU = "CPU"
"""Name that stands for the GPU model of workers without GPUs."""
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
    """Return the offers (machines or single workers) whose kind of worker was measured.

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
        run_spread: Half-width of the 90 % interval of a run's log seconds around their median at
            its worker count and batch size; None to compute it from the spread of `samples`.

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
        seconds: Deadline: maximum duration of the job in seconds.
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


@dataclass(frozen=True)
class Terms:
    """Prices and limits for a plan."""

    prices: Mapping[str, MachinePrice] | float | None = None
    """Machines with their prices by name, or the price of a worker-hour; None if each worker costs
    1 per second."""
    budget: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class TargetPlan:
    """Plan for one series: predicted time and cost to the target for each choice of machines,
    workers and batch size."""

    series: str
    sentences: tuple[str, ...]
    """Sentences about the critical batch size, or about why there is no plan. They also name the
    machines that were left out."""
    table: pd.DataFrame
    """Result of `with_measured` with two more columns: `series` and `unit`, the unit of costs.
    Empty if there is no plan."""
    answers: pd.DataFrame
    """Result of `answers`; empty if there is no plan."""
    terms: Terms


def target_plans(
    studies: Sequence[Study], fitted: Sequence[FittedSeries], terms: Terms | None = None
) -> list[TargetPlan]:
    """Return a plan for each fitted series; [] if no study has a target.

    The plans cover the batch sizes that were run, and the layouts (workers, nodes) that were run or
    predicted.

    Args:
        studies: Scaling studies of the same training.
        fitted: Fitted series of these studies.
        terms: Prices and limits; None for those of the first study.
    """
    if all(study.target is None for study in studies):
        return []
    if terms is None:
        terms = Terms(studies[0].scaling_study.price, studies[0].scaling_study.budget)
    by_series: dict[str, dict[str, FittedSeries]] = {}
    for series_fit in fitted:
        by_series.setdefault(series_fit.key.model, {})[series_fit.key.gpu_type or NO_GPU] = (
            series_fit
        )
    runs = measured_runs(*studies)
    return [
        _series_plan(series, groups, runs[runs["series"] == series], terms)
        for series, groups in by_series.items()
    ]


def measured_runs(*studies: Study) -> pd.DataFrame:
    """Return a table with one row per run: its series and cell, and its time and samples to the
    target.

    A run that diverged or ran out of memory counts as one that never reached the target.

    | column | meaning |
    |---|---|
    | ready_s | seconds of the cold start of a worker group (median over runs with the same |
    |  | gpu_type), setup and compilation |
    | beside_s | seconds of evaluating, saving and reporting, per training sample |
    | stalls | training seconds, divided by those without stalls |
    | work_s | seconds of training, evaluating, saving and reporting up to the target; missing if |
    |  | the target was not reached |
    """
    rows = []
    for study, row, spec, series in study_runs(*studies):
        if not pd.isna(row["failure"]) and row["failure"] not in MISSES:
            continue
        ledger, samples = study.runs[row["trial"]].ledger, row["samples"] or math.nan
        beside_s = sum(ledger[name] for name in ("eval", "checkpoint", "report")) / samples
        reached = study.target is not None and pd.notna(row["time_to_target_s"])
        to_target = row["samples_to_target"] if reached else math.nan
        rows.append(
            {
                "series": series,
                "gpu_type": row["accelerators"] or NO_GPU,
                "num_workers": spec.num_workers,
                "num_nodes": max(row["num_nodes"], 1),
                "global_batch_size": spec.global_batch_size,
                "has_target": study.target is not None,
                "work_s": row["time_to_target_s"] + beside_s * to_target if reached else math.nan,
                "samples_to_target": to_target,
                "start_s": ledger["start"],
                "ready_s": ledger["setup"] + ledger["compile"],
                "beside_s": beside_s,
                "stalls": row["train_s"] * row["samples_per_s"] / samples,
            }
        )
    table = pd.DataFrame(rows)
    if not rows:
        return table
    cold = table["start_s"].where(table["start_s"] > 0)
    table["ready_s"] += cold.groupby(table["gpu_type"]).transform("median").fillna(0.0)
    return table


UNKNOWN = {"ready_s": 0.0, "beside_s": 0.0, "stalls": 1.0}
"""Default values for the fields of `Overhead` that were not measured."""


def _overhead(runs: pd.DataFrame, kind: str, workers: int) -> Overhead:
    """Return the expected overhead of a job: medians over runs on the same kind of worker, with the
    worker count nearest to `workers`."""
    kind_runs = runs[runs["gpu_type"] == kind]
    distances = np.abs(np.log(kind_runs["num_workers"] / workers))
    near = kind_runs.loc[distances == distances.min(), [*UNKNOWN]].median()
    return Overhead(*near.fillna(UNKNOWN))


def run_spread(runs: pd.DataFrame) -> float | None:
    """Return the half-width of the 90 % interval of log `work_s` of a run, around the median of its
    cell.

    The variance is pooled over all cells (Student's t). None if no cell was repeated.
    """
    logs = np.log(runs["work_s"]).groupby([runs[key] for key in KEYS])
    freedom = (logs.count() - 1).clip(lower=0).sum()
    if not freedom:
        return None
    squares = (logs.var() * (logs.count() - 1)).sum()
    return float(stdtrit(freedom, 0.95) * np.sqrt(squares / freedom))


def _series_plan(
    series: str, groups: Mapping[str, FittedSeries], runs: pd.DataFrame, terms: Terms
) -> TargetPlan:
    cells = [
        cell
        for series_fit in groups.values()
        for cell in (*series_fit.model.observed.cells, *series_fit.asked)
    ]
    runs_to_target = runs[runs["has_target"]]
    try:
        offers = offers_of(list(groups), terms.prices)
        by_batch = read(runs_to_target.rename(columns={"global_batch_size": "batch_size"}))
        curve = fit(by_batch)
        predicted = plan(
            curve,
            {
                kind: partial(predicted_steps, series_fit.model)
                for kind, series_fit in groups.items()
            },
            layouts=sorted({(cell.num_workers, cell.num_nodes) for cell in cells}),
            batch_sizes=[size.batch_size for size in by_batch.batch_sizes],
            offers=offers,
            overhead=cache(partial(_overhead, runs)),
            run_spread=run_spread(runs_to_target),
        )
    except UserError as error:  # too few batch sizes reached the target
        none = pd.DataFrame()
        return TargetPlan(series, (f"No plan: {error}",), none, none, terms)
    unit = WORKER_SECONDS if terms.prices is None else MONEY
    table = with_measured(predicted, runs_to_target).assign(series=series, unit=unit)
    left_out = {*groups} - {offer.kind for offer in offers}
    notes = [f"Without a price, and left out: {', '.join(sorted(left_out))}."] if left_out else []
    if isinstance(terms.prices, Mapping):
        unseen = [name for name in terms.prices if name not in {offer.name for offer in offers}]
        notes += [f"Not measured, and left out: {', '.join(unseen)}."] if unseen else []
    best_rows = answers(table, budget=terms.budget, deadline_s=terms.deadline_s)
    return TargetPlan(series, (curve.sentence(), *notes), table, best_rows, terms)


def predicted_steps(
    model: ThroughputModel, cells: Sequence[tuple[int, int, int]], /
) -> list[Predicted]:
    """Predict the seconds of a step for each (workers, nodes, samples per worker and step).

    The samples are split evenly into as many passes as possible, up to the largest measured number
    of passes.
    """
    max_passes = max(cell.accumulate for cell in model.observed.cells)
    asked = []
    for workers, nodes, samples in cells:
        passes = next(
            number for number in range(min(max_passes, samples), 0, -1) if samples % number == 0
        )
        asked.append(Cell(workers, nodes, samples // passes, passes))
    return [
        Predicted(prediction.step_s, prediction.low_s, prediction.high_s)
        for prediction in model.predict(asked)
    ]
