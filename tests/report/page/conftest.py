"""One page for all tests, of a study whose names and messages are hostile."""

import pytest
from pages import HOSTILE, made_study

from raybench.report.figures import FIGURES
from raybench.report.page import document
from raybench.report.page.document import page_text

DRAWN = ("curves", "race", "slices")
"""Figures of that page, which contain names; the others take seconds to draw."""


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    results = made_study(tmp_path_factory.mktemp("page") / "<i>study & co", hostile=HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "kinds_of", lambda results: {name: FIGURES[name] for name in DRAWN})
        return page_text([results])
