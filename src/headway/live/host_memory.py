"""The memory of this host as its kernel tells it, bounded by the control group of this process; and a replica's share
of a device's memory."""

from pathlib import Path
from typing import Final

from headway.core.ports import DeviceMemory

MEMORY_SHARE: Final = 0.9  # of a device's memory that replicas take; the rest is fragments and what nobody counts
_KIB: Final = 1 << 10


def host_memory(root: Path = Path("/")) -> DeviceMemory | None:
    """Return what there is; None on a system that does not tell. `root`: where `proc` and `sys` are."""
    seen = _kib_of(root / "proc/meminfo", "MemTotal", "MemAvailable")
    own = _kib_of(root / "proc/self/status", "VmRSS")
    if seen is None or own is None:
        return None
    (total, free), (held,) = seen, own
    for limit, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),  # version 2; "max" where there is none
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, taken = _number(root / limit), _number(root / used)
        if most is not None and taken is not None and most < total:
            total, free = most, min(free, max(0, most - taken))
    return DeviceMemory(total, held, free)


def room_of(memory: DeviceMemory, sharers: int) -> int:
    """Bytes that one of `sharers` replicas of a device may take beside what it holds already, its weights: what is left
    of its share of the whole, or its share of what is free where that is more."""
    whole, free = MEMORY_SHARE * memory.total / sharers - memory.held, MEMORY_SHARE * memory.free
    return round(max(0.0, min(free, max(whole, free / sharers))))


def _kib_of(path: Path, *names: str) -> tuple[int, ...] | None:
    """The named lines of a file such as `MemTotal:  2048 kB`, in bytes; None where one is missing."""
    try:
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        return tuple(int(lines[name].split()[0]) * _KIB for name in names)
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
