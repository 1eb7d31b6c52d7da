"""Report of a scaling study (tables, predictions, plans and claims) and of a plan made from several
scaling studies, for terminal, files and page."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from raybench.report.answer import summary_of
from raybench.report.console import (
    Sentences,
    make_console,
    print_frame,
    say,
    say_pairs,
    say_wrapped,
    texts,
)
from raybench.report.export import export, to_csv
from raybench.report.figures import scaling_plots
from raybench.report.figures.parts import in_words, svg
from raybench.report.page.document import PageFigure, PagePart, write_extras
from raybench.report.page.tables import table_of
from raybench.report.scaling_printed import print_cells
from raybench.report.words import duration
from raybench.results.place import place_in_words
from raybench.results.store import StudyFiles, write_out
from raybench.results.study import Study
from raybench.scaling.averaged import NUM_STEPS
from raybench.scaling.cells import scaling_cells, scaling_runs
from raybench.scaling.fits import (
    FittedSeries,
    cells_to_predict,
    fit_series,
    fit_study,
    measurements,
    noise_lines,
    prediction_table,
)
from raybench.scaling.measurements import read_measurements
from raybench.scaling.plan import (
    IN_TIME,
    KEYS,
    NO_GPU,
    WITHIN,
    TargetPlan,
    Terms,
    offers_of,
    target_plans,
)
from raybench.scaling.published import STUDIES, Claim
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.scaling_study import MONEY
from raybench.spec.text import clean, command_line, counted

PLAN = {
    "take": "{answer}",
    "on": "{offer}",
    "workers": "{num_workers}",
    "global batch": "{global_batch_size}",
    "time": "{seconds}",
    "90 %": "{low_s} to {high_s}",
    "bill": "{cost}",
    "90 % of bill": "{low_cost} to {high_cost}",
    "keeps budget": "{keeps_budget}",
    "keeps deadline": "{keeps_deadline}",
    "measured": "{measured_s}",
    "more than best": "{loss:.0%}",
}
TIMES, BILLS = ("seconds", "low_s", "high_s", "measured_s"), ("cost", "low_cost", "high_cost")
CHANCES = ("keeps_budget", "keeps_deadline")
PREDICTED = (
    "predicted: one run, from renting the machines to the target; bill in {}, of whole machines, "
    "with their start-up, set-up, compilation and evaluation; measured: median of the runs of that "
    "cell; more than best: relative to the lowest value of any cell"
)


def plan_part(plan: TargetPlan) -> PagePart:
    """Return the part of the page about a plan."""
    lines = [f"{plan.series}: {sentence}" for sentence in plan.sentences] + plan_lines(plan)
    tables = []
    if len(plan.answers):
        rows = plan.answers.replace(math.inf, math.nan)
        for columns, form in (TIMES, duration), (BILLS, _cost_text), (CHANCES, _percentage):
            present = [column for column in columns if column in rows]
            rows[present] = rows[present].map(form, na_action="ignore")
        tables.append((PREDICTED.format(rows["unit"][0]), texts(rows, PLAN)))
    return PagePart(f"To the target: {plan.series}", lines, tables)


def plan_lines(plan: TargetPlan) -> list[str]:
    """Return one sentence about each recommended option, and one about each limit (budget or
    deadline) that cannot be met."""
    recommended: dict[tuple[Any, ...], tuple[list[str], dict[Any, Any]]] = {}
    for row in plan.answers.to_dict("records"):
        option = tuple(row[key] for key in ("offer", *KEYS))
        recommended.setdefault(option, ([], row))[0].append(str(row["answer"]))
    lines = [_answer(names, row) for names, row in recommended.values()]
    for name, limit, column, form in (
        (WITHIN, plan.terms.budget, "cost", _cost_text),
        (IN_TIME, plan.terms.deadline_s, "seconds", duration),
    ):
        if recommended and limit is not None and name not in set(plan.answers["answer"]):
            extreme = "cheapest option costs" if column == "cost" else "fastest option takes"
            value = form(plan.table[column].min())
            lines.append(f"No {name}: the {extreme} {value}, more than {form(limit)}.")
    return lines


def _answer(names: Sequence[str], row: Mapping[Any, Any]) -> str:
    first = ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
    machine = row["offer"]
    if row["offer"] != row["gpu_type"]:
        machine = f"{row['machines']:g} {machine}"
    chances = [(key.removeprefix("keeps_"), row[key]) for key in CHANCES if key in row]
    clauses = [f"{_percentage(chance)} sure to keep the {quantity}" for quantity, chance in chances]
    return (
        f"{first[:1].upper()}{first[1:]}: {counted(int(row['num_workers']), 'worker')} on "
        f"{machine}, global batch {row['global_batch_size']:g}: {duration(row['seconds'])} "
        f"({duration(row['low_s'])} to {duration(row['high_s'])}), {_cost_text(row['cost'], row)} "
        f"({_cost_text(row['low_cost'])} to {_cost_text(row['high_cost'])})"
        f"{''.join(f'; {clause}' for clause in clauses)}."
    )


def _cost_text(cost: float, row: Mapping[Any, Any] | None = None) -> str:
    """Return a cost as text, followed by the unit in a row of a plan unless that is money."""
    unit = "" if row is None or row["unit"] == MONEY else f" {row['unit']}"
    return f"{cost:.3g}{unit}" if cost < 1000 else f"{cost:,.0f}{unit}"


def _percentage(chance: float) -> str:
    return "under 1%" if chance < 0.01 else "over 99%" if chance > 0.99 else f"{chance:.0%}"


def _concatenated(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


@dataclass(frozen=True, repr=False)
class PlanReport:
    """A plan made from one or several scaling studies."""

    plans: list[TargetPlan]

    @classmethod
    def of(cls, studies: Sequence[Study], terms: Terms, predict: str | None = None) -> "PlanReport":
        """Fit throughput models to the studies, and plan with these models.

        Args:
            studies: Scaling studies.
            terms: Prices, budget and deadline.
            predict: Worker counts to consider in addition to the measured ones, such as "4,8", or a
                CSV file of worker counts and batch sizes. None adds two and four times the largest
                measured worker count.

        Raises:
            UserError: No study has a target, or none has measured steps.
        """
        fitted = fit_study(*studies, predict=predict, allow_few=True)
        if all(study.target is None for study in studies):
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
        offers_of([series.key.gpu_type or NO_GPU for series in fitted], terms.prices)
        return cls(target_plans(studies, fitted, terms))

    @property
    def table(self) -> pd.DataFrame:
        """Table of all options; `scaling.plan.plan` and `with_measured` describe its columns."""
        return _concatenated([plan.table for plan in self.plans])

    @property
    def answers(self) -> pd.DataFrame:
        """Table of the recommended options; `scaling.plan.answers` describes its columns."""
        return _concatenated([plan.answers for plan in self.plans])

    @cached_property
    def words(self) -> Sentences:
        """The recommended options, as sentences."""
        return Sentences(line for part in self.parts for line in part.lines)

    @cached_property
    def parts(self) -> list[PagePart]:
        """Parts about the plans, one per series, for terminal and page."""
        return [plan_part(plan) for plan in self.plans]

    def plot(self) -> Figure:
        """Draw the training time of the options over their cost."""
        return scaling_plots.plan_figure(self.table)

    def write(self, file: Path) -> Path:
        """Write the page; return the file. Raises UserError if that fails."""
        kind, parts = scaling_plots.SCALING_FIGURES["plan"], self.parts
        if len(self.table):
            table = in_words(self.table.sort_values("seconds"), scaling_plots.PLAN_WORDS)
            drawing = Markup(svg(self.plot(), "plan", kind.title))
            heading = kind.title, kind.reading
            figure = PageFigure("", *heading, drawing, table_of(table, kind.title))
            parts = [PagePart(kind.title, pictures=[figure]), *parts]
        lines = [line for plan in self.plans for line in plan_lines(plan)]
        headline = f"{lines[0].partition(';')[0].rstrip('.')}." if lines else "No plan."
        return write_extras(headline, parts, file)

    def __repr__(self) -> str:
        return repr(self.words)


MOST_PRINTED = 40
BASELINE = (
    "~ beyond what was measured; same-batch efficiency: samples/s a worker over those predicted "
    "for one worker with the same batch, not for the best one"
)
"""Caption of predictions. It explains to what their efficiency is relative, which differs from the
efficiency of measurements."""
FIT = {
    "workers": "{num_workers}",
    "nodes": "{num_nodes}",
    "batch per worker": "{batch_size_per_worker}",
    "accumulate": "{accumulate}",
    "step s": "{step_s:.4g}",
    "90 % interval": "{low_s:.4g} to {high_s:.4g}",
    "samples/s": "{samples_per_s:,.1f}",
    "same-batch efficiency": "{efficiency:.0%}",
}


def print_part(console: Console, part: PagePart) -> None:
    """Print a part of the page on a terminal."""
    for line in part.lines:
        say_wrapped(console, line)
    for caption, table in part.tables:
        num_left_out = len(table) - MOST_PRINTED
        below = (
            f"{caption}. {num_left_out} more rows are not printed" if num_left_out > 0 else caption
        )
        print_frame(console, table.head(MOST_PRINTED), part.title, below=below, drop=())
    if not part.tables:
        console.print()


def fit_part(fitted: FittedSeries) -> PagePart:
    """Return the part of the page about a fit and its predictions; `~` marks extrapolations."""
    name, table = str(fitted.key), fitted.predictions
    tables = []
    if len(table):
        cells = texts(table, FIT)
        cells.insert(0, "~", ["~" if beyond else "" for beyond in table["extrapolated"]])
        if table["accumulate"].eq(1).all():
            del cells["accumulate"]
        tables.append((BASELINE, cells))
    title = f"Predicted{f': {name}' if name else ''}"
    return PagePart(title, [*([f"{name}:"] if name else []), *fitted.sentences()], tables)


PREDICT, NAMED = "predict", "named"
"""Keys of the `study.yaml` of a scaling study: PREDICT contains the last argument of `--predict`,
NAMED the name of the published study that the scaling study repeats."""


@dataclass(frozen=True)
class ScalingReport:
    """A scaling study with its fitted models and plans."""

    results: Study
    fitted: list[FittedSeries]
    plans: list[TargetPlan]
    is_asked: bool = False
    """Whether the user requested these predictions with `--predict`."""

    @classmethod
    def of(cls, results: Study, predict: str | None = None) -> "ScalingReport":
        """Fit throughput models to a study, and predict; fitting takes seconds.

        Args:
            results: The study.
            predict: Argument of `--predict`; None for the last argument with which the study was
                predicted, if any.
        """
        predict_option = predict or results.study.get(PREDICT)
        fitted = fit_study(results, predict=predict_option)
        return cls(results, fitted, target_plans([results], fitted), predict_option is not None)

    def write(self, files: StudyFiles) -> list[Path]:
        """Write the tables as CSV files to the results folder; return all files."""
        written = export(self.results, files)
        tables = {
            "scaling.csv": [scaling_cells(self.results)],
            "scaling_runs.csv": [scaling_runs(self.results)],
            "predictions.csv": [
                series.predictions for series in self.fitted if len(series.predictions)
            ],
            scaling_plots.MODEL_FILE: [scaling_plots.model_frame(*self.drawn())]
            if self.fitted
            else [],
            scaling_plots.PLAN_FILE: [plan.table for plan in self.plans if len(plan.table)],
        }
        for name, parts in tables.items():
            if parts:
                files.write_text(name, to_csv(pd.concat(parts)))
                written.append(files.folder / name)
        return written

    def show(self, console: Console, *, written: Sequence[Path] = (), verbose: bool = True) -> None:
        """Print the measurements, predictions, plans, claims and conclusions.

        Args:
            console: Where to print.
            written: Files that were written. The page is listed at the end, or the pictures if
                there is no page.
            verbose: Whether to print fits and predictions even if they were not requested.
        """
        results, summary = self.results, summary_of(self.results)
        print_cells(console, scaling_cells(results), metric=results.metric)
        for line in summary.caveats:
            say_wrapped(console, line)
        console.print()
        for part in self.parts(is_whole=verbose):
            print_part(console, part)
        for sentence in summary.lines:
            say_wrapped(console, f"Answer: {sentence}", style="bold")
        console.print()
        pages, plots = (
            [str(path) for path in written if path.suffix == suffix] for suffix in (".html", ".png")
        )
        steps = [("figures, every run", page) for page in pages]
        if not verbose and self.fitted:
            report = command_line("report", results.place, "--verbose")
            steps.append(("more workers, predicted", report))
        say_pairs(console, steps)
        if plots and not pages:
            say(console, f"plots: {', '.join(plots)}")
        say(console, f"results: {place_in_words(results.place, results.folder)}")

    def parts(self, *, is_whole: bool = True) -> list[PagePart]:
        """Return the parts of the page about fits, plans and claims.

        Args:
            is_whole: Whether to include the fits if the user did not request predictions."""
        results, published = self.results, self.results.study.get(NAMED)
        parts = [fit_part(series) for series in self.fitted] if is_whole or self.is_asked else []
        if scaling_cells(results).empty:
            return []
        if is_whole and (lines := noise_lines(results)):
            parts.append(PagePart("Critical batch sizes", lines))
        parts += map(plan_part, self.plans)
        if published in STUDIES:
            title = f"Claims published by {published}, and the results here"
            parts.append(PagePart(title, (), [("Claims of its paper", claims_table(results))]))
        return parts

    @property
    def words(self) -> Sentences:
        """Sentences about each fit: its data, its errors at measurements that were left out of it,
        and what to measure next."""
        return Sentences(line for series in self.fitted for line in series.sentences())

    @property
    def predictions(self) -> pd.DataFrame:
        """Table of predictions; `scaling.fits.prediction_table` describes its columns."""
        tables = [series.predictions for series in self.fitted]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def plot(self) -> Figure:
        """Draw measured and predicted throughput over worker counts."""
        return scaling_plots.predicted_figure(*self.drawn())

    def drawn(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the measured and the predicted throughput, as arguments of `predicted_figure`."""
        dots = [
            {"series": str(key), **vars(cell), "samples_per_s": cell.samples / seconds}
            for key, rows in measurements(self.results).items()
            for cell, seconds in rows
        ]
        lines = []
        for fitted in self.fitted:
            cells = sorted({*fitted.model.observed.cells, *fitted.asked})
            table = prediction_table(fitted.model, cells, fitted.key)
            samples = np.array([cell.samples for cell in cells])
            ends = {"low": samples / table["high_s"], "high": samples / table["low_s"]}
            lines.append(table.assign(series=str(fitted.key), **ends))
        return pd.DataFrame(dots), pd.concat(lines, ignore_index=True)


def claims_table(results: Study) -> pd.DataFrame:
    """Return the claims of the published study that a study repeats, with the values measured here.

    Columns: claim, published, here, and holds (yes, no or not measured).

    Raises:
        UserError: The study does not repeat a published study.
    """
    name = results.study.get(NAMED)
    if name not in STUDIES:
        known_studies = ", ".join(STUDIES)
        raise UserError(
            f"{results.place}: repeats no published study; those with claims are {known_studies}.",
            ErrorCode.NO_RESULT,
        )
    return _claims(STUDIES[name].compare(results.scaling_study, scaling_cells(results)))


def published_claims() -> dict[str, pd.DataFrame]:
    """Return the claims of each published study that raybench can repeat, without measurements.

    The columns are those of `claims_table`.
    """
    return {
        name: _claims(published.compare(published.study(quick=True), pd.DataFrame()))
        for name, published in STUDIES.items()
    }


def _claims(claims: Sequence[Claim]) -> pd.DataFrame:
    table = pd.DataFrame(claims).rename(columns={"ours": "here"})
    verdicts = {True: "yes", False: "no", None: "not measured"}
    table["holds"] = [verdicts[claim.holds] for claim in claims]
    return table.map(clean)


def fit_to_files(
    file: Path, predict: str | None, out: Path | None, network: float | None = None
) -> tuple[list[str], dict[str, list[dict[Any, Any]]]]:
    """Fit the measurements in a file, print fits and predictions, and write the predictions.

    Args:
        file: File of measurements.
        predict: Worker counts, or a CSV file of worker counts and batch sizes; None predicts
            nothing.
        out: File to which the predictions are written.
        network: Ratio of the time of an all-reduce between hosts to that within a host
            (`--network`).

    Returns:
        - The printed sentences.
        - Rows of the tables `predictions` and `measure_next`, keyed by name of the table. The table
          `measure_next` lists what to measure next, with its cost and the spread of the prediction
          that then remains.
    """
    if out is not None:
        if predict is None:
            path = clean(str(out))
            raise UserError(
                f"--out {path}: there is nothing to write without --predict.", ErrorCode.MISSING
            )
        if out.resolve() == file.resolve():
            raise UserError(
                f"--out {clean(str(out))}: is the file of measurements; name another.",
                ErrorCode.CONFLICT,
            )
    console, tables, lines = make_console(sys.stdout), list[pd.DataFrame](), list[str]()
    following = list[dict[Any, Any]]()
    measured = read_measurements(file)
    asked = {} if predict is None else cells_to_predict(predict, measured)
    for fitted in fit_series(measured, asked, network):
        tables.append(fitted.predictions)
        following += next_rows(fitted)
        part = fit_part(fitted)
        lines += part.lines
        print_part(console, part)
    if out is not None:
        write_out(out, pd.concat(tables).to_csv(index=False, float_format="%.6g"))
        say(console, f"predictions: {out}")
    predictions = [row for table in tables for row in table.to_dict("records")]
    return lines, {"predictions": predictions, "measure_next": following}


def next_rows(fitted: FittedSeries) -> list[dict[Any, Any]]:
    """Return the rows of the table `measure_next` in the JSON document, which lists what to measure
    next."""
    if fitted.measure_next is None:
        return []
    asked_cell, cells = fitted.measure_next
    names = {**fitted.key._asdict(), "for": vars(asked_cell)}
    return [
        names
        | vars(candidate.cell)
        | {
            "steps": NUM_STEPS,
            "worker_seconds": candidate.worker_seconds,
            "spread_after": candidate.spread,
        }
        for candidate in cells
    ]
