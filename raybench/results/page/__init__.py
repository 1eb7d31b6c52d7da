"""A study as one page that needs no network: `report.html`."""

from raybench.results.page.document import PAGE_FILE as PAGE_FILE
from raybench.results.page.document import page_text as page_text
from raybench.results.page.document import try_page as try_page
from raybench.results.page.document import write_comparison as write_comparison
from raybench.results.page.document import write_page as write_page
from raybench.results.page.study_part import Extra as Extra
