"""`python -m raybench.data` is `raybench data`."""

import sys

from raybench.data_command import main

if __name__ == "__main__":
    sys.exit(main())
