import math
from pathlib import Path

import pytest

from headway.bench.routing import RoutingSummary, Window, jain, run
from headway.sched.registry import PolicyChoice
from headway.sim.routing_fleet import RoutingFleetParams, kinds
from headway.workload.mooncake import Deadlines, Slice, read_trace, requests

HEAD = Path(__file__).parents[2] / "sim/mooncake_head.jsonl"
OPEN = PolicyChoice("bounded", {"queue_max": 1_000_000, "confidence_min": 1e9})


def summary(rate: float = 8_000.0, deadlines: Deadlines | None = None, patience_s: float = 60.0) -> RoutingSummary:
    part = Slice(count=40, prompt_tokens_per_s=rate, deadlines=deadlines or Deadlines(tpot_ms=100.0))
    offered = list(requests(read_trace(HEAD), part, "llama-3-70b"))
    params = RoutingFleetParams(kinds("uniform", 2), PolicyChoice("least_tokens"), OPEN)
    return run(params, offered, Window(warm=8, cool=2, patience_s=patience_s))


def test_at_light_load_all_is_good() -> None:
    light = summary()
    assert (light.offered, light.refused, light.unfinished) == (30, 0, 0)
    assert light.attainment == light.attainment_deadlines == 1.0
    assert light.goodput_per_s == pytest.approx(light.offered_per_s)
    assert light.wasted_prefill == 0.0
    assert 0.0 < light.hit_rate < 0.4


def test_what_misses_its_slo_is_no_goodput() -> None:  # REFERENCE 1: of all that arrived
    strict = summary(deadlines=Deadlines(ttft_ms=1.0, ttft_ms_per_1k=0.0, tpot_ms=100.0))
    assert (strict.goodput_per_s, strict.attainment, strict.wasted_prefill) == (0.0, 0.0, 1.0)
    slow = summary(deadlines=Deadlines(tpot_ms=1.0))
    assert slow.attainment < 0.1  # an answer of one token has no TPOT to miss


def test_what_has_not_ended_counts_as_late_with_its_age() -> None:
    promised = Deadlines(ttft_ms=60_000.0, tpot_ms=100.0)  # later than the patience: nobody is dropped before
    jammed = summary(rate=500_000.0, deadlines=promised, patience_s=1.0)
    assert jammed.unfinished > 0
    assert jammed.attainment < 1.0
    assert jammed.ttft_ms.count == 30
    assert jammed.ttft_ms.max is not None
    assert jammed.ttft_ms.max >= 1000.0


def test_jain_of_equal_and_of_single_shares() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert math.isclose(jain([1.0, 0.0, 0.0, 0.0]), 0.25)
    assert jain([0.0, 0.0]) == 1.0
