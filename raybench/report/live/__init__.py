"""The display of a running study: its state, screens and event lines."""
