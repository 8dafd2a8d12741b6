"""A FrontNode alone under random events: replicas that accept, refuse, stream, hand over, die and come back late."""

import pytest
from tests.unit.sched.desk import Desk
from tests.unit.sched.router.views import llm

from headway.core.draw import draw_below
from headway.core.effects import Deliver, End, Record, Send
from headway.core.events import ClientGone, TextStopped
from headway.core.evidence import EvidenceRecord, WorkerMarks
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import (
    Finished,
    Refused,
    Submit,
    TakeOver,
    TakeOverAck,
    Tokens,
)
from headway.core.request import FinishReason, Slo
from headway.sched.dispatch import Patience
from headway.sched.nodes import FrontConfig

REPLICAS = ("rep-a", "rep-b", "rep-c")
OPERATIONS = 400


class World:
    """What replicas hold, as they would: kept from the front's own messages."""

    def __init__(self, seed: int) -> None:
        self.desk = Desk(FrontConfig(patience=Patience(attempts_max=3)), REPLICAS)
        self.held: dict[str, dict[RequestId, list[int]]] = {replica: {} for replica in REPLICAS}  # [epoch, next index]
        self.incarnations = dict.fromkeys(REPLICAS, 1)
        self.down: list[str] = []
        self.asked: dict[tuple[str, RequestId, int], int] = {}  # next_index of open take-overs
        self.ends: dict[RequestId, int] = {}
        self.streams: dict[RequestId, int] = {}
        self.records = 0
        self.arrived: list[RequestId] = []
        self.closed: set[RequestId] = set()
        self._seed, self._draws, self._seen = seed, 0, 0
        self.look()

    def draw(self, bound: int) -> int:
        self._draws += 1
        return draw_below(self._seed, "op", 0, self._draws, bound)

    def look(self) -> None:
        """Do what the effects since the last look say."""
        effects, self._seen = self.desk.all[self._seen :], len(self.desk.all)
        for effect in effects:
            match effect:
                case Deliver():
                    assert effect.index == self.streams.get(effect.request, 0)
                    assert effect.request not in self.ends
                    self.streams[effect.request] = effect.index + 1
                case End():
                    assert effect.request not in self.ends
                    self.ends[effect.request] = effect.output_tokens
                case Record(entry=EvidenceRecord()):
                    self.records += 1
                case Send(dst=dst, message=message) if dst not in self.down:
                    self.hear(dst, message)
                case _:
                    pass

    def hear(self, replica: str, message: object) -> None:
        held = self.held[replica]
        match message:
            case Submit():
                held[message.request.id] = [message.epoch, len(message.emitted)]
            case TakeOverAck(accepted=True):
                asked = self.asked.pop((replica, message.request, message.epoch), None)
                if asked is not None:
                    held[message.request] = [message.epoch, asked]
                elif message.request in held and held[message.request][0] < message.epoch:
                    del held[message.request]
            case _:
                pass

    def mine(self) -> tuple[str, RequestId] | None:
        """Some replica that is up and something that it holds."""
        pairs = [
            (replica, request) for replica in REPLICAS if replica not in self.down for request in self.held[replica]
        ]
        return pairs[self.draw(len(pairs))] if pairs else None

    # Operations

    def arrive(self) -> None:
        name = f"req-{len(self.arrived)}"
        slo = Slo(e2e_deadline_ns=self.desk.now_ns + 50) if self.draw(6) == 0 else Slo()
        self.arrived.append(RequestId(name))
        self.desk.arrive(llm(name, max_tokens=4 + self.draw(6), slo=slo, urgency=self.draw(3)))

    def stream(self) -> None:
        chosen = self.mine()
        if chosen is None:
            return
        replica, request = chosen
        epoch, index = self.held[replica][request]
        self.held[replica][request][1] += 1
        self.desk.message(replica, Tokens((request,), (epoch,), (index,), (self.draw(99),), 1))

    def finish(self) -> None:
        chosen = self.mine()
        if chosen is None:
            return
        replica, request = chosen
        epoch, count = self.held[replica].pop(request)
        reason = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.LOST)[self.draw(3)]
        self.desk.message(replica, Finished(request, epoch, reason, count, WorkerMarks(NodeId(replica), 0)))

    def refuse(self) -> None:
        chosen = self.mine()
        if chosen is None or self.held[chosen[0]][chosen[1]][1]:
            return
        replica, request = chosen
        epoch, _ = self.held[replica].pop(request)
        code = ("full", "draining", "unservable")[self.draw(3)]
        self.desk.message(replica, Refused(request, epoch, code, "no"))

    def take_over(self) -> None:
        """Another replica asks to own a request, sometimes too early, too late or twice."""
        chosen = self.mine()
        other = REPLICAS[self.draw(3)]
        if chosen is None or other in self.down or other == chosen[0]:
            return
        replica, request = chosen
        epoch, index = self.held[replica][request]
        ask = index + self.draw(3) - 1
        if ask < 0:
            return
        self.asked[(other, request, epoch + 1)] = ask
        self.desk.message(other, TakeOver(request, epoch + 1, TransferId("x"), ask))

    def lose(self) -> None:
        replica = REPLICAS[self.draw(3)]
        if replica in self.down:
            return
        self.down.append(replica)
        self.held[replica].clear()
        self.desk.lose(replica, self.incarnations[replica])

    def join(self) -> None:
        if self.down:
            replica = self.down.pop(self.draw(len(self.down)))
            self.incarnations[replica] += 1
            self.desk.join(replica, self.incarnations[replica])

    def report(self) -> None:
        replica = REPLICAS[self.draw(3)]
        if replica not in self.down:
            seen = self.desk.node.router.replicas[NodeId(replica)].number
            self.desk.report(replica, incarnation=self.incarnations[replica], submits_seen=seen, running=self.draw(4))

    def leave(self) -> None:
        if self.arrived:
            self.desk.event(ClientGone(self.desk.now_ns, "t", self.arrived[self.draw(len(self.arrived))]))

    def stop(self) -> None:
        streamed = [request for request, count in self.streams.items() if request not in self.ends and count]
        if streamed:
            request = streamed[self.draw(len(streamed))]
            self.desk.event(TextStopped(self.desk.now_ns, "t", request, self.streams[request] - 1))

    def fire(self) -> None:
        if self.arrived:
            kind = ("deadline", "replica", "close")[self.draw(3)]
            request = self.arrived[self.draw(len(self.arrived))]
            if kind != "close" or request in self.ends:
                self.desk.fire(f"{kind}:{request}")
                if kind == "close":
                    self.closed.add(request)

    def close(self) -> None:
        ready = [request for request in self.ends if request not in self.closed]
        if ready:
            request = ready[self.draw(len(ready))]
            self.closed.add(request)
            self.desk.close(request)

    def drain(self) -> None:
        """Bring everybody back, let everything end, close every stream."""
        while self.down:
            self.join()
            self.look()
        for _ in range(50 * len(self.arrived)):
            if not any(self.held.values()):
                break
            self.finish()
            self.look()
        for replica in REPLICAS:
            self.desk.report(replica, incarnation=self.incarnations[replica], submits_seen=1 << 30)
            self.look()
        while [request for request in self.ends if request not in self.closed]:
            self.close()
            self.look()


@pytest.mark.parametrize("seed", range(40))
def test_every_request_ends_once_and_nothing_is_left(seed: int) -> None:  # SPEC L-2, A11, C4
    world = World(seed)
    operations = [
        world.arrive, world.arrive, world.stream, world.stream, world.stream, world.stream, world.finish, world.refuse,
        world.take_over, world.take_over, world.lose, world.join, world.join, world.report, world.leave, world.stop,
        world.fire, world.close, world.close,
    ]  # fmt: skip
    for _ in range(OPERATIONS):
        world.desk.now_ns += 1
        operations[world.draw(len(operations))]()
        world.look()
    for _ in range(200):
        world.drain()
        if len(world.ends) == len(world.arrived):
            break
    world.drain()
    assert len(world.arrived) > 20
    assert set(world.ends) == set(world.arrived)
    assert world.desk.node.book.requests == {}
    assert world.records == len(world.arrived)
    assert set(world.desk.levels().values()) == {0}
    assert all(view.reserved == 0 for view in world.desk.node.ledger.views())
