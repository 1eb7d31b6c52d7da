"""Make `python -m raybench.forecast` run the command."""

from raybench.commands.cli import run_module

run_module(__name__, "forecast")
