"""`python -m raybench.scale`; imported, it is the function `raybench.scale`."""

from raybench.commands.cli import run_module

run_module(__name__, "scale")
