"""`python -m raybench.doctor` is `raybench doctor`."""

import sys

from raybench.commands.doctor import main

if __name__ == "__main__":
    sys.exit(main())
