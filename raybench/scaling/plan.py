"""Plans: seconds and bills to the target over machines, workers and batch sizes, and which
to take.

A job is what a cloud bills: machines start, the worker group starts, data and model are set up, the
first step is compiled, then it trains and evaluates until the target. Its training is the samples
that a global batch size needs (`samples_to_target`), over the batch size, times the seconds of a
step there. Both are uncertain, and a run is not as the median one: these are independent, and their
relative intervals add in squares.

Pure: tables in, tables out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from raybench.scaling.measurements import NINE_OF_TEN, Floats
from raybench.scaling.runs import median_time
from raybench.scaling.samples_to_target import SamplesToTarget, middles
from raybench.spec.errors import UserError
from raybench.spec.prices import CPU, MachinePrice

TIE = 0.05
"""Configurations within this share of the best are a tie: the one that saves most elsewhere wins,
so that no answer flips for a trivial predicted gain (petuum/adaptdl issue 27)."""
FASTEST, CHEAPEST = "fastest", "cheapest"
WITHIN, IN_TIME = "fastest within the budget", "cheapest by the deadline"
KEYS = ["gpu_type", "num_workers", "num_nodes", "global_batch_size"]
NO_GPU = "CPU"
"""Kind of worker where there are no GPUs."""
MONEY, WORKER_SECONDS = "money", "worker-seconds"
"""Units of bills: without prices a worker costs one a second."""
HOUR = 3600.0
DRAWS = 2000
"""Jobs that a chance is of."""


class StepSeconds(NamedTuple):
    """Predicted seconds of a step, and the ends of its 90 % interval."""

    step_s: float
    low_s: float
    high_s: float


StepTimes = Callable[[Sequence[tuple[int, int, int]]], Sequence[StepSeconds]]
"""A throughput model of one kind of worker: workers, nodes and batch size per worker to steps."""


class Beside(NamedTuple):
    """Seconds of a job beside its training, by the ledgers of runs."""

    fixed_s: float = 0.0
    """Starting the worker group, data and model, compiling."""
    per_sample_s: float = 0.0
    """Evaluating, saving and reporting, over the samples trained on."""
    stalls: float = 1.0
    """Seconds of training over those that all of its steps would take as the median one does."""


@dataclass(frozen=True)
class Offer:
    """A kind of machine, on its terms."""

    name: str
    terms: MachinePrice
    is_by_worker: bool = False
    """Whether a worker is hired, wherever it is; else whole machines, each as full as it can be."""

    @property
    def kind(self) -> str:
        """Its kind of worker, as `gpu_type` of a throughput model has it."""
        return NO_GPU if self.terms.accelerator.lower() == CPU else self.terms.accelerator

    def machines(self, workers: int) -> int:
        """Return how many are hired."""
        return -(-workers // self.terms.workers)


def offers_of(
    kinds: Sequence[str], price: Mapping[str, MachinePrice] | Mapping[str, float] | float | None
) -> list[Offer]:
    """Return what can be hired of some kinds of worker: machines by their names, or workers at one
    price an hour, or at that of each kind; without prices at one a second."""
    if not isinstance(price, Mapping):
        price = dict.fromkeys(kinds, HOUR if price is None else price)
    found = [Offer(name, one) for name, one in price.items() if isinstance(one, MachinePrice)]
    if found:
        if not (known := [one for one in found if one.kind in kinds]):
            there = ", ".join(dict.fromkeys(one.kind for one in found))
            raise UserError(
                f"prices: are of {there}, and measured was {', '.join(kinds)}; name a machine "
                "with these, its accelerator as it is called here."
            )
        return known
    for kind in kinds:
        if not isinstance(hourly := price.get(kind), float | int):
            raise UserError(f"prices: no price for {kind!r}; name one for every kind of worker")
        terms = MachinePrice(accelerator=kind, workers=1, price=hourly, billing_step_s=0.0)
        found.append(Offer(kind, terms, is_by_worker=True))
    return found


def drawn_seconds(row: Mapping[Any, Any]) -> Floats:
    """Return what a job of a plan's row may take, all as probable: its work's logarithm is taken
    for normal on either side of its median."""
    quantiles = ndtri(middles(DRAWS))
    halves = [abs(math.log(row[key] / row["work_s"])) for key in ("low_work_s", "high_work_s")]
    work_s = row["work_s"] * np.exp(quantiles / NINE_OF_TEN * np.where(quantiles < 0, *halves))
    return np.asarray(row["fixed_s"] + work_s)


def bill(seconds: Any, hourly: Any, step_s: Any) -> Any:
    """Return the money for so many seconds, every step that was begun billed whole."""
    steps = np.ceil(seconds / np.where(step_s > 0, step_s, 1.0) - 1e-9)  # 1e-9: what rounding adds
    return hourly / HOUR * np.where(step_s > 0, steps * step_s, seconds)


def plan(
    samples: SamplesToTarget,
    step_times: Mapping[str, StepTimes],
    *,
    layouts: Sequence[tuple[int, int]],
    batch_sizes: Sequence[int],
    offers: Sequence[Offer] | None = None,
    beside: Callable[[str, int], Beside] = lambda kind, workers: Beside(),
    apart: float | None = None,
) -> pd.DataFrame:
    """Return a row for every offer, layout (workers, nodes) and global batch size.

    `step_times` are by kind of worker (gpu_type), `beside` by that and the number of workers;
    `apart`: nine of ten runs are within the exponential of it of their cell's median (none: by the
    spread of `samples`). Whole machines are filled, whatever a layout's nodes. A batch size that
    does not divide among the workers, or at which the target is not within reach
    (`SamplesToTarget.reaches`), has no row.

    | column | holds |
    |---|---|
    | offer, machines | what is hired |
    | gpu_type, num_workers, num_nodes, batch_size_per_worker, global_batch_size | where it trains |
    | samples, step_s | predicted median samples to target; seconds of a step |
    | fixed_s | of the job, until it trains |
    | work_s, low_work_s, high_work_s | of training and evaluation, 90 % |
    | seconds, low_s, high_s | of the job of one run, 90 % |
    | hourly, billing_step_s | of all machines; seconds that are billed whole |
    | cost, low_cost, high_cost | the bill |
    | extrapolated | the batch size lies outside of those with runs |
    """
    apart = NINE_OF_TEN * samples.spread if apart is None else apart
    needs = samples.predict(batch_sizes)[["samples", "low", "high"]].to_numpy(dtype=float)
    by_batch = dict(zip(batch_sizes, needs.tolist(), strict=True))
    low_batch, high_batch = samples.tried
    rows: list[dict[str, Any]] = []
    for offer in offers_of(list(step_times), None) if offers is None else offers:
        own = {(k, n if offer.is_by_worker else offer.machines(k)): None for k, n in layouts}
        cells = [
            (workers, nodes, batch)
            for workers, nodes in own
            for batch in batch_sizes
            if batch >= workers and not batch % workers and samples.reaches(batch)
        ]
        steps = step_times[offer.kind]([(k, n, batch // k) for k, n, batch in cells])
        for (workers, nodes, batch), step in zip(cells, steps, strict=True):
            need, low, high = by_batch[batch]
            more = beside(offer.kind, workers)
            work_s = need / batch * step.step_s * more.stalls + more.per_sample_s * need
            below = math.hypot(math.log(need / low), math.log(step.step_s / step.low_s), apart)
            above = math.hypot(math.log(high / need), math.log(step.high_s / step.step_s), apart)
            row: dict[str, Any] = {
                "offer": offer.name,
                "gpu_type": offer.kind,
                "num_workers": workers,
                "num_nodes": nodes,
                "machines": offer.machines(workers),
                "batch_size_per_worker": batch // workers,
                "global_batch_size": batch,
                "samples": need,
                "step_s": step.step_s,
                "fixed_s": offer.terms.startup_s + more.fixed_s,
                "hourly": offer.machines(workers) * offer.terms.price,
                "billing_step_s": offer.terms.billing_step_s,
                "extrapolated": not low_batch <= batch <= high_batch,
            }
            ends = {"seconds": ("", 0.0), "low_s": ("low_", -below), "high_s": ("high_", above)}
            for name, (end, away) in ends.items():
                row[f"{end}work_s"] = work_s * math.exp(away)
                row[name] = row["fixed_s"] + row[f"{end}work_s"]
            rows.append(row)
    if not rows:
        raise UserError(
            "plan: no batch size divides among the workers and reached the target; ask for other "
            "batch sizes or numbers of workers"
        )
    table = pd.DataFrame(rows)
    for name, column in (("cost", "seconds"), ("low_cost", "low_s"), ("high_cost", "high_s")):
        table[name] = bill(table[column], table["hourly"], table["billing_step_s"])
    return table


def chance(row: Mapping[Any, Any], *, seconds: float = math.inf, budget: float = math.inf) -> float:
    """Return the probability that a job of a plan's row ends within so many seconds, and costs no
    more than so much."""
    drawn = drawn_seconds(row)
    bills = bill(drawn, row["hourly"], row["billing_step_s"])
    return float(np.mean((drawn <= seconds) & (bills <= budget)))


def with_measured(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Put beside a plan what was measured: one row a run in, the plan's rows out.

    `runs` has num_workers, global_batch_size, work_s (training and evaluation to the target;
    missing: never reached), and gpu_type and num_nodes where the plan has several of them. Added:
    measured_s (of a job: median, infinite where most runs missed), measured_cost, error (predicted
    over measured, less 1), within (measured_s lies in the interval); missing where nothing was
    measured.
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
    """Return the rows to take, with `answer`: fastest, cheapest, fastest within the budget,
    cheapest by the deadline.

    `budget` is in what bills are in. Within 5 % of the best in seconds the cheapest is taken, and
    within 5 % of the cheapest the fastest, so that a trivial gain buys no workers. `keeps_budget`
    and `keeps_deadline` are the chances of that. With `with_measured`'s columns `loss` is how much
    more the row taken took than the best measured one. An answer without a row is left out: nothing
    is within the budget.
    """
    measured = {"seconds": "measured_s", "cost": "measured_cost"}
    rows = []
    for name, least, then, limit in (
        (FASTEST, "seconds", "cost", np.inf),
        (CHEAPEST, "cost", "seconds", np.inf),
        (WITHIN, "seconds", "cost", budget),
        (IN_TIME, "cost", "seconds", deadline_s),
    ):
        if limit is None or (allowed := table[table[then] <= limit]).empty:
            continue
        tied = allowed[allowed[least] <= allowed[least].min() * (1 + TIE)]
        taken = tied.sort_values([then, least], kind="stable").iloc[0].to_dict()
        row = {"answer": name} | taken
        if budget is not None:
            row["keeps_budget"] = chance(taken, budget=budget)
        if deadline_s is not None:
            row["keeps_deadline"] = chance(taken, seconds=deadline_s)
        if "measured_s" in table.columns:
            best = float(table.loc[table[measured[then]] <= limit, measured[least]].min())
            row["loss"] = float(taken[measured[least]]) / best - 1  # NaN where none was
        rows.append(row)
    return pd.DataFrame(rows)


def with_more(table: pd.DataFrame, taken: Mapping[Any, Any]) -> dict[Any, Any] | None:
    """Return the fastest row with the next larger number of workers of the same offer as a row of
    the plan; None where there is none."""
    more = table[table["offer"] == taken["offer"]]
    more = more[more["num_workers"] > taken["num_workers"]]
    rows = more.sort_values(["num_workers", "seconds"], kind="stable").head(1).to_dict("records")
    return rows[0] if rows else None
