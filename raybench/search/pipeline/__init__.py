"""The phases of a study, in order, and the commands that run them."""
