"""The answer of a folder that holds one run (`raybench train`)."""

from raybench.core.record import RunRecord
from raybench.results.answer import in_words
from raybench.results.load import StudyResults
from raybench.results.page.answer import Answer
from raybench.results.page.html import Html, isolated, text
from raybench.results.page.state import unfinished
from raybench.results.words import duration, price_of, target_in_words, target_sentence, value_words

ENDED = {
    "target": "it had reached the target",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def single_answer(results: StudyResults) -> Answer:
    """Return what the run has reached."""
    open_ = unfinished(results)
    mind = [open_] if open_ else []
    if not results.runs:
        return Answer("The run has not ended yet, so there is no answer.", (), mind)
    run = next(reversed(results.runs.values()))
    best = value_words(results, run.best_value) + (" at best" if results.is_timed else "")
    facts = [
        ("Configuration", isolated(f"{in_words(results, run.spec)}, seed {run.spec.seed}")),
        ("Reached", text(f"{best}{_test(results, run)}.")),
        ("Target", text(target_sentence(results))),
        ("What it took", _cost(results, run)),
    ]
    if run.stop is not None:
        facts.append(("Ended as", text(f"{ENDED.get(run.stop, run.stop)}.")))
    return Answer(_headline(results, run), facts, mind)


def _headline(results: StudyResults, run: RunRecord) -> str:
    trained = f"{duration(run.ledger['train'])} of training"
    if run.failure is not None:
        return f"The run failed ({run.failure}): {run.message or 'no message'}"
    if run.time_to_target_s is not None and results.is_timed:
        after = f"after {duration(run.time_to_target_s)} of training"
        return f"The run reached {target_in_words(results)} {after}."
    best = value_words(results, run.best_value)
    if results.is_timed:
        missed = f"The run did not reach {target_in_words(results)} within {trained}"
        return f"{missed}: its best was {best}."
    return f"The run reached {best} within {trained}."


def _test(results: StudyResults, run: RunRecord) -> str:
    if run.test_value is None:
        return ""
    return f", {results.metric.shown(run.test_value)} on the test set"


def _cost(results: StudyResults, run: RunRecord) -> Html:
    cost = run.spec.num_workers * run.ledger["train"]
    price = price_of(results, cost, run.trial)
    return text(
        f"{duration(run.ledger['train'])} of training, {cost:.3g} worker-seconds{price}; "
        f"{duration(run.wall_s)} in all."
    )
