"""`python -m raybench.doctor` is `raybench doctor`."""

from raybench.commands.cli import run_module

run_module(__name__, "doctor")
