"""`python -m raybench.plan`; imported, it is the function `raybench.plan`."""

from raybench.commands.cli import run_module

run_module(__name__, "plan")
