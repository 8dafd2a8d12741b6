import msgspec
from tests.unit.sched.desk import Desk
from tests.unit.sched.router.views import llm

from headway.core.events import ClientGone
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Submit
from headway.core.request import FinishReason, LlmRequest
from headway.cost.output_length import LengthParams
from headway.sched.nodes import FrontConfig

CONFIG = FrontConfig(output_length=LengthParams(quantile=0.5, samples_min=4))
A = NodeId("rep-a")


def serve(desk: Desk, name: str, count: int, reason: FinishReason = FinishReason.STOP) -> None:
    desk.arrive(llm(name, max_tokens=100))
    for index in range(count):
        desk.tokens("rep-a", name, 1, index, 7)
    desk.finish("rep-a", name, 1, count, reason)
    desk.close(name)


def submitted(desk: Desk) -> LlmRequest:
    (submit,) = [effect.message for effect in desk.last if isinstance(getattr(effect, "message", None), Submit)]
    assert isinstance(submit.request, LlmRequest)
    return submit.request


def trained() -> Desk:
    desk = Desk(CONFIG, ("rep-a",))
    for place, count in enumerate((4, 6, 8, 20)):
        serve(desk, f"req-{place}", count)
    return desk


def test_what_ended_predicts_what_arrives_at_the_replica_too() -> None:  # SPEC A3
    desk = Desk(CONFIG, ("rep-a",))
    serve(desk, "req-0", 4)
    desk.arrive(llm("req-x", max_tokens=100))
    assert submitted(desk).output_tokens_predicted is None  # one sample is none
    desk = trained()
    desk.arrive(llm("req-9", max_tokens=100))
    assert submitted(desk).output_tokens_predicted == 6
    assert desk.node.router.replicas[A].output_tokens_expected == 6


def test_a_prediction_that_came_along_is_kept() -> None:
    desk = trained()
    desk.arrive(llm("req-9", max_tokens=100, output_tokens_predicted=50))
    assert submitted(desk).output_tokens_predicted == 50


def test_live_tokens_correct_a_prediction_that_was_too_short() -> None:  # SPEC A3
    desk = trained()
    desk.arrive(llm("req-9", max_tokens=100))
    expected = []
    for index in range(30):
        desk.tokens("rep-a", "req-9", 1, index, 7)
        expected.append(desk.node.router.replicas[A].output_tokens_expected)
    assert (expected[5], expected[6], expected[8], expected[20]) == (6, 8, 20, 42)
    tracked = desk.node.book.requests[RequestId("req-9")]
    assert isinstance(tracked.request, LlmRequest)
    assert tracked.request.output_tokens_predicted == 42
    desk.finish("rep-a", "req-9", 1, 30)
    assert desk.node.router.replicas[A].output_tokens_expected == 0


def test_a_client_that_leaves_teaches_how_long_it_stayed_and_a_deadline_teaches_nothing() -> None:
    desk = Desk(CONFIG, ("rep-a",))
    for place in range(4):
        desk.arrive(llm(f"req-{place}", max_tokens=100))
        for index in range(3):
            desk.tokens("rep-a", f"req-{place}", 1, index, 7)
        desk.event(ClientGone(desk.now_ns, "t", RequestId(f"req-{place}")))
        desk.finish("rep-a", f"req-{place}", 1, 3, FinishReason.CANCELLED)
        desk.close(f"req-{place}")
    lengths = desk.node.book.foresight.lengths
    assert lengths.estimate(llm("req-9", max_tokens=100)) == 3
    desk.node.book.foresight.ended(llm("req-9", max_tokens=100), FinishReason.DEADLINE, 90)
    desk.node.book.foresight.ended(llm("req-9", max_tokens=100), FinishReason.LOST, 90)
    assert lengths.estimate(llm("req-9", max_tokens=100)) == 3


def test_what_is_told_as_likely_is_of_requests_with_such_a_limit() -> None:
    # SPEC A3: outputs with a smaller limit were cut there; the router plans with them for want of better
    desk = trained()

    def likely(max_tokens: int, *, ignores_eos: bool = False) -> tuple[int, int | None]:
        asked = llm("req-x", max_tokens=max_tokens)
        sampling = msgspec.structs.replace(asked.sampling, ignore_eos=ignores_eos)
        found = desk.node.explain(msgspec.structs.replace(asked, sampling=sampling), 0)
        return found.output_tokens, found.output_tokens_likely

    assert likely(100) == (6, 6)
    assert likely(1000) == (6, None)
    assert likely(1000, ignores_eos=True) == (1000, 1000)
