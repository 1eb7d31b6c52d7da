"""Make `python -m raybench.plan` run the command.

Importing this module does not hide the function `raybench.plan`.
"""

from raybench.commands.cli import run_module

run_module(__name__, "plan")
