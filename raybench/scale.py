"""`python -m raybench.scale` is `raybench scale`."""

from raybench.commands.cli import leave
from raybench.commands.scale import main

if __name__ == "__main__":
    leave(main())
