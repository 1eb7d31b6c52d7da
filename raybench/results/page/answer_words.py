"""Configurations, targets and values in words, for who does not know our labels."""

from raybench.core.record import RunRecord
from raybench.results.label import label_keys
from raybench.results.load import StudyResults
from raybench.results.words import target_words

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


def configuration_words(results: StudyResults, run: RunRecord) -> str:
    """Return a configuration in words: `PyTorch on 1 worker, batch 64, adam at rate 0.003`."""
    spec = run.spec
    workers = "1 worker" if spec.num_workers == 1 else f"{spec.num_workers} workers"
    each = "" if spec.num_workers == 1 else " each"
    words = (
        f"{FRAMEWORKS.get(spec.framework, spec.framework)} on {workers}, batch "
        f"{spec.batch_size_per_worker}{each}, {spec.optimizer} at rate {spec.learning_rate:.3g}"
    )
    space = results.study["study"].get("space", {})
    more = [f"{key} {_short(getattr(spec, key))}" for key in label_keys(space)]
    return ", ".join([words, *more])


def value_words(results: StudyResults, value: float | None) -> str:
    """Return a value of the metric, named: `validation accuracy 97.3 %`."""
    return f"validation {results.metric.words} {results.metric.shown(value)}"


def target_value(results: StudyResults) -> str:
    """Return the target, named: `95 % accuracy`, `RMSE 0.4`."""
    if results.target is None:
        return "no target"
    words = target_words(results.metric, results.target)
    return f"{words} accuracy" if results.metric.name == "accuracy" else words


def target_sentence(results: StudyResults) -> str:
    """Return what a run is asked for, in a sentence."""
    objective = results.study["study"]["objective"]
    budget = objective.get("max_train_seconds")
    within = "" if budget is None else f" within {budget:g} s of training"
    if not results.is_timed:
        return f"The best validation {results.metric.words}{within}."
    hold = objective.get("hold") or 1
    held = "" if hold == 1 else f", held for {hold} evaluations"
    by = results.study.get("target_set_by")
    who = f"; set by {by}" if isinstance(by, str) else ""
    return f"{target_value(results)} on the validation set{held}{within}{who}."


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
