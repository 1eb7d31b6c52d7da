"""A study as one page that needs no network: `report.html`."""

from raybench.report.page.comparison import Picture as Picture
from raybench.report.page.document import PAGE_FILE as PAGE_FILE
from raybench.report.page.document import Part as Part
from raybench.report.page.document import page_text as page_text
from raybench.report.page.document import try_page as try_page
from raybench.report.page.document import write_comparison as write_comparison
from raybench.report.page.document import write_extras as write_extras
from raybench.report.page.document import write_page as write_page
