"""Links to a trial: the script opens it, without a script the table's row is shown."""

from collections.abc import Sequence

from raybench.results.load import StudyResults
from raybench.results.page.html import Html, element, isolated, join, text


def row_of(trial_id: int, study: str) -> str:
    """Return the id of a row of the table of trials."""
    return f"{study}-t{trial_id}"


def trial_link(results: StudyResults, trial: str, study: str, words: str = "trial ") -> Html:
    """Return a link to a trial of this study."""
    place = list(results.runs).index(trial)
    name = join([text(words), isolated(trial)], "")
    return element("a", name, href=f"#{row_of(place, study)}", data_study=study, data_trial=trial)


def trial_links(results: StudyResults, trials: Sequence[str], study: str) -> Html:
    """Return links to some trials, after one another."""
    return join([trial_link(results, trial, study, "") for trial in trials], ", ")
