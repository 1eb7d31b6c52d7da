"""Several studies side by side: who wins, what each reaches at every budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.report.figures.svg import svg
from raybench.report.page.answer import Answer
from raybench.report.page.html import (
    Html,
    element,
    folded,
    frame_table,
    isolated,
    join,
    notes,
    section,
)
from raybench.report.page.study_part import plot, words
from raybench.report.words import duration, target_in_words
from raybench.results.analyses import best_at_every_budget
from raybench.results.load import StudyResults
from raybench.results.verdict import judge
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.text import shorten

Named = Sequence[tuple[str, StudyResults]]
"""Studies, by names that no other has."""
COMPARED = {
    "metric": "metrics",
    "target": "targets",
    "workload": "models",
    "dataset": "data",
}
"""What must be alike for a winner to be named among studies, and what it is called."""
SIZES = ("shape", "num_classes", "num_samples")
"""Keys of a dataset that follow from it, and that not every version wrote."""


def conditions(results: StudyResults) -> dict[str, str]:
    """Return what studies are compared by, and the machine, each in words."""
    study = results.study["study"]
    dataset = study.get("dataset")
    machine = results.study.get("machine")
    gpus = sorted({one for run in results.runs.values() for one in run.accelerators})
    cores = (
        [str(machine.get("processor")), f"{machine.get('cores')} cores"]
        if isinstance(machine, Mapping)
        else []
    )
    return {
        "metric": results.metric.words,
        "target": target_in_words(results) if results.is_timed else "best at the budget",
        "workload": words(study.get("workload")),
        "dataset": _asked(dataset) if isinstance(dataset, Mapping) else words(dataset),
        "machine": ", ".join([*cores, *gpus]),
    }


def _asked(dataset: Mapping[str, Any]) -> str:
    """Return what was asked for of a dataset: keys that later versions added make no difference."""
    given = {key: value for key, value in dataset.items() if key not in SIZES}
    try:
        spec = validate(DatasetSpec, given, "dataset")
    except UserError:
        return words(given)  # of another version
    other = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    return ", ".join([spec.name, *([words(other)] if other else [])])


def differing(studies: Sequence[StudyResults]) -> list[str]:
    """Return what studies must be alike in to be compared, and are not, in words."""
    found = [conditions(one) for one in studies]
    return [words for key, words in COMPARED.items() if len({one[key] for one in found}) > 1]


def winner_rows(studies: Named) -> list[dict[str, Any]]:
    """Return a row for each study with a winner: its numbers, missing ones as NaN."""
    rows = []
    for name, results in studies:
        verdict = None if results.is_scaling or results.trials.empty else judge(results)
        if verdict is None:
            continue
        row = _row(results.configurations, verdict.fastest)
        low = high = math.nan
        if verdict.is_confirmed:
            sure = _row(results.confirmed, verdict.fastest)
            ends = ("interval_low_s", "interval_high_s")
            if not results.is_timed:
                ends = (
                    f"interval_low_{results.metric.name}",
                    f"interval_high_{results.metric.name}",
                )
            low, high = float(sure[ends[0]]), float(sure[ends[1]])
        rows.append(
            {
                "study": name,
                "trial": verdict.fastest,
                "config": row["config"],
                "seconds": float(row["time_to_target_s"]),
                "low": low,
                "high": high,
                "worker_seconds": float(row["worker_seconds_to_target"]),
                "value": float(row[results.metric.best_column]),
                "is_confirmed": verdict.is_confirmed,
            }
        )
    return rows


def _row(table: pd.DataFrame, trial: str) -> dict[Any, Any]:
    return table[table["trial"] == trial].to_dict("records")[0]


def winners_table(studies: Named) -> pd.DataFrame:
    """Return the winners in words and units, a row a study; one without a winner says so."""
    by_name = {row["study"]: row for row in winner_rows(studies)}
    rows = []
    for name, results in studies:
        row, metric = by_name.get(name), results.metric
        where = conditions(results)
        given: dict[str, Any] = {"study": name, "fastest or best": "none"}
        if row is not None:
            ends = row["low"], row["high"]
            form = (lambda end: f"{end:.3g}") if results.is_timed else metric.shown
            given = {
                "study": name,
                "fastest or best": f"{row['config']} (trial {row['trial']})",
                "seconds to target": row["seconds"],
                "90 %": " to ".join(map(form, ends)) if all(map(math.isfinite, ends)) else None,
                "worker-seconds": row["worker_seconds"],
                "value": f"{metric.words} {metric.shown(row['value'])}",
                "confirmed": row["is_confirmed"],
            }
        rows.append(
            given
            | {
                "target": where["target"],
                "model": where["workload"],
                "data": where["dataset"],
                "machine": where["machine"],
                "runs": len(results.runs),
            }
        )
    table = pd.DataFrame(rows)
    return table.dropna(axis="columns", how="all")


def winner_sentence(studies: Named) -> str:
    """Return which study's winner is first, and whether that is told from the next."""
    results = studies[0][1]
    rows = winner_rows(studies)
    if not rows:
        return f"None of the {len(studies)} studies has an answer yet."
    is_timed, metric = results.is_timed, results.metric
    worst_last = {
        row["study"]: (row["seconds"] if is_timed else -metric.sign * row["value"]) for row in rows
    }
    rows.sort(key=lambda row: worst_last[row["study"]])
    best, *others = rows

    def said(row: dict[str, Any]) -> str:
        return duration(row["seconds"]) if is_timed else metric.shown(row["value"])

    if is_timed:
        head = f"Fastest to {target_in_words(results)}: {best['study']}, {said(best)} of training"
    else:
        what = metric.superlative
        head = f"{what[0].upper()}{what[1:]}: {best['study']}, {metric.words} {said(best)}"
    if not others:
        return f"{head}; no other study has an answer."
    against = ", ".join(f"{said(row)} ({row['study']})" for row in others[:3])
    return f"{head}, against {against}{_told(best, others)}."


def _told(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the first is told from the others: by 90 % intervals that do not overlap."""
    if not all(row["is_confirmed"] for row in (best, *others)):
        return "; not all of them are confirmed"
    for row in others:
        if best["low"] <= row["high"] and row["low"] <= best["high"]:
            return "; their 90 % intervals overlap, so the difference may be chance"
    return "; their 90 % intervals do not overlap"


LONGEST = 40
"""Characters of a study's name in a legend."""
STYLES = ("-", "--", "-.", ":")
STEPS = 300
"""Steps of a line that are drawn."""


def envelope(results: StudyResults) -> pd.DataFrame:
    """Return the best of the search's runs at every budget; see `best_at_every_budget`."""
    trials = results.trials
    names = set(trials["trial"][(trials["phase"] == "search") & (trials["state"] != "failed")])
    curves = results.curves
    return best_at_every_budget(curves[curves["trial"].isin(names)], results.metric)


def overlay_figure(studies: Named) -> Figure:
    """One line a study; all are judged by the metric of the first."""
    lines = [(name, envelope(one)) for name, one in studies]
    every = pd.concat([table for _, table in lines], ignore_index=True)
    figure, axes = parts.new_figure(parts.WIDTH, 3.6)
    first = replace(studies[0][1], curves=every)
    metric = first.metric
    axes.set(xlabel="seconds of training", ylabel=parts.plain(f"best {metric.axis_words}"))
    if every.empty:
        return parts.say(figure, axes, "no run has been evaluated")
    metric_axis(axes, first)
    end, keys = float(every["train_s"].max()), []
    for number, (name, table) in enumerate(lines):
        if table.empty:
            continue
        kept = table.iloc[parts.spread(list(range(len(table))), STEPS)]
        values = drawn(metric, kept[metric.name])
        style: dict[str, Any] = {
            "color": parts.colour(number),
            "linestyle": STYLES[number % len(STYLES)],
            "lw": 2,
        }
        # To the longest study's end: there the best stays what it is.
        x, y = [*kept["train_s"], end], [*values, values.iloc[-1]]
        axes.plot(x, y, drawstyle="steps-post", **style)
        keys.append(parts.key(parts.plain(shorten(name, LONGEST)), **style))
    axes.set_xlim(left=0)
    parts.legend_below(figure, keys)
    return figure


def overlay_table(studies: Named) -> pd.DataFrame:
    """Return what the figure draws: study, seconds, the metric, trial."""
    metric = studies[0][1].metric
    tables = [envelope(one).assign(study=name) for name, one in studies]
    found = pd.concat(tables, ignore_index=True)[["study", "train_s", metric.name, "trial"]]
    names = {"train_s": "seconds of training", metric.name: f"best {metric.words} so far"}
    return found.rename(columns=names)


OVERLAY = "Best at every budget"
READING = (
    "What the search of each study had reached after so many seconds of training; higher and "
    "further left is better. Dotted: the target."
)
READING_DOWN = READING.replace("higher", "lower")


@dataclass(frozen=True)
class Comparison:
    """What the page opens with, and what stands before the studies themselves."""

    headline: str
    opening: Html
    body: Html


def study_names(studies: Sequence[StudyResults]) -> list[str]:
    """Return a name for each that no other has: the folder's, else its place, with a number."""
    names = [one.name for one in studies]
    if len(set(names)) < len(names):
        names = [one.place for one in studies]
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def compared(
    studies: Sequence[StudyResults], names: Sequence[str], answers: Sequence[Answer]
) -> Comparison:
    """Return the comparison; `answers` are the studies' own."""
    named = list(zip(names, studies, strict=True))
    items = [
        element(
            "li",
            element("a", isolated(name), href=f"#s{number}"),
            element("br"),
            isolated(answer.headline),
        )
        for number, (name, answer) in enumerate(zip(names, answers, strict=True), 1)
    ]
    opening = join([element("ul", *items, class_="answers"), notes(_mind(named))])
    table = frame_table(winners_table(named), "The winner of each study")
    body = join([section("winners", "Winners", table), *_overlays(named)])
    return Comparison(_headline(named), opening, body)


def _headline(named: Named) -> str:
    studies = [one for _, one in named]
    if any(one.is_scaling for one in studies):
        return f"{len(named)} studies side by side"
    apart = differing(studies)
    if apart:
        return (
            f"{len(named)} studies with different {' and '.join(apart)}: none is named the best of "
            "them"
        )
    return winner_sentence(named)


def _mind(named: Named) -> list[str]:
    """Return what limits the comparison."""
    machines = {conditions(one)["machine"] for _, one in named}
    if len(machines) > 1:
        return ["They ran on different machines, so their seconds differ by that too."]
    return []


def _overlays(named: Named) -> list[Html]:
    """Return a figure for every metric that a search of them is judged by."""
    by_metric: dict[str, list[tuple[str, StudyResults]]] = {}
    for name, one in named:
        if not one.is_scaling and len(one.curves):
            by_metric.setdefault(one.metric.name, []).append((name, one))
    found = []
    for number, group in enumerate(by_metric.values()):
        metric = group[0][1].metric
        title = OVERLAY if len(by_metric) == 1 else f"{OVERLAY}: {metric.words}"
        drawing = svg(overlay_figure(group), f"overlay{number}", title)
        figure = element(
            "figure",
            element(
                "figcaption",
                element("p", isolated(READING if metric.direction == "max" else READING_DOWN)),
            ),
            plot(drawing, title),
            folded("Its numbers as a table", frame_table(overlay_table(group), title)),
        )
        found.append(section(f"overlay-{number}", title, figure))
    return found
