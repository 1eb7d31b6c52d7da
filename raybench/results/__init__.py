"""Results folders: writing, loading, tables, winners; needs neither Ray nor a framework.

A result takes these forms on its way from a training step to a sentence in a report:

| form | holds |
|---|---|
| `stats.record.Evaluation` | a point of a learning curve, reduced over workers |
| `stats.record.RunOutcome` | a run so far, in the driver process |
| `stats.record.RunRecord` | a finished run: a line of `records.jsonl`, a row of `Study.trials` |
| `stats.replicates.Replicate` | a run for statistics: seconds or value, and whether it is a hit |
| `ranking.ConfigurationResult` | numbers of a configuration, over its `ranking.Repeated` runs |
| `verdict.Verdict` | the winners, and what is tied with them |
| `report.answer.Summary` | sentences for screen, page, JSON, Python and best.yaml |

The tables `trials`, `confirmed`, `configurations` and `winners` are views of these for users and
figures; no sentence is computed from formatted strings in a table.
"""
