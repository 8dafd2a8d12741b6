from headway.core.effects import Deliver, Effect
from headway.core.events import RequestArrived
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.sched.chorus import Chorus, part
from headway.sched.tracked import Tracked

A, B = NodeId("rep-a"), NodeId("rep-b")


def tracked(predicted: int | None = None, told: int = 1) -> Tracked:
    request = LlmRequest(
        RequestId("req-1"),
        TenantId("t"),
        ModelId("m"),
        (1,),
        SamplingParams(max_tokens=99),
        0,
        output_tokens_predicted=predicted,
    )
    made = Tracked(RequestArrived(0, "t", request, 0, 0))
    made.told += [7] * told
    return made


def test_the_beat_that_outgrows_a_prediction_names_its_stream() -> None:
    chorus, stream = Chorus(), tracked(predicted=3)
    chorus.join(A, stream)
    due = [chorus.beat(A, 7, step, step)[0] for step in range(4)]
    assert due == [[], [], [stream], []]  # the fourth token is one more than three
    assert len(stream.emitted) == 5


def test_nobody_is_due_without_a_prediction_or_at_another_replica() -> None:
    chorus = Chorus()
    chorus.join(A, tracked())
    chorus.join(A, tracked(predicted=1))
    assert chorus.beat(B, 7, 1, 1) == ([], [])
    assert chorus.follows(A, tracked()) is False


def test_a_stream_that_parts_is_due_no_more_and_its_client_hears_it() -> None:
    chorus, stream = Chorus(), tracked(predicted=1)
    out: list[Effect] = []
    chorus.join(A, stream)
    part(stream, out)
    part(stream, out)
    assert out == [Deliver(RequestId("req-1"), 1, ())]
    assert chorus.beat(A, 7, 1, 1) == ([], [])
    assert stream.emitted == [7]
