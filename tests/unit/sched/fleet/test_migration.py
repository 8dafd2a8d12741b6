from headway.core.ids import NodeId, RequestId
from headway.core.messages import Held
from headway.sched.fleet.migration import MigrationParams, ReplicaLoad, choose_pair, choose_request

PARAMS = MigrationParams(gain_tokens_min=100, gain_ratio_min=0.3)


def load(name: str, tokens: int, running: int = 4, *, draining: bool = False) -> ReplicaLoad:
    return ReplicaLoad(NodeId(name), tokens, running, draining)


def test_moves_from_the_heaviest_to_the_lightest() -> None:  # SPEC C4
    move = choose_pair([load("rep-b", 900), load("rep-a", 100), load("rep-c", 500)], PARAMS)
    assert move is not None
    assert (move.source, move.destination, move.gain_tokens) == ("rep-b", "rep-a", 800)


def test_a_small_gain_moves_nothing() -> None:  # SPEC C4
    assert choose_pair([load("rep-a", 100), load("rep-b", 199)], PARAMS) is None
    assert choose_pair([load("rep-a", 1000), load("rep-b", 1200)], PARAMS) is None
    assert choose_pair([load("rep-a", 0), load("rep-b", 900, running=1)], PARAMS) is None


def test_a_draining_replica_gives_whatever_it_runs_and_gets_nothing() -> None:  # SPEC A11
    move = choose_pair([load("rep-a", 10, 1, draining=True), load("rep-b", 900)], PARAMS)
    assert move is not None
    assert (move.source, move.destination) == ("rep-a", "rep-b")
    assert choose_pair([load("rep-a", 10, 1, draining=True)], PARAMS) is None


def test_takes_the_youngest_decoding_request() -> None:
    held = [Held(RequestId("req-1"), 1, 40), Held(RequestId("req-2"), 1, 0), Held(RequestId("req-3"), 2, 7)]
    assert choose_request(held) == held[2]
    assert choose_request(held[1:2]) is None
