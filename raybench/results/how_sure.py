"""How sure a verdict is, in words: what it stands on, how far runs scatter, what more would tell.

No probability that the winner is within so many per cent of the best is given: posteriors of few
runs are miscalibrated by up to 17 points (`benchmarks/race.py`). That the best of those that ran
again is the named one or among those not told apart from it holds in nine of ten studies there.
"""

import math
import re
import shlex

from raybench.core.confirm_spec import ConfirmSpec
from raybench.core.repeats import TIE, Noise, Repeat, runs_worth, score
from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked
from raybench.results.repeated import Repeated, noise_of
from raybench.results.verdict import Verdict

FEW = 4.0
"""Degrees of freedom up to which what is said of the scatter is mostly what is usual."""
MOST_RUNS = 100
"""Runs beyond which nobody would go on telling two configurations apart."""
LEAST_RUNS = 4
COMMAND = "python -m raybench.tune SPACE"


def how_sure_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return what stands behind the verdict; nothing without one, nor of a single run's folder.

    Where runs were on several models of GPU, of the verdict on the first of them.
    """
    if verdict is None or results.study["study"].get("run"):
        return []
    noise = noise_of(results.repeated, results)
    if not verdict.is_confirmed:
        return [_unconfirmed(results, verdict, noise)]
    said = [_stands_on(results, verdict, noise), _more(results, verdict, noise)]
    return [" ".join(one for one in said if one)]


def _unconfirmed(results: StudyResults, verdict: Verdict, noise: Noise) -> str:
    once = len(verdict.once)
    near = f", and {_counted(once, 'other trial')} cannot be excluded" if once else ""
    if results.repeated:
        return (
            f"How sure: {_scatter(results, noise)}; what ran again did not reach the target with "
            f"new seeds, and trial {verdict.fastest} ran once{near}."
        )
    return (
        f"How sure: {_scatter(results, noise)}, every configuration ran once{near}: "
        f"{_confirming_command(results)} repeats the best."
    )


def _stands_on(results: StudyResults, verdict: Verdict, noise: Noise) -> str:
    kind = results.runs[verdict.fastest].accelerators
    found = {
        trial: one
        for trial, one in results.repeated.items()
        if results.runs[trial].accelerators == kind
    }
    ties = len(verdict.ties) - 1
    own = _counted(len(found[verdict.fastest].chosen), "run")
    if len(found) == 1:
        head = f"no configuration but trial {verdict.fastest} ran again ({own})"
        return f"How sure: {head}; {_scatter(results, noise)}."
    runs = sum(len(one.chosen) for one in found.values())
    head = (
        f"of {len(found)} configurations that ran again ({runs} runs), {verdict.fastest} is first"
    )
    near = "" if not ties else " or the one not told apart"
    near = f" or one of the {ties} not told apart" if ties > 1 else near
    return (
        f"How sure: {head}, by {own}; {_scatter(results, noise)}. In nine of ten such studies the "
        f"truly best of them is it{near}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _scatter(results: StudyResults, noise: Noise) -> str:
    """Say how far runs of one configuration lie apart (one standard deviation)."""
    if math.isinf(noise.sigma):
        return "how far runs of one configuration lie apart is not known"
    if not results.is_timed:
        points = f"{100 * noise.sigma:.2g} points"
        size = points if results.metric.is_share else f"{noise.sigma:.2g}"
        return f"{results.metric.words} of one configuration scatters by about {size}"
    usually = "usually " if noise.freedom <= FEW else ""
    return f"runs of one configuration {usually}scatter by about {100 * noise.sigma:.0f} %"


def _more(results: StudyResults, verdict: Verdict, noise: Noise) -> str:
    """Say what more runs would tell."""
    if len(verdict.ties) + len(verdict.once) < 2:
        is_alone = len(ranked(results.trials)) < 2
        return "" if is_alone else "All others that ran are told apart from it."
    if len(verdict.ties) < 2:
        number = max(LEAST_RUNS, min(len(verdict.once), 20))
        return f"Those that ran once are repeated by {_command(results, number)}."
    ties = [results.repeated[trial] for trial in verdict.ties]
    enough = runs_to_tell(ties, noise, results)
    if enough is None:
        return (
            f"They are too alike for {MOST_RUNS} more runs to tell them apart; "
            f"{_command(results, 20)} makes the list shorter."
        )
    return (
        f"About {enough} more runs would tell them apart, if they differ as they seem to: "
        f"{_command(results, enough)}."
    )


def runs_to_tell(found: list[Repeated], noise: Noise, results: StudyResults) -> int | None:
    """Return how many more runs tell the first from the others, if the gaps stay what they are.

    With n runs of both, a gap is told from TIE sigma sqrt(2 / n) on. None beyond MOST_RUNS.
    """
    is_timed = results.is_timed

    def worth(runs: tuple[Repeat, ...]) -> float:
        return max(runs_worth(runs, noise, is_timed=is_timed), 0.5)

    best = score(found[0].chosen, is_timed=is_timed)
    total, most = 0.0, 0.0
    for one in found[1:]:
        gap = score(one.chosen, is_timed=is_timed) - best
        needed = 2 * (TIE * noise.sigma / gap) ** 2 if gap > 0 else math.inf
        share = len(one.chosen) / worth(one.chosen)  # runs with misses tell less
        total += max(needed - worth(one.chosen), 0.0) * share
        most = max(most, needed)
    total += max(most - worth(found[0].chosen), 0.0)
    return max(math.ceil(total), LEAST_RUNS) if total <= MOST_RUNS else None


def _command(results: StudyResults, number: int) -> str:
    """Return the study's own command with `--more`."""
    return f"{_own_command(results)} --more {number}"


def _confirming_command(results: StudyResults) -> str:
    """Return the study's own command so that it confirms: `--more` is for what is confirmed."""
    given = re.sub(r" --no-confirm(?= |$)", "", _own_command(results))
    asked = results.study["study"].get("confirm")
    is_unasked = isinstance(asked, dict) and asked.get("race") == 0
    return f"{given} --confirm race={ConfirmSpec().race}" if is_unasked else given


def _own_command(results: StudyResults) -> str:
    """Return the study's own command; a new folder is not what it shall begin."""
    given = clean(str(results.study.get("command", "")))
    if "raybench.tune" not in given:
        given = COMMAND
    if re.search(r" --fresh(?= |$)", given):  # the folder is not the one that was named
        given = re.sub(r" --out[ =][^\s'\"]+(?= |$)", "", given)
        given += f" --out {shlex.quote(results.place)}"
    return re.sub(r" --fresh(?= |$)", "", given)
