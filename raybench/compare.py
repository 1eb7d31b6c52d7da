"""`python -m raybench.compare`; imported, it is the function `raybench.compare`."""

from raybench import api
from raybench.commands.cli import run_module

run_module(__name__, "compare", api.compare)
