"""What the kernel tells of this machine, for `headway doctor`."""

from pathlib import Path
from typing import Final

CPU_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd")


def cpu_flags(cpuinfo: Path) -> tuple[str, ...]:
    """Those of `CPU_FLAGS` that the first processor has; none where nobody tells."""
    if not cpuinfo.exists():
        return ()
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            present = set(value.split())
            return tuple(flag for flag in CPU_FLAGS if flag in present)
    return ()


def memory_gib(meminfo: Path) -> float | None:
    """Free memory; None where nobody tells."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return None
