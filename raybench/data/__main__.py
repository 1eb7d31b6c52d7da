"""`python -m raybench.data` is `raybench data`."""

from raybench.commands.cli import leave
from raybench.commands.data import main

if __name__ == "__main__":
    leave(main())
