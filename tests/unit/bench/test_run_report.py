import re
from pathlib import Path

import msgspec
import pytest
from tests.unit.bench.ended import TARGETS, simulated
from tests.unit.bench.pool_sample import PoolLook

from headway.bench.results import RunWriter
from headway.bench.run_report import write_report
from headway.bench.run_summary import Closing, PoolUse
from headway.core.units import NS_PER_MS, NS_PER_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "chat & <more>"
    fleet, ends = simulated()
    with RunWriter(place, msgspec.json.encode({"targets": msgspec.to_builtins(TARGETS)}), "jsonl") as writer:
        for decision in fleet.sim.clients.decisions:
            writer.decided(decision)
        for item in ends:
            writer.ended(item)
        looks = [PoolLook(at * 200 * NS_PER_MS, "main", 2, 0.1 * at, 0.5) for at in range(1, 6)]
        writer.finish(
            Closing(
                fleet.sim.now_ns / NS_PER_S, samples=looks, seed=7, policies={"front.router": "cost_aware"},
                pool_use={"main": PoolUse(2, 2, 0.5, 0.5, {"steps": 9})},
            )
        )  # fmt: skip
    return place


def test_the_page_needs_nothing_beside_it(folder: Path) -> None:
    text = write_report(folder).read_text()
    assert "<script" not in text
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_shows_what_was_asked_for(folder: Path) -> None:  # SPEC J5
    text = write_report(folder).read_text()
    for title in (
        "Load and goodput", "Waiting", "Running", "KV blocks in use", "Device time in steps", "Time to first token",
        "Time per output token", "Goodput by SLO", "Service by tenant", "Decisions", "Configuration",
        "Where to look first", "target 60 ms", "cost_aware", "tenant-1",
    ):  # fmt: skip
        assert title in text, title
    assert "nothing was measured" not in text


def test_names_are_escaped(folder: Path) -> None:
    text = write_report(folder).read_text()
    assert "chat &amp; &lt;more&gt;" in text
    assert "<more>" not in text


def test_a_run_without_requests_still_has_a_page(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "none", b"{}", "jsonl") as writer:
        writer.finish(Closing(1.0))
    assert "nothing was measured" in write_report(tmp_path / "none").read_text()
