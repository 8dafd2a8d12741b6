"""Whole systems out of scenarios: pools, roles, clients and links, with the nodes that serve in production."""

import msgspec
import pytest
from tests.sim.systems import EXACT, SMALL, linear, ran, scenario

from headway.core.errors import ConfigError
from headway.core.ids import ModelId, NodeId
from headway.core.slo import Targets
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.cost.links import find_link
from headway.sched.config import FrontConfig, RouteConfig, WorkerConfig
from headway.sched.dispatch import Patience
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.sched.watch import Silence
from headway.sim.catalogue import Additions
from headway.sim.eventlog import replay
from headway.sim.fleet import CONTROL, FRONT
from headway.sim.linear import LinearParams
from headway.sim.pools import EngineSize, PoolParams
from headway.sim.scenario import GatewaySettings, NetworkSettings, RunSettings
from headway.sim.system import pool_of
from headway.workload.arrivals import Poisson
from headway.workload.lengths import Lengths
from headway.workload.spec import Diffusion, PictureShape


def test_every_request_gets_the_tokens_that_the_workload_says() -> None:  # SPEC J1
    _, kept = ran(scenario())
    assert len(kept.ended) == SMALL.count
    assert all(len(stream.tokens) == offered.output_tokens for offered, stream, _ in kept.ended)
    assert kept.replicas == {"rep-pool-0", "rep-pool-1"}


def test_the_same_seed_gives_the_same_log_and_another_seed_another() -> None:  # SPEC J6
    first, second, other = (ran(scenario(seed=seed), log=True)[0].sim.log.digest() for seed in (3, 3, 4))
    assert first == second != other


def test_without_jumps_clients_see_the_same() -> None:  # SPEC J1
    pools = (linear(name="p", role="prefill", replicas=2), linear(name="d", role="decode", replicas=2))
    seen = []
    for jumps in (True, False):
        _, kept = ran(scenario(*pools, sim=RunSettings(jumps=jumps)))
        seen.append([(record, stream.times_ns, stream.tokens) for _, stream, record in kept.ended])
    assert seen[0] == seen[1]


def test_every_node_replays_from_the_log() -> None:  # SPEC J6
    system, _ = ran(scenario(), log=True)
    assert replay(system.build_front(), system.sim.log.of(FRONT)) is None
    assert replay(system.build_control(), system.sim.log.of(CONTROL)) is None
    (pool,) = system.pools
    for place, node in enumerate(pool.replicas):
        assert replay(pool.build(place, 1), system.sim.log.of(node)) is None


def test_prefill_and_decode_pools_share_every_request_and_copy_its_kv() -> None:  # SPEC C3, J1
    prompts = linear(name="p", role="prefill", replicas=2)
    tokens = linear(name="d", role="decode", replicas=1)
    system, kept = ran(scenario(prompts, tokens))
    assert {record.replica for offered, _, record in kept.ended if offered.output_tokens > 1} == {"rep-d-0"}
    assert len(kept.ended) == SMALL.count
    copied = sum(record.transfer_bytes or 0 for _, _, record in kept.ended)
    block = tokens.engine.block_size * tokens.linear.kv_bytes_per_token
    prompt_tokens = [offered.request.prompt_tokens for offered, _, _ in kept.ended if offered.output_tokens > 1]  # type: ignore[union-attr]  # LLM requests only
    blocks = sum(-(-tokens // 16) for tokens in prompt_tokens)
    assert copied == system.sim.copies.bytes_moved
    assert copied == pytest.approx(blocks * block, rel=0.1)  # prompts whose KV is cached there are not copied


def test_a_slower_link_makes_the_second_token_later() -> None:  # SPEC C3
    pools = (linear(name="p", role="prefill"), linear(name="d", role="decode"))
    gaps = []
    calm = msgspec.structs.replace(SMALL, arrivals=Poisson(rate_per_s=5.0), prompt=Lengths(kind="fixed", mean=200.0))
    for bytes_per_s in (100e9, 1e9):
        link = msgspec.structs.replace(find_link("ib-ndr"), name="mine", bytes_per_s=bytes_per_s)
        network, catalogue = NetworkSettings(kv_link="mine"), Additions(links=(link,))
        _, kept = ran(scenario(*pools, workload=(calm,), network=network, catalogue=catalogue))
        waits = [stream.times_ns[1] - stream.times_ns[0] for _, stream, _ in kept.ended if len(stream.times_ns) > 1]
        gaps.append(sum(waits) / len(waits) / NS_PER_MS)
    # 13 blocks of 16 tokens of 131072 bytes are 27 MB: 0.3 ms, or 27 ms and a while until the next step
    assert gaps[1] - gaps[0] == pytest.approx(27, rel=0.2)


def test_a_model_served_whole_lives_beside_one_served_in_two_pools() -> None:
    pools = (
        linear(name="whole", model="small", replicas=2),
        linear(name="p", role="prefill", model="large"),
        linear(name="d", role="decode", model="large"),
    )
    _, kept = ran(scenario(*pools))
    assert kept.replicas == {"rep-whole-0", "rep-whole-1"}
    assert {offered.request.model for offered, _, _ in kept.ended} == {ModelId("small")}


def test_the_way_to_the_gateway_and_its_cpu_come_before_the_first_token() -> None:
    pool = linear(truth=EXACT)
    near = ran(scenario(pool, gateway=GatewaySettings(request_us=0)))[1]
    far = ran(scenario(pool, network=NetworkSettings(client_ms=30), gateway=GatewaySettings(request_us=2000)))[1]
    first_near, first_far = (min(stream.ttft_ns or 0 for _, stream, _ in kept.ended) for kept in (near, far))
    assert first_far - first_near == pytest.approx(32 * NS_PER_MS, rel=0.02)  # one way, and 2 ms of CPU


def test_requests_wait_for_the_cpu_of_the_gateway_one_after_the_other() -> None:
    burst = msgspec.structs.replace(SMALL, arrivals=Poisson(rate_per_s=1e6), count=50)
    _, kept = ran(scenario(workload=(burst,), gateway=GatewaySettings(request_us=10_000)))
    admitted_ms = sorted(record.segments["admission"] for _, _, record in kept.ended)
    assert admitted_ms[0] == pytest.approx(10, abs=0.1)
    assert admitted_ms[-1] == pytest.approx(500, abs=0.1)


def test_targets_are_promised_to_requests_that_bring_none() -> None:
    _, kept = ran(scenario(targets=Targets(ttft_ms=500, tpot_ms=40)))
    offered, stream, _ = kept.ended[0]
    assert offered.request.slo.ttft_deadline_ns == stream.sent_ns + 500 * NS_PER_MS  # clients sit at the gateway
    assert offered.request.slo.tpot_ns == 40 * NS_PER_MS


def test_a_run_may_end_at_a_time() -> None:
    system, kept = ran(scenario(sim=RunSettings(until_s=1.0)))
    assert system.sim.now_ns == NS_PER_S
    assert system.sim.clients.streams
    assert len(system.sim.clients.streams) + len(kept.ended) == system.sim.offers.arrived < SMALL.count


def test_who_is_given_up_may_still_be_in_a_plan_of_long_steps() -> None:
    slow = linear(replicas=2, linear=LinearParams(step_us=4e6), scheduler=LlmParams(max_seqs=4, step_tokens=512))
    silence = Patience(silence=Silence(first_token_s=3.0))
    front = FrontConfig(router=PolicyChoice("round_robin"), admission=PolicyChoice("open"), patience=silence)
    work = msgspec.structs.replace(SMALL, count=12, output=Lengths("fixed", 1))
    _, kept = ran(scenario(slow, workload=(work,), front=front))
    assert len(kept.ended) == 12
    assert any(record.outcome == "engine_lost" for _, _, record in kept.ended)


def test_the_router_sees_of_a_scraped_pool_what_a_metrics_page_tells() -> None:  # REFERENCE 5
    system, kept = ran(scenario(linear(replicas=2, seen="scrape")))
    assert len(kept.ended) == SMALL.count
    reports = [replica.report for replica in system.front.router.replicas.values()]
    assert {report.source for report in reports if report is not None} == {"scrape"}
    assert {report.waiting_prefill_tokens for report in reports if report is not None} == {0}


def test_requests_that_no_replica_could_ever_hold_are_refused_with_words() -> None:
    tiny = linear(engine=EngineSize(kv_blocks=8))
    _, kept = ran(scenario(tiny))
    errors = {stream.end.error.code for _, stream, _ in kept.ended if stream.end is not None and stream.end.error}
    assert errors


def test_language_and_pictures_pass_one_front() -> None:  # SPEC J1
    paint = PoolParams(name="paint", kind="diffusion", model="FLUX.1-dev")
    pictures = Diffusion(name="pics", model="FLUX.1-dev", count=6, shapes=(PictureShape(steps=4),))
    talk = msgspec.structs.replace(SMALL, name="talk", model="llama-3.1-8b")
    targets = Targets(ttft_ms=300)  # promised to text alone: pictures have no first token
    wanted = scenario(linear(name="talk"), paint, workload=(talk, pictures), targets=targets)
    system, kept = ran(wanted, log=True)
    served = {(offered.request.model, record.replica) for offered, _, record in kept.ended}
    assert served == {("llama-3.1-8b", "rep-talk-0"), ("FLUX.1-dev", "rep-paint-0")}
    assert len(kept.ended) == SMALL.count + 6
    assert all(stream.end is not None and stream.end.error is None for _, stream, _ in kept.ended)
    assert system.sim.log.digest() == ran(wanted, log=True)[0].sim.log.digest()


def test_what_admission_moves_to_another_model_is_answered_there_once() -> None:  # SPEC A7
    pools = (
        linear(name="large", model="large"),
        linear(name="small", model="small", replicas=3, engine=EngineSize(kv_blocks=400, block_size=32)),
    )
    crowd = Poisson(rate_per_s=75.0)
    burst = msgspec.structs.replace(SMALL, model="large", count=120, arrivals=crowd, tells_length=True)
    front = FrontConfig(routes={"large": RouteConfig(transfers_to=("small",))})
    _, kept = ran(scenario(*pools, workload=(burst,), front=front, targets=Targets(ttft_ms=50)))
    assert len(kept.ended) == 120
    moved = [(offered, stream, record) for offered, stream, record in kept.ended if "~" in offered.request.id]
    assert len(moved) >= 5
    for offered, stream, record in moved:
        assert (offered.request.model, pool_of(NodeId(record.replica or ""))) == ("small", "small")
        assert len(stream.tokens) == offered.output_tokens
        assert stream.sent_ns == offered.request.arrived_ns


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"front": FrontConfig(router=PolicyChoice("nope"))}, "^front.router.type is 'nope'"),
        ({"scheduler": LlmParams(order=PolicyChoice("nope"))}, "^pool pool: scheduler.order.type is 'nope'"),
        ({"worker": WorkerConfig(pace=PolicyChoice("nope"))}, "^pool pool: worker.pace.type is 'nope'"),
    ],
)
def test_an_unknown_policy_is_refused_by_its_whole_key(change: dict[str, object], said: str) -> None:
    wanted = scenario(**change) if "front" in change else scenario(linear(**change))
    with pytest.raises(ConfigError, match=said):
        ran(wanted)
