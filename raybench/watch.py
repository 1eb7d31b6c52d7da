"""`python -m raybench.watch` is `raybench watch`."""

import sys

from raybench.commands.watch import main

if __name__ == "__main__":
    sys.exit(main())
