"""`python -m raybench.train`; imported, it is the function `raybench.train`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.train import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.train":
    sys.modules[__name__] = api.train  # type: ignore[assignment]
