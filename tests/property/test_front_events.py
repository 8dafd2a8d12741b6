"""A FrontNode alone under random events: replicas that accept, refuse, stream, hand over, fail, fall silent, die and
come back late; requests with a second leg; retries that wait."""

import pytest
from tests.unit.sched.desk import Desk
from tests.unit.sched.router.views import llm

from headway.core.draw import draw_below
from headway.core.effects import Deliver, End, Record, Send, WakeAt
from headway.core.events import ClientGone, TextStopped
from headway.core.evidence import EvidenceRecord, WorkerMarks
from headway.core.ids import NodeId, RequestId, TransferId
from headway.core.messages import (
    Cancel,
    Finished,
    Probed,
    Refused,
    Submit,
    TakeOver,
    TakeOverAck,
    Tokens,
)
from headway.core.request import FinishReason, Slo
from headway.core.units import NS_PER_S
from headway.sched.dispatch import Patience
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.health import HealthParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.fleet.retry import RetryParams
from headway.sched.nodes import FrontConfig
from headway.sched.watch import Silence

REPLICAS = ("rep-a", "rep-b", "rep-c")
OPERATIONS = 400


class World:
    """What replicas hold, as they would: kept from the front's own messages."""

    def __init__(self, seed: int, config: FrontConfig) -> None:
        self.desk = Desk(config, REPLICAS)
        self.held: dict[str, dict[RequestId, list[int]]] = {replica: {} for replica in REPLICAS}  # [epoch, next index]
        self.timers: list[str] = []  # of dispatches: due at any time
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
                case WakeAt(timer=timer) if timer.partition(":")[0] in ("hedge", "retry", "watch", "guard", "full"):
                    self.timers.append(timer)
                case _:
                    pass

    def hear(self, replica: str, message: object) -> None:
        held = self.held[replica]
        match message:
            case Cancel():
                self.cancelled(replica, message)
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

    def cancelled(self, replica: str, message: Cancel) -> None:
        """Some confirm it at once; others go on for a while, or never say a word about it again."""
        held = self.held[replica].get(message.request)
        if held is None or held[0] != message.epoch or self.draw(3) == 0:
            return
        epoch, count = self.held[replica].pop(message.request)
        if self.draw(3):
            marks = WorkerMarks(NodeId(replica), 0)
            reply = Finished(message.request, epoch, FinishReason.CANCELLED, count, marks)
            self.desk.message(replica, reply)

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
        health = "fault" if reason is FinishReason.LOST else "success"
        marks = WorkerMarks(NodeId(replica), 0)
        self.desk.message(replica, Finished(request, epoch, reason, count, marks, None, health))

    def refuse(self) -> None:
        chosen = self.mine()
        if chosen is None or self.held[chosen[0]][chosen[1]][1]:
            return
        replica, request = chosen
        epoch, _ = self.held[replica].pop(request)
        code = ("full", "draining", "unservable")[self.draw(3)]
        self.desk.message(replica, Refused(request, epoch, code, "no", (None, 5)[self.draw(2)]))

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
        ask = self.asked.setdefault((other, request, epoch + 1), ask)  # who asks again asks the same
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

    def wake(self) -> None:
        """A timer of a dispatch comes due, soon or long after."""
        if self.timers:
            timer = self.timers.pop(self.draw(len(self.timers)))
            self.desk.now_ns += self.draw(2) * NS_PER_S // 10
            self.desk.fire(timer)

    def probe(self) -> None:
        replica = REPLICAS[self.draw(3)]
        if replica not in self.down:
            self.desk.message(replica, Probed(self.draw(2) == 0, "a check"))

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
        self.desk.now_ns += 200 * NS_PER_S  # the silent are given up, rests and waits are over
        for _ in range(len(self.timers)):
            self.desk.fire(self.timers.pop(0))
            self.look()
        for replica in REPLICAS:
            self.desk.report(replica, incarnation=self.incarnations[replica], submits_seen=1 << 30)
            self.look()
        while [request for request in self.ends if request not in self.closed]:
            self.close()
            self.look()


PLAIN = FrontConfig(patience=Patience(attempts_max=3))
TOUCHY = FrontConfig(
    patience=Patience(attempts_max=3, full_wait_s=0.2, full_s=0.05, silence=Silence(0.3, 0.3, 0.2)),
    breaker=BreakerParams(faults_min=2, open_s=0.05, open_s_max=0.4),
    health=HealthParams(up_after=1, down_after=2),
    retry=RetryParams(share=0.01, per_s=5, saved_max=2, wait_s=0.2),
    hedge=HedgeParams(after_ms=1, share_max=0.5),
)


@pytest.mark.parametrize("config", [PLAIN, TOUCHY], ids=["plain", "touchy"])
@pytest.mark.parametrize("seed", range(40))
def test_every_request_ends_once_and_nothing_is_left(seed: int, config: FrontConfig) -> None:  # SPEC L-2, A11, C4
    world = World(seed, config)
    operations = [
        world.arrive, world.arrive, world.stream, world.stream, world.stream, world.stream, world.finish, world.refuse,
        world.take_over, world.take_over, world.lose, world.join, world.join, world.report, world.leave, world.stop,
        world.fire, world.close, world.close, world.wake, world.wake, world.wake, world.probe,
    ]  # fmt: skip
    for _ in range(OPERATIONS):
        world.desk.now_ns += 1
        operations[world.draw(len(operations))]()
        world.look()
    for _ in range(200):
        world.drain()
        if len(world.ends) == len(world.arrived) and not world.desk.node.book.requests:
            break
    world.drain()
    assert len(world.arrived) > 15
    assert set(world.ends) == set(world.arrived)
    assert world.desk.node.book.requests == {}
    assert world.records == len(world.arrived)
    assert set(world.desk.levels().values()) == {0}
    assert all(view.reserved == 0 for view in world.desk.node.ledger.views())
    assert world.desk.node.front.endings.hedged == {}
    for replica in world.desk.node.router.replicas.values():
        assert (replica.in_flight, replica.uncached_in_flight, replica.output_tokens_expected) == (0, 0, 0)


def test_the_touchy_worlds_hedge_retry_wait_and_give_up() -> None:
    counts: dict[str, int] = {}
    for seed in range(10):
        world = World(seed, TOUCHY)
        operations = [world.arrive, world.stream, world.finish, world.wake, world.wake, world.report, world.lose]
        for _ in range(OPERATIONS):
            world.desk.now_ns += 1
            operations[world.draw(len(operations))]()
            world.look()
            if world.down:
                world.join()
                world.look()
        for name, count in world.desk.node.front.recovery.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert [name for name, count in counts.items() if not count] == []
