"""The life-cycle table: every (state, change) pair either moves or raises and changes nothing."""

import pytest

from headway.core.errors import InvariantError
from headway.core.lifecycle import TRANSITIONS, Change, RequestState, advance

PAIRS = [(state, change) for state in RequestState for change in Change]


@pytest.mark.parametrize(("state", "change"), PAIRS, ids=[f"{s.value}-{c.value}" for s, c in PAIRS])
def test_a_pair_moves_as_the_table_says_or_raises_with_the_story(state: RequestState, change: Change) -> None:
    if change in TRANSITIONS[state]:
        assert advance(state, change) is TRANSITIONS[state][change]
    else:
        with pytest.raises(InvariantError, match=f"cannot {change.value} while {state.value}; story: req-1 arrived"):
            advance(state, change, "req-1 arrived")


def test_every_state_is_reachable_and_every_live_state_can_end() -> None:
    reached = {RequestState.ARRIVED}
    for _ in RequestState:
        reached |= {target for state in reached for target in TRANSITIONS[state].values()}
    assert reached == set(RequestState)
    ends = {state for state, arrows in TRANSITIONS.items() if not arrows}
    assert ends == {RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED}
    for state in set(RequestState) - ends:
        assert RequestState.CANCELLED in TRANSITIONS[state].values()
