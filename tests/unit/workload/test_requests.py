from headway.core.blockhash import block_hashes
from headway.workload.lengths import Lengths
from headway.workload.requests import Workload, requests


def made(**change: object) -> list[tuple[int, ...]]:
    base: dict[str, object] = {"count": 40, "prompt": Lengths(mean=100.0)}
    return [item.prompt for item in requests(Workload(**(base | change)), "m", 500, 16)]  # type: ignore[arg-type]  # fields of Workload


def test_requests_arrive_in_order_with_hashes_of_their_blocks() -> None:  # SPEC J2, B2
    items = list(requests(Workload(count=30), "m", 500, 16))
    assert [item.arrived_ns for item in items] == sorted(item.arrived_ns for item in items)
    for item in items:
        assert item.block_hashes == block_hashes(item.cache_root, item.prompt, 16)
        assert all(0 <= token < 500 for token in item.prompt)


def test_families_share_their_beginning_and_nothing_else() -> None:
    heads = {prompt[:20] for prompt in made(families=3, shared_tokens=20, prompt=Lengths(kind="fixed", mean=60.0))}
    assert len(heads) == 3
    assert len(set(made(families=3, shared_tokens=20))) == 40


def test_a_seed_is_one_workload() -> None:  # SPEC J6
    assert made(seed=4) == made(seed=4)
    assert made(seed=4) != made(seed=5)


def test_tenants_are_drawn_from_those_asked_for() -> None:
    tenants = {item.tenant for item in requests(Workload(count=60, tenants=3), "m", 500, 16)}
    assert tenants == {"tenant-0", "tenant-1", "tenant-2"}
