from headway.core.events import DrainAsked, Event, WarmAsked
from headway.core.ids import ModelId, NodeId
from headway.core.reports import GarbageFigures, ReplicaFigures
from headway.core.request import DenoiseShape
from headway.core.units import NS_PER_S
from headway.live.board import Board
from headway.live.replica_desk import ReplicaDesk
from headway.live.stores import TelemetrySettings, Timeline
from headway.live.wire import Phase, Ready

REP, UP = NodeId("rep-0"), NodeId("up-a")


def desk(events: list[Event]) -> ReplicaDesk:
    seen = (ReplicaFigures(UP, "ready", ("m",), 1, breaker="open"),)
    return ReplicaDesk(lambda _: seen, lambda make: events.append(make(7)), lambda: {UP: "an operator asked"})


def test_replicas_are_those_of_the_front_and_those_of_ours_that_are_not_there() -> None:  # SPEC A11
    board = Board({REP: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    assert [(one.replica, one.state) for one in desk([]).replicas(board, 0)] == [(REP, "loading"), (UP, "ready")]
    board.lost(REP, 1, "exit code 1")
    found = [(one.state, one.is_drained, one.breaker, one.reason) for one in desk([]).replicas(board, 0)]
    assert found == [("lost", False, "closed", "exit code 1"), ("ready", True, "open", None)]


def test_those_that_may_take_work_are_there_up_and_not_drained() -> None:  # SPEC A11
    board = Board({REP: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    drained: dict[NodeId, str] = {}
    seen = [
        ReplicaFigures(UP, "ready", ("m",), breaker="open"),
        ReplicaFigures(NodeId("c"), "ready", ("m",), is_up=False),
    ]
    desk = ReplicaDesk(
        lambda _: [*seen, ReplicaFigures(NodeId("d"), "draining", ("m",))], lambda _: None, lambda: drained
    )
    assert (desk.able(board, ModelId("m"), 0), desk.able(board, ModelId("other"), 0)) == (1, 0)
    drained[UP] = "an operator asked"
    assert desk.able(board, ModelId("m"), 0) == 0


def test_a_drain_goes_to_the_control_node() -> None:  # SPEC A11
    events: list[Event] = []
    desk(events).drain(REP, True)
    assert events == [DrainAsked(7, "an operator asked", REP, True)]


def test_what_is_to_be_warmed_goes_to_the_control_node() -> None:  # SPEC F8
    events: list[Event] = []
    desk(events).warm(REP, (DenoiseShape(64, 64),))
    assert events == [WarmAsked(7, "an operator asked", REP, (DenoiseShape(64, 64),))]
    desk(events).warm_again(REP, (DenoiseShape(64, 64),), (2,))
    assert events[1:] == [WarmAsked(7, "it was warm before", REP, (DenoiseShape(64, 64),), (2,))]


def test_what_a_collector_took_is_that_of_the_incarnation_that_is_there() -> None:
    board = Board({REP: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)
    took = GarbageFigures(3, 40, 1, 20, 20)

    def told() -> list[GarbageFigures | None]:
        return [one.garbage for one in desk([]).replicas(board, 0)]

    board.joined(REP, 1, Ready(None, 5))
    board.garbage(REP, took)
    assert told() == [took, None]
    board.lost(REP, 1, "exit code 1")
    assert told() == [None, None]


def test_one_that_starts_again_is_loading_and_says_what_it_does() -> None:
    board = Board({REP: "m"}, Timeline(TelemetrySettings()), lambda node, line: None)

    def told() -> tuple[str, str | None]:
        figures = desk([]).replicas(board, 3 * NS_PER_S)[0]
        return figures.state, figures.reason

    assert told() == ("loading", "it is loading")
    board.joined(REP, 1, Ready(None, 5))
    board.lost(REP, 1, "exit code 1")
    assert told() == ("lost", "exit code 1")
    board.phase(REP, Phase("warm-up", 0.0, NS_PER_S))
    assert told() == ("loading", "rep-0 has been in phase 'warm-up' for 2 s; it starts again: exit code 1")
