"""Text for numbers, targets, prices and runs, used in all sentences about a study."""

import json
import statistics
from collections.abc import Sequence

from raybench.results.ranking import repeated
from raybench.results.study import Study
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, counted, seconds_text, shorten
from raybench.stats.record import Role
from raybench.stats.standing import billing_ratio

MOST_NAMED = 5
"""Maximum number of trials that are named in a sentence."""
ROLES: dict[str, str] = {
    Role.REFERENCE: "reference: default settings, first",
    Role.TRIAL: "search",
    Role.PLACEMENT_CHECK: "speed check: was predicted",
    Role.RACE: "confirmation: new seed, in parallel",
    Role.CONFIRM: "confirmation: new seed, alone",
    Role.SCALING: "repeat of a cell",
    Role.PAIR: "run of a pair",
}
"""Role of a run in words."""
ENDINGS: dict[str, str] = {
    StopReason.TARGET: "the target was reached",
    StopReason.MAX_TRAIN_SECONDS: "the limit of training seconds was reached",
    StopReason.EPOCHS: "all epochs were trained",
    StopReason.INTERRUPTED: "the run was interrupted",
    StopReason.TIME_BUDGET: "the time budget was used up",
}
"""Stop reason of a run in words."""


def duration(seconds: float) -> str:
    """Return a duration with a suitable unit, such as `0.59 s`, `12.3 s`, `4.2 min` or `3.1 h`."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds_text(seconds) if seconds < 10 else format(seconds, '.3g')} s"


def digits(number: float) -> str:
    """Return rounded seconds or worker-seconds without a unit, such as `0.59`, `12.3` or
    `5,120`."""
    if number < 10:
        return seconds_text(number)
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def named_trials(trials: Sequence[str]) -> str:
    """Return the names of trials as text.

    Examples: `trial 0003`, `trials 0003, 0004`, or `trials 0003, ... and 7 more` if there are more
    than MOST_NAMED.
    """
    num_more = len(trials) - MOST_NAMED
    names = ", ".join(trials[:MOST_NAMED]) + (f" and {num_more} more" if num_more > 0 else "")
    return f"{'trial' if len(trials) == 1 else 'trials'} {names}"


def wall_clock_words(results: Study, trial: str, train_s: float) -> str:
    """Convert training seconds of a trial's configuration to wall-clock time, as text such as
    `0.74 s including evaluation, plus 0.37 s of setup`.

    The ratio of wall-clock to training time is measured in the configuration's reported runs. The
    text is empty unless all of these runs were alone on the machine.
    """
    configuration = repeated(results).get(trial)
    if configuration is None or not configuration.is_alone:
        return ""
    ledgers = [results.runs[name].ledger for name in configuration.printed_runs]

    def seconds(*phases: str) -> float:
        return statistics.median(sum(ledger[phase] for phase in phases) for ledger in ledgers)

    longer = seconds("train", "eval", "checkpoint", "report") / seconds("train")
    ready = duration(seconds("start", "setup", "compile"))
    return f"{duration(longer * train_s)} including evaluation, plus {ready} of setup"


def refuted_words(results: Study, trial: str) -> str:
    """Return text such as `reached the target in the search, but in none of 3 runs with new
    seeds`.

    The text is empty if the trial did not reach the target in the search, or if its configuration
    did not run again. Call this only for a study without a confirmed winner.
    """
    configuration = repeated(results).get(trial)
    if configuration is None or results.runs[trial].time_to_target_s is None:
        return ""
    runs = counted(len(configuration.printed_runs), "run")
    return f"reached the target in the search, but in none of {runs} with new seeds"


def price_of(results: Study, worker_seconds: float, trial: str) -> str:
    """Return text such as ` (0.11 at 4 per worker-hour, 0.02 of it for training)`.

    The text is empty if the study has no price. The first number, the bill, includes startup,
    setup, compilation and evaluation.

    Args:
        results: The study.
        worker_seconds: Worker-seconds of training.
        trial: Trial of the configuration; the ratio of billed to training time is computed from the
            configuration's reported runs.
    """
    price = results.study["study"].get("price")
    if price is None:
        return ""
    configuration = repeated(results).get(trial)
    names = [trial] if configuration is None else configuration.printed_runs
    money = worker_seconds / 3600 * price
    bill = money * billing_ratio(results.runs[name] for name in names)
    return f" ({bill:.3g} at {price:g} per worker-hour, {money:.3g} of it for training)"


def target_words(metric: Metric, target: float) -> str:
    """Return a target as text, such as `95 %` for accuracy, or `RMSE 0.4`."""
    number = f"{100 * target:g} %" if metric.is_share else f"{target:g}"
    return number if metric == ACCURACY else f"{metric.words} {number}"


def target_in_words(results: Study) -> str:
    """Return the target of a study with its metric, such as `95 % accuracy` or `RMSE 10`."""
    if results.target is None:
        return "no target"
    text = target_words(results.metric, results.target)
    return f"{text} accuracy" if results.metric == ACCURACY else text


def within_budget(budget: float | None) -> str:
    """Return text such as `within 3 s of training`; `at the budget` if the budget is None."""
    return "at the budget" if budget is None else f"within {duration(budget)} of training"


def target_sentence(results: Study) -> str:
    """Return the objective of a study as a sentence."""
    study = results.study["study"]
    if results.is_target_awaited:
        return "Not set yet: reference runs set the target."
    objective, budget = study["objective"], study["objective"].get("max_train_seconds")
    within = "" if budget is None else f" {within_budget(budget)}"
    if not results.is_timed:
        return f"The best validation {results.metric.words}{within}."
    hold = objective.get("hold") or 1
    hold_note = "" if hold == 1 else f" in {hold} evaluations in a row"
    is_auto = "target" in (study.get("auto") or ())
    set_by = f". Set automatically: {results.study.get('target_set_by')}" if is_auto else ""
    return f"{target_in_words(results)} on the validation set{hold_note}{within}{set_by}."


def fault_words(error: Exception) -> str:
    """Return the type and message of an unexpected error, truncated to 300 characters."""
    return shorten(clean(f"{type(error).__name__}: {error}"), 300)


PARTS = ("dataset", "objective")
"""Keys that are always set explicitly in a command, since the defaults of a command differ from
those of a run spec."""


def settings_of(spec: RunSpec) -> list[tuple[str, str]]:
    """Return pairs (key, value) with which `raybench train --set` trains a run spec.

    Values are written as JSON, which is also YAML.
    """
    content, default = spec.document(), RunSpec().document()
    for key in PARTS:
        content[key] = getattr(spec, key).model_dump(mode="json", exclude_defaults=True)
    content["dataset"] = {"name": spec.dataset.name} | content["dataset"]
    settings = {
        key: value for key, value in content.items() if key in PARTS or value != default[key]
    }
    return [(key, json.dumps(value, ensure_ascii=False)) for key, value in settings.items()]
