"""How sure a verdict is, in words: what it stands on, how far runs scatter, what more would tell.

No probability that the winner is within so many per cent of the best is given: posteriors of few
runs are miscalibrated by up to 17 points (`benchmarks/race.py`). That the best of those that ran
again is the named one or among those not told apart from it holds in nine of ten studies there.
"""

import math

from raybench.core.repeats import TIE, Noise, Repeat, runs_worth, score
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked
from raybench.results.repeated import Repeated, noise_of
from raybench.results.verdict import Verdict
from raybench.results.words import counted

FEW = 4.0
"""Degrees of freedom up to which what is said of the scatter is mostly what is usual."""
MOST_RUNS = 100
"""Runs beyond which nobody would go on telling two configurations apart."""
LEAST_RUNS = 4
ALIKE_RUNS = 20
"""Runs that are proposed where no number would tell: they make the list shorter."""


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
    near = f", and {counted(once, 'other trial')} cannot be excluded" if once else ""
    if results.repeated:
        missed = "did not reach the target" if results.is_timed else "failed"
        return (
            f"How sure: {_scatter(results, noise)}; what ran again {missed} with "
            f"new seeds, and trial {verdict.fastest} ran once{near}."
        )
    return f"How sure: {_scatter(results, noise)}, every configuration ran once{near}."


def _stands_on(results: StudyResults, verdict: Verdict, noise: Noise) -> str:
    kind = results.runs[verdict.fastest].accelerators
    found = {
        trial: one
        for trial, one in results.repeated.items()
        if results.runs[trial].accelerators == kind
    }
    ties = len(verdict.ties) - 1
    share = len(found[verdict.fastest].chosen)
    if len(found) == 1:
        head = f"no configuration but trial {verdict.fastest} ran again ({counted(share, 'run')})"
        return f"How sure: {head}; {_scatter(results, noise)}."
    runs = sum(len(one.chosen) for one in found.values())
    head = (
        f"{len(found)} configurations ran again ({runs} runs with the search's own, {share} of "
        f"trial {verdict.fastest})"
    )
    near = "" if not ties else " or the one not told apart"
    near = f" or one of the {ties} not told apart" if ties > 1 else near
    return (
        f"How sure: {head}; {_scatter(results, noise)}. In nine of ten such studies the truly best "
        f"of them is it{near}."
    )


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
    number = more_runs(results, verdict)
    if len(verdict.ties) < 2:
        return f"Those that ran once can run again: --more {number}."
    if runs_to_tell(_tied(results, verdict), noise, results) is None:
        return (
            f"They are too alike to be told apart by {MOST_RUNS} more runs; --more {number} makes "
            "them fewer."
        )
    return f"About {number} more runs (--more) would tell, if they differ as they seem to."


def more_runs(results: StudyResults, verdict: Verdict) -> int | None:
    """Return how many runs `--more` is to have; None where all are told apart."""
    if len(verdict.ties) + len(verdict.once) < 2:
        return None
    if len(verdict.ties) < 2:
        return max(LEAST_RUNS, min(len(verdict.once), ALIKE_RUNS))
    enough = runs_to_tell(_tied(results, verdict), noise_of(results.repeated, results), results)
    return ALIKE_RUNS if enough is None else enough


def _tied(results: StudyResults, verdict: Verdict) -> list[Repeated]:
    return [results.repeated[trial] for trial in verdict.ties]


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
