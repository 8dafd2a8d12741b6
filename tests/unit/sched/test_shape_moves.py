from msgspec.structs import replace

from headway.core.decisions import Decision
from headway.core.effects import Effect, Record, Send, WakeAt
from headway.core.events import MessageArrived, PeerLost, TimerFired
from headway.core.ids import NodeId
from headway.core.messages import Report, Reshape, Reshaped
from headway.core.reports import ReplicaReport, ShapeMoveFigures
from headway.core.units import NS_PER_S
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.nodes import ControlNode

S = NS_PER_S
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
SMALL, LARGE = (0, 1000), (1001, None)


class Desk:
    """A control node that may move replicas, and three of them."""

    def __init__(self, **params: float) -> None:
        self.params = ShapePoolParams(cold_start_s=20.0, hold_s=2.0, cooldown_s=10.0)
        self.node = ControlNode(NodeId("control"), None, shapes=replace(self.params, **params))
        self.numbers = 0

    def report(
        self, at_s: float, replica: NodeId, pixels: tuple[int, int | None], work_s: float, life: int = 1
    ) -> list[Effect]:
        self.numbers += 1
        report = ReplicaReport(replica, life, self.numbers, 0, "diffusion", "m", 0, 0, 0, 0, 0, 0, 0)
        report = replace(report, pixels=pixels, queued_work_ns=round(work_s * S))
        return self.node.handle(MessageArrived(round(at_s * S), "t", replica, Report(report)))

    def pressed(self, at_s: float, work_s: float = 100) -> list[Effect]:
        """Two idle replicas for small pictures, one for large ones that has much to do."""
        self.report(at_s, A, SMALL, 0)
        self.report(at_s, B, SMALL, 0)
        return self.report(at_s, C, LARGE, work_s)


def asked(effects: list[Effect]) -> list[tuple[NodeId, Reshape]]:
    return [(e.dst, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, Reshape)]


def test_a_move_is_asked_for_once_it_has_been_worth_while_for_long_enough() -> None:  # SPEC F5
    desk = Desk()
    assert not asked(desk.pressed(0))
    assert asked(desk.report(3, C, LARGE, 100)) == [(A, Reshape(1, 1001, None, 20 * S))]
    assert not asked(desk.report(4, C, LARGE, 100))  # one at a time


def test_a_move_is_made_without_another_report() -> None:  # reports stop while a long plan runs
    desk = Desk()
    wakes = [effect for effect in desk.pressed(0) if isinstance(effect, WakeAt)]
    assert len(wakes) == 1
    assert asked(desk.node.handle(TimerFired(wakes[0].at_ns, "t", wakes[0].timer)))


def test_work_runs_off_between_reports() -> None:
    desk = Desk()
    (wake,) = [effect for effect in desk.pressed(0, work_s=26) if isinstance(effect, WakeAt)]
    assert not asked(desk.node.handle(TimerFired(wake.at_ns, "t", wake.timer)))  # 24 s are left, 25 would be needed


def test_the_decision_says_waits_and_price() -> None:  # SPEC L-3
    desk = Desk()
    desk.pressed(0)
    told = [e.entry for e in desk.report(3, C, LARGE, 100) if isinstance(e, Record) and isinstance(e.entry, Decision)]
    assert [(one.kind, one.level, one.chosen) for one in told] == [("reshape", "pool", "a")]
    assert told[0].reason == "m: requests of 1001..any pixels wait 100.0 s, others 0.0 s; preparing it takes 20.0 s"
    assert [(one.name, one.score) for one in told[0].alternatives] == [
        ("1001..any pixels", 100.0),
        ("0..1000 pixels", 0),
    ]


def test_after_a_move_the_model_rests_and_its_measured_time_is_the_price() -> None:
    desk = Desk()
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(1, 1001, None, 50 * S, 1)))
    assert desk.node.shapes is not None
    assert desk.node.shapes.figures == (ShapeMoveFigures("m", "moved", 1),)
    third = NodeId("d")
    desk.report(4, A, LARGE, 0)
    desk.report(4, third, SMALL, 0)
    desk.report(4, C, LARGE, 150)
    assert not asked(desk.report(13, C, LARGE, 150))  # 75 s each; it rests until 14 s
    assert asked(desk.report(20, C, LARGE, 150)) == [(B, Reshape(2, 1001, None, 50 * S))]


def test_a_replica_that_cannot_is_not_asked_again() -> None:
    desk = Desk(cooldown_s=0.0)
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(1, 1001, None, 0, 0, "it does not fit")))
    assert desk.node.shapes is not None
    assert desk.node.shapes.figures == (ShapeMoveFigures("m", "failed", 1),)
    desk.report(5, C, LARGE, 100)
    assert asked(desk.report(9, C, LARGE, 100)) == [(B, Reshape(2, 1001, None, 20 * S))]  # another one may be able
    desk.node.handle(MessageArrived(10 * S, "t", B, Reshaped(2, 1001, None, 0, 0, "it does not fit")))
    desk.report(11, C, LARGE, 100)
    assert not asked(desk.report(15, C, LARGE, 100))


def test_one_that_could_not_may_after_a_restart() -> None:
    desk = Desk(cooldown_s=0.0)
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(1, 1001, None, 0, 0, "it ran out of memory")))
    desk.report(5, A, SMALL, 0, life=2)
    desk.report(6, C, LARGE, 100)
    assert asked(desk.report(9, C, LARGE, 100)) == [(A, Reshape(2, 1001, None, 20 * S))]


def test_the_move_of_a_lost_replica_is_over() -> None:
    desk = Desk(cooldown_s=0.0)
    desk.pressed(0)
    assert asked(desk.report(3, C, LARGE, 100))
    desk.node.handle(PeerLost(4 * S, "t", A, 1))
    desk.report(4, NodeId("d"), SMALL, 0)
    desk.report(5, C, LARGE, 100)
    assert asked(desk.report(8, C, LARGE, 100)) == [(B, Reshape(2, 1001, None, 20 * S))]


def test_an_answer_to_an_older_move_changes_nothing() -> None:
    desk = Desk()
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(7, 1001, None, S, 1)))
    assert desk.node.shapes is not None
    assert desk.node.shapes.figures == ()


def test_a_way_back_that_cost_nothing_is_not_the_price_of_the_next() -> None:
    desk = Desk(cooldown_s=0.0)
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(1, 1001, None, 0, 0)))
    desk.report(4, NodeId("d"), SMALL, 0)
    desk.report(5, C, LARGE, 100)
    assert asked(desk.report(8, C, LARGE, 100)) == [(B, Reshape(2, 1001, None, 20 * S))]


def test_a_replica_counts_where_it_is_before_it_reports() -> None:
    desk = Desk(cooldown_s=0.0)
    desk.pressed(0)
    desk.report(3, C, LARGE, 100)
    desk.node.handle(MessageArrived(4 * S, "t", A, Reshaped(1, 1001, None, 0, 0)))
    desk.report(4, C, LARGE, 900)
    assert not asked(desk.report(9, C, LARGE, 900))  # only B is left for small pictures
