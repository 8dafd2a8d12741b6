"""Time is integer nanoseconds; conversion happens once, at the edge."""

from headway.core.units import ms_from_ns, ns_from_ms, ns_from_s, s_from_ns


def test_conversions_round_to_the_nearest_nanosecond() -> None:
    assert ns_from_s(0.1) == 100_000_000
    assert ns_from_ms(0.0000006) == 1
    assert s_from_ns(1_500_000_000) == 1.5
    assert ms_from_ns(250_000) == 0.25
