from collections.abc import Iterable

import msgspec
import pytest
from tests.unit.sched.router.rivals import fleets, history, names
from tests.unit.sched.router.views import View, llm

from headway.core.ids import NodeId, RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S
from headway.sched.router.policies.smetric import Smetric
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left

A, B = NodeId("rep-a"), NodeId("rep-b")


class Known(msgspec.Struct):
    """What smetric.rs knows after some events, in lists."""

    queued: list[tuple[str, str, float]] = []
    samples: dict[str, list[float]] = {}
    prompts: list[LlmRequest] = []


def cost_of(params: Smetric.Params, length: int, hit: int) -> float:
    new = max(0, length - hit)
    crossover = params.attention_crossover_tokens
    return new + (new * (length - new / 2) / crossover if crossover else 0)


def known(params: Smetric.Params, events: Iterable[Learned]) -> Known:
    state = Known([], {}, [])
    for event in events:
        match event:
            case Dispatched(request=LlmRequest() as request):
                cost = cost_of(params, request.prompt_tokens, event.hit_tokens)
                state.queued.append((request.id, event.replica, cost))
                state.prompts.append(request)
            case FirstToken():
                for row in [row for row in state.queued if row[:2] == (event.request, event.replica)]:
                    state.queued.remove(row)
                    state.samples.setdefault(event.replica, []).append(row[2] / (event.since_dispatch_ns / NS_PER_S))
            case Ended():
                state.queued = [row for row in state.queued if row[:2] != (event.request, event.replica)]
            case Left():
                state.queued = [row for row in state.queued if row[1] != event.replica]
                state.samples.pop(event.replica, None)
    return state


def published(params: Smetric.Params, state: Known, request: LlmRequest, views: list[View]) -> set[str]:
    """smetric.rs: who may be chosen; several only where its round robin breaks a tie."""
    length = request.prompt_tokens
    load, meets = {}, {}
    for v in views:
        load[v.id] = sum(row[2] for row in state.queued if row[1] == v.id) + cost_of(params, length, v.hit_tokens)
        window = sorted(state.samples.get(v.id, [])[-64:])
        budget = params.slack * (params.ttft_slo_s + params.ttft_slo_s_per_1k_tokens * length / 1000)
        rate = window[int(0.9 * (len(window) - 1) + 0.5)] if len(window) >= 8 else None
        meets[v.id] = rate is None or load[v.id] / rate <= budget
    earlier = [
        p for p in state.prompts if p.block_hashes and request.block_hashes[: len(p.block_hashes)] == p.block_hashes
    ]
    prev = sorted(views, key=lambda v: (-v.hit_tokens, load[v.id], v.id))[0]
    if earlier:
        longest = max(len(p.block_hashes) for p in earlier)
        history_tokens = [p for p in earlier if len(p.block_hashes) == longest][-1].prompt_tokens
        if prev.hit_tokens > params.hit_ratio * history_tokens and (meets[prev.id] or not any(meets.values())):
            return {prev.id}
    scores = {v.id: load[v.id] * v.in_flight for v in views}
    return {name for name, score in scores.items() if score == pytest.approx(min(scores.values()), abs=1e-6)}


SETTINGS = [Smetric.Params(), Smetric.Params(attention_crossover_tokens=200.0, slack=0.01, hit_ratio=0.1)]


@pytest.mark.parametrize("params", SETTINGS)
def test_is_the_published_choice(params: Smetric.Params) -> None:
    kinds = set()
    for place in range(10):
        policy, events = Smetric(params), list(history(f"smetric-{place}", 150, replicas=2))
        for event in events:
            policy.observe(event)
        state = known(params, events)
        for request, views in fleets(f"smetric-{place}", 30):
            (first, *_rest) = policy.rank(request, views, 0)
            assert first.replica in published(params, state, request, views)
            kinds.add(first.reason.split(";")[0])
    assert kinds == {"stays", "balanced"}


FIRST = llm("req-1", prompt=64, block_hashes=(b"a", b"b", b"c", b"d"), block_tokens=16)
LATER = llm("req-2", prompt=100, block_hashes=(b"a", b"b", b"c", b"d", b"e", b"f"), block_tokens=16)
HOME = [View("rep-a", hit_tokens=64, in_flight=5), View("rep-b")]


def taught(tokens_per_s: int, pending: int, *nodes: NodeId) -> Smetric:
    """A policy that has seen FIRST, and `pending` tokens on replicas of a known rate."""
    policy = Smetric(Smetric.Params())
    policy.observe(Dispatched(0, FIRST, A))
    policy.observe(Ended(0, FIRST.id, A, 1))
    for node in nodes:
        for n in range(8):
            policy.observe(Dispatched(0, llm(f"r-{n}", prompt=tokens_per_s), node))
            policy.observe(FirstToken(NS_PER_S, RequestId(f"r-{n}"), node, NS_PER_S))
        policy.observe(Dispatched(0, llm("waits", prompt=pending), node))
    return policy


def test_a_session_stays_while_its_replica_meets_the_slo() -> None:
    assert names(taught(1000, 900, A).rank(LATER, HOME, 0))[0] == A
    assert names(taught(1000, 1100, A).rank(LATER, HOME, 0))[0] == B


def test_it_stays_too_when_nobody_meets_the_slo() -> None:
    assert names(taught(1000, 5000, A, B).rank(LATER, HOME, 0))[0] == A


def test_a_first_turn_is_balanced_even_where_its_beginning_is_cached() -> None:
    stranger = llm("req-3", prompt=100, block_hashes=(b"a", b"b", b"x", b"y"), block_tokens=16)
    assert names(taught(1000, 0, A).rank(stranger, HOME, 0))[0] == B


def test_an_evicted_session_routes_like_a_new_one() -> None:
    forgot = [View("rep-a", hit_tokens=32, in_flight=5), View("rep-b")]
    assert names(taught(1000, 0, A).rank(LATER, forgot, 0))[0] == B


def test_only_the_last_64_samples_count() -> None:
    policy = Smetric(Smetric.Params())
    policy.observe(Dispatched(0, FIRST, A))
    for n in range(300):
        policy.observe(Dispatched(0, llm(f"r-{n}", prompt=1000 if n < 236 else 1), A))
        policy.observe(FirstToken(0, RequestId(f"r-{n}"), A, NS_PER_S))
        assert (names(policy.rank(LATER, HOME, 0))[0] == A) == (n < 293)  # 7 of 64 above 57: the rank of 0.9


def test_seven_samples_say_nothing_and_the_ninetieth_of_the_last_64_is_the_rate() -> None:
    policy = Smetric(Smetric.Params())
    policy.observe(Dispatched(0, FIRST, A))
    for n in range(7):
        policy.observe(Dispatched(0, llm(f"r-{n}", prompt=1), A))
        policy.observe(FirstToken(0, RequestId(f"r-{n}"), A, NS_PER_S))
    assert names(policy.rank(LATER, HOME, 0))[0] == A  # 1 token per second would miss
    for n in range(70):
        policy.observe(Dispatched(0, llm(f"s-{n}", prompt=1 + n), A))
        policy.observe(FirstToken(0, RequestId(f"s-{n}"), A, NS_PER_S))
    # of the rates 7..70 the 58th is 64 per second: FIRST's 64 waiting and LATER's 36 tokens take longer than the SLO
    assert names(policy.rank(LATER, HOME, 0))[0] == B
    policy.observe(Ended(0, FIRST.id, A, 1))
    assert names(policy.rank(LATER, HOME, 0))[0] == A
