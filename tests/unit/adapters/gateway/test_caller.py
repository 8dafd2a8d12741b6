import pytest

from headway.adapters.gateway.caller import Remembered, RequestIndex, request_id, slo_of, trace_context
from headway.adapters.gateway.settings import SloDefaults
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import RequestError
from headway.core.ids import RequestId, TenantId
from headway.core.request import Slo
from headway.core.units import NS_PER_MS

TRACE = "0af7651916cd43dd8448eb211c80319c"
A, B, ADMIN = Tenant(TenantId("a")), Tenant(TenantId("b")), Tenant(TenantId("ops"), admin=True)


def entry(tenant: Tenant, *requests: str) -> Remembered:
    return Remembered(tenant.id, tuple(map(RequestId, requests)), TRACE)


def test_an_id_is_echoed_or_minted() -> None:
    assert request_id({"x-request-id": "mine-1"}) == ("mine-1", False)
    first, second = request_id({}), request_id({})
    assert first[1]
    assert first[0] != second[0]


@pytest.mark.parametrize("bad", ["", "a b", "é", "x" * 257, "a\tb"])
def test_an_id_that_cannot_stand_in_a_header_is_refused(bad: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_id({"x-request-id": bad})
    assert caught.value.param == "x-request-id"


def test_a_trace_goes_on_with_a_span_of_ours() -> None:
    trace = trace_context({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    assert trace.trace_id == TRACE
    assert trace.span_id != "b7ad6b7169203331"
    assert trace.parent == f"00-{TRACE}-{trace.span_id}-01"


def test_the_first_sequence_has_the_requests_span_and_the_others_are_its_children() -> None:
    # SPEC I4
    trace = trace_context({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    first, second = trace.context(0, "chat"), trace.context(1, "chat")
    assert (first.trace_id, first.span_id, first.parent_id) == (TRACE, trace.span_id, "b7ad6b7169203331")
    assert (second.trace_id, second.parent_id) == (TRACE, trace.span_id)
    assert second.span_id not in (first.span_id, first.parent_id)


def test_a_clients_flag_says_whether_its_trace_is_sampled_and_one_of_ours_is() -> None:
    def is_sampled(headers: dict[str, str]) -> bool:
        return trace_context(headers).context(0, "chat").is_sampled

    assert is_sampled({})
    assert is_sampled({"traceparent": f"00-{TRACE}-b7ad6b7169203331-03"})
    assert not is_sampled({"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"})


@pytest.mark.parametrize("bad", ["", "junk", f"00-{'0' * 32}-b7ad6b7169203331-01", f"ff-{TRACE}-b7ad6b7169203331-01"])
def test_a_broken_trace_starts_anew(bad: str) -> None:
    assert trace_context({"traceparent": bad}).trace_id not in (TRACE, "0" * 32)


def test_slo_headers_become_absolute_deadlines_at_arrival() -> None:
    # SPEC L-4
    slo = slo_of({"x-slo-ttft-ms": "200", "x-slo-tpot-ms": "12.5", "x-slo-e2e-ms": "3000"}, SloDefaults(), 1000)
    assert slo == Slo(1000 + 200 * NS_PER_MS, 12_500_000, 1000 + 3000 * NS_PER_MS)


def test_a_header_goes_before_the_routes_default() -> None:
    defaults = SloDefaults(ttft_ms=1.0, tpot_ms=2.0)
    assert slo_of({"x-slo-ttft-ms": "5"}, defaults, 0) == Slo(5 * NS_PER_MS, 2 * NS_PER_MS, None)


@pytest.mark.parametrize("bad", ["soon", "-1", "0", "nan", "inf", "1e300"])
def test_a_broken_slo_is_refused_by_name(bad: str) -> None:
    with pytest.raises(RequestError) as caught:
        slo_of({"x-slo-e2e-ms": bad}, SloDefaults(), 0)
    assert caught.value.param == "x-slo-e2e-ms"


def test_tenants_do_not_find_each_others_requests() -> None:
    # SPEC M5
    index = RequestIndex(10)
    index.remember("x", entry(A, "req-1"))
    assert index.find("x", B) is None
    assert index.find("x", A) == index.find("x", ADMIN) == entry(A, "req-1")


def test_the_same_id_of_two_tenants_names_two_requests() -> None:
    index = RequestIndex(10)
    index.remember("x", entry(A, "req-1"))
    index.remember("x", entry(B, "req-2"))
    assert index.find("x", A) == entry(A, "req-1")
    assert index.find("x", B) == index.find("x", ADMIN) == entry(B, "req-2")


def test_the_oldest_id_is_forgotten() -> None:
    index = RequestIndex(2)
    for name in ("x", "y", "x", "z"):
        index.remember(name, entry(A, f"req-{name}"))
    assert index.find("y", A) is None
    assert index.find("x", A) is not None
    assert index.find("y", ADMIN) is None
