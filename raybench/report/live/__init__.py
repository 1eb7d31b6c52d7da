"""The display of a running study: its state, live screens and lines of events."""
