import pytest

from headway.core.errors import ConfigError
from headway.cost.devices import DEVICES, device_of, find_device
from headway.cost.links import find_link

MINE = {
    "name": "mine",
    "flops": {"bfloat16": 1e12},
    "bytes_per_s": 1e11,
    "memory_bytes": 16e9,
    "link": "pcie4",
    "source": "test",
    "date": "2026-11",
}


def test_every_device_says_where_its_numbers_come_from_and_when() -> None:
    assert [device.name for device in DEVICES.values() if not device.source or len(device.date) != 7] == []


def test_every_device_names_links_of_the_catalogue() -> None:
    for device in DEVICES.values():
        assert find_link(device.link).kind == "host"
        assert find_link(device.network).kind == "network"


def test_the_catalogue_holds_what_the_issue_names() -> None:
    """SPEC J3: issue 4's list of devices."""
    wanted = [
        "H100-SXM",
        "H100-PCIe",
        "H200",
        "B200",
        "A100-80G",
        "A10",
        "L40S",
        "L4",
        "RTX-4090",
        "MI300X",
        "cpu-2core",
    ]
    assert [name for name in wanted if name not in DEVICES] == []


def test_narrow_weights_run_in_the_widest_product_that_the_device_lacks_no_unit_for() -> None:
    assert find_device("A100-80G").product_type("fp8") == "bfloat16"
    assert find_device("H100-SXM").product_type("mxfp4") == "bfloat16"
    assert find_device("B200").product_type("mxfp4") == "fp4"


def test_a_dtype_that_nothing_multiplies_is_refused() -> None:
    device = device_of({**MINE, "flops": {"fp8": 1e12}})
    with pytest.raises(ConfigError, match="device mine multiplies fp8, none of which serves dtype 'bfloat16'"):
        device.flops_of("bfloat16")


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype 'bf8' is unknown; known are float32"):
        find_device("H200").flops_of("bf8")


def test_a_user_file_adds_a_device_and_wins_over_the_catalogue() -> None:
    mine = device_of({**MINE, "name": "H200"})
    assert find_device("h200", {"H200": mine}) is mine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops": {"bf16": 1e12}}, "flops names bf16; known are float32"),
        ({"flops": {}}, "flops names nothing"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory": 1}, "unknown field `memory`"),
    ],
)
def test_a_user_device_that_does_not_fit_is_refused_by_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        device_of({**MINE, **change})


def test_a_missing_device_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match="device 'quantum' is in no catalogue; known are A10, A100-40G"):
        find_device("quantum")
