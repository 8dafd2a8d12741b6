"""The prefix index against sets that remember everything, while nothing is evicted."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sched.router.views import llm, report

from headway.core.ids import NodeId, RequestId
from headway.core.reports import KvEvents
from headway.core.request import LlmRequest
from headway.sched.router.prefix_index import IndexParams, PrefixIndex

NODES = tuple(NodeId(f"rep-{name}") for name in "abc")
PATHS = tuple(
    tuple(f"{'x' * min(depth, branch)}{'yz'[branch % 2] * depth}".encode() for depth in range(1, 9))
    for branch in range(4)
)


def asking(name: str, path: int, depth: int) -> LlmRequest:
    blocks = PATHS[path][:depth]
    return llm(name, prompt=64 * depth + 1, block_hashes=blocks, block_tokens=64)


class Model:
    """What each replica holds, guessed and told apart."""

    def __init__(self) -> None:
        self.told: dict[NodeId, set[bytes]] = {node: set() for node in NODES}
        self.exact: set[NodeId] = set()

    def depth(self, request: LlmRequest, node: NodeId, guessed: set[bytes]) -> int:
        held = self.told[node] | guessed
        return next((i for i, key in enumerate(request.block_hashes) if key not in held), len(request.block_hashes))


steps = st.lists(
    st.tuples(
        st.sampled_from(["dispatch", "begin", "fail", "tell", "evict", "reset", "lose"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(1, 8),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_it_knows_what_engines_told_and_what_is_under_way(steps) -> None:
    index, model = PrefixIndex(IndexParams()), Model()
    flying: dict[NodeId, dict[RequestId, LlmRequest]] = {node: {} for node in NODES}
    for number, (what, place, path, depth) in enumerate(steps):
        node, request = NODES[place], asking(f"req-{number}", path, depth)
        keys = request.block_hashes
        oldest = next(iter(flying[node].values()), None)
        if what == "dispatch":
            index.dispatched(request, node)
            flying[node][request.id] = request
        elif what == "fail" and oldest is not None:
            index.ended(oldest.id, node)
            del flying[node][oldest.id]
        elif what == "begin" and oldest is not None and node in model.exact:
            index.begun(oldest, node)  # the engine has it, and says so with its next report
            model.told[node] |= set(oldest.block_hashes)
            index.heard(report(node, number, kv_events=KvEvents(oldest.block_hashes)))
            del flying[node][oldest.id]
        elif what == "tell" and node in model.exact:
            model.told[node] |= set(keys)
            index.heard(report(node, number, kv_events=KvEvents(keys)))
        elif what == "evict" and node in model.exact and not flying[node]:
            gone = {key for key in model.told[node] if len(key) >= depth}  # a leaf before its parents
            model.told[node] -= gone
            index.heard(report(node, number, kv_events=KvEvents((), tuple(sorted(gone)))))
        elif what == "reset" and not flying[node]:
            model.told[node] = set(keys)
            model.exact.add(node)
            index.heard(report(node, number, kv_events=KvEvents(keys, is_reset=True)))
        elif what == "lose":
            index.left(node)
            model.told[node].clear()
            model.exact.discard(node)
            flying[node].clear()
        for looked in range(4):
            probe = asking("req-probe", looked, 8)
            for other in NODES:
                sure = model.depth(probe, other, set())
                under_way = {key for sent in flying[other].values() for key in sent.block_hashes}
                assert 64 * sure <= index.hits(probe, other) <= 64 * model.depth(probe, other, under_way)
    assert index.pending == sum(len(sent) for sent in flying.values())
