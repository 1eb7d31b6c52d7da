"""Make `python -m raybench.report` run the command `raybench report`."""

from raybench.commands.cli import run_module

run_module(__name__, "report")
