"""Fair shares between tenants by measured device time."""

from tests.unit.sched.diffusion.pictures import MS, machine, picture

from headway.core.ids import TenantId
from headway.core.request import DiffusionRequest
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.registry import PolicyChoice

FAIR = PolicyChoice("fair")


def of(tenant: str, number: int, **more: object) -> DiffusionRequest:
    return picture(f"req-{tenant}-{number}", tenant=TenantId(tenant), arrived_ns=number, **more)  # type: ignore[arg-type]  # by name


def served(painter: DiffusionMachine, requests: list[DiffusionRequest], took_ns: int = 10 * MS) -> list[str]:
    """Add all, run to the end with so much device time per step; return the tenants in order."""
    tenants = {painter.add(request): str(request.tenant) for request in requests}
    order = []
    while (plan := painter.plan()) is not None:
        if plan.rows[0].start == 0:
            order.append(tenants[plan.rows[0].seq])
        painter.done(plan.step, took_ns * plan.rows[0].count)
        painter.check_invariants()
    return order


def test_a_tenant_with_many_requests_waits_for_its_turn() -> None:
    painter = machine(order=FAIR, batch_max=1)
    requests = [of("a", number) for number in range(4)] + [of("b", number) for number in range(10, 12)]
    assert served(painter, requests) == ["a", "b", "a", "b", "a", "a"]


def test_long_requests_count_by_the_time_that_they_took() -> None:
    painter = machine(order=FAIR, batch_max=1)
    requests = [of("a", number, steps=9) for number in range(2)] + [
        of("b", number, steps=3) for number in range(10, 16)
    ]
    assert served(painter, requests) == ["a", "b", "b", "b", "a", "b", "b", "b"]


def test_a_weight_is_a_larger_share() -> None:
    painter = machine(order=FAIR, batch_max=1)
    requests = [of("a", number, tenant_weight=2) for number in range(4)] + [of("b", number) for number in range(10, 14)]
    assert served(painter, requests)[:6] == ["a", "b", "a", "a", "b", "a"]


def test_a_pause_saves_nothing_up() -> None:
    painter = machine(order=FAIR, batch_max=1)
    served(painter, [of("a", number) for number in range(5)])  # b was not there
    later = [of("b", number) for number in range(20, 24)] + [of("a", number) for number in range(30, 34)]
    assert served(painter, later) == ["b", "a", "b", "a", "b", "a", "b", "a"]


def test_a_batch_is_charged_to_those_in_it_by_their_share() -> None:
    painter = machine(order=FAIR, batch_max=2)
    shared = [of("a", 1), of("b", 2)]
    alone = [of("a", 3, size=32), of("b", 4, size=16)]
    assert served(painter, shared + alone) == ["a", "a", "b"]  # both have had the same: by arrival
