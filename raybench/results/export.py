"""Derived files of a results folder: tables for spreadsheets, winners as run specs."""

from raybench.results.load import StudyResults
from raybench.results.store import Store
from raybench.results.verdict import judge, spec_comment


def export(results: StudyResults, store: Store) -> None:
    """Write trials.csv, curves.csv, and best.yaml and cheapest.yaml if a run won."""
    store.write_text("trials.csv", results.trials.to_csv(index=False))
    store.write_text("curves.csv", results.curves.to_csv(index=False))
    verdict = judge(results)
    if verdict is None:
        return
    for name, trial, what in (
        ("best.yaml", verdict.fastest, "fastest"),
        ("cheapest.yaml", verdict.cheapest, "cheapest"),
    ):
        comment = spec_comment(results, trial, verdict, what)
        store.write_yaml(name, results.specs[trial], comment=comment)
