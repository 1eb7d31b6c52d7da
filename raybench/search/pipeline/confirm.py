"""The confirm phase: the best of the search race with new seeds, then the winners run alone."""

from collections.abc import Callable
from dataclasses import dataclass

from raybench.core.record import Role, RunRecord
from raybench.core.spec import RunSpec
from raybench.core.standing import MOST, is_told, stages
from raybench.core.study import StudySpec
from raybench.results.load import load
from raybench.results.ranking import noise_of, repeat
from raybench.results.records import Records, read_records
from raybench.results.verdict import find_verdicts
from raybench.search.confirm_budget import MOST_FRESH, ConfirmBudget, Contenders
from raybench.search.pipeline.alone import run_alone
from raybench.search.pipeline.race import TRIES, LiveRace
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.race import cap_of

TURNS = 3
"""Times that runs alone may overrule who was first, and have another run alone."""
DECIDED = "no more runs are needed: no other configuration could be the winner"


@dataclass(frozen=True)
class Confirmation:
    """What confirming a study needs."""

    study: StudySpec
    single_run: SingleRun
    slots: int
    """Runs of the race at the same time."""
    at_once: Callable[[RunSpec], int]
    """How many runs of a spec there is room for."""
    chance: float | None
    """What the metric is before a run has begun, where the objective does not say it."""
    note: Callable[[str], None]
    """Keeps a sentence for the user."""

    def run(self) -> None:
        """Run what is left of the race and of the runs alone, as much as there is time for."""
        records, deadline = self._records(), self.single_run.deadline
        budget = self._budget(records)
        if not budget.winners():
            return
        answered = [*_answers(records, "race"), *_answers(records, "confirm")]
        plan = budget.plan(answered, deadline.left_s)
        if deadline.over or not plan.fresh:
            if deadline.reason() != "interrupted":
                self._note_time("was too short to confirm the result with new seeds")
            return
        contenders = budget.contenders()
        found, wanted = (_num_runs(contenders, of) for of in (plan.race, self.study.confirm.race))
        if found < wanted:
            of_them = f"{found} of the {wanted} runs" if found else "none of the runs"
            self._note_time(f"left time for {of_them} of the race")
        race = LiveRace(budget, self.single_run, records, self.slots)
        self._reserve(budget.fresh_s(plan.fresh))
        race.run(stages(plan.race), after_s=budget.fresh_s(plan.fresh))
        self._after(race)

    def more(self, number: int) -> bool:
        """Run `number` more of the contenders that are undecided, and then the winners alone.

        There are as many contenders as a race of all these runs would have begun with. Return
        whether nothing is left to be done.
        """
        records = self._records()
        budget = self._budget(records, least_race=min(num_raced(records) + number, MOST))
        race = LiveRace(budget, self.single_run, records, self.slots)
        self._reserve(budget.fresh_s(self.study.confirm.fresh))
        if number and not race.more(number) and not self.single_run.deadline.over:
            self.single_run.progress.say(DECIDED)
        self._after(race)
        return not race.is_cut and not self.single_run.deadline.over

    def _reserve(self, seconds: float) -> None:
        """Set seconds aside for the runs alone, at most a part of what is left."""
        deadline = self.single_run.deadline
        deadline.reserve_s = min(seconds, MOST_FRESH * deadline.left_s)

    def _after(self, race: LiveRace) -> None:
        """Run the winners alone, once the race is over."""
        deadline = self.single_run.deadline
        if race.is_cut and deadline.reason() == "time_budget":
            self._note_time("ended the race")
        deadline.reserve_s = 0.0
        for trial in race.out:
            self.note(
                f"Trial {trial} left the race: its workers were lost {TRIES} times, or were laid "
                "out unlike those of the search."
            )
        turns = 0
        while not deadline.over and turns < TURNS and self._run_alone(is_first=turns == 0):
            turns += 1

    def _run_alone(self, *, is_first: bool) -> bool:
        """Run those alone that will be named, as often as there is time for; return if any did.

        Where that overrules the race another is named then, which is run alone in the next turn.
        """
        single_run = self.single_run
        single_run.store.check()
        records, (winners, caps_s) = self._records(), self._winners()
        if not winners:
            return False  # the race has refuted all that reached the target once
        answered = [one for one in _answers(records, "confirm") if one.source in winners]
        left_s = single_run.deadline.left_s
        budget = self._budget(records)
        count, times = budget.runs_alone(winners, answered, left_s)
        if is_first and (count < len(winners) or times < self.study.confirm.fresh):
            each = "once" if times == 1 else f"{times} times"
            some = f"left time to run {count} of {len(winners)} winners alone, {each}"
            self._note_time(some if count else "left no time to run the winner alone")
        already = {one.trial for one in answered}
        chosen = winners[:count]
        due = [f"{trial}-confirm{n}" for trial in chosen for n in range(times)]
        runs = len(set(due) - already)
        if not runs:
            return False
        run_s = budget.fresh_s(1) / max(len(budget.winners()), 1)
        single_run.progress.begin("confirm", runs, expect_s=runs * run_s)
        run_alone(
            {trial: records.runs[trial].spec for trial in chosen},
            caps_s=caps_s,
            times=times,
            search_seed=self.study.search.seed,
            already=already,
            single_run=single_run,
        )
        return True

    def _winners(self) -> tuple[list[str], dict[str, float]]:
        """Return the trials that results will name (of several models of GPU, the fastest on each
        besides; tested or not yet), and the seconds beyond which a run of each has missed."""
        found: list[str] = []
        results = load(self.single_run.store.folder)
        for verdict in find_verdicts(results, untested=True).values():
            found += [verdict.fastest] if found else [verdict.fastest, verdict.cheapest]
        if not results.is_timed:
            return list(dict.fromkeys(found)), {}
        noise = noise_of(results.repeated, results)
        known = {
            trial: results.repeated[trial].chosen
            if trial in results.repeated
            else [repeat(results, trial)]
            for trial in found
        }
        return list(known), {trial: cap_of(runs, noise) for trial, runs in known.items()}

    def _records(self) -> Records:
        return read_records(self.single_run.store.folder)

    def _budget(self, records: Records, *, least_race: int = 0) -> ConfirmBudget:
        budget = ConfirmBudget(
            self.study, at_once=self.at_once, chance=self.chance, least_race=least_race
        )
        budget.learn(records.runs.values(), records.curves)
        return budget

    def _note_time(self, what: str) -> None:
        self.note(f"The time budget of {self.single_run.deadline.time_budget_s:g} s {what}.")


def num_raced(records: Records) -> int:
    """Return how many runs of a race have answered."""
    return len(_answers(records, "race"))


def _num_runs(contenders: Contenders, number: int) -> int:
    """Return how many of the `number` runs of a race there are contenders for."""
    total = 0
    for count, runs in stages(number):
        racing = contenders.first(count)
        total += runs * len(racing)
        if len(racing) == 1:
            break  # the race is over
    return min(total, number)  # those of the second race are counted once


def _answers(records: Records, role: Role) -> list[RunRecord]:
    return [one for one in records.runs.values() if one.role == role and is_told(one)]
