"""Sentences about how certain the winner is: the number of runs, their standard deviation, and what
more runs would show.

No probability is given that the winner is within some percentage of the best configuration, because
such posterior probabilities are wrong by up to 17 points if there are few runs
(`benchmarks/search/race.py`). In nine of ten studies of that benchmark, the winner is the best of
the configurations that ran again, or is tied with it. No claim is made about trials that were
stopped early.

This module also writes caveats and remarks (whether nearly all trials reach the target, which runs
failed or were disturbed, whether the winner is at the end of a searched range) and the next steps
with their commands.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from raybench.report.console import DISTURBED
from raybench.report.words import named_trials, target_in_words
from raybench.results.analyses import failures, ledger_totals
from raybench.results.place import DEFAULT_FOLDER
from raybench.results.ranking import noise_of, ranked_runs, repeated
from raybench.results.store import NOTHING_LEFT, PAGE_FILE, STUDY_FILE, StudyKind
from raybench.results.study import Study
from raybench.results.verdict import Verdict
from raybench.spec.errors import UserError
from raybench.spec.own_loop import is_own_loop
from raybench.spec.space import end_of, parse_space
from raybench.spec.study import ConfirmSpec
from raybench.spec.text import clean, counted, shorten, split_command
from raybench.stats.record import Failure, Phase, Role
from raybench.stats.replicates import Noise
from raybench.stats.standing import SMALLEST

MORE_OPTION = "--more"
RUNS_EACH = 4
"""Number of further runs that are proposed for the winner, and for each trial that is still tied
with it."""
LEAST_PROPOSED_RUNS, MOST_PROPOSED_RUNS = 4, 20
"""Minimum and maximum number of runs that are proposed for trials that ran only in the search."""


def confidence_of(results: Study, verdict: Verdict | None) -> str:
    """Return sentences about the evidence for a verdict (for one GPU model, if there were several);
    "" if there is none."""
    if verdict is None:
        return ""
    noise = noise_of(repeated(results), results)
    if not verdict.is_confirmed:
        return _unconfirmed(results, verdict, noise)
    parts = (_basis(results, verdict, noise), _more_runs(results, verdict).sentence)
    return " ".join(filter(None, parts))


def _unconfirmed(results: Study, verdict: Verdict, noise: Noise) -> str:
    num_once = len(verdict.once)
    once_clause = (
        f"; {counted(num_once, 'other configuration')} cannot be ruled out" if num_once else ""
    )
    scatter = _scatter(results, noise)
    outcome = ", and no configuration ran again after the search"
    if repeated(results):
        missed = "did not reach the target" if results.is_timed else "failed"
        outcome = f"; the configurations that ran again {missed} with new seeds, and trial "
        outcome += f"{verdict.fastest} ran once"
    return f"{scatter}{outcome}{once_clause}."


def _basis(results: Study, verdict: Verdict, noise: Noise) -> str:
    kind = results.runs[verdict.fastest].accelerators
    compared = {
        name: configuration
        for name, configuration in repeated(results).items()
        if results.runs[name].accelerators == kind
    }
    num_runs = len(compared[verdict.fastest].chosen)
    scatter = _scatter(results, noise)
    if len(compared) == 1:
        head = f"only trial {verdict.fastest} was run again ({counted(num_runs, 'run')})"
        return f"{head}; {scatter}."
    runs = sum(len(configuration.chosen) for configuration in compared.values())
    head = f"based on {runs} runs of {len(compared)} configurations "
    head += f"({num_runs} of trial {verdict.fastest})"
    tied_clause = " or tied with it" if verdict.others() else ""
    return (
        f"{head}; {scatter}. In nine of ten similar studies, the winner is the best of the "
        f"{len(compared)}{tied_clause}."
    )


def _scatter(results: Study, noise: Noise) -> str:
    """Return the standard deviation between runs of one configuration, pooled over all
    configurations, in words."""
    if math.isinf(noise.sigma):
        return "the standard deviation between runs of one configuration is not known"
    if results.is_timed:
        size = f"{100 * noise.sigma:.0f} %"
    elif results.metric.is_share:
        size = f"{100 * noise.sigma:.2g} points"
    else:
        size = f"{noise.sigma:.2g} ({results.metric.words})"
    is_about = "is assumed to be about" if noise.is_assumed else "is about"
    return f"the standard deviation between runs of one configuration {is_about} {size}"


class MoreRuns(NamedTuple):
    """Proposal to add runs to a study with `--more`."""

    number: int | None
    """Number of runs for `--more`; None if more runs would not help."""
    sentence: str
    """What more runs would show, or why they would not help."""
    gain: str = ""
    """Purpose of the runs, in a few words."""


def as_what(results: Study, verdict: Verdict) -> str:
    """Return the adjective for configurations that may be as good as a winner: `fast`, `fast or
    cheap`, or (without a target) `good`."""
    if not results.is_timed:
        return "good"
    return "fast" if verdict.is_one else "fast or cheap"


def _more_runs(results: Study, verdict: Verdict) -> MoreRuns:
    ties = {*verdict.others(), *verdict.others(is_cheapest=True)}
    ran_once = {*verdict.once, *verdict.cheapest_once}
    if verdict.undecided:
        runs = RUNS_EACH * (1 + len(verdict.undecided))
        sentence = f"{MORE_OPTION} {runs} adds runs, up to {runs}, until each difference is "
        sentence += f"significant or below {100 * SMALLEST:g} %."
        which = f"{len(verdict.undecided):,} that may be as {as_what(results, verdict)}"
        return MoreRuns(runs, sentence, f"repeat {which}")
    if ties:
        sentence = "The configurations tied with the winner differ from it by less than "
        return MoreRuns(None, f"{sentence}{100 * SMALLEST:g} %.")
    if ran_once:
        runs = max(LEAST_PROPOSED_RUNS, min(len(ran_once), MOST_PROPOSED_RUNS))
        sentence = "Configurations that ran only in the search can run again: "
        sentence += f"{MORE_OPTION} {runs}."
        return MoreRuns(runs, sentence, "repeat what ran only in the search")
    distinguishable = [trial for trial in repeated(results) if trial not in verdict.ties]
    sentence = "The other configurations that ran again differ significantly from the winner."
    return MoreRuns(None, sentence if distinguishable else "")


FEWEST_REACHED, MOST_REACHED = 0.05, 0.9
"""Range of the fraction of trials that reach the target. Outside of it, the target hardly
distinguishes between trials."""
ENOUGH_TRIALS = 8


def target_warning(results: Study) -> list[str]:
    """Return a list with a sentence if nearly all or nearly none of the trials of the search reach
    the target; otherwise []."""
    trials = ranked_runs(results.trials)
    if results.target is None or not results.is_timed or len(trials) < ENOUGH_TRIALS:
        return []
    reached = int(trials["time_to_target_s"].notna().sum())
    easy, hard = ("low", "high") if results.metric.direction == "max" else ("high", "low")
    count = f"{reached} of {len(trials)} trials reach {target_in_words(results)}"
    if reached > MOST_REACHED * len(trials):
        return [f"{count}: a target this {easy} hardly distinguishes them; try a {hard}er one."]
    if reached < FEWEST_REACHED * len(trials):
        return [f"{count}: try a {easy}er target, or more max_train_seconds."]
    return []


def code_line(results: Study) -> list[str]:
    """Return a list with a sentence if runs used different versions of the user's code; otherwise
    []."""
    versions = results.trials.dropna(subset=["code"]).groupby("code", sort=False)["trial"].agg(list)
    if len(versions) < 2:
        return []
    spans = {code: f"{min(names)} to {max(names)}" for code, names in versions.items()}
    runs = "; ".join(f"{code}: {span}" for code, span in spans.items())
    return [f"The code was changed between runs; the runs are compared nevertheless ({runs})."]


LEAST_SHARE = 0.05
"""Minimum fraction of the time of all runs that a phase must take to be mentioned."""
LONGEST_MESSAGE = 300
"""Maximum length of the message of a failure, in characters."""
FAILURES_IN_WORDS = {
    Failure.OOM: "out of memory",
    Failure.NAN: "loss not finite",
    Failure.TIMEOUT: "time limit",
    Failure.WORKER_LOST: "worker lost",
}
IN_WORDS = {
    "queue": "waiting for free workers",
    "start": "starting workers",
    "lost": "lost with workers that died or did not answer",
    "setup": "set-up",
    "compile": "compiling",
    "train": "training",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "report": "reporting",
    "other": "unexplained",
}


def ledger_line(results: Study) -> str:
    """Return a sentence about the phases that took most of the time of all runs, longest first."""
    trials = results.trials
    table = ledger_totals(trials)
    phases = table[(table["phase"] != "sum") & (table["share"] >= LEAST_SHARE)]
    phases = phases.sort_values("share", ascending=False, kind="stable")
    phase_shares = zip(phases["phase"], phases["share"], strict=True)
    shares = [f"{IN_WORDS[phase]} {100 * share:.0f} %" for phase, share in phase_shares]
    total = float(trials["wall_s"].sum())
    return (
        f"Where the {total:,.0f} s of {counted(len(trials), 'run')} went: {', '.join(shares)}. "
        f"Only training time counts toward the {'target' if results.is_timed else 'budget'}."
    )


def disturbed_line(results: Study) -> list[str]:
    """Return a list with a sentence about how many runs were slowed by other processes; [] if none
    were."""
    number = int(results.trials["is_disturbed"].eq(True).sum())
    if not number:
        return []
    clause = "its times are" if number == 1 else "their times are"
    return [
        f"Slowed by other processes: {number} of {counted(len(results.trials), 'run')} (marked "
        f"{DISTURBED}); {clause} overstated."
    ]


def failed_line(results: Study) -> list[str]:
    """Return a list with a sentence about the failed runs and their most frequent cause; [] if none
    failed."""
    causes = failures(results.trials)
    if causes.empty:
        return []
    first = causes.iloc[0]
    cause = FAILURES_IN_WORDS.get(first["failure"], first["failure"])
    detail = f" ({cause})"
    if len(causes) > 1:
        detail = f"; most frequent cause: {cause} ({counted(first['runs'], 'run')})"
    message = shorten(clean(str(first["for example"])), LONGEST_MESSAGE)
    runs = counted(int(causes["runs"].sum()), "run")
    return [f"Failed: {runs}{detail}: {message}"]


def unranked_lines(results: Study) -> list[str]:
    """Return one sentence for each reason why trials of the search were not ranked."""
    searched = results.trials[results.trials["phase"] == Phase.SEARCH]
    reasons = searched.groupby("unranked", sort=False)["trial"]
    return [f"Not ranked, {why}: {named_trials(list(trials))}." for why, trials in reasons]


def edge_lines(results: Study, verdict: Verdict | None) -> list[str]:
    """Return sentences about keys whose value in the fastest trial is at an end of the searched
    range."""
    if verdict is None:
        return []
    study = results.study["study"]
    try:
        space = parse_space(study.get("space") or {}, study.get("fixed") or {}, "study.yaml")
    except UserError:  # written by another version
        return []
    spec = results.specs[verdict.fastest]
    ends: dict[str, list[str]] = {"upper": [], "lower": []}
    for key, dimension in space.items():
        if (end := end_of(dimension, key, spec)) is not None:
            ends[end].append(key)
    return [
        f"At the {end} end of the searched range: {' and '.join(keys)} of trial {verdict.fastest}; "
        "a wider range may contain better values."
        for end, keys in ends.items()
        if keys
    ]


@dataclass(frozen=True)
class SuggestedStep:
    """A step that the user can take next."""

    what: str
    """Purpose in a few words."""
    do: str
    """Command to run, or file to open."""


def next_steps(results: Study, verdict: Verdict | None) -> list[SuggestedStep]:
    """Return the next steps, the most useful first."""
    is_search = results.kind is StudyKind.SEARCH
    verdict = verdict if is_search else None  # what follows continues a search or trains its winner
    steps = []
    if verdict is not None:
        is_own = is_own_loop(results.specs[verdict.fastest].workload)
        files = {"train it" if is_own else "train it and save the model": "best.yaml"}
        if verdict.fastest != verdict.cheapest:
            files["or the cheapest"] = "cheapest.yaml"
        for purpose, file in files.items():
            steps.append(SuggestedStep(purpose, results.command("train", results.folder / file)))
    if (results.folder / PAGE_FILE).is_file():
        steps.append(SuggestedStep("figures, every trial", str(results.folder / PAGE_FILE)))
    if results.owner:  # its folder is locked
        return steps
    if verdict is not None:
        steps += _more_confidence(results, verdict)
    remaining = _remaining_trials(results) if is_search else []
    if remaining and steps and steps[-1].do == remaining[0].do:  # one command does both
        return [*steps[:-1], SuggestedStep(f"{remaining[0].what}, confirm", remaining[0].do)]
    return [*steps, *remaining]


def _more_confidence(results: Study, verdict: Verdict) -> list[SuggestedStep]:
    """Return a list with the step that would make the winner more certain; [] if there is none."""
    if not verdict.is_confirmed:
        if repeated(results):  # they missed the target or failed, so more runs do not help
            return []
        # `--more` needs a confirmed winner, so the original command of the study is proposed.
        confirm = results.study["study"].get("confirm")
        is_unasked = isinstance(confirm, dict) and confirm.get("race") == 0
        options = ["--confirm", f"race={ConfirmSpec().race}"] if is_unasked else []
        command = _continue_command(results, *options, without="--no-confirm")
        return [SuggestedStep("confirm it with new seeds", command)]
    more_runs = _more_runs(results, verdict)
    if more_runs.number is None:
        return []
    return [
        SuggestedStep(
            more_runs.gain, _continue_command(results, MORE_OPTION, str(more_runs.number))
        )
    ]


def _remaining_trials(results: Study) -> list[SuggestedStep]:
    """Return a list with the step that runs the remaining trials; [] if there are none."""
    if any(str(note).endswith(NOTHING_LEFT) for note in results.study.get("notes") or []):
        return []
    num_asked = results.num_trials_asked
    num_done = int((results.trials["role"] == Role.TRIAL).sum())
    if num_asked is None or num_done >= num_asked or not len(ranked_runs(results.trials)):
        return []
    return [
        SuggestedStep(
            f"run the {counted(num_asked - num_done, 'trial')} left", _continue_command(results)
        )
    ]


def _continue_command(results: Study, *more: str, without: str = "") -> str:
    """Return the command that continues a study in its current folder, with the options `more` and
    without the option `without`."""
    sessions = [results.study, *(results.study.get("continued") or [])]
    commands = [split_command(clean(str(session.get("command", "")))) for session in sessions]
    words = next(
        (command for command in reversed(commands) if command and MORE_OPTION not in command),
        commands[0],
    )
    while words and PurePath(words[0]).name not in ("tune", "raybench.tune"):
        words.pop(0)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out")
    parser.add_argument("--fresh", action="store_true")
    is_asked = bool(words)  # False if the study was started from Python
    space = [str(results.folder / STUDY_FILE)]
    options, remaining = parser.parse_known_args(words[1:] if is_asked else space)
    remaining = [word for word in remaining if word != without]
    # The command must continue in the current folder, not start a new one.
    place = results.place if options.fresh or not is_asked else options.out
    if place is None and Path(results.place).parent.name != DEFAULT_FOLDER:
        place = results.place
    return results.command("tune", *remaining, *(["--out", place] if place else []), *more)
