"""Reports of a study: terminal output, tables, figures, the HTML page and the live display."""
