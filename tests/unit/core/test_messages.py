"""Events, effects and messages survive the wire and refuse what they do not know."""

import msgspec
import pytest

from headway.core.effects import Effect, End, Send
from headway.core.events import Event, MessageArrived, StepDone
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Cancel, Message, Probed, Submit
from headway.core.plans import StepTiming
from headway.core.request import FinishReason, LlmRequest, SamplingParams, Slo

REQUEST = LlmRequest(
    RequestId("req-1"),
    TenantId("default"),
    ModelId("m"),
    (1, 2, 3),
    SamplingParams(max_tokens=4, logit_bias=((5, -1.0),)),
    7,
    Slo(e2e_deadline_ns=9),
    block_hashes=(b"\x00" * 16,),
)


@pytest.mark.parametrize(
    "message",
    [Submit(REQUEST, 1, (4,)), Cancel(RequestId("req-1"), 2), Probed(False, "GET /health: 503")],
    ids=lambda m: type(m).__name__,
)
def test_a_message_comes_back_equal(message: Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_an_event_inside_a_log_line_comes_back_equal() -> None:
    done = StepDone(5, "step-1", 1, (3,), (17,), StepTiming(1, 2, 3))
    arrived = MessageArrived(6, "wire", NodeId("rep-0"), Submit(REQUEST, 1))
    for event in (done, arrived):
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_an_effect_comes_back_equal() -> None:
    for effect in (Send(NodeId("rep-0"), Cancel(RequestId("req-1"), 1)), End(RequestId("req-1"), FinishReason.STOP)):
        assert msgspec.json.decode(msgspec.json.encode(effect), type=Effect) == effect


def test_an_unknown_kind_of_message_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"type": "Destroy"}), type=Message)


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Cancel(RequestId("req-1"), 1).epoch = 2  # type: ignore[misc]  # the point of the test
