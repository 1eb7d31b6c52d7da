"""`python -m raybench.report` is `raybench.report`."""

from raybench.commands.cli import leave
from raybench.commands.report import main

if __name__ == "__main__":
    leave(main())
