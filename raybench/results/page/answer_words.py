"""What a run is asked for, and what it has reached, in words."""

from raybench.results.answer import duration, target_in_words
from raybench.results.load import StudyResults


def value_words(results: StudyResults, value: float | None) -> str:
    """Return a value of the metric, named: `validation accuracy 97.3 %`."""
    return f"validation {results.metric.words} {results.metric.shown(value)}"


def target_sentence(results: StudyResults) -> str:
    """Return what a run is asked for, in a sentence."""
    objective = results.study["study"]["objective"]
    budget = objective.get("max_train_seconds")
    within = "" if budget is None else f" within {duration(budget)} of training"
    if not results.is_timed:
        return f"The best validation {results.metric.words}{within}."
    hold = objective.get("hold") or 1
    held = "" if hold == 1 else f", held for {hold} evaluations"
    by = results.study.get("target_set_by")
    who = f"; set by {by}" if isinstance(by, str) else ""
    return f"{target_in_words(results)} on the validation set{held}{within}{who}."
