"""Results folders: writing, loading, tables, winners; needs neither Ray nor a framework.

On its way from a training step to a sentence in a report, a result is converted from one of these
classes to the next:

| class | content |
|---|---|
| `stats.record.Evaluation` | a point of a learning curve, reduced over workers |
| `stats.record.RunOutcome` | the state of a run in the driver (the process that runs the study) |
| `stats.record.RunRecord` | a finished run: a line of `records.jsonl`, a row of `Study.trials` |
| `stats.replicates.Replicate` | a run for statistics: seconds or value, and whether it is a hit |
| `ranking.Repeated` | a configuration that was trained again, and its runs |
| `ranking.ConfigurationResult` | the numbers to report about a configuration |
| `verdict.Verdict` | the winners, and the configurations that are tied with them |
| `report.answer.Summary` | sentences for the screen, the page, JSON, Python and best.yaml |

The tables `trials`, `confirmed`, `configurations` and `winners` show the same results to users and
in figures. Sentences are computed from the objects, not from formatted strings in a table.
"""
