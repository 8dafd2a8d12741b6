"""What further gateway processes tell is read in the main one as if it had happened there."""

from collections.abc import Callable

import pytest

from headway.adapters.gateway.caller import Remembered
from headway.core.decisions import Decision
from headway.core.events import Event, PeerJoined, PeerLost
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.ledger import AccountView
from headway.core.messages import Drain, Message, Share, Stated, Undrain
from headway.core.request import TextRequest
from headway.core.units import Ns
from headway.live.fronts import Fronts
from headway.live.wire import Blocks, Envelope, Frame, Named, News, WireError

FRONT, OTHER, CONTROL, UP = NodeId("node-front-1"), NodeId("node-front-2"), NodeId("node-control"), NodeId("up-a")


class Peer:
    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)


class World:
    """The main process around `Fronts`."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, NodeId, Message]] = []
        self.events: list[Event] = []
        self.decisions: list[tuple[str, Decision]] = []
        self.forgotten: list[RequestId] = []
        self.remembered: dict[str, Remembered] = {}
        self.refusals = 0
        self.counts: list[tuple[str, int, int]] = []
        self.fronts = Fronts(self, self._control, self)
        self.fronts.edge = self
        self.peer = Peer()
        self.fronts.join(FRONT, 1, self.peer)

    def send(self, src: NodeId, dst: NodeId, message: Message) -> None:
        self.sent.append((src, dst, message))

    def _control(self, make: Callable[[Ns], Event]) -> None:
        self.events.append(make(7))

    def decided(self, origin: str, decision: Decision) -> None:
        self.decisions.append((origin, decision))

    def ended(self, record: EvidenceRecord, request: TextRequest | None) -> None:
        raise AssertionError("nothing ends here")

    def forget(self, request: RequestId) -> None:
        self.forgotten.append(request)

    def remember(self, public_id: str, entry: Remembered) -> None:
        self.remembered[public_id] = entry

    def refused(self) -> None:
        self.refusals += 1

    def count(self, model: str, prompt: int, output: int) -> None:
        self.counts.append((model, prompt, output))


def test_news_are_passed_on_and_shown() -> None:
    world = World()
    view = AccountView("gateway/in_flight", FRONT, "requests", "level", 10, 1, 0)
    decision = Decision("front", 1, "route", "up-a", "the only one", (), RequestId("req-1"))
    named = Named("one", TenantId("t"), RequestId("req-1"), "0" * 32)
    news = News((named,), (decision,), (), (("m", 3, 4),), 2, 5, 6, (view,), (("retries", 2),), 9)
    world.fronts.receive(FRONT, news)
    assert world.decisions == [("node-front-1", decision)]
    assert world.remembered["one"].requests == (RequestId("req-1"),)
    assert (world.refusals, world.counts) == (2, [("m", 3, 4)])
    shown = world.fronts.view()
    assert (shown.waiting, shown.in_flight, shown.accounts, shown.recoveries) == (5, 6, ((view, 9),), (("retries", 2),))


def test_what_a_lost_process_had_open_is_forgotten_and_what_it_counted_is_not() -> None:
    world = World()
    named = Named("one", TenantId("t"), RequestId("req-1"), "0" * 32)
    world.fronts.receive(FRONT, News(named=(named,), in_flight=1, recoveries=(("retries", 2),)))
    world.fronts.leave(FRONT, 1, "killed")
    assert world.forgotten == [RequestId("req-1")]
    assert (world.fronts.view().in_flight, world.fronts.view().accounts) == (0, ())
    assert world.fronts.view().recoveries == (("retries", 2),)
    assert [type(event) for event in world.events] == [PeerJoined, PeerLost]


def test_meters_of_lost_processes_are_kept_as_one_and_their_levels_are_not() -> None:
    world = World()
    meter = AccountView("tenant/a/gpu_seconds", FRONT, "us", "meter", None, 0, 3)
    level = AccountView("tenant/a/tokens", FRONT, "tokens", "level", None, 0, 8)
    for incarnation in (1, 2):
        world.fronts.receive(FRONT, News(accounts=(meter, level), at_ns=incarnation))
        world.fronts.leave(FRONT, incarnation, "died")
        world.fronts.join(FRONT, incarnation + 1, world.peer)
    kept = AccountView("tenant/a/gpu_seconds", f"{FRONT} (lost)", "us", "meter", None, 0, 6)
    assert world.fronts.view().accounts == ((kept, 2),)


def test_control_reaches_fronts_by_their_links_and_all_nodes_of_a_drained_upstream() -> None:
    world = World()
    share = Share(1, 1, 100)
    world.fronts.send(CONTROL, FRONT, share)
    assert world.peer.frames == [Envelope(CONTROL, FRONT, share)]
    assert not world.sent
    drain = Drain("an operator asked")
    world.fronts.send(CONTROL, UP, drain)
    assert world.sent == [(CONTROL, UP, drain)]
    assert world.peer.frames[1:] == [Envelope(CONTROL, UP, drain)]
    later, last = Peer(), Peer()
    world.fronts.join(OTHER, 1, later)
    assert [frame.message for frame in later.frames if isinstance(frame, Envelope)] == [drain]
    world.fronts.send(CONTROL, UP, Undrain("done"))
    world.fronts.join(OTHER, 2, last)
    assert not last.frames


def test_a_front_reaches_control_and_sends_nothing_that_only_replicas_send() -> None:
    world = World()
    stated = Stated(1, 0, 5)
    world.fronts.receive(FRONT, Envelope(FRONT, CONTROL, stated))
    assert world.sent == [(FRONT, CONTROL, stated)]
    with pytest.raises(WireError, match="only a replica"):
        world.fronts.receive(FRONT, Blocks(FRONT, OTHER, "t", 0, 0, (), b"", True))  # type: ignore[arg-type]  # any id
    with pytest.raises(WireError, match="only a replica"):
        world.fronts.spans(FRONT, ())
