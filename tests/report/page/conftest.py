"""One page for all tests: of a study in which every name and message is somebody's attack."""

import pytest
from pages import HOSTILE, made_study

from raybench.report.figures.kinds import FIGURES
from raybench.report.page import document
from raybench.report.page.document import page_text

DRAWN = ("curves", "race", "slices")
"""Figures of that page, all of which have names in them; the others cost seconds."""


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    results = made_study(tmp_path_factory.mktemp("page") / "<i>study & co", hostile=HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "kinds_of", lambda results: {one: FIGURES[one] for one in DRAWN})
        return page_text([results])
