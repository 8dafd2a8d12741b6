import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.core.plans import Chunk, StepPlan
from headway.sched.executor.buckets import Buckets, shaped, smallest

SIZES = st.lists(st.integers(1, 512), unique=True, max_size=12).map(sorted)


@given(rows=st.integers(0, 600), sizes=SIZES)
def test_smallest_bucket_that_holds_the_rows(rows: int, sizes: list[int]) -> None:  # SPEC E1
    fitting = [size for size in sizes if size >= rows]
    assert smallest(rows, sizes) == (min(fitting) if fitting else 0)


@given(decodes=st.integers(0, 40), chunks=st.integers(0, 5))
def test_rows_are_decodes_and_chunks(decodes: int, chunks: int) -> None:
    kind = "mixed" if chunks else "decode"
    work = tuple(Chunk(seq, 0, 7, True) for seq in range(chunks))
    plan = shaped(
        StepPlan(1, 0, kind, chunks=work, decodes=decodes),
        Buckets((8, 32), decode_graph="full", mixed_graph="piecewise"),
    )
    rows = decodes + chunks
    assert plan.bucket == (8 if rows <= 8 else 32 if rows <= 32 else 0)
    assert plan.graph == ("none" if rows > 32 else "piecewise" if chunks else "full")


def test_without_buckets_the_plan_is_untouched() -> None:
    plan = StepPlan(1, 0, "decode", decodes=5)
    assert shaped(plan, Buckets()) is plan


@pytest.mark.parametrize("wrong", [{"rows": (4, 2)}, {"rows": (0, 2)}, {"decode_graph": "full"}])
def test_buckets_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:  # SPEC E1, M1
    with pytest.raises(ConfigError, match="buckets"):
        Buckets(**wrong)  # type: ignore[arg-type]  # the wrong value is the point
