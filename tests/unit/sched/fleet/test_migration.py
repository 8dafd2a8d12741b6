from headway.core.ids import NodeId, RequestId
from headway.core.messages import Held
from headway.sched.fleet.migration import MigrationParams, Move, ReplicaLoad, choose_pair, choose_request

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
    move = Move(NodeId("rep-a"), NodeId("rep-b"), 800, "balance")
    assert choose_request(held, move) == held[2]
    assert choose_request(held[1:2], move) is None


# Room for the head of a queue (Llumnix: virtual usage, de-fragmentation)


def crowded(name: str, free: int, blocked: int = 0, running: int = 4) -> ReplicaLoad:
    return ReplicaLoad(NodeId(name), 1000, running, False, free, blocked)


def test_a_head_that_does_not_fit_gets_room_from_the_freest() -> None:  # SPEC C4
    loads = [crowded("rep-a", 500), crowded("rep-b", 100, blocked=400), crowded("rep-c", 900)]
    move = choose_pair(loads, PARAMS)
    assert move is not None
    assert (move.source, move.destination, move.reason) == ("rep-b", "rep-c", "room")
    assert (move.gain_tokens, move.room_tokens) == (300, 900 - PARAMS.spare_tokens)


def test_the_head_that_lacks_most_per_request_comes_first() -> None:
    loads = [crowded("rep-a", 100, 200), crowded("rep-b", 100, 900), crowded("rep-c", 900)]
    move = choose_pair(loads, PARAMS)
    assert move is not None
    assert move.source == "rep-b"


def test_no_room_is_made_where_the_head_fits_or_nobody_has_any_to_give() -> None:
    assert choose_pair([crowded("rep-a", 500, 400), crowded("rep-b", 900)], PARAMS) is None  # other things hold it up
    assert choose_pair([crowded("rep-a", 100, 400), crowded("rep-b", 100, 300)], PARAMS) is None
    assert choose_pair([crowded("rep-a", 100, 400), crowded("rep-b", PARAMS.spare_tokens)], PARAMS) is None
    assert choose_pair([crowded("rep-a", 100, 400)], PARAMS) is None


def test_the_smallest_request_that_makes_enough_room_moves_else_the_largest_that_fits() -> None:
    held = [Held(RequestId(f"req-{tokens}"), 1, 5, tokens) for tokens in (80, 310, 500, 700)]
    move = Move(NodeId("rep-a"), NodeId("rep-b"), 300, "room", 600)
    assert choose_request(held, move) == held[1]
    short = Move(NodeId("rep-a"), NodeId("rep-b"), 300, "room", 200)
    assert choose_request(held, short) == held[0]
    assert choose_request([Held(RequestId("req-1"), 1, 5)], move) is None  # its KV is not there
