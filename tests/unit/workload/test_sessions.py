import itertools
from collections.abc import Sequence

from headway.core.blockhash import block_hashes
from headway.core.request import LlmRequest
from headway.workload.build import build
from headway.workload.lengths import Lengths
from headway.workload.mint import Served
from headway.workload.offered import ANSWER_TOKEN, Offered, Source
from headway.workload.spec import Sessions, Think

SERVED = (Served("m", 16),)


def fixed(mean: float) -> Lengths:
    return Lengths(kind="fixed", mean=mean)


def llm(offered: Offered) -> LlmRequest:
    assert isinstance(offered.request, LlmRequest)
    return offered.request


def talk(source: Source, answer: Sequence[int] | None = None) -> list[list[Offered]]:
    """Every session to its end, each answer 100 ns after its request."""
    sessions = []
    for first in source.first():
        turns = [first]
        while (after := source.after(turns[-1].request.id, turns[-1].request.arrived_ns + 100, answer)) is not None:
            turns.append(after)
        sessions.append(turns)
    return sessions


def test_a_prompt_is_all_that_was_said_before_and_something_new() -> None:  # SPEC J2
    spec = Sessions(count=5, turns=fixed(4), user=fixed(20), output=fixed(30), system_tokens=50)
    for turns in talk(build([spec], 0, SERVED)):
        assert len(turns) == 4
        for before, after in itertools.pairwise(turns):
            history = (*llm(before).prompt, *((ANSWER_TOKEN,) * before.output_tokens))
            assert llm(after).prompt[: len(history)] == history
            assert len(llm(after).prompt) == len(history) + 20
            assert llm(after).session == llm(before).session


def test_block_hashes_are_those_of_the_whole_prompt() -> None:  # SPEC B2
    spec = Sessions(count=4, turns=fixed(5), system_tokens=33)
    for turns in talk(build([spec], 0, SERVED)):
        for turn in turns:
            request = llm(turn)
            assert request.block_hashes == block_hashes(request.cache_root, request.prompt, 16)


def test_the_answer_that_really_came_is_what_the_next_prompt_holds() -> None:
    spec = Sessions(count=1, turns=fixed(3), user=fixed(5), system_tokens=0)
    (turns,) = talk(build([spec], 0, SERVED), answer=(7, 8, 9))
    assert [len(llm(turn).prompt) for turn in turns] == [5, 13, 21]
    assert llm(turns[1]).prompt[5:8] == (7, 8, 9)


def test_sessions_of_a_family_share_their_system_prompt_and_nothing_else() -> None:
    spec = Sessions(count=40, families=3, system_tokens=32, user=fixed(32), turns=fixed(1))
    requests = [llm(turns[0]) for turns in talk(build([spec], 0, SERVED))]
    assert len({request.block_hashes[1] for request in requests}) == 3
    assert len({request.block_hashes[2] for request in requests}) == 40


def test_think_time_lies_between_an_answer_and_the_next_turn() -> None:
    spec = Sessions(count=2, turns=fixed(3), think=Think(mean_s=5.0, cv=0.0), time_scale=2.0)
    for turns in talk(build([spec], 0, SERVED)):
        for before, after in itertools.pairwise(turns):
            assert after.request.arrived_ns == before.request.arrived_ns + 100 + 10_000_000_000


def test_a_session_whose_request_failed_ends() -> None:
    assert [len(turns) for turns in talk(build([Sessions(count=3, turns=fixed(9))], 0, SERVED), answer=())] == [1, 1, 1]


def test_a_session_ends_before_it_is_longer_than_its_context() -> None:
    spec = Sessions(
        count=1, turns=fixed(50), user=fixed(100), output=fixed(100), max_tokens=200, system_tokens=0, context_max=1000
    )
    (turns,) = talk(build([spec], 0, SERVED))
    assert [len(llm(turn).prompt) for turn in turns] == [100, 300, 500, 700]  # 900 + 200 are over 1000


def test_turns_have_the_mean_asked_for() -> None:
    spec = Sessions(count=600, turns=Lengths(kind="geometric", mean=5.0), user=fixed(1), output=fixed(1))
    count = sum(len(turns) for turns in talk(build([spec], 0, SERVED)))
    assert abs(count / 600 - 5) < 4 * (20 / 600) ** 0.5  # a geometric variance is mean (mean - 1)


def test_turns_do_not_depend_on_when_answers_come() -> None:  # SPEC J6: common random numbers between policies
    spec = Sessions(count=10)
    slow, fast = talk(build([spec], 0, SERVED)), talk(build([spec], 0, SERVED))
    assert slow == fast
    source = build([spec], 0, SERVED)
    firsts = list(source.first())
    late = [source.after(item.request.id, 10**12) for item in reversed(firsts)]
    for turns, after in zip(fast, reversed(late), strict=True):
        assert (after is None) == (len(turns) == 1)
        assert after is None or llm(after).prompt == llm(turns[1]).prompt
