"""The configurations of a study that were trained again: by which runs each is chosen and printed.

A race trains contenders with new seeds beside other runs (role `race`); its winners then run alone
(role `confirm`), with further seeds. What is compared must have been run alike, so configurations
are chosen by the race, unless their runs alone overrule it (`core.standing.best_first`); the time
that is printed is of the runs alone: those of the race are 9 to 14 % too good. Studies without a
race have but the second kind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raybench.core import standing
from raybench.core.counted import first_trial, held_per_trained, is_told, repeat_of
from raybench.core.record import RunRecord
from raybench.core.repeats import Noise, Repeat, pooled
from raybench.core.standing import Axis, on_axis
from raybench.results.load import StudyResults

ROLES = ("race", "confirm")


@dataclass(frozen=True)
class Repeated:
    """One of them."""

    trial: str
    """Whose configuration it is."""
    num_workers: int
    cost: float
    """Worker-seconds per second of training: with a price those that are held, and billed."""
    chosen: tuple[Repeat, ...]
    """Runs by which it is compared: the search's own, unless it began the study, and the race's;
    without a race those alone."""
    chosen_runs: tuple[str, ...]
    """Their names."""
    printed: tuple[Repeat, ...]
    """Runs that its printed time is of: those alone, or where none reached the target, all new."""
    printed_runs: tuple[str, ...]
    """Their names."""
    is_alone: bool
    """Whether these ran alone."""
    alone: tuple[Repeat, ...]
    """Runs alone that it is not chosen by: they may overrule the race."""

    @property
    def hits(self) -> int:
        """Runs of `chosen` that reached the target."""
        return sum(repeat.is_hit for repeat in self.chosen)

    def is_refuted(self, *, is_timed: bool) -> bool:
        """Whether none of its new runs has reached the target, and it was run alone too; or, with
        best_at_budget, whether all of them failed."""
        is_enough = self.is_alone or self.alone or not is_timed
        return bool(is_enough) and not any(repeat.is_hit for repeat in self.printed)

    def on(self, axis: Axis, *, with_alone: bool = False) -> list[Repeat]:
        """Return the runs it is chosen by in the unit of an axis, and those alone if asked."""
        runs = [*self.chosen, *self.alone] if with_alone else self.chosen
        return on_axis(runs, self.cost, axis)


def repeated(results: StudyResults) -> dict[str, Repeated]:
    """Return them by trial, best first: see `core.standing.best_first`."""
    trials = results.trials
    unranked = set(trials["trial"][trials["unranked"].notna()])
    again: dict[str, list[RunRecord]] = {}
    for record in results.runs.values():
        origin = results.runs.get(record.source or "")
        if record.role not in ROLES or origin is None or record.trial in unranked:
            continue  # without its search run nothing says what was repeated
        is_alike = record.failure is not None or record.accelerators == origin.accelerators
        if is_told(record) and is_alike:
            again.setdefault(origin.trial, []).append(record)
    cold = first_trial(results.runs.values())
    found = {}
    for trial, records in again.items():
        own = results.runs[trial]
        counts = trial != cold and trial not in unranked and is_told(own)
        found[trial] = _repeated(results, own, records, counts=counts)
    order = best_first(found.values(), "seconds", is_timed=results.is_timed)
    return {trial: found[trial] for trial in order}


def best_first(
    found: Iterable[Repeated], axis: Axis, *, is_timed: bool
) -> dict[str, Sequence[Repeat]]:
    """Return configurations, best first on an axis, and the runs that they are judged by there."""
    found = list(found)
    alone = {one.trial: on_axis(one.alone, one.cost, axis) for one in found}
    raced = {one.trial: one.on(axis) for one in found}
    return standing.best_first(raced, alone, is_timed=is_timed)


def repeat(results: StudyResults, trial: str) -> Repeat:
    """Return what a run counts as."""
    points = results.evaluations.get(trial, ())
    return repeat_of(results.runs[trial], points, chance=results.value_at_start)


def cost_of(results: StudyResults, num_workers: int, names: Iterable[str]) -> float:
    """Return the cost of a second of training of a configuration, by the runs of these names: its
    workers, and where the study names a price what they are held for beside training too."""
    if results.study["study"].get("price") is None:
        return num_workers
    return num_workers * held_per_trained(results.runs[name] for name in names)


def noise_of(found: dict[str, Repeated], results: StudyResults) -> Noise:
    """Return the noise pooled over the runs by which configurations are compared."""
    return pooled(_chosen(found).values(), is_timed=results.is_timed)


def noise_of_all(found: dict[str, Repeated], results: StudyResults) -> Noise:
    """Return the noise pooled over these and, apart from them, those that ran alone."""
    alone = [one.printed for one in found.values() if one.printed != one.chosen and one.is_alone]
    return pooled([*_chosen(found).values(), *alone], is_timed=results.is_timed)


def _chosen(found: dict[str, Repeated]) -> dict[str, tuple[Repeat, ...]]:
    return {trial: one.chosen for trial, one in found.items()}


def _repeated(
    results: StudyResults, own: RunRecord, records: list[RunRecord], *, counts: bool
) -> Repeated:
    """`counts`: whether the search's own run does."""
    race = [one.trial for one in records if one.role == "race"]
    alone = [one.trial for one in records if one.role == "confirm"]
    chosen = [*([own.trial] if counts else []), *race] if race else alone
    is_hit = any(repeat(results, name).is_hit for name in alone)
    printed = alone if is_hit or not race else [*race, *alone]
    return Repeated(
        trial=own.trial,
        num_workers=own.spec.num_workers,
        cost=cost_of(results, own.spec.num_workers, printed),
        chosen=tuple(repeat(results, name) for name in chosen),
        chosen_runs=tuple(chosen),
        printed=tuple(repeat(results, name) for name in printed),
        printed_runs=tuple(printed),
        is_alone=printed == alone,
        alone=tuple(repeat(results, name) for name in (alone if race else ())),
    )
