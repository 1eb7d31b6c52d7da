"""What `raybench init` sees of data before anything trains: kind, classes, sizes, oddities."""

from raybench.data.look.seen import Seen as Seen
