"""`python -m raybench.compare`; imported, it is the function `raybench.compare`."""

from raybench.commands.cli import run_module

run_module(__name__, "compare")
