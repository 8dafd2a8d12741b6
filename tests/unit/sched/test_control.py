from tests.unit.sched.router.views import report

from headway.core.decisions import Decision
from headway.core.effects import Effect, Record, Send, WakeAt
from headway.core.events import DrainAsked, MessageArrived, PeerJoined, PeerLost, TimerFired, WarmAsked
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.messages import (
    Drain,
    Held,
    Holding,
    Message,
    Migrate,
    MigrationEnded,
    Prepare,
    Report,
    Undrain,
    WhatDoYouHold,
)
from headway.core.request import DenoiseShape
from headway.core.units import NS_PER_S, Ns
from headway.sched.fleet.migration import MigrationParams
from headway.sched.nodes import ControlNode

HEAVY, LIGHT = NodeId("rep-a"), NodeId("rep-b")
HELD = (Held(RequestId("req-1"), 1, 9), Held(RequestId("req-2"), 1, 4))


class Tower:
    """A ControlNode alone."""

    def __init__(self, migration: MigrationParams | None = MigrationParams(gain_tokens_min=100)) -> None:  # noqa: B008  frozen
        self.node = ControlNode(NodeId("control-0"), migration)
        self.numbers = 0
        self.last: list[Effect] = []

    def message(self, src: NodeId, message: Message, at_ns: Ns = 0) -> list[tuple[str, Message]]:
        self.last = self.node.handle(MessageArrived(at_ns, "t", src, message))
        self.node.check_invariants()
        return [(e.dst, e.message) for e in self.last if isinstance(e, Send)]

    def reports(self, heavy: int = 900, light: int = 10, at_ns: Ns = 0) -> list[tuple[str, Message]]:
        self.numbers += 1
        sent = self.message(LIGHT, Report(report(LIGHT, self.numbers, running=1, running_kv_tokens=light)), at_ns)
        return sent + self.message(
            HEAVY, Report(report(HEAVY, self.numbers, running=4, running_kv_tokens=heavy)), at_ns
        )


def test_asks_the_heavy_replica_then_moves_its_youngest_request() -> None:  # SPEC C4, L-3
    tower = Tower()
    assert tower.reports() == [(HEAVY, WhatDoYouHold(1))]
    ((dst, message),) = tower.message(HEAVY, Holding(1, HELD))
    assert isinstance(message, Migrate)
    assert (dst, message.request, message.destination) == (HEAVY, "req-2", LIGHT)
    (decision,) = [e.entry for e in tower.last if isinstance(e, Record)]
    assert (decision.kind, decision.request) == ("migrate", "req-2")


def test_one_move_at_a_time_and_a_cooldown_after_it() -> None:  # SPEC C4
    tower = Tower()
    tower.reports()
    ((_, message),) = tower.message(HEAVY, Holding(1, HELD))
    assert isinstance(message, Migrate)
    assert tower.reports() == []
    tower.message(HEAVY, MigrationEnded(message.request, message.transfer, True, "t"), NS_PER_S)
    assert tower.reports(at_ns=NS_PER_S + 1) == []
    assert tower.reports(at_ns=2 * NS_PER_S) == [(HEAVY, WhatDoYouHold(2))]
    assert tower.node.control.moved == 1


def test_several_pairs_move_at_once_and_no_replica_is_in_two() -> None:  # SPEC C4
    tower = Tower(MigrationParams(gain_tokens_min=100, moves_max=2))
    names = [NodeId(f"rep-{place}") for place in range(6)]
    asked: list[tuple[str, Message]] = []
    for name, tokens in zip(names, (1000, 990, 980, 10, 20, 30), strict=True):
        asked += tower.message(name, Report(report(name, 1, running=4, running_kv_tokens=tokens)))
    sources = [dst for dst, message in asked if isinstance(message, WhatDoYouHold)]
    assert len(sources) == len(set(sources)) == 2
    moves = [tower.message(NodeId(dst), Holding(number + 1, HELD)) for number, dst in enumerate(sources)]
    targets = [message.destination for ((_, message),) in moves if isinstance(message, Migrate)]
    assert len({*sources, *targets}) == 4


def test_a_replica_says_what_the_head_of_its_queue_lacks_and_gets_room() -> None:  # SPEC C4
    tower = Tower()
    free = report(LIGHT, 1, running=1, running_kv_tokens=500, kv_blocks_free=100, block_size=16)
    tower.message(LIGHT, Report(free))
    full = report(HEAVY, 1, running=4, running_kv_tokens=500, kv_blocks_free=2, block_size=16, blocked_tokens=160)
    assert tower.message(HEAVY, Report(full)) == [(HEAVY, WhatDoYouHold(1))]
    held = tuple(Held(RequestId(f"req-{tokens}"), 1, 9, tokens) for tokens in (400, 130, 20))
    ((_, message),) = tower.message(HEAVY, Holding(1, held))
    assert isinstance(message, Migrate)
    assert (message.request, message.destination) == ("req-130", LIGHT)


def test_balanced_replicas_are_left_alone_and_off_means_off() -> None:
    assert Tower().reports(heavy=100, light=90) == []
    assert Tower(None).reports() == []


def test_nothing_to_move_ends_the_attempt() -> None:
    tower = Tower()
    tower.reports()
    assert tower.message(HEAVY, Holding(1, ())) == []
    assert tower.reports(at_ns=NS_PER_S) == [(HEAVY, WhatDoYouHold(2))]


def test_a_lost_or_silent_source_ends_the_attempt() -> None:
    for event in (PeerLost(0, "t", HEAVY, 1), TimerFired(0, "t", TimerId("move:1"))):
        tower = Tower()
        tower.reports()
        assert any(isinstance(effect, WakeAt) for effect in tower.last)
        tower.node.handle(event)
        assert tower.reports(at_ns=NS_PER_S) == [(HEAVY, WhatDoYouHold(2))]


def test_the_loss_of_an_older_life_changes_nothing() -> None:
    tower = Tower()
    tower.message(HEAVY, Report(report(HEAVY, 1, incarnation=2, running=4, running_kv_tokens=900)))
    tower.node.handle(PeerLost(0, "t", HEAVY, 1))
    assert HEAVY in tower.node.control.reports


def test_an_older_report_is_dropped() -> None:
    tower = Tower(None)
    tower.message(HEAVY, Report(report(HEAVY, 5, running=4)))
    tower.message(HEAVY, Report(report(HEAVY, 4, running=9)))
    assert tower.node.control.reports[HEAVY].running == 4


def test_what_is_to_be_warmed_is_told_to_its_replica() -> None:  # SPEC F8
    tower, shapes = Tower(None), (DenoiseShape(64, 64), DenoiseShape(128, 96))
    told = tower.node.handle(WarmAsked(0, "an operator asked", HEAVY, shapes))
    assert told == [Send(HEAVY, Prepare(shapes))]
    again = tower.node.handle(WarmAsked(0, "it was warm before", HEAVY, shapes, (2,)))
    assert again == [Send(HEAVY, Prepare(shapes, (2,)))]


def asked(tower: Tower, is_draining: bool) -> list[tuple[str, Message]]:
    tower.last = tower.node.handle(DrainAsked(0, "maintenance", HEAVY, is_draining))
    return [(e.dst, e.message) for e in tower.last if isinstance(e, Send)]


def test_an_operator_drains_a_replica_and_brings_it_back() -> None:  # SPEC A11, L-3
    tower = Tower(None)
    assert asked(tower, True) == [(HEAVY, Drain("maintenance"))]
    assert [e.entry.chosen for e in tower.last if isinstance(e, Record) and isinstance(e.entry, Decision)] == ["drain"]
    assert asked(tower, True) == []
    assert asked(tower, False) == [(HEAVY, Undrain("maintenance"))]
    assert asked(tower, False) == []


def test_a_drained_replica_that_restarts_stays_drained() -> None:
    tower = Tower(None)
    asked(tower, True)
    tower.node.handle(PeerLost(0, "t", HEAVY, 1))
    effects = tower.node.handle(PeerJoined(0, "t", HEAVY, 2))
    assert [(e.dst, e.message) for e in effects if isinstance(e, Send)] == [(HEAVY, Drain("maintenance"))]
    asked(tower, False)
    assert tower.node.handle(PeerJoined(0, "t", HEAVY, 3)) == []
