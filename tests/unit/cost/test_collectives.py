import pytest

from headway.core.errors import ConfigError
from headway.cost.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_ns,
    combine_bytes,
    dispatch_bytes,
    forwarding_all_to_all,
    p2p,
)
from headway.cost.links import find_link

MIB = 1 << 20


@pytest.mark.parametrize(
    ("link", "ranks", "gb_per_s", "floor_us"),
    [
        ("nvlink3", 2, 171, 44),
        ("nvlink3", 4, 126, 27),
        ("nvlink3", 8, 108, 35),
        ("nvlink4", 2, 294, 19),
        ("nvlink4", 4, 229, 23),
        ("nvlink4", 8, 213, 38),
    ],
)
def test_all_reduce_holds_to_the_fits_of_vidurs_profiles(link: str, ranks: int, gb_per_s: int, floor_us: int) -> None:
    """REFERENCE 2: size over time of large messages, 20-45 us for small ones. SPEC J3."""
    line = all_reduce(find_link(link), ranks)
    size = 256 * MIB
    assert size / line.ns(size) == pytest.approx(gb_per_s, rel=0.01)  # bytes per ns are GB/s
    assert line.ns(2048) == floor_us * 1000


def test_the_ring_formula_serves_groups_that_nobody_measured() -> None:
    """2(N-1)a + 2(N-1)/N * S/B."""
    link = find_link("ib-ndr")
    expected = 2 * 15 * link.latency_ns + 2 * 15 / 16 * 1e8 / link.ring_bytes_per_s * 1e9
    assert all_reduce(link, 16).ns(1e8) == pytest.approx(expected)


def test_measured_groups_lie_near_the_ring_formula_of_their_link() -> None:
    """The catalogue's ring rate explains the measured rates of three group sizes within 30 %."""
    for name in ("nvlink3", "nvlink4"):
        link = find_link(name)
        for ranks, rate in link.all_reduce_bytes_per_s.items():
            assert 2 * (ranks - 1) / ranks * rate == pytest.approx(link.ring_bytes_per_s, rel=0.3)


def test_gathering_takes_half_a_reduction() -> None:
    link = find_link("ib-hdr")
    assert all_gather(link, 8).ns(1e7) == pytest.approx(all_reduce(link, 8).ns(1e7) / 2)


def test_one_rank_communicates_nothing() -> None:
    link = find_link("nvlink4")
    assert all_reduce(link, 1).ns(1e9) == 0
    assert all_to_all_ns(link, link, 1, 8, 1e9) == 0


def test_a_copy_takes_latency_and_bytes_over_rate() -> None:
    link = find_link("pcie5")
    assert p2p(link).ns(50e9) == pytest.approx(link.latency_ns + 50e9 / link.bytes_per_s * 1e9)


def test_a_group_beyond_the_reach_of_its_link_is_refused() -> None:
    with pytest.raises(ConfigError, match="link nvlink4 joins at most 8 devices, the group has 16"):
        all_reduce(find_link("nvlink4"), 16)


@pytest.mark.parametrize(("ranks", "dispatch_us", "combine_us"), [(8, 77, 114), (16, 118, 195), (32, 155, 273)])
def test_all_to_all_explains_deepeps_table(ranks: int, dispatch_us: float, combine_us: float) -> None:
    """DeepEP V1, H800 low latency, 128 tokens, hidden 7168, top-8 (REFERENCE 4): six values within 10 %, from one
    fixed part and two rates that DeepEP's readme gives elsewhere."""
    inside, between = find_link("nvlink4-h800"), find_link("ib-ndr")
    sent, back = dispatch_bytes(128, 8, 7168), combine_bytes(128, 8, 7168)
    assert all_to_all_ns(inside, between, ranks, 8, sent) == pytest.approx(dispatch_us * 1000, rel=0.1)
    assert all_to_all_ns(inside, between, ranks, 8, back) == pytest.approx(combine_us * 1000, rel=0.1)


def test_the_line_of_an_all_to_all_is_the_formula() -> None:
    inside, between = find_link("nvlink4"), find_link("ib-ndr")
    for size in (0.0, 1e5, 1e8):
        assert all_to_all(inside, between, 32, 8).ns(size) == pytest.approx(all_to_all_ns(inside, between, 32, 8, size))


def test_forwarding_sends_a_token_once_to_every_host() -> None:
    """With many more addressees than hosts every other host gets one copy; inside one host nothing changes."""
    inside, between = find_link("nvlink4"), find_link("ib-ndr")
    copies, token = 16, 7168.0
    line = forwarding_all_to_all(inside, between, 32, 8, copies)
    assert line.per_byte_ns * copies * token == pytest.approx(3 * token / between.bytes_per_s * 1e9, rel=0.02)
    one = forwarding_all_to_all(inside, between, 8, 8, 8)
    assert one.per_byte_ns == pytest.approx(all_to_all(inside, between, 8, 8).per_byte_ns)
