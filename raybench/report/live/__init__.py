"""State of a running study, made of events alone, and the views of it."""
