"""What torch's caching allocator has taken of a device."""

import torch

from headway.core.ports import Reserved


def reserved_of(device: torch.device) -> Reserved | None:
    """Of this process; None for a device without such an allocator. A graph's private pool counts too.  # never run on
    a device"""
    if device.type != "cuda":
        return None
    seen = torch.cuda.memory_stats(device)
    return Reserved(
        seen.get("reserved_bytes.all.current", 0),
        seen.get("reserved_bytes.all.allocated", 0),
        seen.get("segment.all.allocated", 0),
    )
