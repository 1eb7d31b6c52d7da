"""`python -m raybench.forecast` is `raybench forecast`."""

from raybench.commands.cli import run_module

run_module(__name__, "forecast")
