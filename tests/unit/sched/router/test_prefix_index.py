from tests.unit.sched.router.views import llm

from headway.core.ids import NodeId
from headway.sched.router.prefix_index import IndexParams, PrefixIndex

A, B = NodeId("rep-a"), NodeId("rep-b")


def hashed(name: str, *blocks: bytes):
    return llm(name, prompt=32 * len(blocks) + 1, block_hashes=blocks, block_tokens=32)


def test_a_dispatch_is_a_hit_for_the_same_beginning() -> None:
    index = PrefixIndex(IndexParams(block_tokens_min=64))
    index.dispatched(hashed("req-1", b"a", b"ab", b"abc"), A)
    assert index.hits(hashed("req-2", b"a", b"ab", b"abx"), A) == 64
    assert index.hits(hashed("req-2", b"a", b"ab", b"abx"), B) == 0


def test_what_left_is_forgotten() -> None:
    index = PrefixIndex(IndexParams())
    index.dispatched(hashed("req-1", b"a", b"ab"), A)
    index.left(A)
    assert index.hits(hashed("req-1", b"a", b"ab"), A) == 0


def test_it_is_bounded() -> None:
    index = PrefixIndex(IndexParams(block_tokens_min=32, entries_max=1))
    index.dispatched(hashed("req-1", b"a", b"ab"), A)
    assert index.hits(hashed("req-1", b"a", b"ab"), A) == 32
