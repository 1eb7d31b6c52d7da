"""What the page opens with: the answer as the terminal has it (`report.answer.said`), its trials as
links, and what a decision needs beside it."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raybench.report.answer import in_words, said
from raybench.report.how_sure import PAGE, Step, next_steps
from raybench.report.page.tables import own, trial_link
from raybench.report.remarks import effort_words, sensitivity_lines
from raybench.report.scaling_printed import gains
from raybench.report.words import counted, duration, price_of, target_sentence
from raybench.results.lock import driver_of, owner_of
from raybench.results.study import Study
from raybench.results.verdict import judge

MOST_SERIES = 6
"""Series of a scaling study that have a fact of their own; the table has all."""


@dataclass(frozen=True)
class Answer:
    """What the page opens with; Markup has links to trials."""

    title: str
    """The answer in a sentence."""
    headline: Markup
    """The same."""
    lead: Sequence[Markup]
    """The rest of it."""
    facts: Sequence[tuple[str, Markup]]
    """What a decision needs, by names: how sure, target, cost."""
    mind: Sequence[Markup]
    """What limits the answer: ties, the study goes on, the winner lies at the end of a range."""
    steps: Sequence[Step]
    """What to do next."""


def answer_of(results: Study, study: str) -> Answer:
    """Return the answer of a study of any kind; `study` begins the ids that its links lead to."""
    found = said(results)
    (first, *rest), *others = found.answer
    steps: list[Step] = []
    if results.is_scaling:
        facts = [one for one in gains(results)[:MOST_SERIES] if one[1] not in found.lines]
    elif results.study["study"].get("run"):
        facts = _facts_of_run(results)
    else:
        sure = found.sure[:1].upper() + found.sure[1:]
        facts = [("How sure", sure), ("Target", target_sentence(results))]
        facts.append(("Another target", " ".join(sensitivity_lines(results))))
        steps = [one for one in next_steps(results, judge(results)) if not one.do.endswith(PAGE)]
    facts.append(("What the study took", effort_words(results)))

    def linked(text: str) -> Markup:
        return with_links(results, text, study)

    return Answer(
        first,
        linked(first),
        [linked(" ".join(one)) for one in (rest, *others) if one],
        [(name, linked(text)) for name, text in facts if text],
        [linked(one) for one in (*unfinished(results), *found.mind)],
        steps,
    )


def with_links(results: Study, text: str, study: str) -> Markup:
    """Return a sentence in which the trials that it names (`trial 0003`, `trials 0003, 0004`) are
    links; `study` begins the ids that they lead to."""
    pieces: list[Markup] = []
    plain, is_name = "", False
    for word in re.split(r"(\s+)", text):
        name = word.strip("(),.;:")
        if is_name and name in results.runs:
            before, after = word.split(name, 1)
            pieces += [own(plain + before), trial_link(results, name, study)]
            plain, is_name = after, after == ","
        else:
            plain += word
            is_name = word.lstrip("(") in ("trial", "trials") or (is_name and not word.strip())
    return Markup("").join([*pieces, own(plain)])


def unfinished(results: Study) -> list[str]:
    """Return a sentence where the study is still running, or was cut off; [] where neither.

    A study below a URL has no lock in its copy: of it only what was cut off is known.
    """
    owner, number = owner_of(results.folder), counted(len(results.runs), "run")
    if owner and (owner.get("pid"), owner.get("host")) != (os.getpid(), platform.node()):
        if driver_of(owner) != "died":
            who = f"process {owner.get('pid')} on {owner.get('host')}"
            return [f"The study is still running ({who}); this page has the {number} ended so far."]
        return [f"The study was cut off, with {number} ended: the same command continues it."]
    if any(run.stop == "interrupted" for run in results.runs.values()):
        return ["The study was interrupted, and its last runs cut off: the same command continues."]
    return []


ENDED = {
    "target": "it had reached the target",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def _facts_of_run(results: Study) -> list[tuple[str, str]]:
    """Return what is to be known of a single training, where it has ended."""
    if not results.runs:
        return []
    run = next(iter(results.runs.values()))
    trained, cost = duration(run.ledger["train"]), run.spec.num_workers * run.ledger["train"]
    costs = f"{cost:.3g} worker-seconds{price_of(results, cost, run.trial)}"
    return [
        ("Configuration", f"{in_words(results, run.spec)}, seed {run.spec.seed}"),
        ("Target", target_sentence(results)),
        ("What it took", f"{trained} of training, {costs}; {duration(run.wall_s)} in all."),
        ("Ended as", f"{ENDED.get(run.stop, run.stop)}." if run.stop is not None else ""),
    ]
