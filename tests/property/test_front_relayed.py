"""A FrontNode alone relays requests under random events: an answer begins once, at one leg, and is never run again."""

import msgspec
import pytest
from tests.unit.sched.desk import Desk

from headway.core.draw import draw_below
from headway.core.effects import End, Send, WakeAt
from headway.core.events import ClientGone
from headway.core.evidence import WorkerMarks
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Begun, Cancel, Finished, Probed, Refused, Submit
from headway.core.request import FinishReason, TextRequest
from headway.core.units import NS_PER_S
from headway.sched.dispatch import Patience
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.health import HealthParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.nodes import FrontConfig
from headway.sched.watch import Silence

UPSTREAMS = ("up-a", "up-b", "up-c")
CONFIG = FrontConfig(
    patience=Patience(full_wait_s=0.2, full_s=0.05, silence=Silence(0.3, 0.3, 0.2)),
    breaker=BreakerParams(faults_min=2, open_s=0.05, open_s_max=0.4),
    health=HealthParams(up_after=1, down_after=2),
    hedge=HedgeParams(after_ms=1, share_max=1.0),
)
Leg = tuple[str, RequestId, int]  # replica, request, epoch


class RelayWorld:
    """Upstreams that begin, finish, refuse, fail and fall silent; a leg that is cancelled says no more."""

    def __init__(self, seed: int) -> None:
        self.desk = Desk(CONFIG, UPSTREAMS)
        self.legs: dict[Leg, bool] = {}  # whether it has begun
        self.begun: dict[RequestId, Leg] = {}  # whose answer the client sees
        self.ends: dict[RequestId, End] = {}
        self.arrived: list[RequestId] = []
        self.timers: list[str] = []
        self.second_legs = 0
        self._seed, self._draws, self._seen = seed, 0, 0
        for node in UPSTREAMS:
            self.report(node)
        self.look()

    def draw(self, bound: int) -> int:
        self._draws += 1
        return draw_below(self._seed, "op", 0, self._draws, bound)

    def report(self, node: str) -> None:
        self.desk.report(node, role="upstream", submits_seen=1 << 30)

    def look(self) -> None:
        """Do what the effects since the last look say."""
        while self._seen < len(self.desk.all):
            effect = self.desk.all[self._seen]
            self._seen += 1
            match effect:
                case End():
                    assert effect.request not in self.ends
                    self.ends[effect.request] = effect
                case Send(dst=dst, message=Submit() as submit):
                    request = submit.request.id
                    assert request not in self.begun, "run again after its answer had begun"
                    assert request not in self.ends
                    self.second_legs += any(leg[1] == request for leg in self.legs)
                    self.legs[(dst, request, submit.epoch)] = False
                case Send(dst=dst, message=Cancel() as cancel):
                    self.legs.pop((dst, cancel.request, cancel.epoch), None)
                case WakeAt(timer=timer) if timer.partition(":")[0] in ("hedge", "retry", "watch", "guard", "full"):
                    self.timers.append(timer)
                case _:
                    pass

    def leg(self, *, has_begun: bool | None = None) -> Leg | None:
        found = [leg for leg, begun in self.legs.items() if has_begun in (None, begun)]
        return found[self.draw(len(found))] if found else None

    # Operations

    def arrive(self) -> None:
        request = RequestId(f"req-{len(self.arrived)}")
        self.arrived.append(request)
        is_idempotent = self.draw(3) > 0
        text = TextRequest(request, TenantId("t"), ModelId("synthetic"), 10, 20, self.desk.now_ns)
        self.desk.arrive(msgspec.structs.replace(text, is_idempotent=is_idempotent))

    def begin(self) -> None:
        """The head comes: the front hears of it before the client does, and cancels the other leg."""
        leg = self.leg(has_begun=False)
        if leg is None:
            return
        replica, request, epoch = leg
        self.legs[leg] = True
        self.desk.message(replica, Begun(request, epoch))
        if leg in self.legs and request not in self.ends:
            assert request not in self.begun
            self.begun[request] = leg
            self.look()
            assert [other for other in self.legs if other[1] == request] == [leg]

    def finish(self) -> None:
        leg = self.leg(has_begun=True)
        if leg is not None:
            self._say(leg, FinishReason.STOP, "success")

    def fail(self) -> None:
        leg = self.leg()
        if leg is not None:
            self._say(leg, FinishReason.LOST, "fault")

    def _say(self, leg: Leg, reason: FinishReason, health: str) -> None:
        replica, request, epoch = leg
        del self.legs[leg]
        marks = WorkerMarks(NodeId(replica), 0)
        self.desk.message(replica, Finished(request, epoch, reason, 5, marks, None, health))  # type: ignore[arg-type]  # a literal

    def refuse(self) -> None:
        leg = self.leg(has_begun=False)
        if leg is not None:
            del self.legs[leg]
            self.desk.message(leg[0], Refused(leg[1], leg[2], "full", "429", (None, 5)[self.draw(2)]))

    def wake(self) -> None:
        if self.timers:
            timer = self.timers.pop(self.draw(len(self.timers)))
            self.desk.now_ns += self.draw(2) * NS_PER_S // 20
            self.desk.fire(timer)

    def probe(self) -> None:
        self.desk.message(UPSTREAMS[self.draw(3)], Probed(self.draw(3) > 0, "a check"))

    def told(self) -> None:
        self.report(UPSTREAMS[self.draw(3)])

    def leave(self) -> None:
        if self.arrived:
            self.desk.event(ClientGone(self.desk.now_ns, "t", self.arrived[self.draw(len(self.arrived))]))

    def drain(self) -> None:
        """Let everything end, and close every stream."""
        self.desk.now_ns += 200 * NS_PER_S
        for _ in range(len(self.timers)):
            self.desk.fire(self.timers.pop(0))
            self.look()
        for node in UPSTREAMS:
            self.report(node)
            self.desk.message(node, Probed(True, "a check"))
            self.look()
        while self.legs:
            self.begin()
            self.look()
            self.finish()
            self.look()
        for request in self.ends:
            self.desk.close(request)
        self.look()


def ran(seed: int) -> RelayWorld:
    world = RelayWorld(seed)
    operations = [
        world.arrive, world.arrive, world.begin, world.begin, world.finish, world.finish, world.fail, world.refuse,
        world.wake, world.wake, world.probe, world.told, world.leave,
    ]  # fmt: skip
    for _ in range(400):
        world.desk.now_ns += 1
        operations[world.draw(len(operations))]()
        world.look()
    for _ in range(50):
        world.drain()
        if not world.desk.node.book.requests:
            break
    return world


@pytest.mark.parametrize("seed", range(30))
def test_every_relayed_request_ends_once_and_begins_at_most_once(seed: int) -> None:  # SPEC L-2, A11
    world = ran(seed)
    assert len(world.arrived) > 20
    assert set(world.ends) == set(world.arrived)
    assert world.desk.node.book.requests == {}
    assert set(world.desk.levels().values()) == {0}
    for request in world.begun:
        end = world.ends[request]
        assert end.error is None or end.error.code in ("engine_lost", "deadline_passed")
    for replica in world.desk.node.router.replicas.values():
        assert (replica.in_flight, replica.uncached_in_flight, replica.output_tokens_expected) == (0, 0, 0)


def test_these_worlds_hedge_and_both_legs_win_at_times() -> None:
    counts: dict[str, int] = {}
    for seed in range(8):
        world = ran(seed)
        assert world.second_legs > 0
        for name, count in world.desk.node.front.recovery.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["hedged"] > counts["hedge_won"] > 0
    assert counts["resumed"] == 0  # what has begun is never run again
    assert counts["retried"] > 0
