"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from raybench.core.record import MACHINE_FAULTS
from raybench.core.spec import RunSpec
from raybench.core.study import TIME, StudySpec
from raybench.results.load import StudyResults
from raybench.results.tables import ranked
from raybench.search.pipeline.single_run import SingleRun

SEEDS_FROM = 1000
"""How far the seeds of confirming runs are from the search's: never the same."""


def candidates(results: StudyResults, study: StudySpec) -> dict[str, RunSpec]:
    """Return the specs of the trials to confirm by name, best first.

    To the fastest few comes the one with the least worker-seconds, or "cheapest" would only
    be asked of the fast.
    """
    runs = ranked(results.trials)
    if study.objective.kind == TIME:
        runs = runs[runs["time_to_target_s"].notna()]
        cost = (runs["num_workers"] * runs["time_to_target_s"]).sort_values(kind="stable")
    else:
        runs = runs[runs["best_accuracy"].notna()]
        cost = runs["score"].head(0)  # the seconds are the same for all
    chosen = [*runs["trial"].head(study.confirm.top)]
    if chosen:
        chosen += [str(runs.loc[index, "trial"]) for index in cost.index[:1]]
    return {name: results.specs[name] for name in chosen}


def confirmed_already(results: StudyResults) -> set[str]:
    """Return the names of the confirming runs that need not run again."""
    return {
        name
        for name, record in results.runs.items()
        if record.role == "confirm"
        and record.state != "stopped"
        and record.failure not in MACHINE_FAULTS
    }


def confirm(
    chosen: dict[str, RunSpec],
    *,
    repeats: int,
    search_seed: int,
    already: set[str],
    single_run: SingleRun,
) -> None:
    """Train every candidate `repeats` times, in the order ABCABC, one run at a time.

    `chosen` are run specs by the name of their trial; runs named in `already` are kept from an
    earlier session.
    """
    for repeat in range(repeats):
        for trial, spec in chosen.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or single_run.deadline.over:
                continue
            seed = (search_seed + SEEDS_FROM + repeat) % 2**32
            again = spec.model_copy(update={"seed": seed})
            single_run.train(again, name, "confirm", source=trial, test=True)
