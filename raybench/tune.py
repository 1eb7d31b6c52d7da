"""`python -m raybench.tune`; imported, it is the function `raybench.tune`."""

from raybench.commands.cli import run_module

run_module(__name__, "tune")
