from hypothesis import given
from hypothesis import strategies as st

from headway.core.events import Proposal
from headway.core.ids import NodeId
from headway.sched.runtime.agreement import IDLE, agree

BUSY = st.builds(
    Proposal,
    kind=st.sampled_from(["prefill", "decode", "mixed"]),
    tokens=st.integers(1, 99),
    padded=st.integers(1, 128),
    longest_prefill=st.integers(0, 99),
    can_overlap=st.booleans(),
    mode=st.sampled_from(["none", "low_latency"]),
)
GROUPS = st.lists(st.one_of(BUSY, st.just(IDLE)), min_size=2, max_size=6)


def named(proposals: list[Proposal]) -> dict[NodeId, Proposal]:
    return {NodeId(f"rep-{place}"): proposal for place, proposal in enumerate(proposals)}


@given(GROUPS)
def test_every_rank_computes_the_same_whatever_order_it_hears(proposals: list[Proposal]) -> None:  # SPEC D2
    heard = named(proposals)
    assert agree(heard) == agree(dict(reversed(heard.items())))


@given(GROUPS)
def test_padding_holds_every_rank_and_idle_ranks_are_dummies(proposals: list[Proposal]) -> None:  # SPEC D2
    agreement = agree(named(proposals))
    busy = [proposal for proposal in proposals if proposal.kind != "idle"]
    assert agreement.padded == max((proposal.padded for proposal in busy), default=0)
    assert len(agreement.dummies) == (len(proposals) - len(busy) if busy else 0)
    assert agreement.can_overlap == all(proposal.can_overlap for proposal in busy)


def test_a_prefill_beside_a_decode_is_a_mixed_step() -> None:
    decode, prefill = (
        Proposal("decode", 4, 4),
        Proposal("prefill", 90, 90, 90, can_overlap=False, mode="high_throughput"),
    )
    assert agree(named([decode, decode])).kind == "decode"
    mixed = agree(named([decode, prefill, IDLE]))
    assert (mixed.kind, mixed.padded, mixed.longest_prefill, mixed.can_overlap) == ("mixed", 90, 90, False)
    assert mixed.mode == "none"
    assert mixed.dummies == ("rep-2",)


def test_all_idle_is_no_step() -> None:
    assert agree(named([IDLE, IDLE])).kind == "idle"
