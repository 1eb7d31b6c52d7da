"""Report of a plan: its answers in sentences and a table, its figure, its page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from raybench.report.console import Sentences
from raybench.report.figures import scaling_plots
from raybench.report.figures.parts import in_words
from raybench.report.figures.svg import svg
from raybench.report.page.document import PageFigure, PagePart, write_extras
from raybench.report.page.tables import table_of
from raybench.report.tables import texts
from raybench.report.words import duration
from raybench.results.study import Study
from raybench.scaling.fits import TargetPlan, Terms, fit_study, target_plans
from raybench.scaling.plan import IN_TIME, KEYS, MONEY, NO_GPU, TIE, WITHIN, offers_of, with_more
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import counted

PLAN = {
    "take": "{answer}",
    "on": "{offer}",
    "workers": "{num_workers}",
    "global batch": "{global_batch_size}",
    "time": "{seconds}",
    "90 %": "{low_s} to {high_s}",
    "bill": "{cost}",
    "90 % of it": "{low_cost} to {high_cost}",
    "keeps budget": "{keeps_budget}",
    "keeps deadline": "{keeps_deadline}",
    "measured": "{measured_s}",
    "more than best": "{loss:.0%}",
}
TIMES, BILLS = ("seconds", "low_s", "high_s", "measured_s"), ("cost", "low_cost", "high_cost")
CHANCES = ("keeps_budget", "keeps_deadline")
PREDICTED = (
    "predicted: one run, from hiring the machines to the target; bill in {}, of whole machines, "
    "with their start-up, set-up, compiling and evaluation; measured: the median of that cell's "
    "runs; more than best: than the least that any cell took"
)


def plan_part(plan: TargetPlan) -> PagePart:
    """Return the part of the terminal and the page about a plan."""
    lines = [f"{plan.series}: {sentence}" for sentence in plan.sentences] + plan_lines(plan)
    tables = []
    if len(plan.answers):
        rows = plan.answers.replace(math.inf, math.nan)
        for columns, form in (TIMES, duration), (BILLS, _amount), (CHANCES, _sure):
            own = [column for column in columns if column in rows]
            rows[own] = rows[own].map(form, na_action="ignore")
        tables.append((PREDICTED.format(rows["unit"][0]), texts(rows, PLAN)))
    return PagePart(f"To the target: {plan.series}", lines, tables)


def plan_lines(plan: TargetPlan) -> list[str]:
    """Return a sentence for each answer, each limit that cannot be kept, and the next larger number
    of workers."""
    taken: dict[tuple[Any, ...], tuple[list[str], dict[Any, Any]]] = {}
    for row in plan.answers.to_dict("records"):
        where = tuple(row[key] for key in ("offer", *KEYS))
        taken.setdefault(where, ([], row))[0].append(str(row["answer"]))
    lines = [_answer(names, row) for names, row in taken.values()]
    for name, limit, column, form in (
        (WITHIN, plan.terms.budget, "cost", _amount),
        (IN_TIME, plan.terms.deadline_s, "seconds", duration),
    ):
        if taken and limit is not None and name not in set(plan.answers["answer"]):
            least = f"{'costs' if column == 'cost' else 'takes'} {form(plan.table[column].min())}"
            lines.append(f"No {name}: the least of all {least}, which is over {form(limit)}.")
    for names, row in taken.values():
        more = with_more(plan.table, row)
        if more is not None and row["seconds"] - more["seconds"] > TIE * row["seconds"]:
            lines.append(_more(names[0], row, more))
    return lines


def _answer(names: Sequence[str], row: Mapping[Any, Any]) -> str:
    first = ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
    hired = row["offer"]
    if row["offer"] != row["gpu_type"]:
        hired = f"{row['machines']:g} {hired}"
    kept = [(key.removeprefix("keeps_"), row[key]) for key in CHANCES if key in row]
    more = [f"{_sure(chance)} sure to keep the {what}" for what, chance in kept]
    return (
        f"{first[:1].upper()}{first[1:]}: {counted(int(row['num_workers']), 'worker')} on {hired}, "
        f"global batch {row['global_batch_size']:g}: {duration(row['seconds'])} "
        f"({duration(row['low_s'])} to {duration(row['high_s'])}), {_amount(row['cost'], row)} "
        f"({_amount(row['low_cost'])} to {_amount(row['high_cost'])})"
        f"{''.join(f'; {one}' for one in more)}."
    )


def _more(name: str, row: Mapping[Any, Any], more: Mapping[Any, Any]) -> str:
    workers, saved, dearer = (more[k] - row[k] for k in ("num_workers", "seconds", "cost"))
    price = f"{'for' if dearer >= 0 else 'and'} {_amount(abs(dearer), row)}"
    more_workers = counted(int(workers), "more worker")
    return f"From the {name}, {more_workers} would save {duration(-saved)} {price}."


def _amount(cost: float, row: Mapping[Any, Any] | None = None) -> str:
    """Return a bill; with its unit if `row` says that it is not money."""
    unit = "" if row is None or row["unit"] == MONEY else f" {row['unit']}"
    return f"{cost:.3g}{unit}" if cost < 1000 else f"{cost:,.0f}{unit}"


def _sure(chance: float) -> str:
    return "under 1%" if chance < 0.01 else "over 99%" if chance > 0.99 else f"{chance:.0%}"


def _together(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([one for one in tables if len(one)] or tables, ignore_index=True)


@dataclass(frozen=True, repr=False)
class PlanReport:
    """A plan made from one or several studies."""

    plans: list[TargetPlan]

    @classmethod
    def of(cls, studies: Sequence[Study], terms: Terms, predict: str | None = None) -> "PlanReport":
        """Fit models to the measurements of the studies, and plan with them.

        Args:
            studies: scaling studies.
            terms: prices, budget and deadline.
            predict: numbers of workers, or a file of cells; None takes the next doublings.

        Raises:
            UserError: if no study has a target or measured steps.
        """
        fitted = fit_study(*studies, predict=predict, are_few_enough=True)
        if all(one.target is None for one in studies):
            raise UserError(
                f"{studies[0].place}: has no target, so the length of a job is not known; "
                "measure one, for example with --set base.objective.target=0.95.",
                ErrorCode.MISSING,
            )
        if not fitted:
            raise UserError(
                f"{studies[0].place}: no run has measured steps; finish the study.",
                ErrorCode.NO_RESULT,
            )
        offers_of([one.key.gpu_type or NO_GPU for one in fitted], terms.prices)
        return cls(target_plans(studies, fitted, terms))

    @property
    def table(self) -> pd.DataFrame:
        """All options, one per row; for columns see `scaling.plan.plan` and `with_measured`."""
        return _together([one.table for one in self.plans])

    @property
    def answers(self) -> pd.DataFrame:
        """Recommended options; for columns see `scaling.plan.answers`."""
        return _together([one.answers for one in self.plans])

    @cached_property
    def words(self) -> Sentences:
        """The answers in sentences."""
        return Sentences(line for one in self.parts for line in one.lines)

    @cached_property
    def parts(self) -> list[PagePart]:
        """The plan of each series for terminal and page."""
        return [plan_part(one) for one in self.plans]

    def plot(self) -> Figure:
        """Draw seconds over bills."""
        return scaling_plots.plan_figure(self.table)

    def write(self, file: Path) -> Path:
        """Write the page; UserError if the file cannot be written."""
        kind, parts = scaling_plots.SCALING_FIGURES["plan"], self.parts
        if len(self.table):
            table = in_words(self.table.sort_values("seconds"), scaling_plots.PLAN_WORDS)
            drawing = Markup(svg(self.plot(), "plan", kind.title))
            words = kind.title, kind.reading
            figure = PageFigure("", *words, drawing, table_of(table, kind.title))
            parts = [PagePart(kind.title, pictures=[figure]), *parts]
        lines = [line for one in self.plans for line in plan_lines(one)]
        headline = f"{lines[0].partition(';')[0].rstrip('.')}." if lines else "No plan."
        return write_extras(headline, parts, file)

    def __repr__(self) -> str:
        return repr(self.words)
