import pytest
from tests.unit.bench.ended import end, simulated
from tests.unit.bench.pool_sample import PoolLook

from headway.bench.columns import Columns, SpanName
from headway.bench.ends import RequestEnd, Tokens, table_of
from headway.bench.series import OTHERS, TENANTS_MAX, Point, Run, series
from headway.core.units import NS_PER_MS, NS_PER_S


def columns(ends: list[RequestEnd]) -> Columns:
    found = Columns()
    found.extend(table_of(ends, Tokens([item.outcome for item in ends])))
    return found


def area(points: list[Point], values: list[float]) -> float:
    return sum(value * (point.to_s - point.from_s) for point, value in zip(points, values, strict=True))


def test_nothing_is_lost_between_the_bins() -> None:
    fleet, ends = simulated()
    found = columns(ends)
    points = series(Run(found, fleet.sim.now_ns / NS_PER_S))
    assert area(points, [point.arrivals_per_s for point in points]) == pytest.approx(len(ends))
    assert area(points, [point.ended_per_s for point in points]) == pytest.approx(len(ends))
    met = sum(found.claim("met").tolist())
    assert met > 0
    assert area(points, [point.goodput_per_s for point in points]) == pytest.approx(met)
    tokens = sum(item.outcome.output_tokens for item in ends)
    assert area(points, [point.output_tokens_per_s for point in points]) == pytest.approx(tokens)


def test_mean_numbers_in_queues_obey_littles_law() -> None:  # SPEC J3
    fleet, ends = simulated()
    found = columns(ends)
    points = series(Run(found, fleet.sim.now_ns / NS_PER_S), bins_max=37)
    mains = [point.pools["main"] for point in points]
    spans: tuple[tuple[list[float], SpanName], ...] = (
        ([point.front_waiting or 0.0 for point in points], "front"),
        ([pool.waiting or 0.0 for pool in mains], "engine"),
        ([pool.running or 0.0 for pool in mains], "run"),
    )
    for values, span in spans:
        came, left = found.span(span)
        assert area(points, values) == pytest.approx(float((left - came).sum()) / NS_PER_S)


def test_a_request_stands_in_the_bins_that_it_spans() -> None:
    ends = [end("req-0", 2, 5, 8), end("req-1", 20, 1)]  # runs from 4 ms to 10 ms
    points = series(Run(columns(ends), 0.021), bins_max=2)
    first = points[0].pools["main"]
    assert first.running == pytest.approx(6 / 10.5)
    assert points[0].output_tokens_per_s == pytest.approx(2 / 0.0105)


def test_there_are_no_more_bins_than_asked_for_or_requests() -> None:
    ends = [end(f"req-{place}", place, 5) for place in range(50)]
    assert len(series(Run(columns(ends), 0.06), bins_max=20)) == 20
    assert len(series(Run(columns(ends[:3]), 0.06))) == 3
    assert series(Run(Columns(), 1.0)) == []


def test_samples_are_means_of_their_bin_and_missing_where_none_fell() -> None:
    samples = [PoolLook(NS_PER_MS * at, "main", 2, used, 0.5) for at, used in ((1, 0.2), (4, 0.4), (25, 0.9))]
    ends = [end(f"req-{place}", place, 5) for place in range(3)]
    points = series(Run(columns(ends), 0.03, samples))
    assert [point.pools["main"].kv_used for point in points] == [pytest.approx(0.3), None, 0.9]


def test_service_of_the_tenants_adds_up_and_few_are_named() -> None:  # SPEC I3
    ends = [end(f"req-{place}", place, 5, 9, tenant=f"t{place:02}") for place in range(TENANTS_MAX + 4)]
    points = series(Run(columns(ends), 0.05))
    assert len(points[0].tenants) == TENANTS_MAX + 1
    served = sum(area(points, [point.tenants[name] for point in points]) for name in points[0].tenants)
    assert served == pytest.approx(len(ends) * 12)
    assert OTHERS in points[0].tenants


def test_requests_of_prefill_and_decode_pools_are_counted_from_samples() -> None:
    # Evidence names the replica that ended a request, which is not the one where it waited
    looks = [PoolLook(NS_PER_MS, "main", 1, 0.1, 0.5, 0.0, 3.0), PoolLook(NS_PER_MS, "prefill", 1, 0.1, 0.5, 4.0, 1.0)]
    (point,) = series(Run(columns([end("req-0", 0, 5, 8)]), 0.01, looks))
    assert (point.pools["main"].waiting, point.pools["main"].running) == (0.0, 3.0)
    assert (point.pools["prefill"].waiting, point.pools["prefill"].running) == (4.0, 1.0)


def test_open_requests_stand_in_the_system_and_in_the_front_unless_a_sample_saw_them() -> None:
    # An overloaded run that is cut off: what waits has no evidence, and would look like no queue at all
    looks = [PoolLook(NS_PER_MS * at, "main", 1, 0.1, 0.5, 2.0, 3.0) for at in (1, 19)]
    open_ns = [NS_PER_MS * 5.0] * 40
    points = series(Run(columns([end("req-0", 0, 5, 8)]), 0.02, looks, open_ns), bins_max=2)
    assert [point.in_system for point in points] == pytest.approx([0.8 + 20.0, 40.0])
    assert [point.front_waiting for point in points] == pytest.approx([0.8 + 20.0 - 5.0, 35.0])
    assert area(points, [point.arrivals_per_s for point in points]) == pytest.approx(41)


def test_where_open_requests_stood_is_unknown_without_samples() -> None:
    (point,) = series(Run(columns([end("req-0", 0, 5, 8)]), 0.02, (), [0.0]), bins_max=1)
    assert (point.front_waiting, point.pools["main"].waiting) == (None, None)
