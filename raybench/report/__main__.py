"""`python -m raybench.report` is `raybench report`."""

from raybench.commands.cli import run_module

run_module(__name__, "report")
