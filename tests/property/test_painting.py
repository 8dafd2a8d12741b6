"""Any interleaving of arrivals, batches, interruptions, cancels and deaths of workers ends every request once, with the
pictures that it would have got alone, and with nothing reserved (SPEC F6, F7, F8, L-2)."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sim.studios import FRONT_CONFIG, Studio

from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import Content, DiffusionRequest, FinishReason, Slo
from headway.core.units import NS_PER_MS, NS_PER_S, ns_from_s
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import FRONT
from headway.sim.painter import picture_alone
from headway.sim.pools import PoolParams, PoolShape, TruthParams

MODEL = "SD3.5-medium"
SPAN_MS = 6000  # in which things happen
REPLICAS = tuple(NodeId(f"rep-all-{place}") for place in range(2))
ENDED = {"ok", "cancelled", "engine_lost", "bad_input", "deadline_passed"}

moments = st.integers(0, SPAN_MS)


@st.composite
def requests(draw: st.DrawFn) -> list[DiffusionRequest]:
    """Some pictures of two sizes and some short videos, of two tenants."""
    made = []
    for number in range(draw(st.integers(3, 9))):
        at_ns = draw(moments) // 4 * NS_PER_MS
        due_s = draw(st.sampled_from([None, None, 5.0, 60.0]))
        made.append(
            DiffusionRequest(
                RequestId(f"req-{number}"),
                TenantId(draw(st.sampled_from(["a", "b"]))),
                ModelId(MODEL),
                draw(st.sampled_from([4, 12, 60])),
                draw(st.sampled_from([256, 256, 1024])),
                256,
                10 * number,
                at_ns,
                slo=Slo(e2e_deadline_ns=None if due_s is None else at_ns + ns_from_s(due_s)),
                n=draw(st.sampled_from([1, 1, 2])),
                save_every=draw(st.sampled_from([0, 1, 1, 3])),
                deterministic=draw(st.booleans()),
                content=Content(
                    previews=draw(st.integers(0, 3)), pictures=draw(st.sampled_from([(), (), (), (), (), (b"",)]))
                ),
            )
        )
    return made


settings_of_pools = st.builds(
    DiffusionParams,
    steps_per_plan=st.integers(1, 5),
    batch_max=st.integers(1, 3),
    order=st.sampled_from(["sjf", "fair", "sjf", "drr", "fifo", "sjf_aging", "least_slack"]).map(PolicyChoice),
    gain_min=st.just(1.0),
    preempt=st.one_of(
        st.builds(Preemption, resident_max=st.integers(0, 1), price_s=st.just(0.0)),
        st.none(),
        st.builds(Preemption, times_max=st.integers(1, 3), resident_max=st.integers(0, 3), price_s=st.just(0.0)),
    ),
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wanted=requests(),
    params=settings_of_pools,
    left=st.dictionaries(st.integers(0, 7), moments, max_size=3),
    killed=st.lists(st.tuples(st.sampled_from(REPLICAS), moments), max_size=3),
    failed=st.lists(st.tuples(st.sampled_from(REPLICAS), moments), max_size=3),
    warm=st.sampled_from([None, (), (PoolShape(256, 256),)]),
)
def test_every_request_ends_once_with_its_own_pictures(
    wanted: list[DiffusionRequest],
    params: DiffusionParams,
    left: dict[int, int],
    killed: list[tuple[NodeId, int]],
    failed: list[tuple[NodeId, int]],
    warm: tuple[PoolShape, ...] | None,
) -> None:
    studio = world(params, warm)
    for number, at_ms in left.items():
        studio.sim.at(at_ms * NS_PER_MS, lambda _, number=number: studio.sim.leave(FRONT, RequestId(f"req-{number}")))
    for node, at_ms in killed:
        studio.sim.at(at_ms * NS_PER_MS, lambda _, node=node: kill(studio, node))
    for node, at_ms in failed:
        studio.sim.at(at_ms * NS_PER_MS, lambda _, node=node: fail(studio, node))
    judge(studio.run(wanted), wanted)


def test_a_fault_in_a_preparation_costs_one_try_of_one_request() -> None:  # SPEC F8
    studio = world(DiffusionParams(batch_max=1), ())
    wanted = [
        DiffusionRequest(RequestId(f"req-{n}"), TenantId("a"), ModelId(MODEL), 4, 256, 256, 10 * n, 0) for n in range(6)
    ]
    for node in REPLICAS:
        fail(studio, node)
    judge(studio.run(wanted), wanted)
    ends = [studio.streams[one.id].end for one in wanted]
    assert [end.reason for end in ends if end is not None] == [FinishReason.STOP] * 6
    assert [n for n, one in enumerate(wanted) if "retry" in kinds(studio, one)] == [0]


def kinds(studio: Studio, request: DiffusionRequest) -> set[str]:
    """Of the decisions about it."""
    evidence = studio.streams[request.id].evidence
    assert evidence is not None
    return {decision.kind for decision in evidence.decisions}


@pytest.mark.parametrize("order", ["sjf", "least_slack", "drr"])
def test_a_crowded_hour_with_a_death_every_minute(order: str) -> None:  # vllm-omni PR#2729
    rng = Random(f"crowd-{order}")
    preempt = Preemption(times_max=3, resident_max=2, price_s=0.0)
    studio = world(DiffusionParams(order=PolicyChoice(order), batch_max=3, steps_per_plan=2, preempt=preempt))
    wanted = []
    for number in range(400):
        at_ns = rng.randrange(3600) * NS_PER_S
        steps, height = rng.choice([(4, 256), (12, 256), (12, 256), (200, 1024)])
        request = DiffusionRequest(
            RequestId(f"req-{number}"), TenantId(f"t{number % 3}"), ModelId(MODEL), steps, height, 256, number, at_ns
        )
        due_ns = at_ns + ns_from_s(rng.choice([200, 2000]))
        shown, slo = Content(previews=9), Slo(e2e_deadline_ns=due_ns)
        wanted.append(replace(request, save_every=rng.choice([0, 10]), slo=slo, content=shown))
    for minute in range(60):
        at_ns = (60 * minute + rng.randrange(60)) * NS_PER_S
        happens, node = rng.choice([kill, fail]), rng.choice(REPLICAS)
        studio.sim.at(at_ns, lambda _, happens=happens, node=node: happens(studio, node))
    judge(studio.run(wanted), wanted)
    counts = dict(studio.front.recovery_figures())
    assert counts["resumed"] > 3
    assert sum(record.preemptions for record in studio.evidence()) > 3


def world(params: DiffusionParams, warm: tuple[PoolShape, ...] | None = None) -> Studio:
    """Two replicas, twenty times slower than their catalogue has it. `warm`: what has run there; None: all."""
    truth = TruthParams(scale=20.0)
    pool = PoolParams(name="all", kind="diffusion", model=MODEL, replicas=2, diffusion=params, truth=truth, warm=warm)
    front = replace(FRONT_CONFIG, admission=PolicyChoice("open"))
    return Studio(pool, front=front, checks=True)


def kill(studio: Studio, node: NodeId) -> None:
    """Its process dies, and comes back."""
    sim = studio.sim
    if sim.lives[node].is_alive:
        sim.kill(node)
        sim.at(sim.now_ns + 100 * NS_PER_MS, lambda _: sim.restart(node))


def fail(studio: Studio, node: NodeId) -> None:
    """Its engine fails in the plan that runs, or in the next one."""
    executor = studio.sim.lives[node].executor
    assert executor is not None
    executor.fail_next()


def judge(studio: Studio, wanted: list[DiffusionRequest]) -> None:
    """One end each, its own pictures, previews and progress in order, and nothing held anywhere."""
    for request in wanted:
        stream = studio.streams[request.id]
        assert stream.end is not None
        assert stream.evidence is not None
        assert stream.evidence.outcome in ENDED
        made = [one for show in stream.shown for one in show.made]
        finished = [(one.index, one.body) for one in made if one.kind == "picture"]
        alone = [(index, picture_alone(request, index)) for index in range(request.n)]
        assert finished == (alone if stream.end.reason is FinishReason.STOP else alone[: len(finished)])
        previews = [one.steps for one in made if one.kind == "preview"]
        assert previews == sorted(set(previews))
        done = [show.done for show in stream.shown]
        assert done == sorted(done)
    assert all(account.reserved == 0 for account in studio.front.ledger.views())
    assert all(account.used == 0 for account in studio.front.ledger.views() if account.kind == "level")
    for node in REPLICAS:
        if studio.sim.lives[node].is_alive:
            machine = studio.painter(node).worker.machine
            assert machine.running == machine.waiting == 0
