"""`python -m raybench.diagnose`; imported, it is the function `raybench.diagnose`."""

from raybench.commands.cli import run_module

run_module(__name__, "diagnose")
