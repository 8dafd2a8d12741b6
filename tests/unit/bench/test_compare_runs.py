import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests.unit.bench.ended import end

from headway.bench.compare_report import comparison_page, comparison_text
from headway.bench.compare_runs import Comparison, compare, names_of, read_compared
from headway.bench.ends import RequestEnd
from headway.bench.results import RunWriter, read_run, read_series, read_summary
from headway.bench.run_summary import Closing, OpenRequest, PoolUse
from headway.bench.run_tables import groups_table, latency_table, pools_table, tiles
from headway.bench.simulated import run_table
from headway.bench.summary import Targets
from headway.core.errors import ConfigError

TARGETS = Targets(ttft_ms=20.0)
COUNT = 40


def ends(shift_ms: float, refused: int = 0) -> list[RequestEnd]:
    """Requests whose first token comes after 10 ms and more, and `shift_ms` later; the last ones are refused."""
    return [
        end(f"req-{place}", 10.0 * place,
            *(() if place >= COUNT - refused else (10 + place % 7 + shift_ms, 30 + place % 7)), targets=TARGETS)
        for place in range(COUNT)
    ]  # fmt: skip


def write(folder: Path, requests: Sequence[RequestEnd], scenario: object = None, **closing: object) -> Path:
    with RunWriter(folder, msgspec.json.encode(scenario or {}), "jsonl") as writer:
        for item in sorted(requests, key=lambda one: (one.outcome.ended_ns, one.evidence.request)):
            writer.ended(item)
        writer.finish(msgspec.structs.replace(Closing(1.0), **closing))
    return folder


def compared(*folders: Path) -> Comparison:
    return compare([read_compared(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)])


def test_the_same_requests_are_paired_whatever_the_order_of_their_ends(tmp_path: Path) -> None:
    # Common random numbers: every request is 5 ms faster, so the interval has no width
    comparison = compared(write(tmp_path / "a", ends(5.0)), write(tmp_path / "b", ends(0.0)))
    assert comparison.paired == [True, True]
    ttft = next(row for row in comparison.metrics if row.name == "TTFT mean")
    found = ttft.differences[1]
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((-5.0, -5.0, -5.0))
    assert found.verdict == "better"
    assert ttft.differences[0] is None


def test_ttft_and_tpot_are_judged_apart(tmp_path: Path) -> None:
    # LLMServingSim PR#59: errors of TTFT and TPOT cancelled in e2e, and nobody saw them there
    comparison = compared(write(tmp_path / "a", ends(5.0)), write(tmp_path / "b", ends(0.0)))
    verdicts = {row.name: row.differences[1].verdict for row in comparison.metrics if row.differences[1] is not None}
    assert (verdicts["TTFT mean"], verdicts["TPOT mean"], verdicts["e2e mean"]) == ("better", "worse", "same")


def test_other_requests_are_not_paired_and_it_is_said(tmp_path: Path) -> None:
    other = [*ends(0.0)[1:], end("req-new", 500, 9, 10)]
    comparison = compared(write(tmp_path / "a", ends(0.0)), write(tmp_path / "b", other))
    assert comparison.paired == [True, False]
    assert any("not paired" in note for note in comparison.notes)


def test_times_of_a_pair_are_of_requests_that_completed_in_both(tmp_path: Path) -> None:
    # Refusing the slow ones makes percentiles look good; over the same requests it does not
    slow = [
        end(f"req-{place}", 10.0 * place, 10 if place < 30 else 500, 600, targets=TARGETS) for place in range(COUNT)
    ]
    fast = [
        end(f"req-{place}", 10.0 * place, *((10, 600) if place < 30 else ()), targets=TARGETS) for place in range(COUNT)
    ]
    comparison = compared(write(tmp_path / "a", slow), write(tmp_path / "b", fast))
    ttft = next(row for row in comparison.metrics if row.name == "TTFT p95")
    assert ttft.values == [500.0, 10.0]
    found = ttft.differences[1]
    assert found is not None
    assert (found.value, found.verdict) == (0.0, "same")
    assert comparison.both_completed[1] == 30
    assert any("over the 30 requests that completed in both" in note for note in comparison.notes)
    failed = next(row for row in comparison.metrics if row.name == "not completed")
    assert failed.differences[1] is not None
    assert failed.differences[1].verdict == "worse"


def test_attainment_counts_refused_requests_as_misses(tmp_path: Path) -> None:  # SPEC A7
    comparison = compared(write(tmp_path / "a", ends(0.0)), write(tmp_path / "b", ends(0.0, refused=10)))
    row = comparison.metrics[0]
    assert row.values == [1.0, 0.75]
    assert row.differences[1] is not None
    assert row.differences[1].value == pytest.approx(-0.25)


def test_unfinished_requests_of_an_interrupted_run_are_misses_and_it_is_said(tmp_path: Path) -> None:
    broken = write(tmp_path / "b", ends(0.0)[:30], complete=False, unfinished=(OpenRequest(1),) * 10)
    comparison = compared(write(tmp_path / "a", ends(0.0)), broken)
    row = comparison.metrics[0]
    assert row.values[1] == pytest.approx(0.75)
    assert row.differences[1] is not None
    assert row.differences[1].value == pytest.approx(-0.25)
    assert any("b was interrupted: 10 requests unfinished" in note for note in comparison.notes)


def test_keys_that_differ_and_targets_that_differ_are_told(tmp_path: Path) -> None:
    first = {"targets": {"ttft_ms": 20.0}, "pools": [{"name": "chat", "replicas": 2}]}
    second = {"targets": {"ttft_ms": 30.0}, "pools": [{"name": "chat", "replicas": 3}]}
    comparison = compared(write(tmp_path / "a", ends(0.0), first), write(tmp_path / "b", ends(0.0), second))
    assert comparison.config == {"targets.ttft_ms": [20.0, 30.0], "pools.chat.replicas": [2, 3]}
    assert any("targets differ" in note for note in comparison.notes)


def test_runs_are_named_by_as_much_of_their_path_as_tells_them_apart(tmp_path: Path) -> None:
    assert names_of([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert names_of([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ["x/run", "y/run"]
    with pytest.raises(ConfigError, match="named twice"):
        names_of([tmp_path / "a", tmp_path / "a"])


def test_a_run_that_was_killed_is_refused_by_name(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a", b"{}", "jsonl"):
        pass
    with pytest.raises(ConfigError, match=r"there is no summary\.json"):
        read_compared(tmp_path / "a", "a")


def test_table_and_page_say_the_same(tmp_path: Path) -> None:
    folders = [write(tmp_path / "a<b", ends(5.0), {"k": 1}), write(tmp_path / "c", ends(0.0), {"k": 2})]
    runs = [read_compared(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]
    comparison = compare(runs)
    text = comparison_text(comparison)
    assert "+ TTFT mean         -5 ms [-5 ms, -5 ms]" in text
    page = comparison_page(comparison, runs, [read_series(folder) for folder in folders])
    assert "-5 ms [-5 ms, -5 ms]" in page
    assert "a&lt;b" in page
    assert "a<b" not in page
    assert "<script" not in page


def test_runs_that_are_cut_off_are_paired_over_all_that_was_sent(tmp_path: Path) -> None:
    # sim.until_s leaves other requests open in each: those that one has ended are misses of the other
    scenario = {"workload": [{"name": "chat"}], "seed": 1}
    several = ends(0.0)
    first = write(tmp_path / "a", several[:30], scenario, unfinished=(OpenRequest(1),) * 13)
    second = write(tmp_path / "b", [*several[:25], *several[30:]], scenario, unfinished=(OpenRequest(1),) * 8)
    comparison = compared(first, second)
    assert comparison.paired == [True, True]
    assert comparison.both_completed[1] == 25
    attained = comparison.metrics[0].differences[1]
    assert attained is not None
    assert attained.value == pytest.approx(35 / 43 - 30 / 43)  # three are open in both


def test_requests_that_were_never_sent_in_one_run_leave_no_pairs(tmp_path: Path) -> None:
    scenario = {"workload": [{"name": "chat"}], "seed": 1}
    first = write(tmp_path / "a", ends(0.0), scenario)
    second = write(tmp_path / "b", ends(0.0)[:30], scenario, unfinished=(OpenRequest(1),) * 5)
    assert compared(first, second).paired == [True, False]


def test_other_prompts_under_the_same_names_are_no_pairs(tmp_path: Path) -> None:
    changed = [
        msgspec.structs.replace(item, evidence=msgspec.structs.replace(item.evidence, prompt_tokens=11))
        for item in ends(0.0)
    ]
    comparison = compared(write(tmp_path / "a", ends(0.0)), write(tmp_path / "b", changed))
    assert comparison.paired == [True, False]


def test_runs_of_pictures_are_compared_by_what_pictures_have(tmp_path: Path) -> None:
    def pictures(shift_ms: float) -> list[RequestEnd]:
        times = [30 + place % 7 + shift_ms for place in range(COUNT)]
        return [end(f"img-{n}", 10.0 * n, took, targets=TARGETS, has_tokens=False) for n, took in enumerate(times)]

    both = [write(tmp_path / name, pictures(shift)) for name, shift in (("a", 5.0), ("b", 0.0))]
    names = {row.name for row in compared(*both).metrics}
    assert {"e2e p50", "queues p99", "attainment"} < names
    assert not [name for name in names if name.startswith(("TTFT", "TPOT", "longest gap", "output tokens"))]
    mixed = compared(both[0], write(tmp_path / "c", ends(0.0)))
    assert "TPOT mean" in {row.name for row in mixed.metrics}
    runs = [read_compared(each, each.name) for each in both]
    page = comparison_page(compared(*both), runs, [read_series(each) for each in both])
    assert "output token" not in page
    assert "first token" not in page


def test_the_tables_of_a_run_tell_pictures_and_video_of_the_pools_that_make_them(tmp_path: Path) -> None:  # SPEC I3
    def made(name: str, pool: str, **what: float) -> RequestEnd:
        one = end(name, 0.0, 2000.0, has_tokens=False)
        return replace(one, pool=pool, outcome=replace(one.outcome, **what))

    both = [made("img-1", "flux", images=3), made("img-2", "flux", images=1), made("vid-1", "wan", video_s=5.0)]
    path = write(tmp_path / "a", both, pool_use={name: PoolUse(1, 1, 0.5) for name in ("flux", "wan")})
    summary = read_summary(path)
    assert (summary.images_per_s, summary.video_s_per_s) == (2.0, 2.5)
    assert "2.00 images/s, 2.50 s of video/s" in run_table(summary)
    assert "2.00/s</b><span>images" in tiles(summary)
    assert "2.50 s/s</b><span>video" in tiles(summary)
    rows = [re.findall(r"<t[hd]>([^<]*)<", row) for row in pools_table(summary).split("<tr>")[1:]]
    cells = {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    names = ("output tokens", "images", "s of video")
    assert [cells["flux"][name] for name in names] == ["n/a", "4", "n/a"]
    assert [cells["wan"][name] for name in names] == ["n/a", "n/a", "5.0"]
    _, columns = read_run(path)
    assert sorted(columns.floats("images")) == [0.0, 1.0, 3.0]


def test_a_run_of_pictures_shows_queues_and_device_time_in_place_of_tokens(tmp_path: Path) -> None:
    made = [end(f"img-{place}", 10.0 * place, 30.0, has_tokens=False) for place in range(COUNT)]
    # Two replicas of two devices each began, one of them half a second late.
    use = PoolUse(replicas=2, devices=4, busy=0.5, device_hours=3 / 3600)
    summary = read_summary(write(tmp_path / "a", made, pool_use={"flux": use}))
    shown = run_table(summary)
    assert "devices    1.5 s of work, 0.04 s for each that completed" in shown
    assert [line.split()[0] for line in shown.splitlines() if "30.00" in line] == ["e2e"]
    assert "queues" in shown
    assert "images" not in shown  # nobody told how many came
    assert not [word for word in ("ttft", "tpot", "itl", "output tokens") if word in shown]
    assert "devices" not in run_table(read_summary(write(tmp_path / "b", ends(0.0))))
    for page in (
        tiles(summary),
        latency_table(summary),
        groups_table({"a": summary.workloads["chat"]}, has_tokens=False),
    ):
        assert "TPOT" not in page
        assert "TTFT" not in page


def draw(seed: int) -> tuple[list[RequestEnd], float]:
    """200 requests of a Poisson process of 100 per second, every one in time; when the last has ended, in seconds."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(10.0, 200))
    return [end(f"req-{place}", float(at_ms), 10, 30, targets=TARGETS) for place, at_ms in enumerate(arrivals)], float(
        arrivals[-1] / 1e3
    )


def test_another_seed_is_other_requests_under_the_same_names_unless_a_trace_gives_the_times(tmp_path: Path) -> None:
    # SPEC J1: pictures have no prompt tokens that could tell them apart
    one, two = {"workload": [{"name": "p"}], "seed": 1}, {"workload": [{"name": "p"}], "seed": 2}
    (first, first_s), (second, second_s) = draw(1), draw(2)
    folders = [
        write(tmp_path / "a", first, one, virtual_s=first_s),
        write(tmp_path / "b", second, two, virtual_s=second_s),
        write(tmp_path / "c", first, two, virtual_s=first_s),
    ]
    assert compared(*folders).paired == [True, False, True]


def test_a_rate_is_no_better_because_its_requests_came_a_little_sooner(tmp_path: Path) -> None:
    verdicts, widths = [], []
    for seed in range(0, 16, 2):
        (first, first_s), (second, second_s) = draw(seed), draw(seed + 1)
        comparison = compared(
            write(tmp_path / f"{seed}a", first, {"seed": 1}, virtual_s=first_s),
            write(tmp_path / f"{seed}b", second, {"seed": 2}, virtual_s=second_s),
        )
        found = next(row for row in comparison.metrics if row.name == "goodput").differences[1]
        assert found is not None
        before, after = (200 / summary.duration_s for summary in comparison.summaries)
        assert found.value == pytest.approx(after - before)
        verdicts.append(found.verdict)
        widths.append(found.high - found.low)
    # 7 % of 100/s is the standard error of a rate of 200 arrivals, 10 % that of a difference of two
    assert verdicts.count("same") >= 6
    assert 25 < sum(widths) / len(widths) < 55
