"""Ties, time and interval that raybench prints after a race, compared with the truth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from race_policies import Outcome
from race_worlds import Study, World

from raybench.stats.replicates import (
    Replicate,
    expected_running_time,
    interval,
    intervals_of_chosen,
    pooled,
)
from raybench.stats.standing import ConfigurationRuns, ties_of

TIES_BAR, BIAS_BAR, INTERVAL_BAR = 90, 0.03, 85


@dataclass(frozen=True)
class Calibration:
    """Shares (of 100) and mean relative errors over the studies of a world."""

    world: str
    holds_best: float
    """Studies whose ties include the best configuration that ran at least twice."""
    num_repeated: float
    """Mean number of ties that ran at least twice, including the winner."""
    holds_any: float
    """Studies whose ties, including those that ran once, include the best configuration."""
    num_once: float
    """Mean number of ties that ran once."""
    bias: float
    """Error of the printed time relative to the winner's true median."""
    chosen_bias: float
    """Error of the median of the runs that chose the winner, including that of the search."""
    holds_later: float
    """Studies whose interval from fresh runs holds the median of 20 later runs."""
    chosen_holds: float
    """Studies whose interval from the runs that chose the winner holds it."""
    width: float
    """Median ratio of the ends of the interval."""

    def bars(self) -> list[tuple[str, bool]]:
        """Return the bars, each with its figure and whether it is met."""
        return [
            (
                f"{self.world}: ties hold the best replicated one in {self.holds_best:.1f} "
                f"({TIES_BAR})",
                self.holds_best >= TIES_BAR,
            ),
            (
                f"{self.world}: printed time {self.bias:+.1%} off ({BIAS_BAR:.0%})",
                abs(self.bias) <= BIAS_BAR,
            ),
            (
                f"{self.world}: 90 % interval holds a fresh median in {self.holds_later:.1f} "
                f"({INTERVAL_BAR})",
                self.holds_later >= INTERVAL_BAR,
            ),
        ]

    @staticmethod
    def table(found: Sequence["Calibration"]) -> list[str]:
        """Return a table with a row per world."""
        lines = [
            "| world | ties hold the best replicated one | of how many | with those that ran once, "
            "the best of all | once | printed time off | from the choosing runs | 90 % interval "
            "holds | from the choosing runs | high over low |",
            "|---" * 10 + "|",
        ]
        for one in found:
            lines.append(
                f"| {one.world} | {one.holds_best:.1f} | {one.num_repeated:.1f} | "
                f"{one.holds_any:.1f} | {one.num_once:.1f} | {one.bias:+.1%} | "
                f"{one.chosen_bias:+.1%} | {one.holds_later:.1f} | {one.chosen_holds:.1f} | "
                f"{one.width:.2f} |"
            )
        return lines


def calibrate(world: World, studies: Sequence[Study], outcomes: Sequence[Outcome]) -> Calibration:
    """Compare what a race would print with the truth of its world.

    Times count if both the printed and the true one are finite.
    """
    rows = [
        _look(world, study, outcome)
        for study, outcome in zip(studies, outcomes, strict=True)
        if outcome.winner is not None
    ]
    table = np.array(rows)
    shares = np.nanmean(table, axis=0)
    return Calibration(
        world=world.name,
        holds_best=100 * shares[0],
        num_repeated=shares[1],
        holds_any=100 * shares[2],
        num_once=shares[3],
        bias=math.expm1(shares[4]),
        chosen_bias=math.expm1(shares[5]),
        holds_later=100 * shares[6],
        chosen_holds=100 * shares[7],
        width=float(np.nanmedian(table[:, 8])),
    )


def _look(world: World, study: Study, outcome: Outcome) -> tuple[float, ...]:
    """Return the figures of one study in the order of `Calibration`; NaN if there is none."""
    race, winner = outcome.race, outcome.winner
    if race is None or winner is None:
        raise TypeError("only what a race has named can be looked at")
    ranking = study.ranking()
    groups = {name: race.group(name) for name in race.order()}
    once = {
        str(one): ConfigurationRuns(study.own(one)) for one in ranking if str(one) not in groups
    }
    ties = ties_of(groups, once)
    again = [int(name) for name, group in groups.items() if len(group.runs()) > 1]
    best_again = min(again, key=lambda one: world.truth[one])
    best = min(ranking, key=lambda one: world.truth[one])
    fresh, chosen = study.printed(winner), groups[str(winner)].runs()
    new = {name: list(group.rounds.values()) for name, group in groups.items()}
    noise = pooled([*new.values(), fresh])
    # What is printed is the median, or with a miss among the fresh runs the ERT.
    is_whole = all(run.is_hit for run in fresh)
    say = _median if is_whole else expected_running_time
    true = float((world.medians if is_whole else world.expected)[winner])
    later, held = say(study.later(winner)), [math.nan] * 5
    if all(map(math.isfinite, (say(fresh), later, true))):
        low, high = interval(fresh, noise)
        ends = intervals_of_chosen(new, noise)[str(winner)]
        held = [
            math.log(say(fresh) / true),
            math.log(say(chosen) / true) if math.isfinite(say(chosen)) else math.nan,
            float(low <= later <= high),
            float(ends[0] <= later <= ends[1]),
            high / low,
        ]
    return (
        float(str(best_again) in ties.repeated),
        float(len(ties.repeated)),
        float(str(best) in (*ties.repeated, *ties.once)),
        float(len(ties.once)),
        *held,
    )


def _median(runs: Sequence[Replicate]) -> float:
    return median(run.seconds if run.is_hit else math.inf for run in runs)
