"""Commands that run one training after another: one run, a scaling study, a diagnosis."""
