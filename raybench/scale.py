"""`python -m raybench.scale` is `raybench scale`."""

import sys

from raybench.commands.scale import main

if __name__ == "__main__":
    sys.exit(main())
