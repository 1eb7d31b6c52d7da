"""`python -m raybench.init` is `raybench init`."""

from raybench.commands.cli import leave
from raybench.commands.init import main

if __name__ == "__main__":
    leave(main())
