"""`python -m raybench.tune` is `raybench tune`."""

import sys

from raybench.commands.tune import main

if __name__ == "__main__":
    sys.exit(main())
