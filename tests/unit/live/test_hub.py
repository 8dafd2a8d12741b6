import asyncio
from collections.abc import Callable

from headway.core.events import Event, MessageArrived, PeerJoined, PeerLost, PeerStarting, Proposal
from headway.core.ids import GroupId, ModelId, NodeId, TransferId
from headway.core.messages import Drain, Message
from headway.core.units import Ns
from headway.live.clock import Clock
from headway.live.hub import Hub
from headway.live.wire import Blocks, Envelope, Frame, Gather, Gathered, Joined, Lost
from headway.sched.runtime.group import GENERATION_BITS

FRONT, A, B, G = NodeId("front"), NodeId("rep-a"), NodeId("rep-b"), GroupId("g")


class Peer:
    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)


class World:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.silent: list[NodeId] = []
        self.heard: list[tuple[NodeId, Message]] = []
        self.a, self.b = Peer(), Peer()
        self.hub = Hub(
            Clock(),
            {G: (A, B)},
            lambda node, reason: self.silent.append(node),
            lambda src, message: self.heard.append((src, message)),
        )
        self.hub.models = {A: ModelId("m"), B: ModelId("m")}
        self.hub.add_local(FRONT, self._feed)
        self.hub.join(A, 1, self.a)
        self.hub.join(B, 1, self.b)
        self.joined = [*self.a.frames, *self.b.frames]
        for told in (self.events, self.a.frames, self.b.frames):
            told.clear()

    def _feed(self, make: Callable[[Ns], Event]) -> None:
        self.events.append(make(3))


def on_loop(test: Callable[[World], None]) -> None:
    async def main() -> None:
        test(World())

    asyncio.run(main())


def test_a_replicas_message_reaches_the_node_of_this_process_and_is_heard() -> None:
    def test(world: World) -> None:
        world.hub.receive(A, Envelope(A, FRONT, Drain("x")))
        assert world.events == [MessageArrived(3, "rep-a", A, Drain("x"))]
        assert world.heard == [(A, Drain("x"))]

    on_loop(test)


def test_a_sender_cannot_pose_as_another() -> None:
    def test(world: World) -> None:
        world.hub.receive(A, Envelope(B, FRONT, Drain("x")))
        (event,) = world.events
        assert isinstance(event, MessageArrived)
        assert event.src == A

    on_loop(test)


def test_messages_between_replicas_keep_their_order_with_copied_blocks() -> None:
    # SPEC C4
    def test(world: World) -> None:
        blocks = Blocks(A, B, TransferId("x"), 0, -1, (1,), b"k", last=True)
        world.hub.receive(A, blocks)
        world.hub.receive(A, Envelope(A, B, Drain("after")))
        assert world.b.frames == [blocks, Envelope(A, B, Drain("after"))]

    on_loop(test)


def test_a_loss_is_told_to_every_node_once() -> None:
    # SPEC A11
    def test(world: World) -> None:
        world.hub.leave(A, 1, "killed")
        world.hub.leave(A, 1, "again")
        assert world.events == [PeerLost(3, "killed", A, 1)]
        assert world.b.frames == [Lost(A, 1)]

    on_loop(test)


def test_old_news_of_an_earlier_incarnation_changes_nothing() -> None:
    def test(world: World) -> None:
        world.hub.leave(A, 1, "killed")
        world.hub.join(A, 2, Peer())
        world.events.clear()
        world.hub.leave(A, 1, "late")
        assert world.events == []

    on_loop(test)


def test_a_return_is_told_with_its_incarnation() -> None:
    def test(world: World) -> None:
        world.hub.leave(A, 1, "killed")
        world.hub.join(A, 2, Peer())
        assert world.events[-1] == PeerJoined(3, "ready", A, 2)

    on_loop(test)


def test_a_start_and_how_it_ends_are_told_to_the_nodes_of_this_process_only() -> None:  # SPEC A11
    def test(world: World) -> None:
        world.hub.leave(A, 1, "killed")
        world.events.clear()
        world.b.frames.clear()
        world.hub.starting(A, 2, "warm-up")
        world.hub.leave(A, 2, "out of memory")
        world.hub.leave(A, 2, "said again")
        model = ModelId("m")
        assert world.events == [PeerStarting(3, "warm-up", A, 2, model), PeerLost(3, "out of memory", A, 2)]
        assert world.b.frames == []

    on_loop(test)


def test_a_phase_that_is_told_after_the_start_is_over_changes_nothing() -> None:
    def test(world: World) -> None:
        world.hub.starting(A, 1, "warm-up")
        assert world.events == []

    on_loop(test)


def test_replicas_hear_of_each_other() -> None:
    def test(world: World) -> None:
        assert world.joined == [Joined(B, 1), Joined(A, 1)]

    on_loop(test)


def test_a_message_to_a_lost_replica_is_dropped() -> None:
    def test(world: World) -> None:
        world.hub.leave(A, 1, "killed")
        world.hub.send(FRONT, A, Drain("x"))
        assert world.a.frames == []

    on_loop(test)


def test_a_group_hears_everyones_proposal() -> None:
    # SPEC D2
    def test(world: World) -> None:
        mine, other = Proposal("decode", 1, 1), Proposal("idle", 0, 0)
        step = (2 << GENERATION_BITS) + 4
        world.hub.receive(A, Gather(G, step, mine, 1 << 62))
        world.hub.receive(B, Gather(G, step, other, 1 << 62))
        expected = Gathered(G, step, {A: mine, B: other})
        assert (world.a.frames, world.b.frames) == ([expected], [expected])

    on_loop(test)


def test_a_proposal_of_an_earlier_generation_is_dropped_and_blames_nobody() -> None:
    # SPEC D2
    def test(world: World) -> None:
        world.hub.leave(B, 1, "killed")
        world.hub.join(B, 2, world.b)
        world.hub.receive(A, Gather(G, 2 << GENERATION_BITS, Proposal("decode", 1, 1), 0))
        assert world.hub.open_gathers == 0

    on_loop(test)
