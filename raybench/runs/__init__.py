"""What runs one training after another: one run, a scaling study, a diagnosis."""
