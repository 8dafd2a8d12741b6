import math
from collections.abc import Iterable

import msgspec
import pytest
from tests.unit.sched.router.rivals import BLOCK, fleets, history, names
from tests.unit.sched.router.views import View, llm

from headway.core.request import LlmRequest
from headway.sched.router.policies.dynamo_kv import DynamoKv
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left


class Row(msgspec.Struct):
    request: str
    node: str
    hashes: tuple[bytes, ...]
    prompt: int
    prefill: int


def running(events: Iterable[Learned]) -> list[Row]:
    """What is unfinished after the events, as a list."""
    rows: list[Row] = []
    for event in events:
        match event:
            case Dispatched(request=LlmRequest() as request):
                left = request.prompt_tokens - event.hit_tokens
                rows.append(Row(request.id, event.replica, request.block_hashes, request.prompt_tokens, left))
            case FirstToken():
                for row in rows:
                    if (row.request, row.node) == (event.request, event.replica):
                        row.prefill = 0
            case Ended():
                rows = [row for row in rows if (row.request, row.node) != (event.request, event.replica)]
            case Left():
                rows = [row for row in rows if row.node != event.replica]
    return rows


def published(params: DynamoKv.Params, rows: list[Row], request: LlmRequest, views: list[View]) -> dict[str, float]:
    """The cost of router-concepts.md and selector/default.rs, per worker."""
    isl, costs = request.prompt_tokens, {}
    active = {v.id: sum(row.prefill for row in rows if row.node == v.id) for v in views}
    for v in views:
        mine = [row for row in rows if row.node == v.id]
        held = {digest for row in mine for digest in row.hashes}
        partial = sum(1 for row in mine if row.prompt % BLOCK)
        added = len([digest for digest in request.block_hashes if digest not in held]) + (1 if isl % BLOCK else 0)
        decode_blocks = len(held) + partial + added
        request_blocks = max(1, math.ceil(isl / BLOCK))
        decay = 1 + params.credit_decay * ((active[v.id] - min(active.values())) / BLOCK / request_blocks)
        credit = params.overlap_credit / decay * math.ceil(v.hit_tokens / BLOCK)
        prefill = max((active[v.id] + isl) / BLOCK - credit, 0)
        costs[v.id] = params.prefill_scale * prefill + decode_blocks + params.request_weight * len(mine)
    return costs


SETTINGS = [
    DynamoKv.Params(),
    DynamoKv.Params(prefill_scale=4.0, credit_decay=0.5, request_weight=3.0),
    DynamoKv.Params(overlap_credit=0.5),
]


@pytest.mark.parametrize("params", SETTINGS)
def test_is_the_published_cost(params: DynamoKv.Params) -> None:
    for place in range(20):
        policy, events = DynamoKv(params), list(history(f"dynamo-{place}"))
        for event in events:
            policy.observe(event)
        rows = running(events)
        for request, views in fleets(f"dynamo-{place}", 15):
            costs = published(params, rows, request, views)
            ranked = policy.rank(request, views, 0)
            assert {item.replica: pytest.approx(item.score) for item in ranked} == costs
            assert costs[ranked[0].replica] == pytest.approx(min(costs.values()))


def test_nothing_remains_of_what_ended() -> None:
    policy, ended = DynamoKv(DynamoKv.Params()), []
    for event in history("dynamo-end", 60):
        policy.observe(event)
        if isinstance(event, Dispatched):
            ended.append(Ended(0, event.request.id, event.replica, 1))
    for event in ended * 2:  # a second end of the same dispatch changes nothing
        policy.observe(event)
    alike = [item.score for item in policy.rank(llm("req-1"), [View(f"rep-{n}") for n in range(5)], 0)]
    assert len(set(alike)) == 1


def test_equal_costs_are_drawn() -> None:
    policy, views = DynamoKv(DynamoKv.Params()), [View(f"rep-{n}") for n in range(3)]
    assert {names(policy.rank(llm(f"req-{n}"), views, 0))[0] for n in range(50)} == {v.id for v in views}


def test_a_temperature_draws_by_the_softmax_of_the_costs_over_their_range() -> None:
    policy = DynamoKv(DynamoKv.Params(temperature=0.5))
    views = [View("rep-a", hit_tokens=160), View("rep-b", hit_tokens=80), View("rep-c")]
    drawn = [names(policy.rank(llm(f"req-{n}", prompt=160), views, 0))[0] for n in range(4000)]
    weights = [math.exp(-cost / 0.5) for cost in (0.0, 0.5, 1.0)]
    for view, weight in zip(views, weights, strict=True):  # 5 sigma of 4000 draws
        assert drawn.count(view.id) / 4000 == pytest.approx(weight / sum(weights), abs=0.04)
