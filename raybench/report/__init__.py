"""Reports of a study: screens, tables, figures, the page, the live display."""
