"""How torch workers of one host find each other without a server."""

from datetime import timedelta

import torch.distributed as dist


def meet_in_file(*, backend: str, member: int, size: int, file: str, timeout_s: int) -> None:
    """Join the default process group as rank `member` of `size`; all name the same new `file`."""
    dist.init_process_group(
        backend,
        init_method=f"file://{file}",
        rank=member,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
