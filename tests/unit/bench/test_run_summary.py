from pathlib import Path

import msgspec
import pytest
from tests.unit.bench.ended import end, ms

from headway.bench.results import Tally
from headway.bench.run_summary import Closing, OpenRequest, PoolUse, RunSummary

CLOSING = Closing(virtual_s=10.0)
STARVED = OpenRequest(age_ns=ms(8000), tenant="late")
BEGUN = OpenRequest(age_ns=ms(6000), ttft_ns=ms(500), tenant="late")


def test_what_has_not_ended_counts_with_its_age_and_as_a_miss() -> None:  # REFERENCE 1
    tally = Tally()
    tally.ended(end("req-0", 0, 10, 20))
    summary = tally.summary(msgspec.structs.replace(CLOSING, unfinished=(STARVED, BEGUN)))
    assert (summary.sent, summary.completed, summary.unfinished) == (3, 1, 2)
    assert summary.attainment == pytest.approx(1 / 3)
    assert (summary.ttft_ms.count, summary.ttft_ms.p50, summary.ttft_ms.max) == (3, 500.0, 8000.0)
    assert (summary.e2e_ms.p50, summary.e2e_ms.max) == (6000.0, 8000.0)
    assert summary.tpot_ms.count == 1


def test_a_tenant_of_which_nothing_ended_is_there() -> None:
    tally = Tally()
    tally.ended(end("req-0", 0, 10, 20))
    tenant = tally.summary(msgspec.structs.replace(CLOSING, unfinished=(STARVED, BEGUN))).tenants["late"]
    assert (tenant.sent, tenant.completed, tenant.attainment) == (2, 0, 0.0)
    assert tenant.ttft_ms.max == 8000.0


def test_speed_counts_every_request_that_ended() -> None:
    tally = Tally()
    for place in range(4):
        tally.ended(end(f"req-{place}", 0, 10, 20))
    assert tally.summary(msgspec.structs.replace(CLOSING, cpu_s=2.0)).requests_per_cpu_s == 2.0


def test_every_key_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    keys = [*RunSummary.__struct_fields__, *PoolUse.__struct_fields__]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_fairness_is_of_what_was_served_over_what_was_wanted() -> None:  # REFERENCE 1
    """One tenant gets everything, the other half: x = 1 and 1/2, (1.5)^2 / (2 * 1.25)."""
    half = OpenRequest(age_ns=1, tenant="late", wanted_tokens=400, served_tokens=200)
    tally = Tally()
    tally.ended(end("req-0", 0, 10, 20))
    assert tally.summary(msgspec.structs.replace(CLOSING, unfinished=(half,))).jain_tenants == pytest.approx(0.9)
    assert tally.summary(CLOSING).jain_tenants is None  # one tenant has nobody to be compared with
