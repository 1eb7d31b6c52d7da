"""`python -m raybench.compare` is `raybench.compare`."""

import sys

from raybench.commands.compare import main

if __name__ == "__main__":
    sys.exit(main())
