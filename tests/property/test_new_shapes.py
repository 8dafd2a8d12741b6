"""Drawn arrivals of warm and new shapes at one replica: no request of a warm shape waits for more slices of
preparations than it may, and every one ends with the pictures that it would have got alone (SPEC F8)."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sim.studios import FRONT_CONFIG, Studio

from headway.core.effects import RunDenoise, Send
from headway.core.events import MessageArrived
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Finished, Submit
from headway.core.plans import DenoisePlan
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import NS_PER_MS
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import FRONT
from headway.sim.painter import picture_alone
from headway.sim.pools import PoolParams, PoolShape

MODEL, REPLICA = ModelId("SD3.5-medium"), NodeId("rep-all-0")
WARM, NEW = (256, 256), ((256, 512), (512, 512), (1024, 256))
SPAN_MS = 2000

moments = st.integers(0, SPAN_MS)
arrivals = st.lists(
    st.tuples(moments, st.sampled_from([WARM, WARM, *NEW]), st.sampled_from([1, 4, 12])), min_size=2, max_size=12
)
machines = st.builds(
    DiffusionParams,
    steps_per_plan=st.integers(1, 3),
    batch_max=st.integers(1, 3),
    order=st.sampled_from(["fifo", "sjf", "fair", "least_slack"]).map(PolicyChoice),
    gain_min=st.just(1.0),
    preempt=st.sampled_from([None, Preemption(resident_max=1, price_s=0.0)]),
    prepare_slices_max=st.integers(1, 2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=arrivals, params=machines, left=st.dictionaries(st.integers(0, 11), moments, max_size=3))
@example(drawn=[(0, WARM, 4), (0, NEW[0], 1)], params=DiffusionParams(batch_max=1), left={0: 70})  # while a slice runs
def test_no_warm_request_waits_for_more_slices_than_it_may(
    drawn: list[tuple[int, tuple[int, int], int]], params: DiffusionParams, left: dict[int, int]
) -> None:
    # A first run takes half a second more.
    pool = PoolParams(
        name="all", kind="diffusion", model=MODEL, start_s=0.5, diffusion=params, warm=(PoolShape(*WARM),)
    )
    studio = Studio(pool, front=replace(FRONT_CONFIG, admission=PolicyChoice("open")), checks=True, log=True)
    wanted = [
        DiffusionRequest(
            RequestId(f"req-{n}"), TenantId(f"t{n % 2}"), MODEL, steps, height, width, 10 * n, at_ms * NS_PER_MS
        )
        for n, (at_ms, (height, width), steps) in enumerate(drawn)
    ]
    for number, at_ms in left.items():
        studio.sim.at(at_ms * NS_PER_MS, lambda _, number=number: studio.sim.leave(FRONT, RequestId(f"req-{number}")))
    studio.run(wanted)
    waited = slices_waited(studio)
    assert all(count <= params.prepare_slices_max for count in waited.values()), waited
    for request in wanted:
        stream = studio.streams[request.id]
        assert stream.end is not None  # nothing hangs
        pictures = [one.body for show in stream.shown for one in show.made if one.kind == "picture"]
        if stream.end.reason is FinishReason.STOP:
            assert pictures == [picture_alone(request)]
        else:
            assert int(request.id.removeprefix("req-")) in left
    machine = studio.painter(REPLICA).worker.machine
    assert machine.running == machine.waiting == 0
    assert not machine.preparing.is_due
    machine.check_invariants()  # nothing is held


def slices_waited(studio: Studio) -> dict[RequestId, int]:
    """Slices that ran at the replica while a request was there whose shape had run, by what it said and did."""
    warm, here, waited = {WARM}, dict[RequestId, DiffusionRequest](), dict[RequestId, int]()
    slice_open: DenoisePlan | None = None
    for turn in studio.sim.log.turns():
        if turn.node != REPLICA:
            continue
        event = turn.event
        if isinstance(event, MessageArrived) and isinstance(event.message, Submit):
            request = event.message.request
            assert isinstance(request, DiffusionRequest)
            here[request.id], waited[request.id] = request, 0
            waited[request.id] = int(slice_open is not None and (request.height, request.width) in warm)
        elif slice_open is not None and type(event).__name__ == "DenoiseDone":
            (row,) = slice_open.rows
            if row.start + row.count == row.total:
                warm.add((slice_open.height, slice_open.width))
            slice_open = None
        for effect in turn.effects:
            if isinstance(effect, Send) and isinstance(effect.message, Finished):
                here.pop(effect.message.request, None)
            elif isinstance(effect, RunDenoise) and effect.plan.rows[0].seq < 0:
                slice_open = effect.plan
                for request in here.values():
                    waited[request.id] += (request.height, request.width) in warm
    return waited
