from tests.unit.sched.router.views import llm

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import PrefixFigures
from headway.core.request import DiffusionRequest
from headway.sched.router.prefix_tally import PrefixTally

M, N = ModelId("m"), ModelId("n")


def test_errors_to_both_sides_do_not_hide_each_other() -> None:  # AMD-AGI/Infera#143
    tally = PrefixTally()
    tally.told(M, 128, 0)
    tally.told(M, 0, 128)
    tally.told(N, 64, 64)
    assert tally.figures() == (PrefixFigures("m", 0, 0, 128, 128, 128, 128), PrefixFigures("n", 0, 0, 64, 64, 0, 0))


def test_dispatches_whose_prompt_nobody_hashed_are_counted_apart() -> None:  # AMD-AGI/Infera#143
    tally = PrefixTally()
    tally.dispatched(llm("req-1", model=M, block_tokens=16))
    tally.dispatched(llm("req-2", model=M))
    tally.dispatched(DiffusionRequest(RequestId("req-3"), TenantId("default"), M, 4, 64, 64, 0, 0))
    assert tally.figures() == (PrefixFigures("m", dispatches=2, unhashed=1),)
