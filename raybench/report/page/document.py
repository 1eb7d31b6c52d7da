"""The whole page of one study, or of several side by side, and how it is written to a file.

`SECTIONS` explains the words of screens, pages and tables, each in one or two sentences.
"""

import base64
import hashlib
import os
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from raybench.report.page.comparison import compared, study_names
from raybench.report.page.html import (
    Html,
    definitions,
    element,
    folded,
    isolated,
    join,
    section,
    text,
)
from raybench.report.page.study_part import Extra, StudyPart, answer_part, sections_html, study_part
from raybench.results.load import StudyResults
from raybench.results.records import uncollected
from raybench.results.store import StudyFiles
from raybench.spec.errors import UserError
from raybench.spec.text import clean, shorten

ANSWER = {
    "target": "What a run has to reach on the validation set: a value of the metric, as 95 % "
    "accuracy, in as many evaluations in a row as `objective.hold` says. The first of them counts.",
    "time to target": "Seconds on the training clock until a run reached the target. It is what "
    "configurations are compared by.",
    "expected running time": "What reaching the target takes on average: the seconds of all runs "
    "of a configuration, those included that missed it (and the set-up and compilation of the runs "
    "that begin in their place), over the number that reached it.",
    "worker-seconds": "Seconds of training times the number of workers: what the training costs. "
    "Two workers for 3 s are 6 worker-seconds.",
    "fastest": "The configuration with the least expected time to the target, of all that ran "
    "again with new seeds.",
    "cheapest": "The configuration with the least expected worker-seconds to the target, of all "
    "that ran again with new seeds; in a study that names a price, with the least money as billed. "
    "On one worker it is often the fastest too.",
    "one run": "What a single run of the search has shown. The best of many single runs is partly "
    "luck, so it is no result before it was confirmed.",
    "confirmed": "Trained again with new seeds after the search, and named by these runs. The time "
    "that is printed is of runs alone on the machine that had no part in choosing.",
    "unconfirmed": "Known from one run of the search alone; it may have been luck. The command "
    "without --no-confirm, or with a longer time budget, confirms it.",
    "statistically tied": "The runs scatter so much that the difference may be chance. More runs "
    "(--more N) may settle it; until then take whichever is handier.",
    "90 % interval": "Where the typical time, or value, of a configuration lies in nine of ten "
    "cases, by its runs and by how far runs of all configurations scatter. One fresh run may "
    "well be outside. Of a share the sampling error of its rows is in it too, of other "
    "values that of the seeds alone; configurations share the rows, so are compared without it.",
    "scatter": "How far runs of one configuration lie apart when nothing but the seed differs (one "
    "standard deviation).",
    "predicted (~)": "Not measured: from a trial's learning curve and the measured time of a step. "
    "The best predictions are trained before anything is called a winner.",
    "interpolated (*)": "The target was crossed between two evaluations that are far apart, and "
    "the time is read where the line between them crosses it.",
    "reached": "How many of a configuration's runs got to the target: `3 of 3`. Runs that missed "
    "it count with all their seconds.",
    "Pareto front": "The configurations that no other beats both in seconds and in worker-seconds: "
    "the choice between faster and cheaper.",
}
SEARCH = {
    "configuration": "What is searched, in one line: framework, workers x batch per worker, "
    "optimizer, learning rate, then other searched keys. `torch 2x64 adam 0.004` is PyTorch, 2 "
    "workers with 64 samples a step each, Adam, rate 0.004; `tf` is TensorFlow.",
    "run spec": "All that defines a run, as a YAML file: `best.yaml` is one, and `python -m "
    "raybench.train FILE` trains it.",
    "trial": "A configuration that the search tried, and its run; 0012 is the 13th. `0012.tf1` is "
    "trial 0012 in TensorFlow on 1 worker.",
    "reference": "A run of a usual configuration before the search: it sets what the study leaves "
    "open (the target, seconds a trial may take, how often runs are evaluated).",
    "placement_check": "A trial that moves a good one to another framework or number of workers "
    "that was predicted to be faster, to see whether that is true.",
    "race": "The best of the search train again with new seeds, side by side; who falls behind "
    "runs no more. It names the winner.",
    "run alone": "One run at a time on the whole machine: nothing else slows it, so its seconds "
    "are the ones to plan with.",
    "in search": "What the single run of the search has shown, beside the confirmed number: often "
    "better, as the luckiest of many single runs are the ones that are tried again.",
    "interference_probe": "One configuration trained alone and then beside another trial, to "
    "measure how much trials that run at the same time slow each other down.",
    "cap": "A run is stopped once it has taken so long that it can no longer win: in the search at "
    "1.5 times (`search.cap_factor`) the third-best so far, in the race at about twice the leader.",
    "rung": "A number of training seconds at which trials are compared: who is not among the best "
    "there is stopped (successive halving, ASHA).",
    "disturbed": "A run in whose training other processes (or the host of a virtual machine, or a "
    "quota) had its cores for a quarter of the seconds or more. It runs again where it could "
    "decide something; one that stays disturbed is marked !.",
    "seed": "The number that fixes what is random in a run: first weights, order of the samples. A "
    "new seed is a new run of the same configuration.",
    "epoch": "One pass over the training samples.",
    "best_at_budget": "A study judged by the best metric within a given number of training "
    "seconds, not by the time to a target.",
}
SECONDS = {
    "ledger": "The account of a run's seconds: queue, start, lost, setup, compile, train, eval, "
    "checkpoint and report, each measured by itself; `other` is what none of them explains.",
    "training clock": "The seconds that decide: training steps and waiting for data. Start-up, "
    "compiling, evaluation and checkpoints are counted, but apart.",
    "queue": "Waiting until workers are free.",
    "start": "Starting worker processes; 0 where they were warm, kept from the run before.",
    "lost": "What was repeated after workers were lost, and noticing it. It is in no time to the "
    "target.",
    "setup": "Making data, model and optimizer ready, and giving their memory back.",
    "compile": "The first step: tracing, compiling and warming up, on data that are thrown away.",
    "train": "Training, waiting for data included: the training clock. Only these seconds count "
    "for the target.",
    "input": "The part of train that waits for data.",
    "eval": "Validation: measuring the metric during a run.",
    "checkpoint": "Saving weights and what a lost run goes on from.",
    "report": "Results and commands on their way between a worker and the search.",
    "other": "What no phase of a run accounts for. It is below 1 % of a run that ended well, and "
    "may be just below 0.",
    "end to end": "All seconds of a run, from asking for workers to its end: the sum of its "
    "ledger; also called wall.",
}
SCALING = {
    "worker": "A process that trains; data-parallel workers hold the same model and share each "
    "step's samples out among them.",
    "batch per worker": "Samples that each worker takes in one step.",
    "global batch": "Samples of one step of all workers together: batch per worker times workers "
    "(times accumulated passes). It decides what is learnt; how it is split decides how fast.",
    "samples/s": "Training samples a second of the training clock, of all workers together.",
    "weak scaling": "More workers with the same batch each, so that the global batch grows.",
    "strong scaling": "More workers with the same global batch, so that each has less to do.",
    "speed-up": "Samples/s over those of the best single worker of the same kind: 1.6 on 2 workers "
    "means 1.6 times as much work in the same time.",
    "efficiency": "Speed-up over the number of workers: 80 % means that a fifth of the hardware is "
    "wasted.",
    "step": "One update of the weights: a global batch forward and backward, the exchange, the "
    "optimizer.",
    "exchange": "Averaging the gradients of all workers, in every step; also called communication. "
    "Its share of a step is what more workers lose.",
    "series": "Cells that differ in workers, hosts and batch size alone; a model of the speed is "
    "fitted to each.",
    "cell": "One point of a scaling study: a configuration on so many workers, repeated.",
    "first epoch": "Measured apart: compiling and filling caches are in it, and in no other "
    "speed, unless a run ended with it.",
    "outlier": "A run far off the others of its cell, or with a stall in it. It is named, and "
    "stays in the spread.",
    "critical batch": "The global batch from which on larger ones hardly save steps. It is told "
    "from the noise of the gradients, or from runs to the target.",
    "compute-bound": "Most of a step is computing: more workers or faster ones help. Likewise "
    "communication-bound (exchange), input-bound (waiting for data).",
}
SECTIONS = {
    "The answer": ANSWER,
    "The search": SEARCH,
    "Where seconds go (the ledger)": SECONDS,
    "Workers and scaling": SCALING,
}
"""The terms by subject, each with what it means."""


HERE = Path(__file__).parent
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M1 14 5 7l3 3 6-8' fill='none' stroke='%230072b2' stroke-width='2.5'/%3E%3C/svg%3E"
)


@cache
def style() -> str:
    """Return the page's style."""
    return (HERE / "page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the page's script."""
    return (HERE / "page.js").read_text(encoding="utf-8")


def policy() -> str:
    """Return what the page may load: nothing; run: its own script; use: its own style.

    Figures have style attributes; these are allowed, style elements are not.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script())}'",
            f"style-src-elem '{_digest(style())}'",
            "style-src-attr 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def head(title: str) -> Html:
    """Return the page's head."""
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", text(title)),
        element("link", rel="icon", href=ICON),
        element("style", Html(style())),
    )


def _digest(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def glossary_part() -> Html:
    """Return all terms by subject, folded."""
    groups = [
        folded(title, definitions([(term, _meaning(words)) for term, words in terms.items()]))
        for title, terms in SECTIONS.items()
    ]
    return section("glossary", "Words", *groups)


def _meaning(words: str) -> Html:
    """Return an explanation; what stands between backticks is code."""
    pieces = words.split("`")
    return Html(
        "".join(
            element("code", isolated(piece)) if number % 2 else isolated(piece)
            for number, piece in enumerate(pieces)
        )
    )


DOCTYPE = Html("<!doctype html>\n")
FOOT = (
    "Made by raybench. This file needs no network and sends nothing; what it shows is in "
    "trials.csv, curves.csv and records.jsonl too."
)


def page_text(studies: Sequence[StudyResults], extras: Sequence[Extra] = ()) -> str:
    """Return the page of a study, or of several side by side.

    `extras` are of a single study: what its command knows beyond the records.
    """
    with uncollected():
        return _single(studies[0], extras) if len(studies) == 1 else _several(studies)


def _single(results: StudyResults, extras: Sequence[Extra]) -> str:
    part = study_part(results, "s1", extras)
    links = [(name, title) for name, title, _ in part.sections]
    return _page(
        title=f"{results.name}: {part.answer.headline}",
        headline=part.answer.headline,
        kind=f"Study {results.name}",
        opening=answer_part(part.answer),
        links=[*links, ("glossary", "Words")],
        body=sections_html(part),
        data=part.data,
    )


def _several(studies: Sequence[StudyResults]) -> str:
    names = study_names(studies)
    parts = [study_part(one, f"s{i}", level=3) for i, one in enumerate(studies, 1)]
    both = compared(studies, names, [part.answer for part in parts])
    return _page(
        title=both.headline,
        headline=both.headline,
        kind=f"{len(studies)} studies side by side",
        opening=both.opening,
        links=[
            ("winners", "Winners"),
            *((f"s{i}", name) for i, name in enumerate(names, 1)),
            ("glossary", "Words"),
        ],
        body=join([both.body, *(_study(i, *one) for i, one in enumerate(zip(names, parts), 1))]),  # noqa: B905
        data=join(part.data for part in parts),
    )


def _study(number: int, name: str, part: StudyPart) -> Html:
    """Return a study of several: its answer, the rest folded."""
    answer = element("p", element("strong", isolated(part.answer.headline)))
    rest = folded("Pictures, trials and all the rest", sections_html(part, level=3))
    inner = element("div", answer, answer_part(part.answer), rest, class_="study")
    return section(f"s{number}", name, inner)


def _page(
    *,
    title: str,
    headline: str,
    kind: str,
    opening: Html,
    links: Sequence[tuple[str, str]],
    body: Html,
    data: Html,
) -> str:
    """Return a page; the answer is the first that a reader meets, on a screen or by ear."""
    toggle = element("button", text("Dark page"), type="button", id="theme", hidden=True)
    where = element("div", element("p", isolated(kind)), toggle, class_="where")
    entries = [
        element("li", element("a", isolated(words), href=f"#{name}")) for name, words in links
    ]
    return DOCTYPE + element(
        "html",
        head(title),
        element(
            "body",
            element("a", text("Skip to pictures and tables"), class_="skip", href="#main"),
            element("header", element("h1", isolated(headline)), where, opening, class_="page"),
            element("nav", element("ul", *entries), aria_label="Parts of this page"),
            element("main", body, glossary_part(), id="main", tabindex=-1),
            element("footer", element("p", text(FOOT))),
            data,
            element("script", Html(script())),
        ),
        lang="en",
    )


PAGE_FILE = "report.html"
LONGEST = 300
"""Characters of an error that a sentence shows."""


def write_page(results: StudyResults, folder: Path, extras: Sequence[Extra] = ()) -> Path:
    """Write a study's page into its folder, whole or not at all; return its file."""
    StudyFiles(folder).write_text(PAGE_FILE, page_text([results], extras))
    return folder / PAGE_FILE


def try_page(
    results: StudyResults, folder: Path, say: Callable[[str], None], extras: Sequence[Extra] = ()
) -> list[Path]:
    """Write the page at the end of a study; return its file, in a list.

    The study's numbers must not be lost with the page: whatever is wrong with it is said, its
    traceback kept in `errors/`, and there is no file.
    """
    try:
        return [write_page(results, folder, extras)]
    except Exception as error:  # noqa: BLE001 (any fault of the page; it is said and kept)
        what = shorten(clean(f"{type(error).__name__}: {error}"), LONGEST)
        kept = StudyFiles(folder).write_error(PAGE_FILE, traceback.format_exc())
        say(f"{PAGE_FILE} could not be written ({what}); all else is there (traceback: {kept}).")
        return []


def write_comparison(studies: Sequence[StudyResults], file: Path) -> Path:
    """Write the page of several studies; UserError where the file cannot be written."""
    if file.is_dir():
        raise UserError(f"--out {file}: is a folder; name a file, as {file / 'compare.html'}.")
    if not file.parent.is_dir():
        raise UserError(
            f"--out {file}: there is no folder {file.parent}; make it, or name another."
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {file}: cannot be written (no permission in {file.parent}).")
    StudyFiles(file.parent).write_text(file.name, page_text(studies))
    return file
