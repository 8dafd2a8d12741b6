import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.core.request import Slo
from headway.core.units import NS_PER_MS
from headway.live.config_layers import Layer, build
from headway.live.config_reference import reference
from headway.workload.arrivals import Gamma
from headway.workload.spec import Azure, ClosedLoop, Sessions, SloParams, Synthetic, WorkloadParams, names


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workload: tuple[WorkloadParams, ...] = (Synthetic(),)


def read(*tables: dict[str, object]) -> tuple[WorkloadParams, ...]:
    """As a scenario file is read."""
    scenario, _ = build(Scenario, [Layer("s.toml", {"workload": list(tables)})])
    return scenario.workload


def test_a_table_is_of_its_kind() -> None:  # SPEC J2
    gamma = {"kind": "gamma", "cv": 3.0}
    one, two, three = read(
        {"kind": "synthetic", "arrivals": gamma}, {"kind": "sessions"}, {"kind": "closed_loop", "clients": 3}
    )
    assert one == Synthetic(arrivals=Gamma(cv=3.0))
    assert two == Sessions()
    assert three == ClosedLoop(clients=3)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, 'key `workload[0]`: expected a table whose `kind` is one of "synthetic", "sessions", "closed_loop"'),
        ({"kind": "sesions"}, 'did you mean "sessions"?'),
        ({"kind": "synthetic", "rate": 3}, "unknown key `workload[0].rate`"),
        ({"kind": "synthetic", "slo": {"ttft": 1}}, "did you mean `workload[0].slo.ttft_ms`?"),
        ({"kind": "synthetic", "slo": {"tpot_ms": 0}}, "key `workload[0].slo.tpot_ms`: expected number (> 0"),
        ({"kind": "synthetic", "slo": {"ttft_ms_per_1k": 9}}, "slo.ttft_ms, which it adds to, is not"),
        ({"kind": "synthetic", "arrivals": {"kind": "poisson", "cv": 2}}, "unknown key `workload[0].arrivals.cv`"),
        ({"kind": "sessions", "arrivals": {"kind": "gamma", "cv": 0}}, "key `workload[0].arrivals.cv`"),
        ({"kind": "sessions", "turns": {"mean": 0.5}}, "key `workload[0].turns`: lengths need 1 <= mean"),
        ({"kind": "sessions", "system_tokens": 30_000}, "context_max 32768 has no room for a prompt beside 30000"),
        (
            {"kind": "synthetic", "arrivals": {"kind": "on_off", "on_s": 1e-6, "off_s": 1e-6}},
            "key `workload[0].arrivals`: on_s + off_s bring 2e-05 arrivals",
        ),
        ({"kind": "closed_loop", "clients": 0}, "key `workload[0].clients`: expected integer (≥ 1"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_its_key(table: dict[str, object], text: str) -> None:  # SPEC J2
    with pytest.raises(ConfigError) as caught:
        read(table)
    assert text in str(caught.value)


def test_two_workloads_of_one_name_are_refused() -> None:
    assert names((Synthetic(), Synthetic(name="b"), Synthetic())) == ["0", "b", "2"]
    with pytest.raises(ConfigError, match=r"workload\[0\] and workload\[2\] are both called 'a'"):
        names((Synthetic(name="a"), Synthetic(), Synthetic(name="a")))


def test_an_slo_is_fixed_at_arrival_and_what_is_unset_is_not_promised() -> None:  # SPEC L-4
    assert SloParams().at(5, 100) == Slo()
    slo = SloParams(ttft_ms=1000.0, ttft_ms_per_1k=62.5, tpot_ms=20.0, e2e_ms=9000.0).at(7, 16_000)
    assert slo == Slo(7 + 2000 * NS_PER_MS, 20 * NS_PER_MS, 7 + 9000 * NS_PER_MS)


def test_the_reference_shows_every_kind_once_with_its_comments() -> None:
    page = reference(Scenario, "# Keys")
    assert 'table by `kind`: "synthetic", "sessions", "closed_loop"' in page
    assert page.count('## [[workload]] kind = "sessions"') == 1
    assert page.count('## [workload[].arrivals] kind = "gamma"') == 1
    assert page.count("`tenants` | integer (≥ 1, ≤ 1000000000) | `1` | more than one: TENANT-0") == 10


def test_the_example_of_the_page_is_a_workload() -> None:
    page = (Path(__file__).parents[3] / "docs/workloads.md").read_text(encoding="utf-8")
    example = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    assert [type(spec) for spec in read(*example["workload"])] == [Synthetic, Sessions, Azure]
    kinds = [option.__struct_config__.tag for option in get_args(WorkloadParams)]
    assert all(f"`{kind}`" in page for kind in kinds)
