"""The global queue against adversarial tenants: service lag stays bounded, nobody starves (SPEC A9, A10)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sched.router.views import llm

from headway.core.ids import TenantId
from headway.core.units import NS_PER_S
from headway.sched.admission.queue import GlobalQueue, QueueParams, line_of

LINE = line_of(llm("req"))
TENANTS = [TenantId(name) for name in ("a", "b", "c")]
LONGEST = 64
# arrives: (tenant, prompt, expected output, real output); or a dispatch
arrival = st.tuples(st.sampled_from(TENANTS), st.integers(1, LONGEST), st.integers(0, LONGEST), st.integers(0, LONGEST))
event = st.one_of(arrival, st.none())
Event = tuple[TenantId, int, int, int] | None


# SPEC A10  (VTC, OSDI'24, theorem 4.4: the gap of two backlogged tenants never exceeds what one request can cost)
@settings(max_examples=150, deadline=None)
@given(st.lists(event, max_size=120))
def test_the_gap_between_backlogged_tenants_is_bounded_by_one_request(
    events: list[tuple[TenantId, int, int, int] | None],
) -> None:
    queue, costs = GlobalQueue(QueueParams(low_share=0, aging_steps_max=0)), {}
    for number, one in enumerate(events):
        if one is not None:
            tenant, prompt, expected, _ = one
            queue.push(llm(f"req-{number:03}", prompt=prompt, arrived_ns=number, tenant=tenant))
            costs[f"req-{number:03}"] = (tenant, prompt, expected)
        elif (head := queue.head(LINE, number)) is not None:
            tenant, prompt, expected = costs.pop(head)
            queue.dispatch(llm(head, prompt=prompt, tenant=tenant), expected, number)
        backlogged = sorted({tenant for tenant, _, _ in costs.values()})
        served = [queue.service(LINE, tenant) for tenant in backlogged]
        if served:
            assert max(served) - min(served) <= LONGEST + 2.0 * LONGEST


# SPEC A10
@settings(max_examples=100, deadline=None)
@given(st.lists(arrival, min_size=1, max_size=60))
def test_settling_at_the_end_makes_the_counters_exact(arrivals: list[tuple[TenantId, int, int, int]]) -> None:
    queue = GlobalQueue()
    for number, (tenant, prompt, expected, real) in enumerate(arrivals):
        request = llm(f"req-{number}", prompt=prompt, tenant=tenant)
        before = queue.service(LINE, tenant)
        queue.push(request)
        lifted = queue.service(LINE, tenant)
        assert lifted >= before
        queue.dispatch(request, expected, number)
        queue.ended(request, real)
        assert queue.service(LINE, tenant) == lifted + prompt + 2.0 * real


# SPEC A9
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 9), max_size=200), st.integers(0, 3))
def test_no_flood_of_urgent_requests_starves_the_least_urgent(urgencies: list[int], cap: int) -> None:
    queue = GlobalQueue(QueueParams(low_share=0.1, aging_steps_max=cap))
    queue.push(llm("req-low", urgency=-9))
    for number, urgency in enumerate(urgencies):
        queue.push(llm(f"req-{number:03}", arrived_ns=number, urgency=urgency))
        head = queue.head(LINE, number * NS_PER_S)
        assert head is not None
        if head == "req-low":
            return
        queue.dispatch(llm(head, urgency=-9 if head == "req-low" else urgencies[int(head[4:])]), 1, number * NS_PER_S)
        assert number < 10, "it waits longer than its share says"
