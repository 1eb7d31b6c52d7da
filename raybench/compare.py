"""Make `python -m raybench.compare` run the command.

Importing this module does not hide the function `raybench.compare`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "compare")
