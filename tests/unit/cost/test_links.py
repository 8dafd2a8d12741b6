import pytest

from headway.core.errors import ConfigError
from headway.cost.links import LINKS, find_link, link_of


def test_every_link_says_where_its_numbers_come_from_and_when() -> None:
    assert [link.name for link in LINKS.values() if not link.source or len(link.date) != 7] == []


def test_no_link_reaches_more_than_its_data_sheet() -> None:
    assert [link.name for link in LINKS.values() if link.bytes_per_s > link.peak_bytes_per_s] == []
    assert [link.name for link in LINKS.values() if link.ring_bytes_per_s > link.peak_bytes_per_s] == []


def test_finds_a_link_whatever_its_case() -> None:
    assert find_link("IB-NDR") is LINKS["ib-ndr"]


def test_an_unknown_link_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"link 'nvlnk4' is in no catalogue; did you mean 'nvlink4'\?"):
        find_link("nvlnk4")


def test_a_user_file_adds_a_link_with_measured_groups() -> None:
    mine = link_of(
        {
            "name": "mine",
            "kind": "host",
            "peak_bytes_per_s": 1e9,
            "bytes_per_s": 1e9,
            "ring_bytes_per_s": 1e9,
            "latency_ns": 1000,
            "devices_max": 4,
            "floors_ns": {"4": 5000},
            "source": "test",
            "date": "2026-11",
        }
    )
    assert find_link("mine", {"mine": mine}).floors_ns == {4: 5000}


def test_a_user_link_with_a_rate_of_zero_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"link 'mine' cannot be read: .*peak_bytes_per_s"):
        link_of({"name": "mine", "kind": "host", "peak_bytes_per_s": 0})
