from collections.abc import Iterable
from statistics import mean, median

import msgspec
import pytest
from tests.unit.sched.router.rivals import BLOCK, fleets, history, names
from tests.unit.sched.router.views import View, llm

from headway.core.ids import NodeId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S
from headway.sched.router.policies.preble import Preble
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left

A, B = NodeId("rep-a"), NodeId("rep-b")


class Group(msgspec.Struct):
    """An important node of Preble's tree, with everything about it in lists."""

    tokens: int
    output: int = 0
    blocks: list[bytes] = []
    where: list[str] = []
    window: list[tuple[int, int, int]] = []  # at_ns, prompt, cached
    active: list[tuple[str, str]] = []  # request, worker
    outputs: list[int] = []
    ttfts: list[tuple[str, int, int]] = []  # worker, at_ns, ttft

    @property
    def misses(self) -> float:
        prompt = sum(item[1] for item in self.window)
        return 1 - sum(item[2] for item in self.window) / prompt if prompt else 0.0


class Told(msgspec.Struct):
    groups: list[Group] = []  # least recently used first
    firsts: dict[tuple[str, str], int] = {}
    tpots: dict[str, list[float]] = {}


def matched(groups: list[Group], request: LlmRequest) -> tuple[Group | None, int]:
    found, depth = None, 0
    for digest in request.block_hashes:
        owner = [group for group in groups if digest in group.blocks]
        if not owner:
            break
        found, depth = owner[0], depth + 1
    return found, min(depth * BLOCK, request.prompt_tokens)


def dispatch(told: Told, event: Dispatched, request: LlmRequest) -> None:
    group, cached = matched(told.groups, request)
    if group is None or cached <= request.prompt_tokens - cached:
        group = Group(request.prompt_tokens - cached)
    else:
        told.groups = [other for other in told.groups if other is not group]
    known = {digest for other in [*told.groups, group] for digest in other.blocks}
    group.blocks = group.blocks + [digest for digest in request.block_hashes if digest not in known]
    group.where = [*(name for name in group.where if name != event.replica), event.replica]
    group.output = request.max_tokens
    group.window = [*group.window, (event.at_ns, request.prompt_tokens, cached)]
    group.active = [*group.active, (request.id, event.replica)]
    told.groups.append(group)
    for other in told.groups:
        other.window = [item for item in other.window if item[0] >= event.at_ns - 180 * NS_PER_S]


def tell(events: Iterable[Learned]) -> Told:
    """Everything that Preble knows after the events, without a sum that is kept."""
    told = Told([], {}, {})
    for event in events:
        match event:
            case Dispatched(request=LlmRequest() as request):
                dispatch(told, event, request)
            case FirstToken():
                for group in told.groups:
                    if (event.request, event.replica) in group.active:
                        told.firsts[event.request, event.replica] = event.at_ns
                        group.ttfts = [*group.ttfts, (event.replica, event.at_ns, event.since_dispatch_ns)]
            case Ended():
                key = (event.request, event.replica)
                if event.output_tokens > 1 and key in told.firsts:
                    seconds = (event.at_ns - told.firsts[key]) / NS_PER_S
                    told.tpots.setdefault(event.replica, []).append(seconds / (event.output_tokens - 1))
                for group in told.groups:
                    if key in group.active:
                        group.active = [item for item in group.active if item != key]
                        group.outputs = [*group.outputs, *([event.output_tokens] if event.output_tokens > 1 else [])]
            case Left():
                told.tpots.pop(event.replica, None)
                told.firsts = {key: at for key, at in told.firsts.items() if key[1] != event.replica}
                for group in told.groups:
                    group.where = [name for name in group.where if name != event.replica]
                    group.active = [item for item in group.active if item[1] != event.replica]
                    group.ttfts = [item for item in group.ttfts if item[0] != event.replica]
        told.groups = [group for group in told.groups if group.window or group.active]
    return told


def cost_of(told: Told, group: Group, worker: str, rate: float) -> float:
    """get_node_cost: miss rate x count x prefill time / replicas + active x mean output x median TPOT."""
    prefill = round(group.misses * len(group.window) * group.tokens / len(group.where))
    expected = mean(group.outputs) if group.outputs else group.output
    decode = round(len([item for item in group.active if item[1] == worker]) * expected)
    return prefill / rate + decode * median(told.tpots.get(worker) or [0.15])


def doubled(group: Group, worker: str, at_ns: int) -> bool:
    """ttft_overload_detector: the later half-window's mean is at least twice the earlier's."""
    half = at_ns - 90 * NS_PER_S
    seen = [item for item in group.ttfts if item[0] == worker and item[1] >= at_ns - 180 * NS_PER_S]
    early, late = [i[2] for i in seen if i[1] < half], [i[2] for i in seen if i[1] >= half]
    return bool(early and late) and mean(late) >= 2 * mean(early)


def published(told: Told, request: LlmRequest, views: list[View], at_ns: int) -> tuple[str, dict[str, float]]:
    """Who is chosen, and the cost of everybody."""
    slowest = min([v.prefill_tokens_per_s for v in views if v.prefill_tokens_per_s] or [1.0])
    rates = {v.id: v.prefill_tokens_per_s or slowest for v in views}
    loads = {
        v.id: sum(cost_of(told, group, v.id, rates[v.id]) for group in told.groups if v.id in group.where)
        for v in views
    }
    group, cached = matched(told.groups, request)
    homes = sorted(v.id for v in views if group is not None and v.id in group.where)
    if group is not None and homes and cached > request.prompt_tokens - cached:
        home, light = min(homes, key=lambda n: loads[n]), min(sorted(loads), key=lambda n: loads[n])
        cost = cost_of(told, group, home, rates[home])
        if light in homes or loads[home] <= 1.5 * loads[light]:
            return home, loads
        if all(
            other is group or not cost_of(told, other, home, rates[home])
            for other in told.groups
            if home in other.where
        ):
            is_shared = doubled(group, home, at_ns) and loads[home] >= loads[light] + cost / 2
        else:
            is_shared = loads[home] >= loads[light] + cost
        return light if is_shared else home, loads
    totals = {}
    for v in views:
        new = request.prompt_tokens - (cached if v.id in homes else 0)
        mine = [other for other in told.groups if v.id in other.where]
        evicted, freed = 0.0, 0
        if v.kv_tokens_total and sum(other.tokens for other in mine) + new > v.kv_tokens_total:
            for other in mine:
                if freed < new:
                    freed += other.tokens
                    evicted += other.misses * len(other.window) * other.tokens / rates[v.id]
        totals[v.id] = loads[v.id] + new / rates[v.id] + evicted
    return min(sorted(totals), key=lambda n: round(totals[n], 9)), totals


def test_is_the_published_choice() -> None:
    kinds = set()
    for place in range(30):
        policy, events = Preble(Preble.Params()), list(history(f"preble-{place}", 60))
        for event in events:
            policy.observe(event)
        told, now = tell(events), events[-1].at_ns + NS_PER_S
        for request, views in fleets(f"preble-{place}", 20):
            ranked = policy.rank(request, views, now)
            chosen, costs = published(told, request, views, now)
            assert ranked[0].replica == chosen, (place, request.id, ranked)
            assert {item.replica: pytest.approx(item.score, abs=1e-9) for item in ranked} == costs
            kinds.add(ranked[0].reason.split(";")[0])
    assert kinds == {"exploit", "explore", "shared"}


def conversation(name: str, tokens: int) -> LlmRequest:
    """A request of one long conversation, after so many tokens."""
    return llm(name, prompt=tokens, block_hashes=tuple(b"c%d" % n for n in range(tokens // BLOCK)), block_tokens=BLOCK)


def test_exploits_only_what_is_more_than_half_of_the_prompt() -> None:
    policy, views = Preble(Preble.Params()), [View("rep-a", kv_tokens_total=9999), View("rep-b")]
    policy.observe(Dispatched(0, conversation("req-1", 160), A))
    assert policy.rank(conversation("req-2", 304), views, 1)[0].replica == A
    assert policy.rank(conversation("req-2", 304), views, 1)[0].reason.startswith("exploit")
    assert policy.rank(conversation("req-3", 320), views, 1)[0].reason.startswith("explore")


def test_what_is_older_than_the_window_is_forgotten() -> None:
    policy = Preble(Preble.Params(window_s=10.0))
    policy.observe(Dispatched(0, conversation("req-1", 160), A))
    policy.observe(Ended(1, conversation("req-1", 160).id, A, 5))
    policy.observe(Dispatched(11 * NS_PER_S, llm("req-2"), B))
    views = [View("rep-a"), View("rep-b")]
    assert policy.rank(conversation("req-3", 160), views, 11 * NS_PER_S)[0].reason.startswith("explore")


def test_a_replicas_only_prefix_is_shared_once_its_ttft_has_doubled() -> None:
    policy, views = Preble(Preble.Params()), [View("rep-a"), View("rep-b")]
    policy.observe(Dispatched(0, llm("other", prompt=8, max_tokens=2), B))  # less than half of what moves
    for n in range(12):
        request = conversation(f"req-{n}", 160)
        policy.observe(Dispatched(n * 15 * NS_PER_S, request, A))
        policy.observe(FirstToken(n * 15 * NS_PER_S, request.id, A, NS_PER_S if n < 5 else 2 * NS_PER_S))
        chosen = names(policy.rank(conversation("next", 160), views, n * 15 * NS_PER_S))[0]
        assert chosen == (A if n < 11 else B)  # from 165 s on the later 90 s hold only the slow ones


def test_its_memory_is_bounded() -> None:  # dynamo#10774
    policy = Preble(Preble.Params(prefixes_max=5))
    for n in range(50):
        policy.observe(Dispatched(n, llm(f"req-{n}", prompt=32, block_hashes=(b"%d" % n,), block_tokens=BLOCK), A))
    assert len(policy._prefixes) == len(policy._of_block) == 5
