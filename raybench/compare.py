"""`python -m raybench.compare` is `raybench compare`."""

from raybench.commands.cli import leave
from raybench.commands.compare import main

if __name__ == "__main__":
    leave(main())
