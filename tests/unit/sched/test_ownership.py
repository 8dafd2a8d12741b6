from tests.unit.sched.desk import Desk

from headway.core.events import ClientGone
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import Cancel, TakeOver, TakeOverAck

REQ, MOVE = RequestId("req-1"), TransferId("move-1")


def streaming(count: int) -> Desk:
    """A request at rep-a, epoch 1, with so many tokens streamed."""
    desk = Desk(replicas=("rep-a", "rep-b", "rep-c"))
    desk.arrive("req-1")
    for index in range(count):
        desk.tokens("rep-a", "req-1", 1, index, 40 + index)
    return desk


def ask(desk: Desk, node: str, epoch: int, index: int) -> list[tuple[str, bool]]:
    desk.message(node, TakeOver(REQ, epoch, MOVE, index))
    return answers(desk)


def answers(desk: Desk) -> list[tuple[str, bool]]:
    return [(dst, ack.accepted) for dst, ack in desk.sent(TakeOverAck)]


def test_accepts_at_the_cursor_and_tells_both_sides() -> None:  # SPEC C4
    desk = streaming(2)
    assert ask(desk, "rep-b", 2, 2) == [("rep-b", True), ("rep-a", True)]
    desk.tokens("rep-b", "req-1", 2, 2, 42)
    desk.tokens("rep-a", "req-1", 1, 2, 99)
    assert desk.delivered() == [40, 41, 42]


def test_waits_for_tokens_of_the_old_owner_that_are_on_their_way() -> None:  # SPEC C4
    desk = streaming(1)
    assert ask(desk, "rep-b", 2, 3) == []
    desk.tokens("rep-a", "req-1", 1, 1, 41)
    assert answers(desk) == []
    desk.tokens("rep-a", "req-1", 1, 2, 42)
    assert answers(desk) == [("rep-b", True), ("rep-a", True)]


def test_refuses_what_the_stream_has_passed() -> None:  # SPEC C4
    desk = streaming(3)
    assert ask(desk, "rep-b", 2, 2) == [("rep-b", False), ("rep-a", False)]


def test_refuses_an_epoch_of_another_time() -> None:  # SPEC C4
    desk = streaming(2)
    desk.lose("rep-a")
    assert desk.node.book.requests[REQ].epoch == 2
    owner = desk.node.book.requests[REQ].owner
    other = "rep-c" if owner == "rep-b" else "rep-b"
    assert ask(desk, other, 2, 2)[0] == (other, False)
    assert ask(desk, other, 4, 2)[0] == (other, False)
    assert desk.node.book.requests[REQ].owner == owner


def test_answers_the_new_owner_again_when_it_asks_again() -> None:
    desk = streaming(2)
    ask(desk, "rep-b", 2, 2)
    assert ask(desk, "rep-b", 2, 2) == [("rep-b", True)]


def test_a_request_that_is_over_or_unknown_is_refused() -> None:
    desk = streaming(2)
    desk.event(ClientGone(0, "t", REQ))
    assert ask(desk, "rep-b", 2, 2)[0] == ("rep-b", False)
    desk.message("rep-b", TakeOver(RequestId("req-9"), 2, MOVE, 0))
    assert answers(desk) == [("rep-b", False)]


def test_a_waiting_question_is_refused_when_its_source_is_lost() -> None:  # SPEC C4, A11
    desk = streaming(1)
    ask(desk, "rep-b", 2, 3)
    desk.lose("rep-a")
    assert ("rep-b", False) in answers(desk)


def test_a_waiting_question_dies_with_who_asked() -> None:
    desk = streaming(1)
    ask(desk, "rep-b", 2, 2)
    desk.lose("rep-b")
    desk.tokens("rep-a", "req-1", 1, 1, 41)
    assert answers(desk) == []
    assert desk.node.book.requests[REQ].owner == NodeId("rep-a")


def test_the_second_of_two_questions_answers_the_first() -> None:
    desk = streaming(1)
    ask(desk, "rep-b", 2, 2)
    assert ask(desk, "rep-c", 2, 2) == [("rep-b", False)]
    desk.tokens("rep-a", "req-1", 1, 1, 41)
    assert answers(desk) == [("rep-c", True), ("rep-a", True)]


def test_a_cancel_goes_to_the_new_owner_with_its_epoch() -> None:  # SPEC B5
    desk = streaming(2)
    ask(desk, "rep-b", 2, 2)
    desk.event(ClientGone(0, "t", REQ))
    assert [(dst, cancel.epoch) for dst, cancel in desk.sent(Cancel)] == [("rep-b", 2)]
