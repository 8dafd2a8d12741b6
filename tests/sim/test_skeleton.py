"""The walking skeleton: FrontNode, ControlNode, two LLM replicas, one diffusion replica, everything at once.

Hand-off, migration, step credits and agreement run together while replicas die, clients leave and engines fail.
"""

from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from tests.sim.workloads import VOCAB, fleet, levels, mix, wrong

from headway.core.draw import draw_below
from headway.core.events import MessageArrived, PeerLost, Proposals, StepFailed
from headway.core.ids import GroupId, ModelId, NodeId, RequestId, TenantId, TransferId
from headway.core.messages import Migrate, MigrationEnded, TakeOverAck
from headway.core.request import DiffusionRequest, FinishReason, LlmRequest, Request
from headway.core.units import NS_PER_MS, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.dispatch import Patience
from headway.sched.fleet.migration import MigrationParams
from headway.sched.llm.params import CHUNKS, ORDERS, LlmParams
from headway.sched.nodes import DiffusionNode, FrontConfig, WorkerConfig
from headway.sched.registry import PolicyChoice, discover
from headway.sched.router.machine import PdPools
from headway.sched.runtime.group import GroupParams
from headway.sim.driver import SimParams
from headway.sim.fleet import CONTROL, DIFFUSION_MODEL, FRONT, Fleet
from headway.sim.network import NetworkParams
from headway.sim.truth import LinearTruth

A, B = NodeId("rep-0"), NodeId("rep-1")
PAINTER = NodeId("rep-diffusion-0")
SPAN: Ns = 250 * NS_PER_MS


def picture(place: int, seed: int) -> DiffusionRequest:
    size = 32 << draw_below(seed, "size", 0, place, 2)
    steps = 1 + draw_below(seed, "steps", 0, place, 9)
    at_ns = NS_PER_MS + draw_below(seed, "at", 0, place, SPAN)
    return DiffusionRequest(
        RequestId(f"pic-{place}"), TenantId("default"), ModelId(DIFFUSION_MODEL), steps, size, size, place, at_ns
    )


def build(seed: int, *, jumps: bool = True, check: bool = True) -> Fleet:
    """A world whose features depend on the seed."""

    def chosen(names: Iterable[str], what: str) -> str:
        known = sorted(names)
        return known[draw_below(seed, what, 0, 0, len(known))]

    credits = 1 + draw_below(seed, "credits", 0, 0, 2)
    split = draw_below(seed, "split", 0, 0, 2) == 0
    grouped = draw_below(seed, "group", 0, 0, 3) == 0
    pools = PdPools(prefill=(A,), decode=(B,), prompt_tokens_min=20) if split else PdPools()
    return fleet(
        engine=SyntheticParams(kv_blocks=60, vocab_size=VOCAB, check=True, host_slots=40),
        llm=LlmParams(
            max_seqs=12,
            step_tokens=512,
            async_depth=credits,
            order=PolicyChoice(chosen(discover(ORDERS), "order")),
            chunk=PolicyChoice(chosen(discover(CHUNKS), "chunk"), {"tokens": 256}),
            swap=draw_below(seed, "swap", 0, 0, 2) == 0,
        ),
        worker=WorkerConfig(credits=credits),
        front=FrontConfig(pools=pools, patience=Patience(attempts_max=20)),
        migration=MigrationParams(gain_tokens_min=60, cooldown_s=0.005),
        group=GroupParams(GroupId("group-0"), (A, B)) if grouped else None,
        diffusion_replicas=1,
        truth=LinearTruth(jitter=0.3, seed=seed, host_base_ns=500_000.0),
        sim=SimParams(check=check, log=True, network=NetworkParams(copy_bytes_per_s=1e6), jumps=jumps),
    )


def disturb(ran: Fleet, seed: int, requests: list[Request]) -> None:
    """Deaths, engine failures, forced migrations and impatient clients, all drawn from the seed."""

    def when(what: str, place: int) -> Ns:
        return 10 * NS_PER_MS + draw_below(seed, what, 0, place, SPAN)

    def die(node: NodeId, at_ns: Ns) -> None:
        ran.sim.at(at_ns, lambda _: ran.sim.kill(node))
        ran.sim.at(at_ns + 40 * NS_PER_MS, lambda _: ran.sim.restart(node))

    def fail(at_ns: Ns, node: NodeId) -> None:
        def inject(_: Ns) -> None:
            executor = ran.sim.lives[node].executor
            assert executor is not None
            executor.fail_next()

        ran.sim.at(at_ns, inject)

    def move(at_ns: Ns, place: int) -> None:
        name = requests[draw_below(seed, "mover", 0, place, len(requests))].id
        source, target = (A, B) if place % 2 else (B, A)
        message = Migrate(name, target, TransferId(f"forced-{place}"))
        ran.sim.at(at_ns, lambda now: ran.sim.feed(source, MessageArrived(now, "test", CONTROL, message)))

    for place, node in enumerate((A, B, PAINTER)):
        if draw_below(seed, "dies", 0, place, 2):
            die(node, when("death", place))
    for place in range(2):
        fail(when("failure", place), (A, B)[place])
    for place in range(12):
        move(when("move", place), place)
    for place, item in enumerate(requests):
        if draw_below(seed, "leaves", 0, place, 8) == 0:
            ran.sim.at(item.arrived_ns + when("leave", place), lambda _, i=item.id: ran.sim.leave(FRONT, i))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults


def simulate(seed: int) -> tuple[Fleet, list[LlmRequest], list[DiffusionRequest]]:
    texts = mix(40, seed=seed, gap_ns=SPAN // 40, longest=120)
    pictures = [picture(place, seed) for place in range(10)]
    ran = build(seed)
    ran.offer([*texts, *pictures])
    disturb(ran, seed, [*texts, *pictures])
    ran.sim.run(is_done=lambda: len(ran.sim.clients.streams) == 50 and not ran.sim.clients.open)
    # Long enough for every timer of a transfer or a gone client; a group polls for ever.
    ran.sim.run(until_ns=ran.sim.now_ns + (SPAN * 20 if ran.params.group is not None else SPAN * 200))
    return ran, texts, pictures


SEEDS = range(12)
world = cache(simulate)  # the worlds are looked at by more than one test


def heard(ran: Fleet) -> Iterator[object]:
    """Every message that a node got, and every event that is none."""
    return (getattr(turn.event, "message", turn.event) for turn in ran.sim.log.turns())


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_clients_get_the_reference_and_nothing_leaks(seed: int) -> None:  # SPEC B7, B8, C4, A11, L-2
    ran, texts, pictures = world(seed)
    streams = ran.sim.clients.streams
    stayed = [item for item in texts if not streams[item.id].has_left]
    assert wrong(ran, stayed) == []
    for item in pictures:
        end = streams[item.id].end
        assert end is not None
        assert end.reason in (FinishReason.STOP, FinishReason.CANCELLED)
    assert set(levels(ran).values()) == {0}
    assert all(stream.evidence is not None for stream in streams.values())
    painter = ran.sim.lives[PAINTER].node
    assert isinstance(painter, DiffusionNode)
    assert painter.worker.machine.running == painter.worker.machine.waiting == 0


def test_the_whole_skeleton_is_deterministic() -> None:  # SPEC J6
    assert world(3)[0].sim.log.digest() == simulate(3)[0].sim.log.digest()


def test_the_worlds_reach_what_they_claim_to_test() -> None:
    worlds = [world(seed)[0] for seed in SEEDS]
    evidence = [s.evidence for ran in worlds for s in ran.sim.clients.streams.values() if s.evidence is not None]
    assert sum(record.preemptions for record in evidence) > 20
    assert sum(record.cached_tokens for record in evidence) > 100
    assert sum(record.recompute_ms is not None for record in evidence) > 20
    assert sum(record.handoff_ms is not None for record in evidence) > 50
    got = [item for ran in worlds for item in heard(ran)]
    ended = [(item.moved, item.reason) for item in got if isinstance(item, MigrationEnded)]
    assert sum(moved for moved, _ in ended) > 30
    assert len({reason for moved, reason in ended if not moved}) >= 3
    for kind, least in ((PeerLost, 20), (StepFailed, 12), (TakeOverAck, 100), (Proposals, 200)):
        assert sum(isinstance(item, kind) for item in got) >= least, kind


def test_a_cancelled_picture_stops_within_one_denoise_step() -> None:  # SPEC H2
    ran = fleet(diffusion_replicas=1)
    item = DiffusionRequest(
        RequestId("pic-1"), TenantId("default"), ModelId(DIFFUSION_MODEL), 500, 64, 64, 1, NS_PER_MS
    )
    ran.offer([item])
    ran.sim.at(100 * NS_PER_MS, lambda _: ran.sim.leave(FRONT, item.id))
    ran.sim.run()
    executor = ran.sim.lives[PAINTER].executor
    assert executor is not None
    step_ns = round(ran.params.truth.base_ns + ran.params.truth.pixel_ns * 64 * 64)
    assert executor.busy_ns <= 100 * NS_PER_MS + step_ns
