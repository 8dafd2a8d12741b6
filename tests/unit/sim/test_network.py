from headway.core.events import Proposal
from headway.core.ids import GroupId, NodeId
from headway.sim.groups import Gather
from headway.sim.network import Network, NetworkParams

A, B, C, D = (NodeId(f"rep-{name}") for name in "abcd")


def test_a_pair_never_reorders_whatever_the_delays() -> None:
    network = Network(NetworkParams(latency_ns=100))
    delays = iter([500, 0, 0])
    network.delay = lambda *_: next(delays)
    arrivals = [network.arrival(A, B, at_ns) for at_ns in (0, 10, 900)]
    assert arrivals == [600, 600, 1000]


def test_a_node_sends_and_receives_one_copy_after_the_other() -> None:
    network = Network(NetworkParams(latency_ns=7, copy_bytes_per_s=1e9))
    assert network.copied(A, B, 1000, 0) == 1007
    assert network.copied(A, B, 1000, 500) == 2007
    assert network.copied(B, A, 1000, 500) == 1507  # the other way
    assert network.copied(A, C, 1000, 600) == 3007  # A still sends to B
    assert network.copied(D, B, 1000, 700) == 3007  # B still receives from A


def test_a_gather_is_complete_when_all_spoke_and_names_who_did_not() -> None:  # SPEC D2
    gather = Gather(GroupId("group-0"), (A, B))
    idle = Proposal("idle", 0, 0)
    assert gather.propose(B, 4, idle) is None
    assert gather.propose(A, 4, idle) == {A: idle, B: idle}
    gather.propose(B, 5, idle)
    assert gather.missing(5) == [A]
    assert gather.missing(5) == []
    assert gather.missing(4) == []
