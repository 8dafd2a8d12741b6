from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.core.graphs import GraphMode
from headway.core.plans import Chunk, StepPlan
from headway.sched.executor.buckets import Buckets, captured_rows, shaped, smallest

SIZES = st.lists(st.integers(1, 512), unique=True, max_size=12).map(sorted)


@given(rows=st.integers(0, 600), sizes=SIZES)
def test_smallest_bucket_that_holds_the_rows(rows: int, sizes: list[int]) -> None:  # SPEC E1
    fitting = [size for size in sizes if size >= rows]
    assert smallest(rows, sizes) == (min(fitting) if fitting else 0)


@given(decodes=st.integers(0, 40), chunks=st.integers(0, 5))
def test_rows_are_the_tokens_of_decodes_and_chunks(decodes: int, chunks: int) -> None:  # SPEC E1
    kind = "mixed" if chunks else "decode"
    work = tuple(Chunk(seq, 0, 7, True) for seq in range(chunks))
    plan = shaped(
        StepPlan(1, 0, kind, chunks=work, decodes=decodes, prefill_tokens=7 * chunks),
        Buckets((8, 32), "full_and_piecewise"),
    )
    rows = decodes + 7 * chunks
    assert plan.bucket == (8 if rows <= 8 else 32 if rows <= 32 else 0)
    assert plan.graph == ("none" if rows > 32 else "piecewise" if chunks else "full")


@pytest.mark.parametrize("mode", get_args(GraphMode))
@given(sizes=SIZES.filter(bool), decodes_max=st.integers(1, 64), decodes=st.integers(0, 64), tokens=st.integers(0, 600))
def test_what_a_step_asks_for_is_captured(
    mode: GraphMode, sizes: list[int], decodes_max: int, decodes: int, tokens: int
) -> None:  # SPEC E1
    buckets = Buckets(tuple(sizes), mode)
    kind = "mixed" if tokens else "decode"
    plan = shaped(StepPlan(1, 0, kind, decodes=min(decodes, decodes_max), prefill_tokens=tokens), buckets)
    captured = captured_rows(buckets, decodes_max)
    assert plan.graph != "full" or plan.bucket in captured.whole
    assert plan.graph != "piecewise" or plan.bucket in captured.pieces


def test_decodes_are_not_captured_in_sizes_that_they_never_have() -> None:  # SPEC E1
    captured = captured_rows(Buckets((4, 8, 16, 512), "full_and_piecewise"), decodes_max=9)
    assert (captured.whole, captured.pieces) == ((4, 8, 16), (4, 8, 16, 512))


def test_without_buckets_the_plan_is_untouched() -> None:
    plan = StepPlan(1, 0, "decode", decodes=5)
    assert shaped(plan, Buckets()) is plan


def test_steps_that_are_not_captured_are_padded_only_where_nothing_is() -> None:  # SPEC E1
    mixed = StepPlan(1, 0, "mixed", decodes=2, prefill_tokens=3)
    assert shaped(mixed, Buckets((8,), "full_decode_only")) is mixed
    assert (shaped(mixed, Buckets((8,))).bucket, shaped(mixed, Buckets((8,))).graph) == (8, "none")


@pytest.mark.parametrize("wrong", [{"rows": (4, 2)}, {"rows": (0, 2)}, {"graph_mode": "full"}])
def test_buckets_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:  # SPEC E1, M1
    with pytest.raises(ConfigError, match="buckets"):
        Buckets(**wrong)  # type: ignore[arg-type]  # the wrong value is the point
