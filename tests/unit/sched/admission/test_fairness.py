from tests.unit.sched.router.views import llm

from headway.core.ids import TenantId
from headway.sched.admission.fairness import Service

A, B = TenantId("a"), TenantId("b")


def test_a_dispatch_is_charged_once_and_settled_by_what_was_answered() -> None:
    service = Service(output_weight=2.0)
    request = llm("req-1", prompt=10, tenant=A)
    service.dispatched(request, 8)
    service.dispatched(request, 8)  # after a loss it runs again; that is not its tenant's doing
    assert service.of(A) == 10 + 16
    service.ended(request.id, 3)
    service.ended(request.id, 3)
    assert service.of(A) == 10 + 6


def test_weight_divides_service() -> None:
    service = Service(output_weight=1.0)
    service.dispatched(llm("req-1", prompt=30, tenant=A, tenant_weight=3), 0)
    assert service.of(A) == 10


# SPEC A10
def test_a_tenant_that_was_idle_earns_no_credit() -> None:
    service = Service(output_weight=1.0)
    service.dispatched(llm("req-1", prompt=100, tenant=A), 0)
    service.joined(B, [A])
    assert service.of(B) == 100


def test_into_an_empty_queue_it_comes_level_with_the_last_one_served() -> None:
    service = Service(output_weight=1.0)
    service.dispatched(llm("req-1", prompt=100, tenant=A), 0)
    service.joined(B, [])
    assert service.of(B) == 100


def test_joining_never_takes_service_away() -> None:
    service = Service(output_weight=1.0)
    service.dispatched(llm("req-1", prompt=100, tenant=A), 0)
    service.joined(A, [B])
    assert service.of(A) == 100
