from pathlib import Path

import msgspec
import pytest
from tests.integration.live_world import llm_replica

from headway.core.graphs import GraphMode
from headway.core.ids import ModelId, NodeId
from headway.core.plans import StepTiming
from headway.live.rows_seen import RowsSeen, Seen, ring_buckets, rows_seen, seen_of, settled
from headway.live.spec import BucketSettings, ReplicaSpec
from headway.live.wire import StepSpan

MODEL, OTHER = ModelId("synthetic"), ModelId("other")


def span(decodes: int, prefill_tokens: int = 0) -> StepSpan:
    return StepSpan(1, "any", decodes, 0, prefill_tokens, 0, 0, StepTiming(0, 0, 0))


def replica(cache: Path, buckets: BucketSettings, step_tokens: int = 2048) -> ReplicaSpec:
    spec = llm_replica("rep-0")
    assert spec.llm is not None
    executor = msgspec.structs.replace(spec.llm.executor, buckets=buckets)
    scheduler = msgspec.structs.replace(spec.llm.scheduler, step_tokens=step_tokens)
    llm = msgspec.structs.replace(spec.llm, cache=str(cache), executor=executor, scheduler=scheduler)
    return msgspec.structs.replace(spec, model=MODEL, llm=llm)


def test_what_steps_had_is_there_at_the_next_start_and_fades(tmp_path: Path) -> None:  # SPEC E1
    first = RowsSeen(str(tmp_path), MODEL, NodeId("rep-0"))
    first.count([span(3)] * 8 + [span(0)] + [span(2, 5)] * 2)
    first.save()
    assert seen_of(str(tmp_path), MODEL) == Seen({3: 8}, {7: 2})
    second = RowsSeen(str(tmp_path), MODEL, NodeId("rep-0"))
    second.count([span(3), span(4)])
    second.save()
    assert seen_of(str(tmp_path), MODEL) == Seen({3: 5, 4: 1}, {7: 1})


def test_replicas_of_a_model_are_read_together_and_other_models_apart(tmp_path: Path) -> None:
    for model, node, rows in ((MODEL, "rep-0", 1), (MODEL, "rep-1", 1), (OTHER, "rep-2", 9)):
        seen = RowsSeen(str(tmp_path), model, NodeId(node))
        seen.count([span(rows)])
        seen.save()
    assert seen_of(str(tmp_path), MODEL).decode == {1: 2}


def test_a_file_that_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    seen = RowsSeen(str(tmp_path), MODEL, NodeId("rep-0"))
    seen.count([span(1)])
    seen.save()
    (file,) = tmp_path.glob("rows/*/*.json")
    file.write_bytes(b"{")
    assert seen_of(str(tmp_path), MODEL) == Seen()


def test_a_disk_that_refuses_is_told_of_and_nothing_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rows").write_text("not a folder")
    seen = RowsSeen(str(tmp_path), MODEL, NodeId("rep-0"))
    seen.count([span(1)])
    seen.save()
    assert "rows of steps are not kept" in caplog.text


# SPEC E1
@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("full_decode_only", (1, 3)),  # steps with prefill are not captured, so they are not padded
        ("full_and_piecewise", (3, 200)),
        ("none", (3, 200)),
    ],
)
def test_sizes_are_chosen_for_the_steps_that_are_padded(tmp_path: Path, mode: GraphMode, rows: tuple[int, ...]) -> None:
    spec = replica(tmp_path, BucketSettings("auto", 2, mode))
    seen = rows_seen(spec)
    assert seen is not None
    # The last is from a run with a larger budget: no step is as large now.
    seen.count([span(3)] * 50 + [span(1)] + [span(0, 200)] * 40 + [span(0, 3000)])
    seen.save()
    found, words = settled(spec)
    assert found.llm is not None
    assert (found.llm.executor.buckets.rows, ring_buckets(found.llm).rows) == (rows, rows)
    assert words == f"executor.buckets.rows = {list(rows)} (from 92 steps of earlier runs)"
    assert rows_seen(found) is None


def test_powers_of_two_until_a_step_has_been_seen(tmp_path: Path) -> None:
    spec, words = settled(replica(tmp_path, BucketSettings("auto"), step_tokens=100))
    assert spec.llm is not None
    assert spec.llm.executor.buckets.rows == (1, 2, 4, 8, 16, 32, 64, 100)
    assert "powers of two" in words


def test_sizes_that_are_given_stay_and_nothing_is_kept(tmp_path: Path) -> None:
    spec = replica(tmp_path, BucketSettings((4, 8)))
    assert settled(spec) == (spec, "")
    assert rows_seen(spec) is None
