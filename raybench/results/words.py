"""The verdict of a study in sentences."""

from typing import Any

from raybench.results.load import StudyResults
from raybench.results.verdict import Verdict, confirmed, is_timed


def verdict_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return the outcome in one or two sentences."""
    if verdict is None:
        return [_nothing(results)]
    lines = _timed(results, verdict) if is_timed(results) else [_most_accurate(results, verdict)]
    if len(verdict.ties) > 1:
        what = "fastest" if is_timed(results) else "most accurate"
        lines.append(f"Not told apart from the {what}: trials {', '.join(verdict.ties[1:])}.")
    return lines


def _nothing(results: StudyResults) -> str:
    trials = results.trials
    best = trials["best_accuracy"].max()
    if len(trials) and (trials["state"] == "failed").all():
        number = len(trials)
        return f"No result: {'the run' if number == 1 else f'all {number} runs'} failed."
    reached = "nothing was measured" if best != best else f"the best was {100 * best:.1f} %"
    if not is_timed(results):
        return f"No result: {reached}."
    return f"No run reached the target of {_target(results)}: {reached}."


def _timed(results: StudyResults, verdict: Verdict) -> list[str]:
    rows = results.trials.set_index("trial").to_dict("index")
    winners = [("Fastest", verdict.fastest), ("Cheapest", verdict.cheapest)]
    if verdict.fastest == verdict.cheapest:
        winners = [("Fastest and cheapest", verdict.fastest)]
    lines = []
    for what, trial in winners:
        row = rows[trial]
        if verdict.is_confirmed:
            found = _confirmed(results, trial)
            seconds = float(found["median_s"])
            proof = f"confirmed by {found['hits']} of {found['runs']} new seeds"
        else:
            seconds = float(row["time_to_target_s"])
            proof = "unconfirmed: one search trial"
        cost = int(row["num_workers"]) * seconds
        lines.append(
            f"{what}: {row['config']} (trial {trial}) reaches {_target(results)} after "
            f"{seconds:.2f} s, {cost:.2f} worker-seconds{_price(results, cost)}; {proof}."
        )
    return lines


def _most_accurate(results: StudyResults, verdict: Verdict) -> str:
    trial = verdict.fastest
    row = results.trials.set_index("trial").to_dict("index")[trial]
    name = f"Most accurate: {row['config']} (trial {trial})"
    if not verdict.is_confirmed:
        return (
            f"{name} with {100 * row['best_accuracy']:.1f} % within {row['train_s']:.2f} s of "
            "training; unconfirmed: one search trial."
        )
    found = _confirmed(results, trial)
    budget = results.study["study"]["objective"].get("max_train_seconds")
    within = "at the budget" if budget is None else f"within {budget:g} s of training"
    return (
        f"{name} reaches {100 * found['median_accuracy']:.1f} % {within} (median of "
        f"{found['runs']} new seeds, {100 * found['low_accuracy']:.1f} to "
        f"{100 * found['high_accuracy']:.1f} %); confirmed."
    )


def _confirmed(results: StudyResults, trial: str) -> dict[Any, Any]:
    found: dict[Any, Any] = confirmed(results).set_index("trial").to_dict("index")[trial]
    return found


def _price(results: StudyResults, worker_seconds: float) -> str:
    price = results.study["study"].get("price")
    if price is None:
        return ""
    return f" or {worker_seconds / 3600 * price:.3g} at {price:g} per worker-hour"


def _target(results: StudyResults) -> str:
    return "no target" if results.target is None else f"{100 * results.target:g} %"
