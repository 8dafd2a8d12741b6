from collections.abc import Sequence

import pytest
from tests.unit.sched.router.views import llm, report

from headway.core.errors import ConfigError
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.reports import PrefixFigures, StepCoefficients
from headway.core.request import LlmRequest, Request, TextRequest
from headway.core.units import NS_PER_S, Ns
from headway.sched.policies import routing_policy
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Choices, PdPools, ReplicaGuard, Room, Router
from headway.sched.router.prefix_index import IndexParams, PrefixIndex
from headway.sched.router.protocol import Learned, ReplicaView, Scored

A, B = NodeId("rep-a"), NodeId("rep-b")


BLOCKS = tuple(f"{place}".encode().rjust(16) for place in range(4))


def hashed(name: str, blocks: int = 4) -> LlmRequest:
    return llm(name, prompt=64 * blocks + 1, block_hashes=BLOCKS[:blocks], block_tokens=64)


def text(name: str) -> TextRequest:
    return TextRequest(RequestId(name), TenantId("t"), ModelId("synthetic"), 10, 10, 0)


def router(pools: PdPools | None = None, guard: ReplicaGuard | None = None, **reports: dict[str, object]) -> Router:
    choices = Choices(routing_policy(PolicyChoice("least_tokens")))
    made = Router(
        choices, pools or PdPools(), Room(engine_queue_ms=100.0, cold_requests=2), PrefixIndex(IndexParams()), guard
    )
    for place, node in enumerate((A, B)):
        made.join(node, 1, 0)
        made.hear(report(node, 1, **reports.get("ab"[place], {})), 0)
    return made


def test_forecasts_queue_and_prefill_at_the_learned_rate() -> None:  # SPEC A2, A7
    made = router(a={"waiting_prefill_tokens": 500, "waiting": 2, "prefill_tokens_per_s": 1000.0}, b={"running": 9})
    by_name = {c.replica: c for c in made.forecast(llm("req-1", prompt=100), 0)}
    assert by_name[A].seconds == pytest.approx(0.6)
    assert (by_name[B].seconds, by_name[B].confidence) == (0.0, 0.0)


def test_a_first_token_takes_no_less_than_the_step_that_makes_it() -> None:  # SPEC A2, A7
    cost = StepCoefficients(base_ns=30e6, row_ns=2e6, kv_ns=0.0, token_ns=1e6, pair_ns=1e4)
    made = router(a={"prefill_tokens_per_s": 1000.0, "running": 3, "step_cost": cost})

    def seconds(prompt: int) -> float:
        return next(c.seconds for c in made.forecast(llm("req-1", prompt=prompt), 0) if c.replica == A)

    assert seconds(10) == pytest.approx(0.030 + 3 * 0.002 + 10 * 0.001 + 50 * 1e-5)  # and not 10 tokens at the rate
    assert seconds(1000) == pytest.approx(0.030 + 3 * 0.002 + 1000 * 0.001 + 500_000 * 1e-5)


def test_confidence_falls_with_the_age_of_a_busy_replicas_report() -> None:  # SPEC A5
    busy = {"running": 1, "prefill_tokens_per_s": 10.0}
    made = router(a=busy, b={"prefill_tokens_per_s": 10.0})
    later = {c.replica: c.confidence for c in made.forecast(llm("req-1"), 3 * NS_PER_S)}
    assert later == {A: 0.25, B: 1.0}


def test_only_replicas_of_the_model_and_role_that_are_there_are_candidates() -> None:  # SPEC A6
    made = router(a={"model": ModelId("other")}, b={"role": "diffusion"})
    assert made.forecast(llm("req-1"), 0) == []
    made = router(a={"draining": True})
    assert [c.replica for c in made.forecast(llm("req-1"), 0)] == [B]
    assert made.lose(B, 1, 0)
    assert made.forecast(llm("req-1"), 0) == []


def test_an_adapter_is_served_where_it_is_offered() -> None:  # SPEC A6
    made = router(a={"models": ("lora-x",)})
    assert [c.replica for c in made.forecast(llm("req-1", lora="lora-x"), 0)] == [A]
    assert made.can_serve("lora-x", 0)
    assert not made.can_serve("lora-y", 0)
    made.lose(A, 1, 0)
    assert not made.can_serve("lora-x", 0)


def test_an_upstream_has_room_unless_it_says_that_requests_wait() -> None:
    # Between two reports of an upstream hundreds of requests may come; its batch is its own affair.
    made = router(a={"role": "upstream"}, b={"role": "upstream", "waiting": 2, "running": 4})
    for number in range(10):
        made.commit(text(f"req-{number}"), A, 0)
    rooms = {c.replica: made.has_room(c) for c in made.forecast(text("req-11"), 0)}
    assert rooms == {A: True, B: False}
    made.hear(report(A, 2, role="upstream", prefill_tokens_per_s=1.0), 0)  # long prompts beside a known rate
    assert made.has_room(next(c for c in made.forecast(text("req-12"), 0) if c.replica == A))


def test_an_upstream_where_nothing_of_ours_runs_may_be_tried_whoever_waits_there() -> None:
    # Two gateways before one upstream: the requests of one that always wait there would keep out those of the other.
    made = router(a={"role": "upstream", "waiting": 5, "running": 4}, b={"waiting": 5, "running": 4})
    shared = made.forecast(text("req-1"), 0)[0]
    assert shared.replica == A
    assert not made.has_room(shared)
    assert made.replicas[A].may_be_tried
    assert not made.replicas[B].may_be_tried
    made.commit(text("req-1"), A, 0)
    assert not made.replicas[A].may_be_tried


def test_long_prompts_get_a_pair_and_short_ones_the_decode_pool() -> None:  # SPEC C3
    made = router(PdPools(prefill=(A,), decode=(B,), prompt_tokens_min=50))
    (split,) = made.forecast(llm("req-1", prompt=50), 0)
    assert (split.replica, split.decode) == (A, B)
    (whole,) = made.forecast(llm("req-2", prompt=49), 0)
    assert (whole.replica, whole.decode) == (B, None)
    made.lose(A, 1, 0)
    (left,) = made.forecast(llm("req-3", prompt=50), 0)
    assert (left.replica, left.decode) == (B, None)


class _Fixed:
    """Ranks one replica, with a reason."""

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: int) -> list[Scored]:
        return [Scored(B, 2.0, "10 queued - 8 cached")]

    def observe(self, event: Learned) -> None:
        return


def test_a_candidate_carries_the_parts_of_its_score() -> None:  # SPEC L-5
    made = Router(Choices(_Fixed()), PdPools(), Room(), PrefixIndex(IndexParams()))
    made.join(B, 1, 0)
    made.hear(report(B, 1, prefill_tokens_per_s=100.0), 0)
    (candidate,) = made.forecast(llm("req-1"), 0)
    assert candidate.why == "score 2: 10 queued - 8 cached"


def test_half_a_pair_of_pools_is_refused() -> None:  # SPEC M1
    with pytest.raises(ConfigError, match=r"pools\.prefill and pools\.decode"):
        PdPools(prefill=(A,))


def test_room_is_the_time_its_own_queue_needs() -> None:
    made = router(a={"waiting": 1, "waiting_prefill_tokens": 90, "prefill_tokens_per_s": 1000.0})
    (best,) = [c for c in made.forecast(llm("req-1"), 0) if c.replica == A]
    assert made.has_room(best)
    made.commit(llm("req-1", prompt=20), A, 0)
    assert not made.has_room(best)


def test_an_empty_queue_always_has_room_and_an_unknown_rate_a_little() -> None:
    made = router(a={"running": 50})
    candidate = made.forecast(llm("req-1"), 0)[0]
    for place in range(2):
        assert made.has_room(candidate)
        made.commit(llm(f"req-{place}"), NodeId(candidate.replica), 0)
    assert not made.has_room(candidate)


def test_a_full_replica_is_left_alone_until_it_reports() -> None:
    made = router()
    made.refused(A, 100, is_told=False)
    (candidate,) = [c for c in made.forecast(llm("req-1"), 0) if c.replica == A]
    assert not made.has_room(candidate)
    made.hear(report(A, 2), 1)
    assert made.has_room(candidate)


def test_a_replica_that_says_how_long_it_is_full_is_left_alone_as_long() -> None:  # SPEC A11
    made = router()
    made.refused(A, 100, is_told=True)
    made.hear(report(A, 2), 1)
    (before, after) = (next(c for c in made.forecast(llm("req-1"), at) if c.replica == A) for at in (99, 100))
    made.forecast(llm("req-1"), 99)
    assert not made.has_room(before)
    made.forecast(llm("req-1"), 100)
    assert made.has_room(after)


class Shut:
    """A guard that lets one replica be tried at most."""

    def __init__(self, resort: NodeId | None) -> None:
        self.resort = resort
        self.is_quiet = False

    def is_usable(self, _node: NodeId, _at_ns: int) -> bool:
        return False

    def last_resort(self, nodes: Sequence[NodeId], _at_ns: int) -> NodeId | None:
        assert nodes == [A, B]
        return self.resort


@pytest.mark.parametrize(("resort", "names"), [(B, [B]), (None, [])])
def test_when_nobody_is_usable_the_last_resort_is_the_only_candidate(resort: NodeId | None, names: list[str]) -> None:
    # SPEC A11; dynamo#10564
    made = router(guard=Shut(resort))
    assert [c.replica for c in made.forecast(llm("req-1"), 0)] == names


def test_the_wait_in_the_global_queue_is_shared_by_all_candidates() -> None:  # SPEC A7
    made = router(a={"prefill_tokens_per_s": 300.0}, b={"prefill_tokens_per_s": 100.0})
    assert made.queue_seconds(made.forecast(llm("req-1"), 0), 800) == 2.0


def test_a_move_takes_the_expected_output_along() -> None:  # SPEC C4
    made = router()
    request = llm("req-1", output_tokens_predicted=9)
    made.commit(request, A, 0)
    made.move(request, A, B, 0)
    assert (made.replicas[A].output_tokens_expected, made.replicas[B].output_tokens_expected) == (0, 9)
    made.check()


class Seen:
    """A policy that keeps what it was shown."""

    def __init__(self) -> None:
        self.hits: dict[NodeId, tuple[int, int]] = {}

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        self.hits = {replica.id: (replica.hit_tokens, replica.distinct_hits) for replica in replicas}
        return [Scored(replica.id, 0.0) for replica in replicas]

    def observe(self, event: Learned) -> None:
        pass


def test_a_prefix_that_most_replicas_hold_speaks_for_none_of_them() -> None:  # production-stack#957, PR#990
    seen = Seen()
    made = Router(Choices(seen), PdPools(), Room(), PrefixIndex(IndexParams()))
    nodes = [NodeId(f"rep-{name}") for name in "abcd"]
    for node, blocks in zip(nodes, (4, 2, 2, 0), strict=True):
        made.join(node, 1, 0)
        made.hear(report(node, 1), 0)
        if blocks:
            made.commit(hashed(f"req-{node}", blocks), node, 0)
            made.begun(hashed(f"req-{node}", blocks), node, None, 0)
    made.forecast(hashed("req-1"), 0)
    assert seen.hits == dict(zip(nodes, [(256, 128), (128, 0), (128, 0), (0, 0)], strict=True))


def test_what_one_of_two_replicas_holds_speaks_for_it() -> None:
    seen = Seen()
    made = Router(Choices(seen), PdPools(), Room(), PrefixIndex(IndexParams()))
    for node in (A, B):
        made.join(node, 1, 0)
        made.hear(report(node, 1), 0)
    made.commit(hashed("req-1"), A, 0)
    made.forecast(hashed("req-2"), 0)
    assert seen.hits == {A: (256, 256), B: (0, 0)}


def test_the_replica_that_prefilled_holds_the_prefix_and_the_one_that_decodes_does_not() -> None:  # GAIE PR#2391
    made = router()
    made.commit(hashed("req-1"), A, 0)
    made.move(hashed("req-1"), A, B, 0)
    made.end(hashed("req-1"), B, 5, 0)
    assert made.index.hits_all(hashed("req-2")) == {A: 256}
    assert made.index.pending == 0


def test_a_dispatch_without_a_first_token_leaves_no_credit() -> None:
    made = router()
    made.commit(hashed("req-1"), A, 0)
    made.end(hashed("req-1"), A, 0, 0)
    made.commit(hashed("req-2"), B, 0)
    made.begun(hashed("req-2"), B, None, 0)
    made.end(hashed("req-2"), B, 3, 0)
    assert made.index.hits_all(hashed("req-3")) == {B: 256}


def test_a_lost_replica_takes_its_prefixes_along() -> None:
    made = router()
    made.commit(hashed("req-1"), A, 0)
    made.lose(A, 1, 0)
    made.end(hashed("req-1"), A, 0, 0)
    made.join(A, 2, 0)
    assert made.index.hits_all(hashed("req-2")) == {}
    assert made.index.pending == 0


def test_predicted_and_reported_cached_tokens_are_counted_once() -> None:  # AMD-AGI/Infera#143
    made = router()
    for name, cached in (("req-1", 0), ("req-2", 256), ("req-3", None)):
        made.commit(hashed(name), A, 0)
        made.begun(hashed(name), A, cached, 0)
        made.begun(hashed(name), A, cached, 0)
        made.end(hashed(name), A, 1, 0)
    assert made.tally.figures() == (PrefixFigures("synthetic", 3, 0, 256, 256, 0, 0),)


def test_an_upstream_tells_at_the_end() -> None:
    made = router()
    made.commit(hashed("req-1"), A, 0)
    made.begun(hashed("req-1"), A, None, 0)
    made.told_cached(hashed("req-1"), A, 64)
    made.end(hashed("req-1"), A, 1, 0)
    made.told_cached(hashed("req-1"), A, 64)
    assert made.tally.figures() == (PrefixFigures("synthetic", 1, 0, 0, 64, 0, 64),)


def test_a_candidate_says_what_is_predicted_to_be_cached() -> None:
    made = router()
    made.commit(hashed("req-1"), A, 0)
    words = {c.replica: c.why for c in made.forecast(hashed("req-2"), 0)}
    assert words[A].endswith("; 256 prompt tokens predicted cached")
    assert words[B].endswith("; 0 prompt tokens predicted cached")
    assert "predicted cached" not in made.forecast(llm("req-3"), 0)[0].why  # nobody hashed it
