"""The heap that orders share."""

from random import Random
from weakref import ref

from tests.property.llm_world import make_request

from headway.sched.llm.policies._heap import LazyHeap
from headway.sched.llm.policies._static import Victims
from headway.sched.llm.sequence import Seq


def seq(number: int, urgency: int = 0, arrived_ns: int = 0) -> Seq:
    """A sequence."""
    request = make_request(number, (1,), urgency=urgency, arrived_ns=arrived_ns)
    return Seq(number, request, 4, 1, b"")


def test_it_agrees_with_sorting_whatever_leaves_in_between() -> None:
    rng, heap = Random(1), LazyHeap()
    live: dict[int, tuple[tuple[int, int], Seq]] = {}
    for number in range(4000):
        if live and rng.random() < 0.48:
            gone = rng.choice(list(live))
            heap.discard(live.pop(gone)[1])
        else:
            one = seq(number)
            key = (rng.randint(0, 50), number)
            live[number] = (key, one)
            heap.push(one, key)
        order = [one for _key, one in sorted(live.values(), key=lambda entry: entry[0])]
        assert heap.peek() is (order[0] if order else None)
        assert [one for _key, one in heap.first(5)] == order[:5]
        assert len(heap) == len(live)


# The sketch's trap: without a sweep, stale entries leak.
def test_stale_entries_do_not_pile_up() -> None:
    heap = LazyHeap()
    keep = seq(0)
    heap.push(keep, (0,))
    for number in range(1, 5000):
        one = seq(number)
        heap.push(one, (number,))
        heap.discard(one)
    assert len(heap._heap) < 200
    assert heap.peek() is keep


def test_a_sequence_that_comes_back_counts_with_its_new_key() -> None:
    heap, a, b = LazyHeap(), seq(1), seq(2)
    heap.push(a, (1,))
    heap.push(b, (2,))
    heap.discard(a)
    heap.push(a, (3,))
    assert [one for _key, one in heap.first(9)] == [b, a]


# SPEC B4: least urgent, then latest arrival
def test_victims_are_the_least_urgent_latest_first_and_nobody_else() -> None:
    victims = Victims()
    for number, (urgency, arrived) in enumerate([(1, 5), (0, 3), (0, 9), (2, 1), (0, 4)]):
        victims.add(seq(number, urgency, arrived))
    assert [one.id for one in victims.first()] == [2, 4, 1]


def test_at_most_eight_victims_are_looked_at() -> None:
    victims = Victims()
    for number in range(30):
        victims.add(seq(number, 0, number))
    assert [one.id for one in victims.first()] == list(range(29, 21, -1))


# A sweep that frees hundreds of prompts at once took 25 ms at 1,024 running.
def test_a_stale_entry_keeps_no_sequence_alive() -> None:
    class Watched(Seq):
        """One that can be watched."""

    heap, one = LazyHeap(), Watched(1, make_request(1, (1,)), 4, 1, b"")
    heap.push(seq(0), (0,))
    heap.push(one, (1,))
    heap.discard(one)
    watch = ref(one)
    del one
    assert watch() is None
