"""The memory of a host, as it is and as a control group bounds it."""

from pathlib import Path

from headway.core.ports import DeviceMemory
from headway.live.host_memory import MEMORY_SHARE, host_memory, room_of

KIB, GIB = 1 << 10, 1 << 30


def host(root: Path, total: int, free: int, held: int) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {total // KIB} kB\nMemFree: 1 kB\nMemAvailable: {free // KIB} kB\n")
    (root / "proc/self/status").write_text(f"Name:\tpython\nVmRSS:\t {held // KIB} kB\nNoColon\n")
    return root


def bound(root: Path, most: str, taken: int) -> None:
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    (root / "sys/fs/cgroup/memory.max").write_text(f"{most}\n")
    (root / "sys/fs/cgroup/memory.current").write_text(f"{taken}\n")


def test_a_host_without_a_bound_is_what_its_kernel_says(tmp_path: Path) -> None:
    root = host(tmp_path, 16 * GIB, 9 * GIB, GIB)
    assert host_memory(root) == DeviceMemory(16 * GIB, GIB, 9 * GIB)
    bound(root, "max", 5 * GIB)
    assert host_memory(root) == DeviceMemory(16 * GIB, GIB, 9 * GIB)


def test_a_control_group_bounds_it(tmp_path: Path) -> None:
    root = host(tmp_path, 16 * GIB, 9 * GIB, GIB)
    bound(root, str(4 * GIB), 3 * GIB)
    assert host_memory(root) == DeviceMemory(4 * GIB, GIB, GIB)
    bound(root, str(4 * GIB), 5 * GIB)
    assert host_memory(root) == DeviceMemory(4 * GIB, GIB, 0)


def test_the_first_version_of_control_groups_bounds_it_too(tmp_path: Path) -> None:
    root = host(tmp_path, 16 * GIB, 9 * GIB, GIB)
    (root / "sys/fs/cgroup/memory").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(str(2 * GIB))
    (root / "sys/fs/cgroup/memory/memory.usage_in_bytes").write_text(str(GIB))
    assert host_memory(root) == DeviceMemory(2 * GIB, GIB, GIB)


def test_a_system_that_does_not_tell_is_not_guessed(tmp_path: Path) -> None:
    assert host_memory(tmp_path) is None
    host(tmp_path, GIB, GIB, 0)
    (tmp_path / "proc/meminfo").write_text("MemTotal: much\n")
    assert host_memory(tmp_path) is None


def test_a_replica_has_its_share_beside_its_weights() -> None:
    memory = DeviceMemory(16 * GIB, GIB, 8 * GIB)
    assert room_of(memory, 1) == round(MEMORY_SHARE * 8 * GIB)  # no more than is free
    assert room_of(memory, 4) == round(MEMORY_SHARE * 4 * GIB - GIB)


def test_many_that_share_little_have_at_least_their_part_of_what_is_free() -> None:
    crowded = DeviceMemory(4 * GIB, GIB, GIB)
    assert room_of(crowded, 8) == round(MEMORY_SHARE * GIB / 8)
    assert room_of(DeviceMemory(4 * GIB, GIB, 0), 8) == 0
