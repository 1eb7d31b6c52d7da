"""`python -m raybench.watch` is `raybench watch`."""

from raybench.commands.cli import leave
from raybench.commands.watch import main

if __name__ == "__main__":
    leave(main())
