import tracemalloc
from math import log2

import msgspec
from tests.unit.sched.router.views import llm, report

from headway.core.blockhash import block_hashes, cache_root
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.reports import KvEvents
from headway.core.request import DiffusionRequest, LlmRequest, TextRequest
from headway.sched.router.prefix_index import ENTRY_BYTES, SETTLED_MAX, IndexParams, PrefixIndex

A, B, C, D = (NodeId(f"rep-{name}") for name in "abcd")


def hashed(name: str, *blocks: bytes, tokens: int = 64) -> LlmRequest:
    return llm(name, prompt=tokens * len(blocks) + 1, block_hashes=blocks, block_tokens=tokens)


def chain(length: int, tag: str = "") -> tuple[bytes, ...]:
    return tuple(f"{tag}{place}".encode().rjust(16) for place in range(length))


def told(node: NodeId, number: int, *stored: bytes, removed: tuple[bytes, ...] = (), is_reset: bool = False):
    return report(node, number, kv_events=KvEvents(stored, removed, is_reset))


class Counted(bytes):
    """A hash that counts how often it is looked up."""

    probes = 0

    def __hash__(self) -> int:
        Counted.probes += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def test_a_dispatch_is_a_hit_for_the_same_beginning() -> None:
    index = PrefixIndex(IndexParams())
    index.dispatched(hashed("req-1", b"a", b"ab", b"abc", tokens=32), A)
    again = hashed("req-2", b"a", b"ab", b"abx", b"abxy", tokens=32)
    assert index.hits_all(again) == {A: 64}
    assert index.hits(again, B) == 0


def test_what_follows_the_first_message_counts_too() -> None:  # sglang#26263, smg#1928
    index = PrefixIndex(IndexParams())
    index.dispatched(hashed("req-1", *chain(1), *chain(4, "first ")), A)
    index.dispatched(hashed("req-2", *chain(1), *chain(4, "other ")), B)
    assert index.hits_all(hashed("req-3", *chain(1), *chain(5, "other "))) == {A: 64, B: 5 * 64}


def test_one_walk_answers_for_all_replicas_and_bisects() -> None:
    index, blocks = PrefixIndex(IndexParams()), tuple(Counted(key) for key in chain(512))
    depths = {A: 512, B: 300, C: 299, D: 1}
    for node, depth in depths.items():
        index.dispatched(hashed("req-1", *blocks[:depth]), node)
    asked = hashed("req-2", *blocks)
    Counted.probes = 0
    assert index.hits_all(asked) == {node: 64 * depth for node, depth in depths.items()}
    assert Counted.probes <= 2 + len(depths) * log2(512)
    Counted.probes = 0
    index.hits_all(asked)
    assert Counted.probes == 0  # forecast, enqueue and dispatch ask for the same request


def test_a_chain_that_is_known_is_not_written_again() -> None:
    index, blocks = PrefixIndex(IndexParams()), tuple(Counted(key) for key in chain(512))
    index.dispatched(hashed("req-1", *blocks), A)
    again = hashed("req-2", *blocks)
    index.hits_all(again)
    Counted.probes = 0
    index.dispatched(again, A)
    assert Counted.probes == 1


def test_hits_are_whole_blocks_of_the_engine_and_leave_a_token_to_compute() -> None:  # GAIE#2330
    index = PrefixIndex(IndexParams())
    prompt = tuple(range(1, 16 * 12 + 6))
    hashes = block_hashes(cache_root(model="m"), prompt, 16)
    index.dispatched(llm("req-1", prompt=len(prompt), block_hashes=hashes, block_tokens=16), A)
    assert index.hits(llm("req-2", prompt=len(prompt), block_hashes=hashes, block_tokens=16), A) == 16 * 12
    assert index.hits(llm("req-3", prompt=128, block_hashes=hashes[:8], block_tokens=16), A) == 112


def test_saved_tokens_count_and_not_the_share_of_the_prompt() -> None:  # GAIE#2561
    index = PrefixIndex(IndexParams())
    index.dispatched(hashed("req-1", *chain(1, "short")), A)
    index.dispatched(hashed("req-2", *chain(10, "long")), B)
    assert index.hits(hashed("req-3", *chain(1, "short")), A) < index.hits(hashed("req-4", *chain(30, "long")), B)


def test_salt_lora_and_model_each_match_their_own_and_nothing_else() -> None:  # TensorRT-LLM#18156
    roots = [
        cache_root(model="m"),
        cache_root(model="other"),
        cache_root(model="m", lora="x@1"),
        cache_root(model="m", salt="tenant-1"),
    ]
    prompt = tuple(range(256))
    requests = [hashed(f"req-{place}", *block_hashes(root, prompt, 64)) for place, root in enumerate(roots)]
    for place, request in enumerate(requests):
        index = PrefixIndex(IndexParams())
        index.dispatched(request, A)
        assert [index.hits(other, A) for other in requests] == [256 * (other is request) for other in requests], place


def test_text_is_known_as_tokens_are_and_images_are_not() -> None:
    index = PrefixIndex(IndexParams())
    text = TextRequest(
        RequestId("req-1"), TenantId("default"), ModelId("m"), 200, 5, 0, block_hashes=chain(3), block_tokens=64
    )
    image = DiffusionRequest(RequestId("req-2"), TenantId("default"), ModelId("m"), 4, 64, 64, 0, 0)
    index.dispatched(text, A)
    index.dispatched(image, A)
    assert (index.hits(text, A), index.hits(image, A)) == (192, 0)
    assert index.hits(msgspec.structs.replace(text, block_tokens=0), A) == 0  # nobody hashed it


# Memory: dynamo#10774, production-stack PR#711, GAIE#2878


def test_its_memory_stays_below_its_bytes() -> None:
    most = 1 << 20
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = PrefixIndex(IndexParams(bytes_max=most))
        for place in range(300):
            request = llm(f"req-{place}", block_hashes=chain(64, f"{place} "), block_tokens=64)
            index.dispatched(request, A)
            index.begun(request, A)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert most // 4 < index.bytes_used <= most
    assert peak <= most


def test_leaves_go_before_their_parents_and_the_oldest_chain_first() -> None:
    index = PrefixIndex(IndexParams(bytes_max=6 * ENTRY_BYTES))
    for name in ("old", "new", "old"):
        index.dispatched(hashed("req-1", *chain(3, name)), A)
    index.dispatched(hashed("req-2", *chain(2, "late")), A)
    assert index.hits(hashed("req-3", *chain(3, "old")), A) == 192
    assert index.hits(hashed("req-3", *chain(3, "new")), A) == 64


def test_a_prompt_larger_than_everything_keeps_its_beginning() -> None:
    index = PrefixIndex(IndexParams(bytes_max=2 * ENTRY_BYTES))
    index.dispatched(hashed("req-1", *chain(9)), A)
    assert index.hits(hashed("req-1", *chain(9)), A) == 128


def test_what_left_is_forgotten() -> None:
    index = PrefixIndex(IndexParams())
    index.dispatched(hashed("req-1", b"a", b"ab"), A)
    index.left(A)
    index.left(B)
    assert index.hits_all(hashed("req-2", b"a", b"ab")) == {}
    index.ended(RequestId("req-1"), A)
    assert index.pending == 0


def test_replicas_that_come_and_go_leave_nothing_behind() -> None:  # dynamo#4904, dynamo#10774
    index = PrefixIndex(IndexParams())
    for life in range(500):
        index.dispatched(hashed("req-1", *chain(3, f"{life}")), A)
        index.dispatched(hashed("req-2", *chain(2)), B)
        index.left(A)
    assert index.bytes_used < 60 * ENTRY_BYTES
    assert index.hits_all(hashed("req-3", *chain(2))) == {B: 128}


# Dispatches that prove idle


def test_a_dispatch_counts_at_once_and_not_after_it_failed() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    index.dispatched(request, A)
    assert index.hits(request, A) == 256
    index.ended(request.id, A)
    assert index.hits(request, A) == 0
    assert (index.pending, index.bytes_used) == (0, 0)


def test_a_failure_takes_nothing_from_what_was_known_before() -> None:
    index = PrefixIndex(IndexParams())
    first, longer = hashed("req-1", *chain(2)), hashed("req-2", *chain(4))
    index.dispatched(first, A)
    index.begun(first, A)
    index.dispatched(longer, A)
    index.ended(longer.id, A)
    index.ended(first.id, A)
    assert index.hits(longer, A) == 128


def test_another_dispatch_of_the_same_prompt_vouches_for_it_again() -> None:
    index = PrefixIndex(IndexParams())
    first, second = hashed("req-1", *chain(4)), hashed("req-2", *chain(4))
    index.dispatched(first, A)
    index.dispatched(second, A)
    index.ended(first.id, A)
    index.begun(second, A)
    assert index.hits(first, A) == 256


def test_two_dispatches_of_one_request_are_apart() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    index.dispatched(request, A)
    index.dispatched(request, B)
    index.begun(request, B)
    index.ended(request.id, A)
    assert index.hits_all(request) == {B: 256}
    assert index.pending == 0


# What engines tell


def test_an_engine_tells_what_it_holds() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    index.heard(told(A, 1, *chain(4), is_reset=True))
    assert index.hits(request, A) == 256
    index.heard(told(A, 2, removed=chain(4)[2:]))
    assert index.hits(request, A) == 128


def test_outputs_that_an_engine_caches_are_known() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(2))
    index.heard(told(A, 1, is_reset=True))
    index.dispatched(request, A)
    index.begun(request, A)
    index.heard(told(A, 2, *chain(4)))
    assert index.hits(hashed("req-2", *chain(5)), A) == 256


def test_a_guess_gives_way_to_the_engines_next_report() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    index.heard(told(A, 1, is_reset=True))
    index.dispatched(request, A)
    index.heard(told(A, 2))
    assert index.hits(request, A) == 256  # it is on its way
    index.begun(request, A)
    assert index.hits(request, A) == 256
    index.heard(told(A, 3, *chain(3)))
    assert index.hits(request, A) == 192


def test_a_failed_dispatch_takes_nothing_from_what_the_engine_told() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    index.heard(told(A, 1, is_reset=True))
    index.dispatched(request, A)
    index.heard(told(A, 2, *chain(3)))
    index.ended(request.id, A)
    assert index.hits(request, A) == 192


def test_a_reset_forgets_that_replica_only() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    for node in (A, B):
        index.heard(told(node, 1, *chain(4), is_reset=True))
    index.heard(told(A, 2, *chain(1), is_reset=True))
    assert index.hits_all(request) == {A: 64, B: 256}


def test_engines_that_start_again_and_again_leave_nothing_behind() -> None:
    index = PrefixIndex(IndexParams())
    for number in range(200):
        index.heard(told(A, number, *chain(3, str(number)), is_reset=True))
    assert index.bytes_used < 40 * ENTRY_BYTES


def test_only_engines_are_believed() -> None:
    index, request = PrefixIndex(IndexParams()), hashed("req-1", *chain(4))
    claimed = msgspec.structs.replace(told(A, 1, *chain(4), is_reset=True), source="scrape")
    index.heard(claimed)
    index.heard(report(A, 2))
    assert index.hits(request, A) == 0


def test_an_engine_that_answers_and_does_not_report_is_not_remembered_for_ever() -> None:
    index = PrefixIndex(IndexParams())
    index.heard(told(A, 1, is_reset=True))
    for place in range(SETTLED_MAX + 5):
        request = hashed(f"req-{place}", *chain(2, f"{place} "))
        index.dispatched(request, A)
        index.begun(request, A)
    assert index.bytes_used == 2 * SETTLED_MAX * ENTRY_BYTES
    assert index.hits(hashed("req-x", *chain(2, "4 ")), A) == 0
    assert index.hits(hashed("req-x", *chain(2, "5 ")), A) == 128


# Replicas that do not tell what they evict


def small(node: NodeId, number: int, tokens: int):
    return msgspec.structs.replace(
        report(node, number), source="scrape", block_size=16, kv_blocks_total=tokens // 16, kv_events=None
    )


def serve(index: PrefixIndex, name: str, node: NodeId = A) -> None:
    request = hashed(name, *chain(4, name))
    index.dispatched(request, node)
    index.begun(request, node)


def held(index: PrefixIndex, names: list[str]) -> list[str]:
    return [name for name in names if index.hits(hashed("req-x", *chain(4, name)), A)]


def test_no_more_is_believed_than_the_replica_can_hold() -> None:  # AMD-AGI/Infera#143
    index, names = PrefixIndex(IndexParams()), [f"p{place}" for place in range(20)]
    index.heard(small(A, 1, tokens=4 * 256))
    for name in names:
        serve(index, name)
    assert 2 <= len(held(index, names)) <= 5
    assert held(index, names) == names[-len(held(index, names)) :]  # the last ones
    assert len(held(index, names)) * 256 <= 4 * 256 + 256  # one prompt more than fits, at most


def test_what_is_used_again_and_again_stays_believed() -> None:
    index, names = PrefixIndex(IndexParams()), [f"p{place}" for place in range(20)]
    index.heard(small(A, 1, tokens=4 * 256))
    for name in names:
        serve(index, "system")
        serve(index, name)
    assert index.hits(hashed("req-x", *chain(4, "system")), A) == 256


def test_a_replica_that_evicts_does_not_touch_what_others_hold() -> None:
    index, names = PrefixIndex(IndexParams()), [f"p{place}" for place in range(20)]
    index.heard(small(A, 1, tokens=4 * 256))
    for name in names:
        serve(index, name, B)
        serve(index, name, A)
    assert all(index.hits(hashed("req-x", *chain(4, name)), B) == 256 for name in names)


def test_a_failure_after_the_generation_turned_is_withdrawn_too() -> None:
    index, late = PrefixIndex(IndexParams()), hashed("req-late", *chain(4, "late"))
    index.heard(small(A, 1, tokens=4 * 256))
    serve(index, "p0")
    serve(index, "p1")
    index.dispatched(late, A)
    serve(index, "p2")
    serve(index, "p3")
    assert index.hits(late, A) == 256
    index.ended(late.id, A)
    assert index.hits(late, A) == 0


def test_generations_leave_nothing_behind() -> None:
    index = PrefixIndex(IndexParams())
    index.heard(small(A, 1, tokens=256))
    for place in range(400):
        serve(index, f"p{place}")
    assert index.bytes_used < 100 * ENTRY_BYTES
    index.left(A)
    assert index.hits(hashed("req-x", *chain(4, "p399")), A) == 0
